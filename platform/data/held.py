"""A federation's task as its two sides know it: its coordinator no image, a client its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from platform.config.rules import HELD
from platform.data.dataset import Dataset, Split
from platform.data.holder_images import DOMAIN
from platform.data.loading import TaskData
from platform.data.partition import ClientIndices


def task_without_images(classes: Sequence[str]) -> TaskData:
    """Return the task as the coordinator knows it: the public list of classes."""
    none = np.zeros(0, np.int64)
    nothing = Split(np.zeros((0, 1, 1, 3), np.uint8), none, none)
    dataset = Dataset(
        name=HELD, classes=tuple(classes), domains=(DOMAIN,), train=nothing, test=nothing
    )
    return TaskData(dataset=dataset, clients=(), classes=dataset.classes, domains=(0,), common={})


def task_of_one(dataset: Dataset, rows: ClientIndices) -> TaskData:
    """Return the task as a client knows it, with its own images."""
    return TaskData(
        dataset=dataset, clients=(rows,), classes=dataset.classes, domains=(0,), common={}
    )
