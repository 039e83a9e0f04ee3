"""Class statistics and word tables: heads by hand and by scikit-learn, and sums that add up."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from methods import ClientView, Examples, MethodError, class_statistics, word_table
from methods.class_statistics import MOMENTS, SUMS, ClassStatistics, Config
from methods.word_table import MATCHED, TABLE
from privacy.training import LocalTrainer, TrainingPlan
from tests.methods._training import RecordingTrainer, mean_of, rng

NAMES = ("first", "second", "third")


class Texts:
    """Text features by hand, in place of captions that CLIP encodes."""

    def __init__(self, rows):
        self.rows = torch.tensor(rows, dtype=torch.float32)
        self.backbone = SimpleNamespace(logit_scale=10.0, device="cpu")

    def features(self, classes):
        return self.rows


def statistics(text=((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)), **options):
    return ClassStatistics(Config(**options), NAMES[: len(text)], Texts(text))


def client(features, labels):
    arrays = {"features": np.asarray(features, np.float32), "labels": np.asarray(labels)}
    return Examples(arrays)


def sent(method, data):
    view = ClientView(method.broadcast(method.init_server(rng())))
    return method.client_update(view, data, RecordingTrainer(), rng()).update


def head_of(method, *clients):
    state = method.init_server(rng())
    updates = [sent(method, data) for data in clients]
    return method.server_update(state, mean_of(*updates), (), rng())


def drawn(clients=5, width=4, classes=3, seed=0):
    draws = rng(seed)
    centres = draws.normal(size=(classes, width))
    found = []
    for _ in range(clients):
        labels = draws.integers(classes, size=int(draws.integers(5, 30)))
        rows = centres[labels] + draws.normal(size=(len(labels), width))
        found.append(client(rows / np.linalg.norm(rows, axis=1, keepdims=True).max(), labels))
    return found, Examples(
        {n: np.concatenate([d.arrays[n] for d in found]) for n in ("features", "labels")}
    )


def test_counts_and_sums_by_hand():
    method = statistics(counts=True)
    # Two of the first class, one of the third, whose length 2 is cut to 1.
    data = client([[0.6, 0.8], [0.0, -0.5], [0.0, 2.0]], [0, 0, 2])
    np.testing.assert_allclose(sent(method, data)[SUMS], [[2, 0.6, 0.3], [0, 0, 0], [1, 0, 1]])
    assert method.shared_spec()[SUMS].cone == 3
    # The mean text feature is (0, 1/3); less it, the lengths are at most one.
    centred = sent(statistics(counts=True, centre="text"), data)[SUMS]
    np.testing.assert_allclose(centred[0], [2, 0.6, 0.8 - 1 / 3 - 0.5 - 1 / 3], atol=1e-6)


def test_a_triangle_is_as_long_as_its_matrix():
    found, _ = drawn(1)
    method = statistics(text=np.eye(3, 4), head="fed3r")
    update, rows = sent(method, found[0]), found[0].arrays["features"].astype(float)
    assert np.linalg.norm(update[MOMENTS]) == pytest.approx(np.linalg.norm(rows.T @ rows))
    for spec in (method.shared_spec(), statistics().shared_spec()):
        assert all(tensor.cone is None for tensor in spec.values())


@pytest.mark.parametrize("head", ["fedncm", "ss_text", "fed3r", "fedcgs"])
def test_it_does_not_matter_how_images_lie_with_clients(head):
    found, pooled = drawn()
    method = statistics(text=np.eye(3, 4), head=head, counts=head == "fedcgs")
    view = [ClientView(method.broadcast(head_of(method, *c))) for c in (found, [pooled])]
    images = pooled.arrays
    apart, together = (method.predict(one, images, NAMES) for one in view)
    np.testing.assert_allclose(apart, together, rtol=1e-4, atol=1e-4)


def test_ss_text_by_hand():
    method = statistics(text_weight=0.5)
    state = head_of(method, client([[0.3, 0.4], [0.0, 0.5]], [0, 1]))
    # Means of length one, (0.6, 0.8) and (0, 1), and half of each text.
    np.testing.assert_allclose(state["weight"], [[1.1, 0.8], [0, 1.5], [-0.5, 0]], atol=1e-6)
    # Before any statistics it is CLIP: ten times the cosine.
    start = ClientView(method.broadcast(method.init_server(rng())))
    scores = method.predict(start, {"features": np.array([[0.6, 0.8]], np.float32)}, NAMES[::-1])
    np.testing.assert_allclose(scores, [[-6.0, 8.0, 6.0]], rtol=1e-6)


def test_fed3r_is_ridge_regression_on_all_images():
    found, pooled = drawn()
    method = statistics(text=np.eye(3, 4), head="fed3r", ridge=0.5)
    state = head_of(method, *found)
    rows, labels = pooled.arrays["features"].astype(float), pooled.arrays["labels"]
    penalty = 0.5 * float(np.trace(rows.T @ rows)) / 4
    expected = Ridge(alpha=penalty, fit_intercept=False).fit(rows, np.eye(3)[labels])
    np.testing.assert_allclose(state["weight"] / 10.0, expected.coef_, rtol=1e-3, atol=1e-5)


def test_fedcgs_is_linear_discriminant_analysis_of_all_images():
    found, pooled = drawn(clients=8)
    method = statistics(text=np.eye(3, 4), head="fedcgs", counts=True, ridge=1e-9)
    state = head_of(method, *found)
    rows, labels = pooled.arrays["features"].astype(float), pooled.arrays["labels"]
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    np.testing.assert_allclose(state["weight"], expected.coef_, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(state["bias"], expected.intercept_, rtol=1e-2, atol=1e-2)


def test_a_noised_matrix_that_is_not_positive_still_gives_a_head():
    method = statistics(text=np.eye(3, 4), head="fed3r", ridge=0.1)
    noised = {SUMS: rng(1).normal(size=(3, 4)), MOMENTS: rng(2).normal(size=10)}
    state = method.server_update(method.init_server(rng()), mean_of(noised), (), rng())
    assert np.isfinite(state["weight"]).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"counts": True, "head": "fedncm"}, {"head": "fed3r"}, {"refine": 1.0, "start": "text"}],
)
def test_noised_steps_make_the_same_sums(options):
    """One step of SGD with rate 0.5 on all n images moves by 0.5 / n of the sums."""
    (data,), _ = drawn(1)
    method, plain = statistics(text=np.eye(3, 4), **options), RecordingTrainer()
    plan = TrainingPlan(learning_rate=0.5, batch_size=data.num_examples, local_steps=1)
    trainer = LocalTrainer(plan)
    plain.charged_steps, plain.fit = 1, trainer.fit
    view = ClientView(method.broadcast(method.init_server(rng())))
    stepped = method.client_update(view, data, plain, rng()).update
    for name, array in sent(method, data).items():
        np.testing.assert_allclose(stepped[name] * 2 * data.num_examples, array, atol=1e-4)


def test_residuals_are_minus_the_gradient_of_the_cross_entropy():
    (data,), _ = drawn(1)
    method = statistics(text=np.eye(3, 4), refine=0.5, start="text", scale=3.0)
    state = method.init_server(rng())
    head = torch.tensor(state["weight"], dtype=torch.float64, requires_grad=True)
    rows = torch.tensor(data.arrays["features"], dtype=torch.float64)
    labels = torch.tensor(data.arrays["labels"])
    loss = torch.nn.functional.cross_entropy(3.0 * rows @ head.T, labels, reduction="sum") / 3.0
    loss.backward()
    update = sent(method, data)
    np.testing.assert_allclose(update[SUMS], -head.grad, atol=1e-6)
    after = method.server_update(state, mean_of(update), (), rng())
    np.testing.assert_allclose(after["weight"], state["weight"] + 0.5 * update[SUMS], atol=1e-6)


def test_statistics_come_first_and_residuals_after():
    (data,), _ = drawn(1)
    plain, refining = statistics(text=np.eye(3, 4)), statistics(text=np.eye(3, 4), refine=1.0)
    first = head_of(plain, data)
    state = head_of(refining, data)
    np.testing.assert_array_equal(state["weight"], first["weight"])
    view = ClientView(refining.broadcast(state))
    residuals = refining.client_update(view, data, RecordingTrainer(), rng()).update[SUMS]
    # Residuals of all classes add up to nothing.
    np.testing.assert_allclose(residuals.sum(axis=0), 0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"head": "dppl_mean"}, "pay for one"),
        ({"head": "fedcgs", "counts": False}, "method.counts"),
        ({"head": "fed3r", "refine": 1.0}, "method.refine"),
        ({"directions": 4}, "valid: 1 to 3"),
    ],
)
def test_what_cannot_be_made_is_refused(task, options, word):
    with pytest.raises(MethodError, match=word):
        class_statistics.build(Config(**options), task)


def table_method(text, names=2, **options):
    words = tuple(f"word {i}" for i in range(len(text)))
    return word_table.WordTable(word_table.Config(**options), NAMES[:names], words, Texts(text))


def test_a_table_by_hand():
    method = table_method([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    data = client([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [-0.9, 0.1]], [0, 0, 0, 1])
    assert sent(method, data)[TABLE].tolist() == [[1, 1, 0], [0, 0, 1]]
    counted = table_method([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], presence="count")
    assert sent(counted, data)[TABLE].tolist() == [[2, 1, 0], [0, 0, 1]]
    state = head_of(counted, data)
    assert state[MATCHED].tolist() == [0, 2]
    view = ClientView(counted.broadcast(state))
    scores = counted.predict(view, {"features": np.array([[0.5, 0.5]], np.float32)}, NAMES[:2])
    np.testing.assert_allclose(scores, [[5.0, -5.0]])


def test_one_word_each_takes_the_largest_sum():
    # Both names are read most often as word 0; 3 + 2 is more than 4 + 0.
    noised = {TABLE: np.array([[4.0, 2.0], [3.0, 0.0]])}
    for match, expected in (("best", [0, 0]), ("one_to_one", [1, 0])):
        method = table_method([[1.0, 0.0], [0.0, 1.0]], match=match)
        state = method.server_update(method.init_server(rng()), mean_of(noised), (), rng())
        assert state[MATCHED].tolist() == expected


def test_memory_forgets():
    method = table_method([[1.0, 0.0], [0.0, 1.0]], memory=0.5)
    state = method.init_server(rng())
    for table in ([[4.0, 0.0], [0.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]]):
        state = method.server_update(state, mean_of({TABLE: np.array(table)}), (), rng())
    assert state[TABLE].tolist() == [[2.0, 1.0], [1.0, 2.0]]


def test_too_few_words_are_refused(task):
    with pytest.raises(MethodError, match="words are too few"):
        word_table.build(word_table.Config(words=("one", "two"), match="one_to_one"), task)
