"""`shapes`, `homonyms`, `digits` and `headlines`: no files, they come with the program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.digits import CLASSES as DIGITS
from platform.data.digits import DOMAINS as SCANS
from platform.data.digits import digits_dataset
from platform.data.headlines import CLASSES as TOPICS
from platform.data.headlines import DOMAINS as PAPERS
from platform.data.headlines import headlines_dataset
from platform.data.homonyms import BY_CLIENT, BY_STYLE, SENSES, homonyms_dataset, senses_of_styles
from platform.data.homonyms import CLASSES as NAMES
from platform.data.images import Indices
from platform.data.shapes import CLASSES as SHAPES
from platform.data.shapes import DOMAINS as STYLES
from platform.data.shapes import shapes_dataset
from platform.errors import ConfigError

INFOS = (
    DatasetInfo(
        name="shapes",
        title="Twenty shapes in six drawing styles, rendered from the seed",
        classes=SHAPES,
        domains=STYLES,
        source="rendered",
    ),
    DatasetInfo(
        name="homonyms",
        title="The same images under twenty names that mean another shape in each of four senses",
        classes=NAMES,
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
    """Render `shapes` or `homonyms`, split `digits`, or write `headlines`.

    Raises:
        ConfigError: If a domain or a sense is unknown.
    """
    draws = request.draws
    known = {info.name: info.domains for info in INFOS}[name]
    domains = request.chosen_domains(name, known)
    if name == "digits":
        return digits_dataset(request.split_seed)
    if name == "headlines":
        return headlines_dataset(draws.seed, draws.train_per_class, draws.test_per_class)
    train, test = (
        math.ceil(count / len(domains)) for count in (draws.train_per_class, draws.test_per_class)
    )
    if name == "homonyms":
        dealt = request.senses
        senses = dealt if isinstance(dealt, tuple) else (_senses(dealt, domains),) * 2
        return homonyms_dataset(
            draws.seed, train, test, senses=senses, domains=domains, stream=draws.stream
        )
    return shapes_dataset(draws.seed, train, test, domains=domains, stream=draws.stream)


def _senses(dealt: str | None, domains: Sequence[str]) -> Indices:
    """Return the sense of each style, (number of domains, 1)."""
    if dealt == BY_STYLE:
        return senses_of_styles(domains)[:, None]
    # Where clients have senses, rows have none before it is known who holds them.
    one = SENSES[0] if dealt in (None, BY_CLIENT) else dealt
    if one not in SENSES:
        raise ConfigError(
            f"task.senses: {one!r} is unknown in homonyms; valid: {BY_STYLE}, {BY_CLIENT}, or one "
            f"for all: {', '.join(SENSES)}"
        )
    return np.full((len(domains), 1), SENSES.index(one))
