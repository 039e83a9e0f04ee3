"""Fed-Syn-MoE: two networks under one gate, trained at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, Task, fed_syn_moe, fedavg
from methods.fed_syn_moe import LOCAL
from platform.contract.examples import draw_batch, draw_examples
from tests.methods._training import RecordingTrainer, trainer

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 6)
SMALL = {"image_size": 16, "channels": (2, 3), "feature_width": 5}


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(**options):
    return fed_syn_moe.build(fed_syn_moe.Config(**{**SMALL, **options}), TASK)


def first(method) -> ClientView:
    return ClientView(method.init_server(rng(1)), (), method.init_client(rng(2), rng(4)))


def saying(view: ClientView, local: float, shared: float, layers: int = 4) -> ClientView:
    """The view with a gate of these scores for every example."""
    gate = {n: np.zeros_like(v) for n, v in view.personal.items() if n.startswith("moe.")}
    gate[f"moe.{layers}.bias"] = np.array([local, shared], np.float32)
    return dataclasses.replace(view, personal={**view.personal, **gate})


def alone(view: ClientView, batch, *, local: bool) -> np.ndarray:
    """Logits of one of the two networks, as FedAvg's own."""
    arrays = dict(view.broadcast)
    if local:
        arrays = {n.removeprefix(LOCAL): v for n, v in view.personal.items() if LOCAL in n}
    plain = fedavg.build(fedavg.Config(**SMALL), TASK)
    return plain.predict(ClientView(arrays), batch, CLASSES)


def test_a_gate_that_names_one_network_is_that_network():
    method = build()
    view, batch = first(method), draw_batch(method, 4)
    for scores, local in (((1e4, 0.0), True), ((0.0, 1e4), False)):
        got = method.predict(saying(view, *scores), batch, CLASSES)
        np.testing.assert_allclose(got, alone(view, batch, local=local), atol=1e-5)
    assert np.abs(alone(view, batch, local=True) - alone(view, batch, local=False)).max() > 0.01


def test_the_mixture_by_hand():
    """Scores log 3 and 0: three quarters of the local logits, a quarter of the shared ones."""
    method = build()
    view, batch = first(method), draw_batch(method, 4)
    view = saying(view, np.log(3.0), 0.0)
    expected = 0.75 * alone(view, batch, local=True) + 0.25 * alone(view, batch, local=False)
    np.testing.assert_allclose(method.predict(view, batch, CLASSES), expected, atol=1e-5)
    np.testing.assert_allclose(
        method.expert_weights(view, batch, CLASSES), [[0.75, 0.25]] * 5, atol=1e-6
    )


def test_one_whole_network_is_shared_and_one_with_the_gate_stays():
    method = build()
    plain = fedavg.build(fedavg.Config(**SMALL), TASK)
    view = first(method)
    assert method.shared_spec() == plain.shared_spec()
    local = {n.removeprefix(LOCAL) for n in view.personal if n.startswith(LOCAL)}
    assert local == set(plain.shared_spec())
    assert method.pool_policy() is None
    assert view.personal["moe.1.weight"].shape == (128, 5)
    assert view.personal["moe.4.weight"].shape == (2, 128)


def test_local_networks_and_gates_start_alike():
    method = build()
    one, other = (method.init_client(rng(2), rng(seed)) for seed in (4, 5))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert any(value.any() for value in one.values())


def test_everything_is_trained_in_one_fit():
    """So one clipping bound and one charge hold for both networks and the gate."""
    method = build(gate_rate=0.3)
    view, noted = first(method), RecordingTrainer()
    method.client_update(view, draw_examples(method, 0), noted, rng())
    assert noted.fits == 1
    networks, gate = noted.groups
    assert (networks.learning_rate, gate.learning_rate) == (None, 0.3)
    assert set(networks.names) | set(gate.names) == {*view.broadcast, *view.personal}
    assert all(name.startswith("moe.") for name in gate.names)
    assert build().units == {"client", "record"}


def test_all_three_move_and_only_the_shared_part_leaves():
    method = build()
    view = first(method)
    result = method.client_update(view, draw_examples(method, 0, 20), trainer(steps=6), rng())
    assert all(np.abs(v).max() > 0 for n, v in result.update.items() if "weight" in n)
    assert result.update.keys() == view.broadcast.keys()
    assert result.personal.keys() == view.personal.keys()
    for name in ("local.head.weight", "local.extractor.fc.weight", "moe.1.weight", "moe.4.bias"):
        assert np.abs(result.personal[name] - view.personal[name]).max() > 0


@pytest.mark.parametrize(("scores", "still"), [((1e4, 0.0), "head.weight"), ((0.0, 1e4), "local.")])
def test_a_network_without_weight_does_not_learn(scores, still):
    """The loss is of the mixture alone, so no gradient reaches what counts for nothing."""
    method = build()
    view = saying(first(method), *scores)
    result = method.client_update(view, draw_examples(method, 0), trainer(), rng())
    moved = {**result.update}
    moved.update({n: v - view.personal[n] for n, v in result.personal.items() if "moe." not in n})
    for name, value in moved.items():
        if name.startswith(still) or (still == "head.weight" and not name.startswith(LOCAL)):
            assert not value.any()
    assert any(value.any() for value in moved.values())


def test_the_gate_sees_the_shared_features():
    """Another local network leaves the weights as they are, another shared one does not."""
    method = build()
    view, batch = first(method), draw_batch(method, 4)
    before = method.expert_weights(view, batch, CLASSES)
    other = {n: v + 0.1 if n.startswith(LOCAL) else v for n, v in view.personal.items()}
    same = method.expert_weights(dataclasses.replace(view, personal=other), batch, CLASSES)
    np.testing.assert_array_equal(same, before)
    shared = {n: 2 * v for n, v in view.broadcast.items()}
    moved = method.expert_weights(dataclasses.replace(view, broadcast=shared), batch, CLASSES)
    assert np.abs(moved - before).max() > 1e-3


def test_gradients_pass_through_what_the_gate_is_fed():
    """A shared head of zeros gives the extractor no gradient; what is left is the gate's."""
    method = build(gate_layers=1)
    view, data = first(method), draw_examples(method, 0)
    model = method.tensors({**view.broadcast, **view.personal})
    model["head.weight"].zero_()
    features = model["extractor.fc.weight"].requires_grad_()
    batch = method.tensors(data.arrays)
    loss = method.cross_entropies(model, batch).mean()
    (gradient,) = torch.autograd.grad(loss, features)
    assert float(gradient.abs().max()) > 0


def test_a_client_without_its_part_is_refused():
    method = build()
    view = first(method)
    batch = draw_batch(method, 4)
    with pytest.raises(Exception, match="client: none"):
        method.predict(ClientView(view.broadcast), batch, CLASSES)


def test_it_learns():
    """Four classes that differ in brightness."""
    method = build(channels=(4, 8), feature_width=16)
    labels = np.arange(40) % 4
    pixels = np.repeat(80 * labels[:, None], 16 * 16 * 3, axis=1).reshape(40, 16, 16, 3)
    prepared = method.prepare({"pixels": pixels.astype(np.uint8)})
    data = Examples({**prepared, "labels": labels})
    view = first(method)
    learner = trainer(steps=100, batch_size=20, learning_rate=0.1)
    result = method.client_update(view, data, learner, rng())
    after = ClientView(
        {n: v + result.update[n] for n, v in view.broadcast.items()}, (), result.personal
    )
    got = method.predict(after, prepared, CLASSES).argmax(1)
    assert (got == labels).mean() > 0.7


# --- the published wiring -----------------------------------------------------------------------


def extracted(view: ClientView, batch, *, local: bool) -> np.ndarray:
    """Logits of one of the two extractors below the personal head, as FedAvg's own."""
    prefix, arrays = (LOCAL, view.personal) if local else ("", view.broadcast)
    network = {n.removeprefix(prefix): v for n, v in arrays.items() if f"{prefix}extractor." in n}
    head = {n: v for n, v in view.personal.items() if n.startswith("head.")}
    plain = fedavg.build(fedavg.Config(**SMALL), TASK)
    return plain.predict(ClientView({**network, **head}), batch, CLASSES)


def test_published_the_mixture_is_of_features_before_one_head():
    """Scores log 3 and 0 again: a linear head of a mixture is the mixture of its outputs."""
    method = build(wiring="published")
    view, batch = first(method), draw_batch(method, 4)
    view = saying(view, np.log(3.0), 0.0)
    expected = 0.75 * extracted(view, batch, local=True)
    expected += 0.25 * extracted(view, batch, local=False)
    np.testing.assert_allclose(method.predict(view, batch, CLASSES), expected, atol=1e-5)
    # Not those of whole networks: the head's bias counts once, whatever the weights add up to.
    weights = method.expert_weights(view, batch, CLASSES)
    np.testing.assert_allclose(weights, [[0.75, 0.25]] * 5, atol=1e-6)


def test_published_the_extractor_alone_is_shared():
    method = build(wiring="published")
    view = first(method)
    assert set(view.broadcast) == set(method.extractor.layers)
    assert {n for n in view.personal if n.startswith(LOCAL)} == {
        f"{LOCAL}{n}" for n in view.broadcast
    }
    assert {n for n in view.personal if n.startswith("head.")} == {"head.weight", "head.bias"}
    # Three colours of 16 x 16 pixels.
    assert view.personal["moe.1.weight"].shape == (128, 768)


def test_published_the_gate_sees_pixels_alone():
    method = build(wiring="published")
    view, batch = first(method), draw_batch(method, 4)
    before = method.expert_weights(view, batch, CLASSES)
    moved = dataclasses.replace(view, broadcast={n: 2 * v for n, v in view.broadcast.items()})
    np.testing.assert_array_equal(method.expert_weights(moved, batch, CLASSES), before)
    assert np.abs(before - before[0]).max() > 1e-4


def test_published_the_gate_is_drawn_anew_and_the_rest_goes_on():
    """With a rate of next to nothing what is left of a gate is the draw it began with."""
    method = build(wiring="published")
    view, data = first(method), draw_examples(method, 0)
    still = trainer(learning_rate=1e-9)
    one, same, other = (method.client_update(view, data, still, rng(s)).personal for s in (3, 3, 4))
    for name in ("moe.1.weight", "moe.4.weight"):
        assert np.abs(one[name] - view.personal[name]).max() > 1e-3
        assert np.abs(one[name] - other[name]).max() > 1e-3
        np.testing.assert_array_equal(one[name], same[name])
    for name in ("head.weight", "local.extractor.fc.weight"):
        np.testing.assert_allclose(one[name], view.personal[name], atol=1e-6)
    kept = build().client_update(first(build()), data, still, rng()).personal
    np.testing.assert_allclose(
        kept["moe.1.weight"], first(build()).personal["moe.1.weight"], atol=1e-6
    )


def test_published_all_of_it_is_trained_in_one_fit():
    method = build(wiring="published")
    view, noted = first(method), RecordingTrainer()
    method.client_update(view, draw_examples(method, 0), noted, rng())
    assert noted.fits == 1
    networks, gate = noted.groups
    assert set(networks.names) | set(gate.names) == {*view.broadcast, *view.personal}
