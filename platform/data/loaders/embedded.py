"""`shapes`, `digits` and `headlines`: no files, they come with the program."""

from __future__ import annotations

import math

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.digits import CLASSES as DIGITS
from platform.data.digits import DOMAINS as SCANS
from platform.data.digits import digits_dataset
from platform.data.headlines import CLASSES as TOPICS
from platform.data.headlines import DOMAINS as PAPERS
from platform.data.headlines import headlines_dataset
from platform.data.shapes import CLASSES as SHAPES
from platform.data.shapes import DOMAINS as STYLES
from platform.data.shapes import shapes_dataset

INFOS = (
    DatasetInfo(
        name="shapes",
        title="Twenty shapes in six drawing styles, rendered from the seed",
        classes=SHAPES,
        domains=STYLES,
        source="rendered",
    ),
    DatasetInfo(
        name="digits",
        title="1,797 scanned handwritten digits (UCI, as bundled with scikit-learn)",
        classes=DIGITS,
        domains=SCANS,
        source="scikit-learn",
    ),
    DatasetInfo(
        name="headlines",
        title="Short news texts of AG News' four topics, made from the seed",
        classes=TOPICS,
        domains=PAPERS,
        source="generated",
        modality="texts",
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Render `shapes`, split `digits`, or write `headlines`."""
    known = {info.name: info.domains for info in INFOS}[name]
    domains = request.chosen_domains(name, known)
    if name == "digits":
        return digits_dataset(request.split_seed)
    if name == "headlines":
        return headlines_dataset(request.seed, request.train_per_class, request.test_per_class)
    return shapes_dataset(
        request.seed,
        math.ceil(request.train_per_class / len(domains)),
        math.ceil(request.test_per_class / len(domains)),
        domains=domains,
    )
