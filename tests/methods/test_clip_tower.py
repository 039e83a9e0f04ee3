"""CLIP's image tower as a network that is trained: against the frozen one, and by brute force."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from methods import BackboneError, ClientView, MethodError, Task, fedavg, fedprox, fedrep, zero_shot
from methods.clip.adapter import load_backbone
from methods.networks.extractors import NetworkConfig, build_extractor
from privacy.training import LocalTrainer, TrainingPlan, per_sample_gradients

CLASSES = ("triangle", "circle", "square")


@cache
def task() -> Task:
    return Task(CLASSES, ("one",), 4, backbone=load_backbone("sotto-tiny"))


def images(count: int = 5, side: int = 32) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def built(rank: int | None = None) -> fedavg.FedAvg:
    return fedavg.build(fedavg.Config(network="clip", lora_rank=rank), task())


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("rank", [None, 1, 3])
def test_before_training_it_predicts_as_zero_shot_clip(rank: int | None) -> None:
    method, frozen = built(rank), zero_shot.build(zero_shot.Config(), task())
    shown = images(side=40)
    view = ClientView(method.broadcast(method.init_server(rng())))
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
        name: rng().normal(0.0, 0.05, value.shape).astype(np.float32)
        for name, value in method.init_server(rng()).items()
    }
    written = built()
    full = dict(written.init_server(rng()))
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


@pytest.mark.parametrize("rank", [None, 2])
def test_gradients_of_each_example_by_brute_force(rank: int | None) -> None:
    method = built(rank)
    arrays = {n: torch.from_numpy(np.array(v)) for n, v in method.init_server(rng()).items()}
    # B starts at zero, where A has no gradient.
    arrays = {n: v + 0.01 if n.endswith(".b") else v for n, v in arrays.items()}
    batch = {
        "pixels": torch.from_numpy(method.prepare({"pixels": images(3)})["pixels"]),
        "labels": torch.tensor([0, 2, 1]),
    }
    objective = method.objective(ClientView({}))
    found = per_sample_gradients(objective, arrays, batch, trained=tuple(arrays))
    for row in range(3):
        leaves = {n: v.clone().requires_grad_() for n, v in arrays.items()}
        one = {n: v[row : row + 1] for n, v in batch.items()}
        objective.losses(leaves, {}, one).sum().backward()
        for name, leaf in leaves.items():
            expected = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            torch.testing.assert_close(
                found.gradients[name][row], expected, rtol=2e-3, atol=2e-5, msg=name
            )


def test_training_moves_the_tower_and_leaves_the_model_alone() -> None:
    """Local training on a FedProx client, whose term is zero at the broadcast."""
    before = {n: p.clone() for n, p in task().backbone.image_parameters.items()}
    method = fedprox.build(fedprox.Config(network="clip", lora_rank=1, mu=0.1), task())
    shown = {"pixels": images(6), "labels": np.arange(6) % 3}
    data = {**method.prepare({"pixels": shown["pixels"]}), "labels": shown["labels"]}
    plan = TrainingPlan(optimizer="sgd", learning_rate=1e-3, batch_size=6, local_steps=3)
    result = method.client_update(
        ClientView(method.init_server(rng())),
        fedavg_examples(data),
        LocalTrainer(plan),
        rng(),
    )
    assert np.abs(result.update["extractor.transformer.resblocks.0.mlp.c_fc.weight.b"]).max() > 0.0
    for name, held in task().backbone.image_parameters.items():
        torch.testing.assert_close(held, before[name], rtol=0, atol=0)


def fedavg_examples(arrays):
    from methods import Examples

    return Examples(arrays)


def test_a_personal_head_starts_as_zero_shot_clip() -> None:
    method = fedrep.build(fedrep.Config(network="clip", lora_rank=1), task())
    personal = method.init_client(rng(), rng())
    text = task().backbone.encode_texts([f"a photo of a {name}." for name in CLASSES])
    expected = (task().backbone.logit_scale * text).numpy()
    np.testing.assert_allclose(personal["head.weight"], expected, rtol=1e-5)


def test_what_is_refused() -> None:
    with pytest.raises(BackboneError, match=r"'clip' works on a CLIP model"):
        build_extractor(NetworkConfig(network="clip"), Task(CLASSES, ("one",), 4))
    with pytest.raises(MethodError, match=r"lora_rank: 4 means nothing with network 'cnn'"):
        build_extractor(NetworkConfig(lora_rank=4), task())
