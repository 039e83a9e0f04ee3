"""LG-FedAvg: FedAvg's network with its extractor at home."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, MethodError, Task, fedavg, lg_fedavg
from methods.fedavg import FedAvg
from methods.lg_fedavg import LgFedAvg
from methods.networks.method import FED, GATED
from tests.methods._tiny_networks import some_examples, tiny
from tests.methods._training import trainer

NETWORKS = (
    {"network": "cnn", "image_size": 16, "channels": (2, 3), "feature_width": 5},
    {"network": "fasttext", "buckets": 20, "feature_width": 5},
    {"network": "features", "feature_width": 5},
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build() -> LgFedAvg:
    return tiny(LgFedAvg, lg_fedavg, 3, 4)


def plain() -> FedAvg:
    return tiny(FedAvg, fedavg, 3, 4)


def parts_of(model):
    own = {name: value for name, value in model.items() if name.startswith("extractor.")}
    return {name: value for name, value in model.items() if name not in own}, own


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_one_client_trains_fedavgs_network(clipping):
    """Both parts together, clipped together; only the head's change is sent."""
    data, model = some_examples(10, 3), plain().init_server(rng(1))
    shared, own = parts_of(model)
    for _ in range(2):
        mine = build().client_update(
            ClientView(shared, personal=own), data, trainer(clipping=clipping), rng(2)
        )
        other = plain().client_update(ClientView(model), data, trainer(clipping=clipping), rng(2))
        assert set(mine.update) == {"head.weight", "head.bias"}
        for name in shared:
            np.testing.assert_allclose(mine.update[name], other.update[name], atol=1e-6)
        for name in own:
            moved = mine.personal[name] - own[name]
            np.testing.assert_allclose(moved, other.update[name], atol=1e-6)
            assert other.update[name].any()
        aggregate = Aggregate(mine.update, 10.0, 1, 1)
        shared, own = build().server_update(shared, aggregate, (), rng()), mine.personal
        model = {**shared, **own}


def test_it_predicts_as_the_network_of_both_parts():
    model, data = plain().init_server(rng(1)), some_examples(6, 3)
    shared, own = parts_of(model)
    got = build().predict(ClientView(shared, personal=own), data.arrays, ("yes", "no"))
    expected = plain().predict(ClientView(model), data.arrays, ("yes", "no"))
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(MethodError, match="client: none"):
        build().predict(ClientView(shared), data.arrays, ("yes", "no"))


def test_extractors_start_alike():
    one, other = (build().init_client(rng(4), rng(seed)) for seed in (5, 6))
    assert set(one) == {"extractor.fc.weight", "extractor.fc.bias"}
    assert all(np.array_equal(one[name], other[name]) for name in one)


def of_network(options, small_backbone) -> LgFedAvg:
    task = Task(("a", "b", "c"), ("one",), 4, small_backbone)
    return lg_fedavg.build(lg_fedavg.Config(**options), task)


def batch_of(method: LgFedAvg, count: int = 4) -> dict[str, torch.Tensor]:
    made = rng(3)
    raw = {
        "pixels": made.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8),
        "text": np.array(["river bank", "goal", "", "market goal river"])[:count],
        "features": made.normal(size=(count, 128)).astype(np.float32),
    }
    kept = method.prepare({name: raw[name] for name in method.needs})
    return {name: torch.tensor(value) for name, value in kept.items()}


@pytest.mark.parametrize("options", NETWORKS, ids=lambda o: o["network"])
def test_stacked_extractors_are_run_at_once(options, small_backbone):
    """What a mixture of modules asks for: three stacked ones by vmap are the three in turn."""
    method = of_network(options, small_backbone)
    assert set(method.module_layers) == set(method.extractor.layers)
    modules = [method.tensors(method.init_client(rng(seed), rng())) for seed in range(3)]
    stacked = {name: torch.stack([m[name] for m in modules]) for name in modules[0]}
    parts = method.parts(modules[0], batch_of(method))
    together = torch.func.vmap(method.module_output, in_dims=(0, None))(stacked, parts[FED])
    for got, module in zip(together, modules, strict=True):
        torch.testing.assert_close(got, method.module_output(module, parts[FED]))
        assert got.shape == (4, 5)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize(("options", "width"), [*zip(NETWORKS, (768, 5, 128), strict=True)])
def test_a_gate_sees_the_inputs_as_one_vector(options, width, small_backbone):
    method = of_network(options, small_backbone)
    parameters = method.tensors({**method.init_client(rng(1), rng()), **method.init_server(rng(2))})
    batch = batch_of(method)
    parts = method.parts(parameters, batch)
    assert method.gated_width == width
    assert parts[GATED].shape == (4, width)
    # Its logits are the head's on the module's output.
    output = method.module_output(parameters, parts[FED])
    expected = output @ parameters["head.weight"].T + parameters["head.bias"]
    torch.testing.assert_close(method.combine(parameters, parts, output), expected)
    torch.testing.assert_close(method.logits(parameters, batch), expected)


def test_the_gate_of_texts_sees_the_means_under_the_own_table(small_backbone):
    """Words 1 and 2 of a table whose rows are 0, 10, 20, ...: their mean is 15."""
    method = of_network(NETWORKS[1], small_backbone)
    table = torch.arange(20.0).unsqueeze(1).expand(20, 5) * 10
    parts = method.parts({"extractor.embedding": table}, {"words": torch.tensor([[1, 2, 0]])})
    np.testing.assert_allclose(parts[GATED], np.full((1, 5), 15.0))
