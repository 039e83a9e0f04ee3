"""Under dp_sgd only what the trainer returned, or what was known before, may be kept or sent."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from methods.interface.method import ParameterGroup
from privacy.errors import SensitivityViolation
from privacy.randomness import SystemNoise
from privacy.training import LocalTrainer, ReleasedArrays, TrainingPlan, require_released, seal
from tests.privacy.training._linear import LINEAR, make_examples, mechanism, trainer


def broadcast():
    return {"shared": np.array([0.5, -1.0, 2.0])}


def personal():
    return {"personal": np.array([0.25])}


def data():
    examples = make_examples(np.random.default_rng(0).normal(size=(6, 3)))
    return {**examples, "labels": np.arange(6) % 2}


def noisy_trainer():
    return trainer(mechanism(noise_multiplier=1.0, steps=2), SystemNoise())


def trained_by(learner, arrays, **kept):
    """What training of the shared vector gives, beside other parameters."""
    start = broadcast() | (kept or personal())
    groups, rng = [ParameterGroup(("shared",))], np.random.default_rng(0)
    return learner.fit(LINEAR, start, arrays, groups=groups, rng=rng)


def honest(trained, arrays):
    return {}


def run(cheat, arrays):
    """A method's round: it trains, and `cheat` decides what else it does with the client's data."""
    learner = noisy_trainer()
    trained = trained_by(learner, arrays)
    parts = {
        "update": {"shared": trained["shared"] - broadcast()["shared"]},
        "pool_entry": {"shared": trained["shared"]},
        "personal": personal(),
    }
    return parts | cheat(trained, arrays), learner


def verify(parts, learner):
    """What the platform does before anything is sent or stored."""
    for part, arrays in parts.items():
        require_released(arrays, learner.released, [broadcast(), personal()], part=part)


def class_counts(trained, arrays):
    return {"personal": {**personal(), "counts": np.bincount(arrays["labels"])}}


def prototype(trained, arrays):
    return {"pool_entry": {"shared": arrays["x"].mean(axis=0)}}


def nudged(trained, arrays):
    direction = np.sign(arrays["x"].sum(axis=0))
    return {"update": {"shared": trained["shared"] - broadcast()["shared"] + 1e-12 * direction}}


def in_place(trained, arrays):
    trained["shared"][0] = arrays["x"][0, 0]
    return {"pool_entry": {"shared": trained["shared"]}}


CHEATS = [class_counts, prototype, nudged, in_place]


@pytest.mark.parametrize("closed", [False, True])
def test_an_honest_method_passes(closed):
    parts, learner = run(honest, seal(data()) if closed else data())
    verify(parts, learner)
    assert not np.array_equal(parts["update"]["shared"], np.zeros(3))
    assert learner.released.steps == 2


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_method_is_noticed_where_data_was_open(cheat):
    parts, learner = run(cheat, data())
    with pytest.raises(SensitivityViolation, match="neither returned"):
        verify(parts, learner)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_method_gets_nowhere_where_data_is_sealed(cheat):
    with pytest.raises(SensitivityViolation, match="read outside"):
        run(cheat, seal(data()))


def test_the_message_names_the_array_and_not_its_values():
    with pytest.raises(SensitivityViolation, match="personal 'counts'") as caught:
        verify(*run(class_counts, data()))
    assert "3" not in str(caught.value)


def test_a_constant_that_went_through_fit_is_no_release():
    """Otherwise anything could be laundered as a parameter that no group names."""
    learner = noisy_trainer()
    result = trained_by(learner, data(), personal=np.array([17.0]))
    assert np.array_equal(result["personal"], [17.0])
    assert len(learner.released) == 1
    with pytest.raises(SensitivityViolation):
        require_released({"p": result["personal"]}, learner.released, [broadcast()])


def test_training_without_noise_is_no_release():
    learner = LocalTrainer(TrainingPlan(local_steps=1, batch_size=2, learning_rate=0.1), 1.0)
    result = trained_by(learner, data())
    assert len(learner.released) == learner.released.steps == 0
    with pytest.raises(SensitivityViolation):
        start = broadcast() | personal()
        require_released({"shared": result["shared"]}, learner.released, [start])


ONE, TWO, OTHER = (np.array([[a, 2.0]], dtype=np.float32) for a in (1.0, 1.7, 0.3))


def record_of(arrays=(TWO,)):
    record = ReleasedArrays()
    record.add(arrays, steps=3)
    return record


@pytest.mark.parametrize(
    "array",
    [TWO, TWO.copy(), TWO - ONE, ONE, ONE - ONE, np.asfortranarray(TWO)],
    ids=["trained", "copy", "trained - constant", "constant", "zero", "other memory order"],
)
def test_what_is_accepted(array):
    require_released({"any name": array}, record_of(), [{"start": ONE}])


@pytest.mark.parametrize(
    "array",
    [
        OTHER,
        OTHER - ONE,
        ONE - TWO,
        2 * TWO,
        TWO.astype(np.float64),
        TWO[0],
        TWO.T,
        np.array(True),
        np.zeros(0),
    ],
)
def test_what_is_refused(array):
    with pytest.raises(SensitivityViolation, match="entry 'x'"):
        constants = [{"start": ONE, "flag": np.array(False)}]
        require_released({"x": array}, record_of(), constants, part="entry")


@pytest.mark.parametrize(
    "read",
    [
        len,
        list,
        np.asarray,
        lambda a: a[0],
        lambda a: a.shape,
        lambda a: np.ones(6) + a,
        lambda a: a.tolist(),
        lambda a: a == 0,
        lambda a: a != 0,
        iter,
        copy.copy,
        copy.deepcopy,
        lambda a: a.__reduce_ex__(5),
    ],
)
def test_no_ordinary_way_reads_sealed_data(read):
    closed = seal(data())["labels"]
    with pytest.raises(SensitivityViolation, match="'labels'"):
        read(closed)
    assert repr(closed) == "SealedArray('labels')"


def test_sealed_data_opens_for_private_training_only():
    plain = LocalTrainer(TrainingPlan(local_steps=1, batch_size=2, learning_rate=0.1), 1.0)
    with pytest.raises(SensitivityViolation, match="is sealed"):
        trained_by(plain, seal(data()))


def test_sealing_changes_no_result():
    quiet = mechanism(noise_multiplier=0.0, clipping_norm=0.5)
    sealed, bare = (
        trained_by(trainer(quiet, SystemNoise()), arrays)["shared"]
        for arrays in (seal(data()), data())
    )
    np.testing.assert_array_equal(sealed, bare)


def test_nothing_needs_no_permission_and_a_cleared_record_gives_none():
    require_released({}, ReleasedArrays(), [])
    record = record_of()
    assert (len(record), record.steps, TWO in record) == (1, 3, True)
    record.clear()
    assert (len(record), record.steps, TWO in record) == (0, 0, False)
    with pytest.raises(SensitivityViolation):
        require_released({"x": TWO}, record, [])
