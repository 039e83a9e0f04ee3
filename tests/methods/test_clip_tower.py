"""CLIP's image tower as a network that is trained: against the frozen one, and by brute force."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from methods import ClientView, Task, fedavg, zero_shot
from methods.clip.adapter import load_backbone
from tests.methods._training import rng

CLASSES = ("triangle", "circle", "square")


@cache
def task() -> Task:
    return Task(CLASSES, ("one",), 4, backbone=load_backbone("sotto-tiny"))


def images(side: int = 32) -> np.ndarray:
    return rng(1).integers(0, 256, (5, side, side, 3), dtype=np.uint8)


def built(rank: int | None = None) -> fedavg.FedAvg:
    return fedavg.build(fedavg.Config(network="clip", lora_rank=rank), task())


@pytest.mark.parametrize("rank", [None, 1, 3])
def test_before_training_it_predicts_as_zero_shot_clip(rank: int | None) -> None:
    method, frozen = built(rank), zero_shot.build(zero_shot.Config(), task())
    shown = images(side=40)
    view = ClientView(method.broadcast(method.init_server(rng(3))))
    features = task().backbone.encode_images(shown)
    expected = frozen.predict(ClientView({}), {"features": features}, CLASSES)
    found = method.predict(view, method.prepare({"pixels": shown}), CLASSES)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    others = method.predict(view, method.prepare({"pixels": shown}), CLASSES[::-1])
    np.testing.assert_allclose(others, expected[:, ::-1], rtol=1e-4, atol=1e-3)


def test_what_leaves_a_client_is_the_whole_tower_or_what_is_added() -> None:
    """The tiny tower has 4 blocks of width 128: matrices of 384, 128, 512 rows and 512 columns."""
    whole = built().shared_spec()
    tower = sum(p.numel() for p in task().backbone.image_module.parameters())
    head = 3 * 128 + 3
    assert sum(int(np.prod(spec.shape)) for spec in whole.values()) == tower + head
    added = built(2).shared_spec()
    a_block = 2 * ((384 + 128) + (128 + 128) + (512 + 128) + (128 + 512))
    assert sum(int(np.prod(spec.shape)) for spec in added.values()) == 4 * a_block + head


def test_what_is_added_is_a_product() -> None:
    """The same features as of a tower into which B A was written."""
    method = built(2)
    state = {
        name: rng(3).normal(0.0, 0.05, value.shape).astype(np.float32)
        for name, value in method.init_server(rng(3)).items()
    }
    written = built()
    full = dict(written.init_server(rng(3)))
    for name in [n for n in state if n.endswith(".a")]:
        stem = name.removesuffix(".a")
        full[stem] = full[stem] + state[f"{stem}.b"] @ state[name]
    full |= {name: state[name] for name in ("head.weight", "head.bias")}
    batch = method.prepare({"pixels": images()})
    np.testing.assert_allclose(
        method.predict(ClientView(state), batch, CLASSES),
        written.predict(ClientView(full), batch, CLASSES),
        rtol=1e-3,
        atol=1e-4,
    )
