"""A client's own class means: by hand, by leaving each example out, and out of every upload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from methods import ClientView, Examples, MethodError, promptfl
from methods.interface.at_home import FEATURES, HEAD, HEADS, ROWS, at_home, combined
from tests.methods._training import RecordingTrainer, newcomer, rng


def test_heads_by_hand():
    """Classes 0 and 1 are held, class 2 is not; the method gives 0.2, 0.2, 0.6."""
    shared = np.log([[0.2, 0.2, 0.6], [0.5, 0.2, 0.3]])
    # The means say 3 to 1 for class 1, at a temperature of a hundredth.
    scores = np.array([[0.0, np.log(3.0) / 100, -np.inf]] * 2)
    both = softmax(combined("both", shared, scores), axis=1)
    np.testing.assert_allclose(both, [[0.1, 0.3, 0.6], [0.175, 0.525, 0.3]])
    np.testing.assert_allclose(softmax(combined("shared", shared, scores), 1), np.exp(shared))
    own = combined("own", shared, scores)
    assert own.argsort(axis=1).tolist() == [[2, 0, 1], [2, 0, 1]]
    np.testing.assert_allclose(own[:, 1] - own[:, 0], np.log(3.0))


def test_without_classes_of_its_own_a_client_has_the_method():
    shared = np.log([[0.2, 0.8]])
    nothing = np.full((1, 2), -np.inf)
    for head in HEADS:
        np.testing.assert_allclose(combined(head, shared, nothing), shared, atol=1e-12)


@pytest.fixture
def own(task):
    return at_home(promptfl.build(promptfl.Config(context_tokens=2), task), "select", task)


def held(features, labels):
    return Examples({FEATURES: np.asarray(features, np.float32), "labels": np.asarray(labels)})


def finished(method, data, shared_right):
    """Personalise where the method is right on all examples, or on none."""

    class Fixed:
        def __getattr__(self, name):
            return getattr(method.base, name)

        def predict(self, view, batch, classes):
            place = data.arrays["labels"] if shared_right else (data.arrays["labels"] + 1) % 4
            return np.eye(4)[place] * 20.0

    start = newcomer(method)
    wrapped = replace(method, base=Fixed())
    personal = wrapped.personalise(start, data, RecordingTrainer(), rng())
    return personal, HEADS[int(personal[HEAD])]


def test_a_client_chooses_what_is_right_with_each_example_left_out(own):
    width = own.base.shared_spec()["context"].shape[1]
    near = np.eye(width)[[0, 0, 1, 1]] + 0.1 * np.eye(width)[[2, 3, 4, 5]]
    two_of_each = held(near, [0, 0, 1, 1])
    # The means are right with every example left out; where all are, so is `own`.
    assert finished(own, two_of_each, shared_right=True)[1] == "own"
    assert finished(own, two_of_each, shared_right=False)[1] == "own"
    # With one example of each class, nothing is left of its class: the means are never right.
    alone = held(near[[0, 2]], [0, 1])
    assert finished(own, alone, shared_right=True)[1] == "shared"


def test_reports_count_the_clients_that_chose_their_own(own):
    width = own.base.shared_spec()["context"].shape[1]
    data = held(np.eye(width)[[0, 0, 1, 1]], [0, 0, 1, 1])
    for shared_right, labels, weights in (
        (False, [0, 0, 1, 1], [1, 0]),
        (True, [0, 1, 2, 3], [0, 1]),
    ):
        examples = held(data.arrays[FEATURES], labels)
        personal, _ = finished(own, examples, shared_right=shared_right)
        view = ClientView(newcomer(own).broadcast, (), personal)
        assert own.expert_weights(view, examples.arrays, own.classes).tolist() == [weights] * 4


def test_rows_are_sums_of_own_images_and_predict_by_cosine(own):
    width = own.base.shared_spec()["context"].shape[1]
    rows = np.eye(width)[[0, 0, 1]]
    data = held(rows, [3, 3, 1])
    personal, _ = finished(replace(own, head="own"), data, shared_right=False)
    np.testing.assert_array_equal(personal[ROWS][[0, 1, 2, 3], [0, 1, 0, 0]], [0, 1, 0, 2])
    assert personal[ROWS].sum() == 3


def test_no_upload_sees_means_or_choice(own, examples):
    """The update is that of the method itself, whatever lies in the state of before."""
    data = Examples({**examples.arrays, FEATURES: examples.arrays["features"]})
    view = newcomer(own)
    kept = {ROWS: np.full((4, 3), 7.0, np.float32), HEAD: np.array(0, np.int64)}
    seen = RecordingTrainer()
    own.client_update(replace(view, personal={**view.personal, **kept}), data, seen, rng())
    assert not set(seen.parameters) & {ROWS, HEAD}
    result = own.client_update(replace(view, personal=kept), data, seen, rng())
    assert not set(result.personal) & {ROWS, HEAD}


def test_a_task_without_clip_is_refused(task):
    with pytest.raises(MethodError, match="valid: shared"):
        at_home(promptfl.build(promptfl.Config(), task), "own", replace(task, backbone=None))


def test_before_the_end_it_is_the_method(own, examples):
    view = newcomer(own)
    batch = {**examples.arrays, FEATURES: examples.arrays["features"]}
    classes = own.classes
    expected = own.base.predict(view, batch, classes)
    np.testing.assert_array_equal(own.predict(ClientView(view.broadcast), batch, classes), expected)
