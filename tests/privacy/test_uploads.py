"""One door: every mechanism carries, noises, opens and charges, and nothing else comes in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from privacy import (
    GAUSSIAN,
    NO_NOISE,
    CalibrationError,
    CentralNoise,
    ClientMechanism,
    CohortSampling,
    DistributedNoise,
    IntegerNoise,
    IntegerUploadNoise,
    NonFiniteUpdate,
    NoProtection,
    Quantiser,
    Release,
    SeededNoise,
    SignedGrid,
    UnknownMechanism,
    UploadNoise,
    clip,
    default_scale,
    epsilon,
    grid_of,
    noise_for_sum,
    noise_in_sum,
    protect_upload,
    with_clipping_norm,
)
from tests.privacy._recorded import RecordedNoise
from tests.privacy._rows import release_of

NONE = NoProtection(4.0)
UPLOAD = UploadNoise(0.5, 2.0)
INTEGER = IntegerUploadNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)
DISTRIBUTED = DistributedNoise(
    clipping_norm=0.5, noise_multiplier=2.0, minimum_survivors=6, corrupt=2, scale=4_096.0
)
CENTRAL = CentralNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)

NOISY: tuple[Any, ...] = (UPLOAD, INTEGER, DISTRIBUTED, CENTRAL)
ON_THE_GRID: tuple[Any, ...] = (INTEGER, DISTRIBUTED, CENTRAL)
EVERY: tuple[ClientMechanism, ...] = (NONE, *NOISY)


def named(mechanism: object) -> str:
    return type(mechanism).__name__


every = pytest.mark.parametrize("mechanism", EVERY, ids=named)
noisy = pytest.mark.parametrize("mechanism", NOISY, ids=named)
on_the_grid = pytest.mark.parametrize("mechanism", ON_THE_GRID, ids=named)


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def row(mechanism: Any, dimension: int = 64, **changes: Any) -> Release:
    return release_of(mechanism, dimension, **{"round_number": 3} | changes)


def opened_sum(
    updates: list[NDArray[np.float64]], mechanism: ClientMechanism, noise: SeededNoise
) -> NDArray[np.float64]:
    """Protect, sum in the ring and open, as a round does."""
    clients = len(updates)
    grid = grid_of(mechanism, updates[0].size, bits=24, clients=clients)
    total = np.zeros(updates[0].size, dtype=np.uint64)
    for update in updates:
        total += protect_upload(update, mechanism, grid, noise).levels
    ring = grid.ring_bits(clients)
    return grid.dequantise_sum(total & np.uint64(2**ring - 1), clients)


# -------------------------------------------------------------------------------- through the door


@every
@pytest.mark.parametrize("clients", [1, 12])
def test_the_sum_is_the_clipped_updates_within_the_noise(
    mechanism: ClientMechanism, clients: int
) -> None:
    rng, size = np.random.default_rng(clients), 3_000
    updates = [rng.standard_normal(size) * scale for scale in np.geomspace(1e-3, 0.5, clients)]
    found = opened_sum(updates, mechanism, seeded(1))
    bare = mechanism is NONE
    wanted = np.sum([u if bare else clip(u, 0.5).vector for u in updates], axis=0)
    # Rounding: half a step of 24 bits each; on the grid a coin's quarter of a squared step each.
    rounding = clients * 0.25 / 4_096.0**2
    variance = noise_in_sum(mechanism, clients) ** 2 * (mechanism is not CENTRAL) + rounding
    assert np.sum((found - wanted) ** 2) / variance < stats.chi2.isf(1e-9, size)
    if mechanism is NONE:
        step = grid_of(mechanism, size, bits=24, clients=1).dequantise(np.array([0, 1], np.uint64))
        assert np.abs(found - wanted).max() <= clients * (step[1] - step[0]) * 0.5001


@noisy
@pytest.mark.parametrize("clients", [4, 20])
def test_noise_in_the_sum_is_what_is_measured(mechanism: Any, clients: int) -> None:
    size, noise = 20_000, seeded(11)
    found = opened_sum([np.zeros(size)] * clients, mechanism, noise)
    if isinstance(mechanism, CentralNoise):
        np.testing.assert_array_equal(found, 0.0)
        found = found + noise_for_sum(mechanism, size, noise) / mechanism.scale
    square = float(np.sum((found / noise_in_sum(mechanism, clients)) ** 2))
    assert stats.chi2.ppf(5e-7, size) < square < stats.chi2.isf(5e-7, size)


def test_noise_in_the_sum_by_hand() -> None:
    # C is 0.5 and the multiplier 2: a deviation of 1, of the whole, of each client or of a share
    # of which 6 - 2 make the whole.
    assert noise_in_sum(NONE, 9) == 0.0
    assert noise_in_sum(UPLOAD, 9) == pytest.approx(3.0)
    assert noise_in_sum(INTEGER, 9) == pytest.approx(3.0)
    assert noise_in_sum(DISTRIBUTED, 9) == pytest.approx(1.5)
    assert noise_in_sum(DISTRIBUTED, 4) == pytest.approx(DISTRIBUTED.standard_deviation)
    assert noise_in_sum(CENTRAL, 9) == pytest.approx(1.0)


# SHAKE-256 of a fixed name: a change of one coin, of their order or of a sampler shows here.
# Negative numbers travel as their complement in the ring, whichever that is.
GOLDEN: dict[str, list[int]] = {
    "NoProtection": [33177, 31948, 34406, 32768, 27852, 32849],
    "UploadNoise": [32802, 35325, 32692, 28397, 28049, 36927],
    "IntegerUploadNoise": [-905, -2114, -3662, -4511, 652, 652],
    "DistributedNoise": [-373, -1217, -1512, -2256, -631, 342],
    "CentralNoise": [159, -319, 638, 0, -1913, 32],
    "skellam": [908, -23, -278, 2102, -1717, 893],
}
# -0.0305, 0.7005 and -0.1740 of the draws, on 4,096 steps to 1.
GOLDEN_NOISE = [-125, 2869, -713]


@pytest.mark.parametrize("mechanism", [*EVERY, dataclasses.replace(DISTRIBUTED, kind="skellam")])
def test_recorded_bytes_give_the_levels_that_are_pinned(mechanism: Any) -> None:
    golden = GOLDEN["skellam" if "skellam" in repr(mechanism) else named(mechanism)]
    update = np.array([0.05, -0.1, 0.2, 0.0, -0.6, 0.01])
    grid = grid_of(mechanism, 6, bits=16, clients=4)
    found = protect_upload(update, mechanism, grid, RecordedNoise())
    assert found.levels.tolist() == [k % (grid.largest_level + 1) for k in golden]


def test_recorded_bytes_give_the_coordinators_noise_that_is_pinned() -> None:
    found = noise_for_sum(CENTRAL, 3, RecordedNoise())
    assert found.dtype == np.int64 and found.tolist() == GOLDEN_NOISE


@on_the_grid
@pytest.mark.parametrize("bits", [8, 16])
def test_wrapping_around_loses_utility_and_changes_no_row(mechanism: Any, bits: int) -> None:
    updates, noise = [np.full(40, 0.05)] * 12, 5
    wide = SignedGrid(mechanism.scale, 64, 12)
    narrow = SignedGrid(mechanism.scale, bits, 12)
    total = {}
    for grid in (wide, narrow):
        source = seeded(noise)
        levels = [protect_upload(update, mechanism, grid, source).levels for update in updates]
        total[grid] = np.sum(levels, axis=0, dtype=np.uint64) & np.uint64(grid.largest_level)
    # What leaves in the narrow ring is a function of what leaves in the wide one.
    np.testing.assert_array_equal(total[wide] & np.uint64(2**bits - 1), total[narrow])
    apart = wide.dequantise_sum(total[wide], 12) - narrow.dequantise_sum(total[narrow], 12)
    turns = apart * mechanism.scale / 2**bits
    np.testing.assert_array_equal(turns, np.rint(turns))
    if bits == 8:
        assert np.abs(turns).max() > 0


# ------------------------------------------------------------------------------------------ grids


def test_the_grid_of_each_by_hand() -> None:
    assert grid_of(NONE, 64, bits=12, clients=9) == Quantiser(4.0, 12)
    assert grid_of(UPLOAD, 64, bits=12, clients=9) == Quantiser(UPLOAD.reach(64), 12)
    # 9 clients of 2,048 steps; noise of deviation 4,096 or 2,048 a client, 3 times that in the sum,
    # at most 8.07 deviations; 118,000 and 68,000 steps, and a bit for the sign. The coordinator's
    # noise has 4,096 as well: 51,500 steps. 2,048^2 + 64/4 + 2,048 + 4 is what rounding leaves.
    for mechanism, ring in ((INTEGER, 18), (DISTRIBUTED, 18)):
        assert grid_of(mechanism, 64, bits=12, clients=9) == SignedGrid(4_096.0, ring, 9)
    assert grid_of(CENTRAL, 64, bits=12, clients=9) == SignedGrid(4_096.0, 17, 9, 4_196_372)


@on_the_grid
def test_the_ring_grows_with_the_cohort_until_there_is_none(mechanism: Any) -> None:
    # 2,048 steps a client: 2^20 clients reach 2^31, whatever the noise.
    for clients, ring in ((2**19, 32), (2**20, 33)):
        found = grid_of(mechanism, 64, bits=12, clients=clients)
        assert isinstance(found, SignedGrid)
        assert (found.scale, found.bits, found.clients) == (4_096.0, ring, clients)
    with pytest.raises(CalibrationError, match="ring of 64 bits"):
        grid_of(mechanism, 64, bits=12, clients=2**53)


@every
def test_no_coordinates_or_clients_have_no_grid(mechanism: ClientMechanism) -> None:
    with pytest.raises(ValueError, match="dimension is 0"):
        grid_of(mechanism, 0, bits=16, clients=1)
    if mechanism in ON_THE_GRID:
        with pytest.raises(ValueError, match="clients is 0"):
            grid_of(mechanism, 1, bits=16, clients=0)


@pytest.mark.parametrize("mechanism", [NONE, UPLOAD], ids=named)
def test_noise_on_the_reals_does_not_travel_on_a_signed_grid(mechanism: ClientMechanism) -> None:
    with pytest.raises(TypeError, match=f"a SignedGrid is not the grid of {named(mechanism)}"):
        protect_upload(np.zeros(3), mechanism, SignedGrid(4_096.0, 32, 1), seeded())


@on_the_grid
def test_integers_do_not_travel_on_another_grid(mechanism: Any) -> None:
    with pytest.raises(TypeError, match=f"a Quantiser is not the grid of {named(mechanism)}"):
        protect_upload(np.zeros(3), mechanism, Quantiser(4.0, 16), seeded())
    # That of another round under adaptive clipping: opened there, every value would be doubled.
    with pytest.raises(ValueError, match="the grid's scale is 2048; it must be 4096"):
        protect_upload(np.zeros(3), mechanism, SignedGrid(2_048.0, 32, 1), seeded())


# --------------------------------------------------------------------------------------- refusals


@every
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_refused(mechanism: ClientMechanism, value: float) -> None:
    grid = grid_of(mechanism, 2, bits=16, clients=1)
    with pytest.raises(NonFiniteUpdate, match="a coordinate that is not finite"):
        protect_upload(np.array([0.0, value]), mechanism, grid, seeded())


@every
@pytest.mark.parametrize("bare", [None, 7, np.random.default_rng(0)], ids=named)
def test_noise_that_does_not_say_what_it_is_is_refused(
    mechanism: ClientMechanism, bare: Any
) -> None:
    grid = grid_of(mechanism, 2, bits=16, clients=1)
    with pytest.raises(TypeError, match=f"noise is a {named(bare)}; it must be SystemNoise"):
        protect_upload(np.zeros(2), mechanism, grid, bare)


@dataclasses.dataclass(frozen=True)
class Magic:
    """No mechanism of ours, with all that one has."""

    clipping_norm: float = 0.5
    noise_multiplier: float = 2.0
    scale: float = 4_096.0
    standard_deviation: float = 1.0


def test_a_mechanism_that_is_not_listed_is_refused_at_every_door() -> None:
    magic: Any = Magic()
    doors = (
        lambda: grid_of(magic, 3, bits=16, clients=1),
        lambda: protect_upload(np.zeros(3), magic, SignedGrid(4_096.0, 32, 1), seeded()),
        lambda: protect_upload(np.zeros(3), magic, Quantiser(4.0, 16), seeded()),
        lambda: row(magic),
        lambda: with_clipping_norm(magic, 1.0),
        lambda: noise_in_sum(magic, 1),
    )
    for door in doors:
        with pytest.raises(UnknownMechanism, match="Magic is no mechanism for uploads"):
            door()


# ------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("mechanism", "name", "deviation", "norm"),
    # 2,048 steps and 64 coordinates: 2048^2 + 16 + 2048 + 4 = 4,196,372 steps squared.
    [
        (NONE, "none", 0.0, 0.0),
        (UPLOAD, "upload_noise", 1.0, 0.5),
        (INTEGER, "upload_noise", 1.0, math.sqrt(4_196_372) / 4_096),
        (DISTRIBUTED, "distributed_noise", 1.0, math.sqrt(4_196_372) / 4_096),
        (CENTRAL, "central_noise", 1.0, math.sqrt(4_196_372) / 4_096),
    ],
    ids=["none", "upload", "integer", "distributed", "central"],
)
def test_the_row_of_each_by_hand(
    mechanism: ClientMechanism, name: str, deviation: float, norm: float
) -> None:
    found = row(mechanism)
    assert (found.mechanism.name, found.relation) == (name, "replace_one")
    assert found.standard_deviation == pytest.approx(deviation)
    assert found.clipping_norm == pytest.approx(norm, rel=1e-12)
    assert (found.run_id, found.round_number, found.attempt) == ("r", 3, 1)
    assert (found.pseudonym, found.channel, found.status) == ("a", "sum", "reserved")
    assert (found.count, found.cohort, found.left_client) == (1, None, True)
    integer = found.law
    shares = {INTEGER: 1, DISTRIBUTED: 6 - 2}.get(mechanism)
    if shares is None:
        assert integer == (NO_NOISE if mechanism is NONE else GAUSSIAN)
    else:
        assert isinstance(integer, IntegerNoise)
        assert integer.shares == shares
        # The shares' noise together is the row's, and the grid's step is what it was made on.
        together = integer.share_deviation * math.sqrt(integer.shares) / 4_096.0
        assert together == pytest.approx(deviation)


@every
def test_an_entry_of_the_pool_is_charged_only_where_it_is_protected(
    mechanism: ClientMechanism,
) -> None:
    if mechanism in (DISTRIBUTED, CENTRAL):
        with pytest.raises(ValueError, match="channel"):
            row(mechanism, channel="pool")
    else:
        assert row(mechanism, channel="pool").channel == "pool"


@every
def test_only_a_centrally_noised_sum_has_a_cohort(mechanism: ClientMechanism) -> None:
    cohort = CohortSampling(kind="poisson", size=5, population=50, is_drawn=True)
    if mechanism is CENTRAL:
        assert row(mechanism, cohort=cohort).cohort == cohort
    else:
        with pytest.raises(ValueError, match="cohort must be None on channel 'sum' under"):
            row(mechanism, cohort=cohort)


# --------------------------------------------------------------------------------- another norm


def price(mechanism: Any, dimension: int = 5_000) -> float:
    return epsilon([row(mechanism, dimension)], 1e-5).epsilon


@noisy
@settings(max_examples=25, deadline=None)
@given(norm=st.floats(1e-9, 1e9))
def test_another_norm_keeps_multiplier_and_price(mechanism: Any, norm: float) -> None:
    moved = with_clipping_norm(mechanism, norm)
    assert type(moved) is type(mechanism)
    assert (moved.clipping_norm, moved.noise_multiplier) == (norm, mechanism.noise_multiplier)
    assert moved.standard_deviation == norm * mechanism.noise_multiplier
    # All else is as it was.
    grid = {} if isinstance(mechanism, UploadNoise) else {"scale": mechanism.scale}
    assert dataclasses.replace(moved, clipping_norm=0.5, **grid) == mechanism
    # A run that was calibrated to its budget is stopped beyond a relative 1e-9.
    assert price(moved) == pytest.approx(price(mechanism), rel=1e-10)


@pytest.mark.parametrize("norm", [0.499, 0.501, 77.0])
def test_noise_near_the_largest_moves_with_the_norm_too(norm: float) -> None:
    # 65,536 steps times 31 is just below 2^21; with a scale chosen anew 31 might be 62.
    start = IntegerUploadNoise(clipping_norm=0.5, noise_multiplier=31.0, scale=default_scale(0.5))
    moved: Any = with_clipping_norm(start, norm)
    assert moved.share.share_deviation == pytest.approx(31.0 * 65_536, rel=1e-12)


@noisy
@pytest.mark.parametrize("norm", [0.0, math.nan])
def test_another_norm_that_is_none_is_refused(mechanism: Any, norm: float) -> None:
    with pytest.raises(ValueError, match="clipping_norm is"):
        with_clipping_norm(mechanism, norm)


@on_the_grid
def test_a_norm_that_no_grid_resolves_is_refused(mechanism: Any) -> None:
    with pytest.raises(ValueError, match="scale is inf"):
        with_clipping_norm(mechanism, 5e-324)


def test_what_clips_nothing_has_no_other_norm() -> None:
    bare: Any = NONE
    with pytest.raises(UnknownMechanism, match="NoProtection"):
        with_clipping_norm(bare, 1.0)
