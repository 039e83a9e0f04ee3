"""What frozen image features allow at all: linear classifiers on them, beside zero-shot CLIP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from methods.clip.adapter import Backbone, load_backbone
from platform.data.dataset import Split
from platform.data.shapes import CLASSES, DOMAINS, shapes_dataset

SHOTS = (16, 160)
STRENGTHS = (1.0, 10.0, 100.0)
TEST_PER_CLASS_AND_DOMAIN = 10


def ceilings(seeds: Sequence[int]) -> dict[str, list[float]]:
    """Percent correct on the test images of all styles, one number a seed.

    Returns:
        `zero_shot`, and for each number of training images per class the best of three logistic
        regressions, the best by the *test* images: an upper bound, not a result.
    """
    backbone = load_backbone("sotto-tiny")
    found: dict[str, list[float]] = {}
    for seed in seeds:
        each = max(SHOTS) // len(DOMAINS) + 1
        data = shapes_dataset(seed, each, TEST_PER_CLASS_AND_DOMAIN)
        features = backbone.encode_images(data.test.images)
        found.setdefault("zero_shot", []).append(_zero_shot(backbone, features, data.test))
        for shots in SHOTS:
            rows = _draw(data.train.labels, shots, seed)
            train = backbone.encode_images(data.train.images[rows])
            best = _best(train, data.train.labels[rows], features, data.test)
            found.setdefault(str(shots), []).append(best)
    return found


def _zero_shot(backbone: Backbone, features: NDArray[np.float32], test: Split) -> float:
    text = backbone.encode_texts([f"a photo of a {name}." for name in CLASSES]).cpu().numpy()
    return 100 * float(np.mean((features @ text.T).argmax(1) == test.labels))


def _draw(labels: NDArray[np.int64], shots: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:shots] for c in range(len(CLASSES))]
    return np.concatenate(rows)


def _best(
    train: NDArray[np.float32],
    labels: NDArray[np.int64],
    features: NDArray[np.float32],
    test: Split,
) -> float:
    from sklearn.linear_model import LogisticRegression

    scores = [
        LogisticRegression(C=strength, max_iter=2000)
        .fit(train, labels)
        .score(features, test.labels)
        for strength in STRENGTHS
    ]
    return 100 * float(max(scores))
