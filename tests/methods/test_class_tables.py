"""Tables with a row for each class, and FedProto, FedDistill and FedPCL, which send them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    ClientView,
    Examples,
    Source,
    Task,
    Weighting,
    feddistill,
    fedpcl,
    fedproto,
)
from methods.networks.class_tables import KNOWN, PRESENCE, PROTOTYPES, TABLE, negative_distances
from tests.methods._tiny_networks import CLASSES, arrays, one_example, some_examples, tiny
from tests.methods._training import RecordingTrainer, mean_of, newcomer, rng, trainer


def sent_rows(rows, flags):
    """What clients with these rows (2, 4) send, or its mean: rows times flags over sqrt(4)."""
    flags = np.array(flags, np.float32)
    return {PROTOTYPES: np.array(rows, np.float32) * flags[:, None] / 2, PRESENCE: flags}


FIRST = sent_rows([[4, 0, 0, 0], [0, 2, 0, 0]], [1, 1])
SECOND = sent_rows([[0, 0, 6, 2], [9, 9, 9, 9]], [1, 0])


def test_each_class_is_averaged_over_the_clients_that_have_it():
    """Class 0 is both clients', class 1 the first one's alone."""
    method = proto()
    after = method.server_update(method.init_server(rng()), mean_of(FIRST, SECOND), (), rng())
    np.testing.assert_allclose(after[TABLE], [[2, 0, 3, 1], [0, 2, 0, 0]], atol=1e-6)
    assert after[KNOWN].tolist() == [1, 1]


def test_a_class_that_nobody_has_keeps_its_row():
    method = proto()
    first = method.server_update(method.init_server(rng()), mean_of(SECOND), (), rng())
    np.testing.assert_allclose(first[TABLE], [[0, 0, 6, 2], [0, 0, 0, 0]], atol=1e-6)
    assert first[KNOWN].tolist() == [1, 0]
    only = sent_rows([[5, 5, 5, 5], [1, 1, 1, 1]], [0, 1])
    second = method.server_update(first, mean_of(only), (), rng())
    np.testing.assert_allclose(second[TABLE], [[0, 0, 6, 2], [1, 1, 1, 1]], atol=1e-6)
    assert second[KNOWN].tolist() == [1, 1]


def test_flags_below_the_floor_are_noise():
    """Half of what one of twenty clients adds, where the largest flag is 1."""
    method = proto()
    state = method.init_server(rng())
    for flag, known in ((1 / 20, 1), (0.4 / 20, 0), (-0.3, 0)):
        values = sent_rows(np.ones((2, 4)), [1.0, flag])
        after = method.server_update(state, Aggregate(values, 20.0, 20, 50), (), rng())
        assert after[KNOWN].tolist() == [1, known]
        assert bool(after[TABLE][1].any()) == bool(known)


def test_every_message_has_one_shape_whatever_classes_a_client_has():
    method = proto()
    view = ClientView(method.init_server(rng()), (), method.init_client(rng(1), rng()))
    data, shapes = some_examples(6, 3), set()
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
    method = proto(1, 1)
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


def proto(given: int = 3, width: int = 4, **options):
    return tiny(fedproto.FedProto, fedproto, given, width, **options)


def table(rows, known=(1, 1)):
    return {TABLE: np.array(rows, np.float32), KNOWN: np.array(known, np.float32)}


def headless(*feature: float):
    """Its feature is always this, and a head of zero gives both classes one half."""
    return {**headless_pcl(*feature), **arrays(weight=np.zeros((2, len(feature))), bias=[0, 0])}


def loss_of(method, parameters, label: int) -> float:
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([label])}
    return method.objective(ClientView({})).losses(tensors, {}, batch).item()


@pytest.mark.parametrize(("weight", "distance"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_fedprotos_loss_by_hand(weight, distance):
    """Feature (0, 0), prototype (1, 1): the mean over both dimensions is 1."""
    method = proto(1, 2, prototype_weight=weight)
    parameters = {**headless(0, 0), **table([[7, 7], [1, 1]], [1, 1])}
    assert loss_of(method, parameters, 1) == pytest.approx(math.log(2) + distance, abs=1e-6)


def test_the_distance_is_to_the_prototype_of_the_examples_own_class():
    """(3, 1) and (0, 5): (9 + 16) / 2; and (3, 0): (0 + 1) / 2."""
    method = proto(1, 2)
    parameters = {**headless(3, 1), **table([[0, 5], [3, 0]], [1, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(math.log(2) + 12.5, abs=1e-5)
    assert loss_of(method, parameters, 1) == pytest.approx(math.log(2) + 0.5, abs=1e-5)


def test_fedprotos_step_draws_the_feature_to_its_prototype():
    """The head is zero, so the distance alone moves it: 2 (f - p) / 2 = (2, -4) by a rate of 0.1.

    Feature (3, 1), prototype (1, 5).
    """
    learner = trainer(steps=1, learning_rate=0.1)
    view = ClientView(table([[9, 9], [1, 5]], [1, 1]), (), headless(3, 1))
    own = proto(1, 2).client_update(view, one_example(label=1), learner, rng()).personal
    np.testing.assert_allclose(own["extractor.fc.bias"], [2.8, 1.4], atol=1e-6)


def predicted(method, broadcast, own):
    return method.predict(ClientView(broadcast, (), own), one_example().arrays, CLASSES)


def test_among_which_classes_it_looks_for_the_nearest():
    """The client has class 0 only, whose prototype is the farther one."""
    broadcast = table([[0, 5], [3, 0]], [1, 1])
    own = {**headless(3, 1), fedproto.OWN: np.array([1, 0], np.float32)}
    got = {
        inference: predicted(proto(1, 2, inference=inference), broadcast, own).tolist()
        for inference in ("own_prototypes", "all_prototypes", "head")
    }
    assert got["own_prototypes"] == [[-12.5, -13.5]]
    assert got["all_prototypes"] == [[-12.5, -0.5]]
    assert got["head"] == [[0.0, 0.0]]


@pytest.mark.parametrize("inference", ["own_prototypes", "all_prototypes"])
def test_a_class_without_a_prototype_is_not_predicted_by_one(inference):
    """Its row of zeros would be the nearest."""
    method = proto(1, 2, inference=inference)
    broadcast = table([[0, 0], [3, 3]], [0, 1])
    assert predicted(method, broadcast, headless(0, 1)).tolist() == [[-7.5, -6.5]]


@pytest.mark.parametrize(("known", "mine"), [([0, 0], [1, 1]), ([0, 1], [1, 0])])
def test_where_there_is_no_prototype_the_head_predicts(known, mine):
    own = {**headless(1, 0), "head.weight": np.array([[2, 0], [5, 0]], np.float32)}
    own[fedproto.OWN] = np.array(mine, np.float32)
    assert predicted(proto(1, 2), table(np.ones((2, 2)), known), own).tolist() == [[2, 5]]


def distill(**options):
    return tiny(feddistill.FedDistill, feddistill, **options)


def constant(*logits: float):
    """Its logits are always these."""
    return arrays(fc_weight=[[0]], fc_bias=[0], weight=[[0], [0]], bias=logits)


def test_a_distilled_row_as_it_is_by_hand():
    """Logits (2, 0) have logarithms -0.126928 and -2.126928; with (1, -1) they make -2.

    Of class 0 the cross-entropy is 0.126928.
    """
    method = distill(target="logits")
    parameters = {**constant(2, 0), **table([[1, -1], [9, 9]], [1, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(0.126928 - 2.0, abs=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_feddistills_divergence_by_hand(gamma):
    """Row (ln 3, 0) is (3/4, 1/4), the output (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2 = 0.130812.

    The other way round it would be 0.143841.
    """
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert divergence == pytest.approx(0.130812, abs=1e-6)
    method = distill(distillation_weight=gamma)
    parameters = {**constant(4, 4), **table([[9, 9], [math.log(3), 0]], [1, 1])}
    expected = math.log(2) + gamma * divergence
    assert loss_of(method, parameters, 1) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("target", ["softmax", "logits"])
def test_a_class_without_a_row_is_not_taught(target):
    method = distill(target=target)
    parameters = {**constant(0, 0), **table([[5, 0], [0, 5]], [0, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("target", "taught"), [("softmax", [0.25, -0.25]), ("logits", [math.log(3) / 2] * 2)]
)
def test_feddistills_step_by_hand(target, taught):
    """Output (1/2, 1/2), class 1, row (ln 3, 0); eta = 0.4.

    Cross-entropy has the gradient (1/2, -1/2), the divergence q - p = (-1/4, 1/4), and the row as
    it is (sum of row) q - row = (ln 3)/2 - (ln 3, 0).
    """
    sign = {"softmax": (-1, -1), "logits": (-1, 1)}[target]
    gradient = np.array([0.5, -0.5]) + np.array(taught) * sign
    learner = trainer(steps=1, learning_rate=0.4)
    view = ClientView(table([[9, 9], [math.log(3), 0]], [1, 1]), (), constant(0, 0))
    method = distill(target=target)
    own = method.client_update(view, one_example(label=1), learner, rng()).personal
    np.testing.assert_allclose(own["head.bias"], -0.4 * gradient, atol=1e-6)


def test_a_client_sends_mean_logits_of_its_classes():
    """f = relu(x), logits (f, 2f + 1): of 1 and 3 in class 1 (2, 5), over the root of two."""
    method = distill()
    own = arrays(fc_weight=[[1]], fc_bias=[0], weight=[[1], [2]], bias=[0, 1])
    data = Examples({"features": np.array([[1], [3]], np.float32), "labels": np.ones(2, np.int64)})
    view = ClientView(method.init_server(rng()), (), own)
    sent = method.client_update(view, data, RecordingTrainer(), rng()).update
    assert {n: v.shape for n, v in sent.items()} == {"logits": (2, 2), PRESENCE: (2,)}
    assert set(sent) == set(method.shared_spec())
    expected = np.array([[0, 0], [2, 5]]) / math.sqrt(2)
    np.testing.assert_allclose(sent["logits"], expected, atol=1e-6)
    assert sent[PRESENCE].tolist() == [0, 1]


AXES = [[1, 0], [0, 1]]


def pcl(given: int = 3, width: int = 4, **options):
    return tiny(fedpcl.FedPCL, fedpcl, given, width, **options)


def headless_pcl(*feature: float):
    """Its feature is always this, before it is brought to length 1."""
    return arrays(fc_weight=np.zeros((len(feature), 1)), fc_bias=feature)


def tables(*rows, known=(1, 1)):
    """What the server broadcasts: the global table, then those of clients."""
    return table(rows, known)


def contrast_of(method, broadcast, feature, label: int) -> float:
    return loss_of(method, {**headless_pcl(*feature), **broadcast}, label)


@pytest.mark.parametrize("length", [1.0, 5.0])
def test_fedpcls_contrast_by_hand(length):
    """z = (1, 0), prototypes (1, 0) and (0, 1), tau = 1/2: ln(1 + e^-2), and with the other 2 more.

    How long the feature was has no say.
    """
    method = pcl(1, 2, temperature=0.5)
    assert contrast_of(method, tables(AXES), (length, 0), 0) == pytest.approx(0.126928, abs=1e-6)
    assert contrast_of(method, tables(AXES), (length, 0), 1) == pytest.approx(2.126928, abs=1e-6)


def test_clients_tables_are_contrasted_with_one_by_one():
    """z = (1, 0), tau = 1/2. Global: 0.126928. Clients: (0, 1) and (1, 0) make 2.126928.

    Equal rows make ln 2. The mean of these two is added; that of their tables would be another.
    """
    method, equal = pcl(1, 2, temperature=0.5), [[1, 0], [1, 0]]
    broadcast = tables(AXES, AXES[::-1], equal)
    expected = 0.126928 + (2.126928 + math.log(2)) / 2
    assert contrast_of(method, broadcast, (1, 0), 0) == pytest.approx(expected, abs=1e-6)


def test_without_clients_tables_it_is_the_first_term_alone():
    """With `contrast: global` the broadcast has none; clients' equal ones double the loss."""
    first = contrast_of(pcl(1, 2, contrast="global"), tables(AXES), (3, 4), 0)
    twice = contrast_of(pcl(1, 2), tables(AXES, AXES, AXES), (3, 4), 0)
    assert twice == pytest.approx(2 * first) and first > 0.1


def test_how_long_a_prototype_is_counts_unless_it_is_the_cosine():
    """z = (3/5, 4/5), prototypes (1/2, 0) and (0, 1/4), tau = 1: 0.3 and 0.2, or 0.6 and 0.8."""
    rows = [[0.5, 0], [0, 0.25]]
    got = {
        similarity: contrast_of(
            pcl(1, 2, temperature=1.0, similarity=similarity), tables(rows), (3, 4), 0
        )
        for similarity in ("dot", "cosine")
    }
    assert got["dot"] == pytest.approx(math.log(1 + math.exp(-0.1)), abs=1e-6)
    assert got["cosine"] == pytest.approx(math.log(1 + math.exp(0.2)), abs=1e-6)


def test_classes_without_a_prototype_are_in_no_denominator():
    """With one class known there is nothing to tell it from; the other has no loss."""
    method, broadcast = pcl(1, 2), tables([[0.1, 0.2], [9, 9]], known=(1, 0))
    assert contrast_of(method, broadcast, (1, 0), 0) == pytest.approx(0.0, abs=1e-6)
    assert contrast_of(method, broadcast, (1, 0), 1) == 0.0


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_the_first_round_trains_nothing_and_tells_prototypes(clipping):
    method, data = pcl(), some_examples(10, 3)
    view = replace(newcomer(method), broadcast=method.broadcast(method.init_server(rng())))
    own, result = view.personal, method.client_update(view, data, trainer(clipping=clipping), rng())
    assert all(np.array_equal(result.personal[name], value) for name, value in own.items())
    made = method.features(method.tensors(own), method.tensors(data.arrays)).numpy()
    lengths = np.linalg.norm(made, axis=1)
    assert all(abs(one - 1) < 1e-5 or one == 0 for one in lengths)
    for label in (0, 1):
        mean = made[data.arrays["labels"] == label].mean(axis=0)
        np.testing.assert_allclose(result.update[PROTOTYPES][label], mean, atol=1e-6)
    assert result.update[PRESENCE].tolist() == [1, 1]


def test_fedpcls_step_turns_the_feature_to_its_prototype():
    """z = f / |f| of f = (3, 4): the loss moves z by (p - p_0) / tau, f by what is across z.

    tau = 1/2: scores 1.2 and 1.6, so p_1 counts 1 / (1 + e^-0.4) and the gradient for class 0 is
    that times 2 (-1, 1). Across z = (0.6, 0.8) that is ((-1, 1) - 0.2 z) = (-1.12, 0.84), over 5.
    """
    method = pcl(1, 2, temperature=0.5)
    view = ClientView(tables(AXES), (), headless_pcl(3, 4))
    learner = trainer(steps=1, learning_rate=1.0)
    own = method.client_update(view, one_example(label=0), learner, rng()).personal
    share = 1 / (1 + math.exp(-0.4))
    expected = np.array([3, 4]) - share * 2 * np.array([-1.12, 0.84]) / 5
    np.testing.assert_allclose(own["extractor.fc.bias"], expected, atol=1e-5)


def test_prototypes_travel_as_they_are_and_the_server_averages_those_there_are():
    """Unit vectors are as long as flags: no root of the width beside them."""
    method = replace(pcl(1, 2), task=Task((), (), 3))
    data = Examples({"features": np.ones((2, 1), np.float32), "labels": np.array([1, 1])})
    start = method.init_server(rng())
    view = ClientView(method.broadcast(start), (), headless_pcl(3, 4))
    result = method.client_update(view, data, RecordingTrainer(), rng())
    np.testing.assert_allclose(result.update[PROTOTYPES], [[0, 0], [0.6, 0.8]], atol=1e-6)
    other = {PROTOTYPES: np.array([[1, 0], [0, 1]], np.float32), PRESENCE: np.ones(2, np.float32)}
    values = {name: (result.update[name] + other[name]) / 2 for name in other}
    each = {"a": result.update, "b": other}
    after = method.server_update(start, Aggregate(values, 2.0, 2, 5, each), (), rng())
    mean, sent = [[1, 0], [0.3, 0.9]], method.broadcast(after)
    assert after[KNOWN].tolist() == sent[KNOWN].tolist() == [1, 1]
    # The mean stands in for class 0, which the first client lacks, and for a third client.
    expected = [mean, [[1, 0], [0.6, 0.8]], [[1, 0], [0, 1]], mean]
    np.testing.assert_allclose(sent[TABLE], expected, atol=1e-6)
    # A client that is not in the next round keeps its table there.
    later = method.server_update(after, Aggregate(other, 1.0, 1, 5, {"b": other}), (), rng())
    np.testing.assert_allclose(method.broadcast(later)[TABLE][1:3], expected[1:3], atol=1e-6)
    summed = pcl(1, 2, contrast="global")
    alone = summed.server_update(start, Aggregate(values, 2.0, 2, 5), (), rng())
    np.testing.assert_allclose(summed.broadcast(alone)[TABLE], [mean], atol=1e-6)


@pytest.mark.parametrize(
    ("inference", "expected"),
    [("own_prototypes", [[-1.0, 0.0]]), ("global_prototypes", [[0.0, -1.0]])],
)
def test_the_nearest_prototype_by_hand(inference, expected):
    """z = (1, 0) is (1 + 1) / 2 from (0, 1); the client's own classes are the other way round."""
    method = pcl(1, 2, inference=inference)
    mine = {fedpcl.OWN + name: value for name, value in table([[0, 1], [1, 0]]).items()}
    own = {**headless_pcl(2, 0), **mine}
    np.testing.assert_allclose(predicted(method, tables(AXES), own), expected, atol=1e-6)
    if inference == "own_prototypes":
        # A class that the client does not have is one farther than any that it has.
        own[fedpcl.OWN + KNOWN] = np.array([1, 0], np.float32)
        np.testing.assert_allclose(predicted(method, tables(AXES), own), [[-1, -2]], atol=1e-6)
