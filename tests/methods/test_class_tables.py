"""Tables with a row for each class: what is sent of them, and the server's mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, Source, Weighting, fedproto
from methods.networks.class_tables import KNOWN, PRESENCE, PROTOTYPES, TABLE, negative_distances
from tests.methods._tiny_networks import arrays, some_examples, tiny
from tests.methods._training import RecordingTrainer, rng, trainer


def build(given: int = 3, width: int = 4, **options):
    return tiny(fedproto.FedProto, fedproto, given, width, **options)


def sent(rows, flags):
    """What clients with these rows (2, 4) send, or its mean: rows times flags over sqrt(4)."""
    flags = np.array(flags, np.float32)
    return {PROTOTYPES: np.array(rows, np.float32) * flags[:, None] / 2, PRESENCE: flags}


def mean(*clients):
    values = {n: np.mean([c[n] for c in clients], axis=0) for n in (PROTOTYPES, PRESENCE)}
    return Aggregate(values, float(len(clients)), len(clients), 10)


ONE = sent([[4, 0, 0, 0], [0, 2, 0, 0]], [1, 1])
TWO = sent([[0, 0, 6, 2], [9, 9, 9, 9]], [1, 0])


def test_each_class_is_averaged_over_the_clients_that_have_it():
    """Class 0 is both clients', class 1 the first one's alone."""
    method = build()
    after = method.server_update(method.init_server(rng()), mean(ONE, TWO), (), rng())
    np.testing.assert_allclose(after[TABLE], [[2, 0, 3, 1], [0, 2, 0, 0]], atol=1e-6)
    assert after[KNOWN].tolist() == [1, 1]


def test_a_class_that_nobody_has_keeps_its_row():
    method = build()
    first = method.server_update(method.init_server(rng()), mean(TWO), (), rng())
    np.testing.assert_allclose(first[TABLE], [[0, 0, 6, 2], [0, 0, 0, 0]], atol=1e-6)
    assert first[KNOWN].tolist() == [1, 0]
    only = sent([[5, 5, 5, 5], [1, 1, 1, 1]], [0, 1])
    second = method.server_update(first, mean(only), (), rng())
    np.testing.assert_allclose(second[TABLE], [[0, 0, 6, 2], [1, 1, 1, 1]], atol=1e-6)
    assert second[KNOWN].tolist() == [1, 1]


def test_flags_below_the_floor_are_noise():
    """Half of what one of twenty clients adds, where the largest flag is 1."""
    method = build()
    state = method.init_server(rng())
    for flag, known in ((1 / 20, 1), (0.4 / 20, 0), (-0.3, 0)):
        values = sent(np.ones((2, 4)), [1.0, flag])
        after = method.server_update(state, Aggregate(values, 20.0, 20, 50), (), rng())
        assert after[KNOWN].tolist() == [1, known]
        assert bool(after[TABLE][1].any()) == bool(known)


def test_every_message_has_one_shape_whatever_classes_a_client_has():
    method = build()
    view = ClientView(method.init_server(rng()), (), method.init_client(rng(1), rng()))
    data = some_examples(6, 3)
    shapes = set()
    for labels in ([0] * 6, [1] * 6, [0, 1] * 3):
        some = Examples({**data.arrays, "labels": np.array(labels)})
        update = method.client_update(view, some, trainer(), rng()).update
        shapes.add(tuple((name, value.shape) for name, value in update.items()))
        has = [float(c in labels) for c in (0, 1)]
        assert update[PRESENCE].tolist() == has
        assert [bool(row.any()) for row in update[PROTOTYPES]] == [c > 0 for c in has]
    assert len(shapes) == 1
    spec = method.shared_spec()
    assert {name: value.shape for name, value in spec.items()} == dict(*shapes)
    for one in spec.values():
        assert (one.weighting, one.source) == (Weighting.UNIFORM, Source.STATISTIC)


def test_rows_are_means_of_what_the_trained_network_makes():
    """f = relu(2x + 1) of features -1, 1 and 3 is 0, 3 and 7; over sqrt(1)."""
    method = build(1, 1)
    own = arrays(fc_weight=[[2]], fc_bias=[1], weight=[[0], [0]], bias=[0, 0])
    features = np.array([[-1], [1], [3]], np.float32)
    data = Examples({"features": features, "labels": np.array([1, 0, 1])})
    view = ClientView(method.init_server(rng()), (), own)
    result = method.client_update(view, data, RecordingTrainer(), rng())
    np.testing.assert_allclose(result.update[PROTOTYPES], [[3.0], [3.5]], atol=1e-6)
    moving = method.client_update(view, data, trainer(steps=3), rng())
    assert not np.allclose(moving.update[PROTOTYPES], [[3.0], [3.5]], atol=1e-2)
    made = method.extractor.features(method.tensors(moving.personal), torch.tensor(features))
    expected = [[made[1].item()], [(made[0].item() + made[2].item()) / 2]]
    np.testing.assert_allclose(moving.update[PROTOTYPES], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([True, True, True], [[-2.5, 0, -10], [-4.5, -4, -2]]),
        ([True, False, True], [[-2.5, -11, -10], [-4.5, -5.5, -2]]),
        ([False, True, False], [[-1, 0, -1], [-5, -4, -5]]),
    ],
)
def test_only_candidates_are_near(candidates, expected):
    """(1, 2) is (1 + 4) / 2 from zero and (16 + 4) / 2 from (5, 0); the others are one farther."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    table = torch.tensor([[0.0, 0.0], [1.0, 2.0], [5.0, 0.0]])
    got = negative_distances(rows, table, torch.tensor(candidates))
    np.testing.assert_allclose(got, expected, atol=1e-5)
