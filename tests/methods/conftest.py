"""The small random CLIP that the tests of methods run on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from methods import Examples, Task
from methods.clip.adapter import Backbone
from platform.contract.examples import EMBED_DIM, random_backbone

CLASSES = ("circle", "ring", "red square", "star")


@pytest.fixture(scope="session")
def small_backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return random_backbone(tmp_path_factory.mktemp("small-clip"))


@pytest.fixture(scope="session")
def task(small_backbone: Backbone) -> Task:
    return Task(CLASSES, ("ink",), 4, small_backbone)


@pytest.fixture
def examples() -> Examples:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(10, EMBED_DIM)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Examples({"features": features, "labels": rng.integers(0, len(CLASSES), 10)})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
