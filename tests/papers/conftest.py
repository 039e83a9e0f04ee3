"""Drawn data sets and random weights of the papers' architectures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import open_clip
import pytest
import torch

from methods.clip.adapter import Backbone, load_backbone
from tests.drawn.arrays import (
    draw_ag_news,
    draw_cifar10,
    draw_cifar100,
    draw_domainnet10,
    draw_fashion_mnist,
    draw_mnist,
    draw_office_caltech10,
    draw_tiny_imagenet,
)
from tests.drawn.coop import CLASSES, draw_coop
from tests.drawn.domains import draw_domainnet, draw_office_home, draw_pacs, draw_vlcs

DRAWINGS: dict[str, Callable[[Path], Path]] = {
    # Enough for ten clients by Dir(0.3), and for five on each domain.
    "cifar10": lambda root: draw_cifar10(root, train=40, test=10),
    "cifar100": lambda root: draw_cifar100(root, train=4, test=1),
    "office_caltech10": lambda root: draw_office_caltech10(root, train=6, test=6),
    "domainnet10": lambda root: draw_domainnet10(root, train=6, test=6),
    "pacs": draw_pacs,
    "office_home": draw_office_home,
    "vlcs": lambda root: draw_vlcs(root, per_class=2),
    "domainnet": draw_domainnet,
    # Enough for 20 clients by Dir(0.1); four classes seldom give everybody some.
    "mnist": lambda root: draw_mnist(root, train=80, test=20),
    "fashion_mnist": lambda root: draw_fashion_mnist(root, train=80, test=20),
    "tiny_imagenet": draw_tiny_imagenet,
    "ag_news": lambda root: draw_ag_news(root, train=800, test=200),
}


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Draws a data set with all its classes, once; gives `task.root`."""
    root = tmp_path_factory.mktemp("data")

    @cache
    def draw(name: str) -> Path:
        if name in CLASSES:
            draw_coop(root, name, train=2, val=1, test=1, size=16)
        else:
            DRAWINGS[name](root)
        return root

    return draw


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A file of random weights of an architecture, made once."""
    folder = tmp_path_factory.mktemp("weights")

    @cache
    def make(name: str) -> Path:
        path = folder / f"{name}.pt"
        torch.manual_seed(0)
        torch.save(open_clip.create_model(name, pretrained=None).state_dict(), path)
        return path

    return make


@pytest.fixture(scope="session")
def backbone(checkpoint: Callable[[str], Path]) -> Callable[[str], Backbone]:
    """The model with these weights, loaded once."""
    return cache(lambda name: load_backbone(name, str(checkpoint(name)), "cpu"))
