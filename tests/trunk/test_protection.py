"""What is done to an update and its pool entry before either leaves the client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods import LocalResult, TensorSpec, UpdateSpecMismatch, Weighting
from platform.errors import ProtocolError, RunStopped
from platform.mechanisms.dp_sgd import DP_SGD
from platform.mechanisms.mechanism import Settings
from platform.protection.sums import SumProtection
from platform.protection.uploads import LEVELS, EntryProtection, Protection
from platform.wire.layout import (
    build_layout,
    flatten,
    level_type,
    tensor_at,
    unflatten,
    vector_length,
)
from privacy import (
    NonFiniteUpdate,
    NoProtection,
    Quantiser,
    ReleaseKey,
    SeededNoise,
    SignedGrid,
    UploadNoise,
)

SPEC = {"a": TensorSpec((3,)), "b": TensorSpec((2, 2), weighting=Weighting.SUM)}
BROADCAST = {"a": np.full(3, 2.0, np.float32), "b": np.full((2, 2), -1.0, np.float32)}
UPDATE = {
    "a": np.array([0.3, -0.4, 0.0], np.float32),
    "b": np.array([[0.0, 1.2], [0.0, 0.0]], np.float32),
}
"""Of norm 1.3."""
ENTRY = {name: BROADCAST[name] + UPDATE[name] for name in SPEC}
NOISED = UploadNoise(clipping_norm=0.65, noise_multiplier=2.0)


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def protection(mechanism=NOISED, *, pool=True, noise="same", masked=True, spec=SPEC) -> Protection:
    layout = build_layout(spec, weighs_examples=not mechanism.facts.claims)
    sums = SumProtection(mechanism=mechanism, layout=layout, bits=20, masked=masked)
    return Protection(sums=sums, entries=EntryProtection(spec=SPEC, noise=noise) if pool else None)


def step_of(guard: Protection, coordinates: int = 7) -> float:
    """Of the grid on which so many coordinates travel, after noise on the reals."""
    return Quantiser(guard.mechanism.reach(coordinates), guard.sums.bits).step


def exact_result() -> LocalResult:
    """A result whose entry minus broadcast is the update to the bit, as methods return it."""
    difference = {name: ENTRY[name] - BROADCAST[name] for name in SPEC}
    return LocalResult(difference, ENTRY, {})


def test_same_noise_is_the_very_same_vector():
    guard, result = protection(), exact_result()
    prepared = guard.prepare(result, BROADCAST, seeded())
    assert prepared.channels == guard.channels == ("sum",)
    assert set(prepared.entry) == {LEVELS}
    assert np.array_equal(prepared.entry[LEVELS], prepared.levels)
    # Drawn once: the next draw of the same source is that of a source used once.
    one, other = seeded(), seeded()
    guard.prepare(result, BROADCAST, one)
    protection(pool=False).prepare(result, BROADCAST, other)
    assert np.array_equal(one.standard_normal(3), other.standard_normal(3))


def test_independent_noise_is_a_second_release():
    guard = protection(noise="independent")
    prepared = guard.prepare(exact_result(), BROADCAST, seeded())
    assert prepared.channels == guard.channels == ("sum", "pool")
    assert not np.array_equal(prepared.entry[LEVELS], prepared.levels)
    many = (guard.prepare(exact_result(), BROADCAST, seeded(i)) for i in range(200))
    spread = np.std([(p.entry[LEVELS].astype(float) - p.levels.astype(float)).mean() for p in many])
    # The mean over 7 of differences of two noises of standard deviation 1.3.
    assert spread * step_of(guard) == pytest.approx(1.3 * np.sqrt(2 / 7), rel=0.2)


@pytest.mark.parametrize(
    ("pool", "noise", "spec", "expected"),
    [
        *((False, "same", SPEC, ("sum",)), (True, "same", SPEC, ("sum",))),
        *((True, "independent", SPEC, ("sum", "pool")), (False, "same", {}, ())),
        *((True, "same", {}, ("pool",)), (True, "independent", {}, ("pool",))),
    ],
)
def test_releases_by_hand(pool, noise, spec, expected):
    guard = protection(pool=pool, noise=noise, spec=spec)
    assert guard.channels == expected
    rows = guard.releases(ReleaseKey(run_id="r", round_number=3, attempt=2, pseudonym="p"))
    assert tuple(row.channel for row in rows) == expected
    for row in rows:
        assert (row.run_id, row.round_number, row.attempt, row.pseudonym) == ("r", 3, 2, "p")
        assert (row.standard_deviation, row.clipping_norm) == (1.3, 0.65)
        assert row.status == "reserved"


def test_the_whole_update_is_clipped_as_one_vector():
    """Norm 1.3 against a bound of 0.65: everything is halved."""
    guard = protection(UploadNoise(0.65, 0.0), pool=False)
    prepared = guard.prepare(exact_result(), BROADCAST, seeded())
    half = [0.15, -0.2, 0, 0, 0.6, 0, 0]
    np.testing.assert_allclose(prepared.vector, half, atol=step_of(guard) / 2 + 1e-7)


def test_opening_an_entry_adds_the_broadcast_back():
    guard = protection(UploadNoise(10.0, 0.0))
    prepared = guard.prepare(exact_result(), BROADCAST, seeded())
    guard.verify_entry(prepared.entry)
    opened = guard.open_entry(prepared.entry, BROADCAST)
    for name, value in ENTRY.items():
        assert opened[name].dtype == np.float32
        np.testing.assert_allclose(opened[name], value, atol=step_of(guard))


def test_an_entry_that_is_not_the_update_is_refused_under_same():
    result = LocalResult(exact_result().update, {**ENTRY, "a": ENTRY["a"] + 0.5}, {})
    with pytest.raises(RunStopped, match=r"pool\.noise: 'same' .*independent"):
        protection().prepare(result, BROADCAST, seeded())
    protection(noise="independent").prepare(result, BROADCAST, seeded())


def test_an_entry_of_other_tensors_is_a_difference_to_zero():
    """A module that is not broadcast (PM-MoE): its release is the module itself."""
    layout = build_layout({"a": SPEC["a"]}, weighs_examples=False)
    sums = SumProtection(mechanism=UploadNoise(10.0, 0.0), layout=layout, bits=20, masked=True)
    entries = EntryProtection(spec={"m": TensorSpec((2,))}, noise="independent")
    guard = Protection(sums=sums, entries=entries)
    module = {"m": np.array([0.5, -1.5], np.float32)}
    result = LocalResult({"a": UPDATE["a"]}, module, {})
    prepared = guard.prepare(result, {"a": BROADCAST["a"]}, seeded())
    opened = guard.open_entry(prepared.entry, {"a": BROADCAST["a"]})
    np.testing.assert_allclose(opened["m"], [0.5, -1.5], atol=step_of(guard, 2))


def test_without_mechanism_and_masks_everything_is_exact():
    guard = protection(NoProtection(8.0), masked=False)
    assert guard.sums.exact
    prepared = guard.prepare(exact_result(), BROADCAST, seeded())
    assert prepared.levels is None
    expected = [*exact_result().update["a"], *exact_result().update["b"].ravel()]
    assert prepared.vector.tolist() == [float(v) for v in expected]
    assert np.array_equal(prepared.entry["a"], ENTRY["a"])
    opened = guard.open_entry(prepared.entry, BROADCAST)
    assert all(np.array_equal(opened[name], ENTRY[name]) for name in SPEC)
    guard = protection(NoProtection(8.0), masked=True)
    assert not guard.sums.exact
    prepared = guard.prepare(exact_result(), BROADCAST, seeded())
    assert all(np.array_equal(prepared.entry[name], ENTRY[name]) for name in SPEC)
    step = 16 / (2**20 - 1)
    expected = np.concatenate([UPDATE["a"], UPDATE["b"].ravel()])
    np.testing.assert_allclose(prepared.vector, expected, atol=step / 2 + 1e-7)


@pytest.mark.parametrize(("name", "place", "value"), [("a", 1, 0.51), ("b", (1, 1), -0.6)])
def test_a_coordinate_that_does_not_fit_names_its_tensor(name, place, value):
    update = {n: np.zeros_like(v) for n, v in UPDATE.items()}
    update[name][place] = value
    guard = protection(NoProtection(0.5), pool=False)
    with pytest.raises(RunStopped, match=rf"value_bound: 0\.5 .* '{name}'"):
        guard.prepare(LocalResult(update, None, {}), BROADCAST, seeded())


@pytest.mark.parametrize(
    ("mechanism", "masked"), [(NOISED, True), (NoProtection(8.0), True), (NoProtection(8.0), False)]
)
def test_other_tensors_than_announced_are_refused(mechanism, masked):
    guard = protection(mechanism, masked=masked)
    for update in ({}, {"a": UPDATE["a"]}, {**UPDATE, "c": UPDATE["a"]}):
        with pytest.raises(UpdateSpecMismatch):
            guard.prepare(LocalResult(update, ENTRY, {}), BROADCAST, seeded())
    with pytest.raises(UpdateSpecMismatch, match="'b'"):
        wrong = {**UPDATE, "b": np.zeros(4, np.float32)}
        guard.prepare(LocalResult(wrong, ENTRY, {}), BROADCAST, seeded())
    guard = protection(mechanism, pool=False)
    for value in (np.nan, np.inf):
        update = {**UPDATE, "a": np.array([0, value, 0], np.float32)}
        with pytest.raises(NonFiniteUpdate):
            guard.prepare(LocalResult(update, None, {}), BROADCAST, seeded())


@pytest.mark.parametrize(
    ("mechanism", "entry"),
    [
        *((NOISED, ENTRY), (NOISED, {LEVELS: np.full(7, 2**20, np.uint32)})),
        *((NOISED, {LEVELS: np.zeros(shape, np.uint32)}) for shape in (6, (7, 1))),
        *((NOISED, {LEVELS: np.zeros(7, kind)}) for kind in (np.uint64, np.int64, np.float32)),
        (NoProtection(8.0), {LEVELS: np.zeros(7, np.uint32)}),
        (NoProtection(8.0), {"a": ENTRY["a"]}),
        (NoProtection(8.0), {**ENTRY, "b": ENTRY["a"]}),
        # Finite as float64 on the wire, infinite as the float32 that is stored.
        (NoProtection(8.0), {"a": np.full(3, 1e300), "b": np.zeros((2, 2))}),
    ],
)
def test_a_hostile_entry_is_refused_before_anything_is_kept(mechanism, entry):
    """Whatever `verify_entry` lets through, `open_entry` must be able to open."""
    with pytest.raises((ProtocolError, UpdateSpecMismatch)):
        protection(mechanism).verify_entry(entry)


TENSORS = {"b": TensorSpec((2, 2)), "a": TensorSpec((3,)), "c": TensorSpec(())}
ARRAYS = {
    "b": np.array([[4.0, 5.0], [6.0, 7.0]], np.float32),
    "a": np.array([1.0, 2.0, 3.0], np.float32),
    "c": np.array(8.0, np.float32),
}


def test_tensors_lie_in_the_order_of_their_names():
    vector = flatten(ARRAYS, TENSORS)
    assert vector.dtype == np.float64 and vector.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert vector_length(TENSORS) == 8
    assert "".join(tensor_at(coordinate, TENSORS) for coordinate in range(8)) == "aaabbbbc"
    with pytest.raises(IndexError):
        tensor_at(8, TENSORS)


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_any_shapes_survive(shapes):
    spec = {f"t{i}": TensorSpec(tuple(shape)) for i, shape in enumerate(shapes)}
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s.shape).astype(np.float32) for n, s in spec.items()}
    vector = flatten(arrays, spec)
    assert len(vector) == vector_length(spec)
    for name, value in unflatten(vector, spec).items():
        assert value.dtype == np.float32 and np.array_equal(value, arrays[name])


def test_uploads_of_noised_steps_are_cut_and_their_numbers_are_needed():
    """An upload that does not fit is no error: an error would tell of the data without noise."""
    settings = Settings(
        relation="add_or_remove_one",
        distribution="gaussian",
        value_bound=1.0,
        clipping_norm=None,
        noise_multiplier=1.0,
        sums=None,
        steps=None,
    )
    with pytest.raises(ValueError, match="steps are missing"):
        DP_SGD.training(settings)
    carried = DP_SGD.upload(settings)
    grid = carried.grid(2, bits=16, clients=1)
    assert carried.protect(np.array([3.0, 0.5]), grid, seeded()).saturated == 1


def test_levels_travel_in_32_bits_as_long_as_they_fit():
    assert level_type(Quantiser(1.0, 32)) is np.uint32
    assert level_type(SignedGrid(1.0, 33, 2)) is np.uint64
