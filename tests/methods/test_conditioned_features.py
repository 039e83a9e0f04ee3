"""FedCP, GPFL and DBE on two features, by numbers that are worked by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, dbe, fedcp, fedper, gpfl
from methods.dbe import CLIENT_MEAN, CONSENSUS, FEATURE_MEAN, HAS_CONSENSUS, RunningMean
from methods.fedcp import context_of
from methods.gpfl import SHARES, angle_losses, valve
from tests.methods._tiny_networks import CLASSES, tiny
from tests.methods._training import RecordingTrainer, rng, tensors, trainer

ROOT = math.sqrt(2.0)
EXTRACTOR = {
    # The extractor scales what it is given by the root of its width; this takes it back.
    "extractor.fc.weight": np.eye(2, dtype=np.float32) / np.float32(ROOT),
    "extractor.fc.bias": np.zeros(2, np.float32),
}
GENERIC = {
    "generic.weight": np.eye(2, dtype=np.float32),
    "generic.bias": np.array([10.0, 20.0], np.float32),
}
POLICY = {
    # Of v * h = (1.2, 0.8) it makes (3, 1, -1, -3).
    "policy.weight": np.array([[2.5, 0], [0, 1.25], [0, -1.25], [-2.5, 0]], np.float32),
    "policy.bias": np.zeros(4, np.float32),
    "policy_norm.weight": np.ones(4, np.float32),
    "policy_norm.bias": np.zeros(4, np.float32),
}
FEDCP_SHARED = {**EXTRACTOR, **GENERIC, **POLICY}
FEDCP_HEAD = {
    "head.weight": np.array([[1, 2], [2, 2]], np.float32),  # column sums (3, 4)
    "head.bias": np.array([0.5, 0.25], np.float32),
}
BATCH = {"features": np.array([[2.0, 1.0]], np.float32)}


def fedcp_of(**options) -> fedcp.FedCP:
    return tiny(fedcp.FedCP, fedcp, 2, 2, **options)


def view_of(personal=FEDCP_HEAD, **changed) -> ClientView:
    return ClientView({**FEDCP_SHARED, **changed}, personal=personal)


def examples(rows, labels) -> Examples:
    return Examples({"features": np.array(rows, np.float32), "labels": np.array(labels)})


def drawn(count: int = 12) -> Examples:
    draws = rng()
    return examples(draws.uniform(0.1, 1, (count, 2)), draws.integers(0, 2, count))


# (3, 1, -1, -3) has mean 0 and variance 5; what is negative after normalisation counts as 0.
SHARE_1, SHARE_2 = (1 / (1 + math.exp(-score / math.sqrt(5))) for score in (3, 1))


def test_the_context_is_the_columns_of_the_head_at_length_one():
    np.testing.assert_allclose(context_of(FEDCP_HEAD["head.weight"]), [0.6, 0.8], rtol=1e-6)
    assert not context_of(np.zeros((2, 2), np.float32)).any()


def test_the_shares_by_hand():
    method, rows = fedcp_of(), tensors(BATCH)
    parameters = tensors(method.model_of(view_of()))
    got = method.shares(parameters, method.features(parameters, rows), rows)
    np.testing.assert_allclose(got, [[SHARE_1, SHARE_2]], rtol=1e-4)


def test_the_logits_are_both_heads_on_their_parts():
    """Of features (2, 1) the personal head is fed (2 r1, r2), the generic one what is left."""
    logits = fedcp_of().predict(view_of(), BATCH, CLASSES)
    first, second = 2 * SHARE_1, SHARE_2
    by_hand = [
        first + 2 * second + 0.5 + (2 - first) + 10,
        2 * first + 2 * second + 0.25 + (1 - second) + 20,
    ]
    np.testing.assert_allclose(logits, [by_hand], rtol=1e-5)


def test_a_policy_that_calls_everything_personal_is_fedper():
    changed = {
        "policy_norm.weight": np.zeros(4, np.float32),
        "policy_norm.bias": np.array([200, 200, 0, 0], np.float32),
        "generic.bias": np.zeros(2, np.float32),
    }
    rows = drawn().arrays
    got = fedcp_of().predict(view_of(**changed), rows, CLASSES)
    plain = tiny(fedper.FedPer, fedper, 2, 2)
    expected = plain.predict(ClientView(EXTRACTOR, personal=FEDCP_HEAD), rows, CLASSES)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def loop_discrepancy(one, other) -> float:
    def kernel(a, b):
        return sum(math.exp(-sum((a - b) ** 2) / (2 * w)) for w in (10, 15, 20, 50))

    def mean(rows, others):
        return sum(kernel(a, b) for a in rows for b in others) / (len(rows) * len(others))

    return mean(one, one) + mean(other, other) - 2 * mean(one, other)


def losses_where_features_are_doubled(weight: float):
    method = fedcp_of(mmd_weight=weight)
    recording = RecordingTrainer()
    data = drawn(3)
    method.client_update(view_of(), data, recording, rng(3))
    doubled = 2.0 * recording.parameters["extractor.fc.weight"]
    parameters = {**tensors(recording.parameters), "extractor.fc.weight": torch.tensor(doubled)}
    return recording.objective.losses(parameters, {}, tensors(recording.examples)).numpy(), data


def test_the_loss_holds_the_discrepancy_to_the_broadcast_features():
    """Features twice as long as the broadcast extractor's, which are the given ones."""
    regularised, data = losses_where_features_are_doubled(5.0)
    plain, _ = losses_where_features_are_doubled(0.0)
    rows = data.arrays["features"].astype(np.float64)
    np.testing.assert_allclose(
        regularised - plain, [5.0 * loop_discrepancy(2 * rows, rows)] * 3, rtol=1e-4
    )


def test_a_client_sends_its_head_as_a_difference_to_the_generic_one():
    result = fedcp_of().client_update(view_of(), drawn(), trainer(), rng(3))
    assert set(result.personal) == set(FEDCP_HEAD)
    for name, value in result.personal.items():
        generic = name.replace("head", "generic")
        np.testing.assert_array_equal(result.update[generic], value - GENERIC[generic])
        assert np.abs(value - FEDCP_HEAD[name]).max() > 0
    assert result.update["policy.weight"].any()


def test_the_new_generic_head_lies_halfway_between():
    """Generic 1 and heads 2 and 4 of equal weight: the mean of 1.5 and 2.5."""
    method = fedcp_of()
    state = {n: np.ones_like(v) for n, v in FEDCP_SHARED.items()}
    changes = {n: np.full(v.shape, (2 - 1 + 4 - 1) / 2) for n, v in FEDCP_SHARED.items()}
    after = method.server_update(state, Aggregate(changes, 2.0, 2, 2), (), rng(3))
    assert set(after) == set(FEDCP_SHARED)
    for name, value in after.items():
        expected = 2.0 if name in GENERIC else 3.0
        np.testing.assert_array_equal(value, np.full(value.shape, expected))
        assert value.dtype == np.float32


VALVE = {
    # gamma: of (1, 2) the linear layer makes (1, 3), normalised (-1, 1); of (2, 1) it makes (2, 2).
    "valve.gamma.weight": np.eye(2, dtype=np.float32),
    "valve.gamma.bias": np.array([0.0, 1.0], np.float32),
    "valve.gamma.norm.weight": np.ones(2, np.float32),
    "valve.gamma.norm.bias": np.zeros(2, np.float32),
    # beta: (2, -1) whatever the condition, after ReLU (2, 0), normalised (1, -1).
    "valve.beta.weight": np.zeros((2, 2), np.float32),
    "valve.beta.bias": np.array([2.0, -1.0], np.float32),
    "valve.beta.norm.weight": np.ones(2, np.float32),
    "valve.beta.norm.bias": np.zeros(2, np.float32),
}
OPEN = {n: np.zeros_like(v) if ".norm." in n else v for n, v in VALVE.items()}
EMBEDDING = np.array([[2.0, 0.0], [0.0, 4.0]], np.float32)
GPFL_SHARED = {**EXTRACTOR, **VALVE, "embedding": EMBEDDING}
HEAD = {"head.weight": np.eye(2, dtype=np.float32), "head.bias": np.zeros(2, np.float32)}


def gpfl_of(**options) -> gpfl.GPFL:
    return tiny(gpfl.GPFL, gpfl, 2, 2, **options)


def personal(first: float = 0.5):
    return {**HEAD, SHARES: np.array([first, 1 - first], np.float32)}


FEW = examples([[3.0, 2.0], [1.0, 1.0], [0.5, 2.0], [1.0, 0.0]], [0, 0, 0, 1])


def test_the_valve_by_hand():
    """Condition (1, 2): gamma + 1 = (0, 2) and beta = (1, -1), so (3, 2) becomes (1, 3)."""
    got = valve(tensors(VALVE), torch.tensor([[3.0, 2.0]]), torch.tensor([1.0, 2.0]))
    np.testing.assert_allclose(got, [[1.0, 3.0]], atol=1e-4)


def test_the_angle_by_hand():
    """Row (5, 0) has cosines 1 and 0 to the embeddings, row (0, 0) none to either."""
    rows = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 0.0]])
    got = angle_losses(rows, torch.from_numpy(EMBEDDING), torch.tensor([0, 1, 0]))
    by_hand = [math.log1p(math.exp(-1)), math.log1p(math.exp(1)), math.log(2)]
    np.testing.assert_allclose(got, by_hand, rtol=1e-6)


def test_the_conditions_are_means_of_the_broadcast_embeddings():
    """Shares (3/4, 1/4) of (2, 0) and (0, 4) make (1.5, 1); all alike they make (1, 2)."""
    recording = RecordingTrainer()
    result = gpfl_of().client_update(
        ClientView(GPFL_SHARED, personal=personal(0.1)), FEW, recording, rng(3)
    )
    np.testing.assert_allclose(recording.parameters["own_condition"], [1.5, 1.0])
    np.testing.assert_allclose(recording.parameters["generic_condition"], [1.0, 2.0])
    np.testing.assert_array_equal(recording.parameters["broadcast_embedding"], EMBEDDING)
    np.testing.assert_allclose(result.personal[SHARES], [0.75, 0.25])
    (group,) = recording.groups
    assert set(group.names) == {*GPFL_SHARED, *HEAD}


def test_prediction_is_under_the_own_condition():
    """Of embeddings (4, 1) and (1, 2) shares make (1, 2), (2, 5/3) or (4, 1): gamma turns round.

    The hidden values are (1, 3), (2, 8/3) and (4, 2), so gamma is (-1, 1) twice and then (1, -1).
    """
    method = gpfl_of()
    batch = {"features": np.array([[3.0, 2.0]], np.float32)}
    broadcast = {**GPFL_SHARED, "embedding": np.array([[4.0, 1.0], [1.0, 2.0]], np.float32)}
    for first, expected in ((0.0, [1.0, 3.0]), (1 / 3, [1.0, 3.0]), (1.0, [7.0, 0.0])):
        logits = method.predict(ClientView(broadcast, personal=personal(first)), batch, CLASSES)
        np.testing.assert_allclose(logits, [expected], atol=1e-3)


def test_the_loss_of_an_example_by_hand():
    """Own (1, 3) for the task, generic (4, 1) for the guidance; frozen embedding (0, -2)."""
    parameters = {
        **tensors({**GPFL_SHARED, **HEAD}),
        "own_condition": torch.tensor([1.0, 2.0]),
        "generic_condition": torch.tensor([2.0, 1.0]),
        "broadcast_embedding": torch.tensor([[9.0, 9.0], [0.0, -2.0]]),
    }
    batch = {"features": torch.tensor([[3.0, 2.0]]), "labels": torch.tensor([1])}
    task = math.log1p(math.exp(1 - 3))
    length = math.sqrt(17)
    angle = math.log(math.exp(4 / length) + math.exp(1 / length)) - 1 / length
    distance = 5.0  # of (4, 1) to (0, -2)
    for weight in (0.0, 0.1):
        loss = float(gpfl_of(guidance_weight=weight).guided(parameters, batch)[0])
        assert loss == pytest.approx(task + angle + weight * distance, rel=1e-4)


def test_the_decay_is_of_embedding_and_valve():
    """Embeddings 4 + 16; gamma 2 + 1 + 2 + 0; beta 0 + 5 + 2 + 0: half of mu times 32."""
    recording = RecordingTrainer()
    gpfl_of(decay=0.5).client_update(
        ClientView(GPFL_SHARED, personal=personal()), FEW, recording, rng(3)
    )
    parameters = tensors(recording.parameters)
    assert float(recording.penalty(parameters, {})) == pytest.approx(8.0, rel=1e-6)


def test_an_open_valve_without_guidance_predicts_as_fedper():
    rows = FEW.arrays
    got = gpfl_of().predict(
        ClientView({**GPFL_SHARED, **OPEN}, personal=personal(0.2)), rows, CLASSES
    )
    plain = tiny(fedper.FedPer, fedper, 2, 2)
    expected = plain.predict(ClientView(EXTRACTOR, personal=HEAD), rows, CLASSES)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


NO_HEAD = {name: np.zeros_like(value) for name, value in HEAD.items()}
NETWORK = {**EXTRACTOR, **HEAD}


def dbe_of(**options) -> dbe.DBE:
    return tiny(dbe.DBE, dbe, 2, 2, **options)


def sent(network, consensus=None):
    known = consensus is not None
    mean = np.array(consensus if known else (0.0, 0.0), np.float32)
    return {**network, CONSENSUS: mean, HAS_CONSENSUS: np.array([int(known)])}


def shift(*values: float):
    return {CLIENT_MEAN: np.array(values, np.float32)}


def test_the_shift_is_added_to_the_features_before_the_head():
    """Features (1, 0) and shift (0.5, 2) make (1.5, 2); what is negative stays so."""
    view = ClientView(sent(NETWORK, (0, 0)), personal=shift(0.5, 2.0))
    batch = {"features": np.array([[1.0, 0.0]], np.float32)}
    np.testing.assert_allclose(dbe_of().predict(view, batch, CLASSES), [[1.5, 2.0]], atol=1e-6)
    view = ClientView(sent(NETWORK, (0, 0)), personal=shift(-3.0, 0.0))
    np.testing.assert_allclose(dbe_of().predict(view, batch, CLASSES), [[-2.0, 0.0]], atol=1e-6)


def test_the_running_mean():
    """With mu = 1/4 and batches of mean 4, 8, 1: 4, then 3 + 2 = 5, then 3.75 + 0.25 = 4."""
    running = RunningMean(0.25)
    for mean, expected in ((4.0, 4.0), (8.0, 5.0), (1.0, 4.0)):
        batch = torch.tensor([mean], requires_grad=True)
        value = running.after(batch)
        assert float(value.detach()) == expected
        # What is past has no gradient: the newest batch counts mu, the first one too.
        (gradient,) = torch.autograd.grad(value, batch)
        assert float(gradient) == 0.25


def test_the_loss_by_hand():
    """Mean (2, 1) against consensus (1, 3): kappa (1 + 4) / 2, in the loss of each example."""
    method = dbe_of(mean_weight=4.0)
    view = ClientView(sent({**EXTRACTOR, **NO_HEAD}, (1.0, 3.0)), personal=shift(0.0, 0.0))
    batch = tensors(examples([[1.0, 0.0], [3.0, 2.0]], [0, 1]).arrays)
    got = method.objective(view).losses(tensors(method.model_of(view)), {}, batch)
    np.testing.assert_allclose(got, [math.log(2) + 10.0] * 2, rtol=1e-6)


@pytest.mark.parametrize(("momentum", "share"), [(1.0, 1.0), (0.5, 0.5)])
def test_one_step_pulls_the_mean_towards_the_consensus(momentum, share):
    """The gradient of 4 MSE at mean (2, 1) and consensus (1, 3) is 4 (1, -2); the rate is 1/2."""
    view = ClientView(sent({**EXTRACTOR, **NO_HEAD}, (1.0, 3.0)), personal=shift(0.0, 0.0))
    result = dbe_of(mean_weight=4.0, momentum=momentum).client_update(
        view, examples([[1.0, 0.5], [3.0, 1.5]], [0, 1]), trainer(steps=1), rng(3)
    )
    moved = result.update["extractor.fc.bias"]
    np.testing.assert_allclose(moved, share * np.array([-2.0, 4.0]), rtol=1e-5)


def test_one_step_moves_the_shift_by_the_gradient_of_cross_entropy():
    """Features (1, 1) of class 0 under the identity: p = (1/2, 1/2), so z moves by -(p - y) / 2."""
    view = ClientView(sent(NETWORK, (1.0, 1.0)), personal=shift(0.0, 0.0))
    result = dbe_of().client_update(view, examples([[1.0, 1.0]], [0]), trainer(steps=1), rng(3))
    np.testing.assert_allclose(result.personal[CLIENT_MEAN], [0.25, -0.25], rtol=1e-6)


def test_the_first_round_sends_the_mean_of_the_features():
    data = drawn(12)
    result = dbe_of().client_update(
        ClientView(sent(NETWORK), personal=shift(0.0, 0.0)), data, trainer(), rng(3)
    )
    assert not result.personal[CLIENT_MEAN].any()
    weight, bias = (
        NETWORK[f"extractor.fc.{n}"] + result.update[f"extractor.fc.{n}"]
        for n in ("weight", "bias")
    )
    features = np.maximum(ROOT * data.arrays["features"] @ weight.T + bias, 0.0)
    np.testing.assert_allclose(result.update[FEATURE_MEAN], features.mean(0), rtol=1e-5)


def test_with_a_consensus_the_mean_is_sent_no_more_and_the_shift_is_trained():
    view = ClientView(sent(NETWORK, (0.5, 0.5)), personal=shift(0.0, 0.0))
    # A small step: with the usual one all features die, and their mean with them.
    result = dbe_of().client_update(view, drawn(12), trainer(learning_rate=0.01), rng(3))
    assert not result.update[FEATURE_MEAN].any()
    assert result.personal[CLIENT_MEAN].all()


def test_the_server_takes_the_first_mean_as_consensus_for_good():
    method = dbe_of()
    state = method.init_server(rng(3))
    assert not state[HAS_CONSENSUS].any()
    changes = {n: np.full(s.shape, 0.5) for n, s in method.shared_spec().items()}
    aggregate = partial(Aggregate, total_weight=4.0, cohort_size=2, population=2)
    first = method.server_update(
        state, aggregate({**changes, FEATURE_MEAN: np.array([3.0, 4.0])}), (), rng(3)
    )
    np.testing.assert_array_equal(first[CONSENSUS], [3.0, 4.0])
    second = method.server_update(
        first, aggregate({**changes, FEATURE_MEAN: np.array([7.0, 7.0])}), (), rng(3)
    )
    np.testing.assert_array_equal(second[CONSENSUS], [3.0, 4.0])
    np.testing.assert_allclose(second["head.bias"], state["head.bias"] + 1.0, rtol=1e-6)
    assert first[HAS_CONSENSUS].tolist() == second[HAS_CONSENSUS].tolist() == [1]
