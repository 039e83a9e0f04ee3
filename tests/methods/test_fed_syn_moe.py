"""Fed-Syn-MoE: two networks under one gate, trained at once."""

from __future__ import annotations

import dataclasses

import numpy as np

from methods import ClientView, Task, fed_syn_moe, fedavg
from methods.fed_syn_moe import LOCAL
from platform.contract.examples import draw_batch, draw_examples
from tests.methods._training import RecordingTrainer, rng

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 6)
SMALL = {"image_size": 16, "channels": (2, 3), "feature_width": 5}


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


def test_everything_is_trained_in_one_fit():
    """So one clipping bound and one charge hold for both networks and the gate."""
    method = build(gate_rate=0.3)
    view, noted = first(method), RecordingTrainer()
    method.client_update(view, draw_examples(method, 0), noted, rng(3))
    assert noted.fits == 1
    networks, gate = noted.groups
    assert (networks.learning_rate, gate.learning_rate) == (None, 0.3)
    assert set(networks.names) | set(gate.names) == {*view.broadcast, *view.personal}
    assert all(name.startswith("moe.") for name in gate.names)
    assert build().units == {"client", "record"}


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
