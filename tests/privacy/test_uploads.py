"""One door: every mechanism carries, noises, opens and charges, and nothing else comes in."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import privacy
from privacy import (
    GAUSSIAN,
    NO_NOISE,
    CalibrationError,
    CentralNoise,
    CohortSampling,
    DistributedNoise,
    IntegerNoise,
    IntegerUploadNoise,
    NonFiniteUpdate,
    NoProtection,
    Quantiser,
    SignedGrid,
    UnknownMechanism,
    UploadNoise,
    default_scale,
    epsilon,
    grid_of,
    noise_for_sum,
    noise_in_sum,
    protect_upload,
    with_clipping_norm,
)
from privacy.central import central_ring_bits, protect_for_centre
from privacy.errors import PrivacyError, UploadSaturated
from tests.privacy._recorded import RecordedNoise, seeded
from tests.privacy._rows import release_of

NONE = NoProtection(4.0)
UPLOAD = UploadNoise(0.5, 2.0)
INTEGER = IntegerUploadNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)
DISTRIBUTED = DistributedNoise(
    clipping_norm=0.5, noise_multiplier=2.0, minimum_survivors=6, corrupt=2, scale=4_096.0
)
CENTRAL = CentralNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)

NOISY = (UPLOAD, INTEGER, DISTRIBUTED, CENTRAL)
ON_THE_GRID = (INTEGER, DISTRIBUTED, CENTRAL)
EVERY = (NONE, *NOISY)


def named(mechanism):
    return type(mechanism).__name__


every = pytest.mark.parametrize("mechanism", EVERY, ids=named)
noisy = pytest.mark.parametrize("mechanism", NOISY, ids=named)
on_the_grid = pytest.mark.parametrize("mechanism", ON_THE_GRID, ids=named)


def row(mechanism, dimension=64, **changes):
    return release_of(mechanism, dimension, **{"round_number": 3} | changes)


def opened_sum(updates, mechanism, noise):
    """Protect, sum in the ring and open, as a round does."""
    clients = len(updates)
    grid = grid_of(mechanism, updates[0].size, bits=24, clients=clients)
    total = np.zeros(updates[0].size, dtype=np.uint64)
    for update in updates:
        total += protect_upload(update, mechanism, grid, noise).levels
    ring = grid.ring_bits(clients)
    return grid.dequantise_sum(total & np.uint64(2**ring - 1), clients)


@noisy
@pytest.mark.parametrize("clients", [4, 20])
def test_noise_in_the_sum_is_what_is_measured(mechanism, clients):
    size, noise = 20_000, seeded(11)
    found = opened_sum([np.zeros(size)] * clients, mechanism, noise)
    if isinstance(mechanism, CentralNoise):
        np.testing.assert_array_equal(found, 0.0)
        found = found + noise_for_sum(mechanism, size, noise) / mechanism.scale
    square = float(np.sum((found / noise_in_sum(mechanism, clients)) ** 2))
    assert stats.chi2.ppf(5e-7, size) < square < stats.chi2.isf(5e-7, size)


@noisy
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_neighbours_are_as_far_apart_as_the_row_says(mechanism, relation):
    # The worst neighbours, both far beyond C, with the same coins: what is left is how far one is
    # from the other.
    how = dataclasses.replace(mechanism, relation=relation)
    far = 1e3 * np.eye(64)[17]
    grid = grid_of(how, 64, bits=24, clients=1)
    sent, other = (
        grid.dequantise(protect_upload(vector, how, grid, seeded(1)).levels)
        for vector in (far, -far if relation == "replace_one" else 0.0 * far)
    )
    distance, sensitivity = float(np.linalg.norm(sent - other)), row(how).sensitivity
    assert distance == pytest.approx(sensitivity, rel=1e-3)
    assert distance <= sensitivity * (1 + 1e-4)


def test_noise_in_the_sum_by_hand():
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
GOLDEN = {
    "NoProtection": [33177, 31948, 34406, 32768, 27852, 32849],
    "UploadNoise": [32802, 35325, 32692, 28397, 28049, 36927],
    "IntegerUploadNoise": [-905, -2114, -3662, -4511, 652, 652],
    "DistributedNoise": [-373, -1217, -1512, -2256, -631, 342],
    "CentralNoise": [159, -319, 638, 0, -1913, 32],
    "skellam": [908, -23, -278, 2102, -1717, 893],
}


@pytest.mark.parametrize("mechanism", [*EVERY, dataclasses.replace(DISTRIBUTED, kind="skellam")])
def test_recorded_bytes_give_the_levels_that_are_pinned(mechanism):
    golden = GOLDEN["skellam" if "skellam" in repr(mechanism) else named(mechanism)]
    update = np.array([0.05, -0.1, 0.2, 0.0, -0.6, 0.01])
    grid = grid_of(mechanism, 6, bits=16, clients=4)
    found = protect_upload(update, mechanism, grid, RecordedNoise())
    assert found.levels.tolist() == [k % (grid.largest_level + 1) for k in golden]


def test_recorded_bytes_give_the_coordinators_noise_that_is_pinned():
    found = noise_for_sum(CENTRAL, 3, RecordedNoise())
    # -0.0305, 0.7005 and -0.1740 of the draws, on 4,096 steps to 1.
    assert found.dtype == np.int64 and found.tolist() == [-125, 2869, -713]


@on_the_grid
@pytest.mark.parametrize("bits", [8, 16])
def test_wrapping_around_loses_utility_and_changes_no_row(mechanism, bits):
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


def test_the_grid_of_each_by_hand():
    assert grid_of(NONE, 64, bits=12, clients=9) == Quantiser(4.0, 12)
    assert grid_of(UPLOAD, 64, bits=12, clients=9) == Quantiser(UPLOAD.reach(64), 12)
    # 9 clients of 2,048 steps; noise of deviation 4,096 or 2,048 a client, 3 times that in the sum,
    # at most 8.07 deviations; 118,000 and 68,000 steps, and a bit for the sign. The coordinator's
    # noise has 4,096 as well: 51,500 steps. 2,048^2 + 64/4 + 2,048 + 4 is what rounding leaves.
    for mechanism, ring in ((INTEGER, 18), (DISTRIBUTED, 18)):
        assert grid_of(mechanism, 64, bits=12, clients=9) == SignedGrid(4_096.0, ring, 9)
    assert grid_of(CENTRAL, 64, bits=12, clients=9) == SignedGrid(4_096.0, 17, 9, 4_196_372)


@every
def test_no_coordinates_or_clients_have_no_grid(mechanism):
    with pytest.raises(ValueError, match="dimension is 0"):
        grid_of(mechanism, 0, bits=16, clients=1)
    if mechanism in ON_THE_GRID:
        with pytest.raises(ValueError, match="clients is 0"):
            grid_of(mechanism, 1, bits=16, clients=0)


@pytest.mark.parametrize("mechanism", [NONE, UPLOAD], ids=named)
def test_noise_on_the_reals_does_not_travel_on_a_signed_grid(mechanism):
    with pytest.raises(TypeError, match=f"SignedGrid .* {named(mechanism)}"):
        protect_upload(np.zeros(3), mechanism, SignedGrid(4_096.0, 32, 1), seeded())


@on_the_grid
def test_integers_do_not_travel_on_another_grid(mechanism):
    with pytest.raises(TypeError, match=f"Quantiser .* {named(mechanism)}"):
        protect_upload(np.zeros(3), mechanism, Quantiser(4.0, 16), seeded())
    # That of another round under adaptive clipping: opened there, every value would be doubled.
    with pytest.raises(ValueError, match="scale is 2048"):
        protect_upload(np.zeros(3), mechanism, SignedGrid(2_048.0, 32, 1), seeded())


@every
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_refused(mechanism, value):
    grid = grid_of(mechanism, 2, bits=16, clients=1)
    with pytest.raises(NonFiniteUpdate, match="not finite"):
        protect_upload(np.array([0.0, value]), mechanism, grid, seeded())


@every
@pytest.mark.parametrize("bare", [None, 7, np.random.default_rng(0)], ids=named)
def test_noise_that_does_not_say_what_it_is_is_refused(mechanism, bare):
    grid = grid_of(mechanism, 2, bits=16, clients=1)
    with pytest.raises(TypeError, match=f"noise is a {named(bare)};"):
        protect_upload(np.zeros(2), mechanism, grid, bare)


@dataclasses.dataclass(frozen=True)
class Magic:
    """No mechanism of ours, with all that one has."""

    clipping_norm: float = 0.5
    noise_multiplier: float = 2.0
    scale: float = 4_096.0
    standard_deviation: float = 1.0


def test_a_mechanism_that_is_not_listed_is_refused_at_every_door():
    magic = Magic()
    doors = (
        lambda: grid_of(magic, 3, bits=16, clients=1),
        lambda: protect_upload(np.zeros(3), magic, SignedGrid(4_096.0, 32, 1), seeded()),
        lambda: protect_upload(np.zeros(3), magic, Quantiser(4.0, 16), seeded()),
        lambda: row(magic),
        lambda: with_clipping_norm(magic, 1.0),
        lambda: noise_in_sum(magic, 1),
    )
    for door in doors:
        with pytest.raises(UnknownMechanism, match="Magic is no mechanism"):
            door()


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
def test_the_row_of_each_by_hand(mechanism, name, deviation, norm):
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


def test_an_entry_of_the_pool_is_charged_only_where_it_is_protected():
    for mechanism in (DISTRIBUTED, CENTRAL):
        with pytest.raises(ValueError, match="channel"):
            row(mechanism, channel="pool")
    for mechanism in (NONE, UPLOAD, INTEGER):
        assert row(mechanism, channel="pool").channel == "pool"


def test_only_a_centrally_noised_sum_has_a_cohort():
    cohort = CohortSampling(kind="poisson", size=5, population=50, is_drawn=True)
    assert row(CENTRAL, cohort=cohort).cohort == cohort
    for mechanism in (NONE, UPLOAD, INTEGER, DISTRIBUTED):
        with pytest.raises(ValueError, match="cohort must be None on channel 'sum' under"):
            row(mechanism, cohort=cohort)


def price(mechanism, dimension=5_000):
    return epsilon([row(mechanism, dimension)], 1e-5).epsilon


@noisy
@settings(max_examples=25, deadline=None)
@given(norm=st.floats(1e-9, 1e9))
def test_another_norm_keeps_multiplier_and_price(mechanism, norm):
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
def test_noise_near_the_largest_moves_with_the_norm_too(norm):
    # 65,536 steps times 31 is just below 2^21; with a scale chosen anew 31 might be 62.
    start = IntegerUploadNoise(clipping_norm=0.5, noise_multiplier=31.0, scale=default_scale(0.5))
    moved = with_clipping_norm(start, norm)
    assert moved.share_deviation == pytest.approx(31.0 * 65_536, rel=1e-12)


@noisy
@pytest.mark.parametrize("norm", [0.0, math.nan])
def test_another_norm_that_is_none_is_refused(mechanism, norm):
    with pytest.raises(ValueError, match="clipping_norm is"):
        with_clipping_norm(mechanism, norm)
    with pytest.raises(UnknownMechanism, match="NoProtection"):
        with_clipping_norm(NONE, 1.0)


def test_an_update_is_carried_within_a_step_and_right_on_average():
    vector = np.array([0.1, -0.2, 0.00003, 0.0])
    how, grid = CENTRAL, SignedGrid(4_096.0, 32, 1)
    sent = [
        grid.dequantise(protect_for_centre(vector, how, ring_bits=32, noise=seeded(k)).levels)
        for k in range(500)
    ]
    assert np.abs(np.array(sent) - vector).max() < 1 / 4_096
    # A coin's deviation is at most half a step; five of them over 500 tries.
    assert np.abs(np.mean(sent, axis=0) - vector).max() < 5 * 0.5 / 4_096 / math.sqrt(500)


def test_no_noise_is_allowed_and_costs_infinity():
    how = dataclasses.replace(CENTRAL, noise_multiplier=0.0)
    np.testing.assert_array_equal(noise_for_sum(how, 3, seeded()), [0, 0, 0])
    assert epsilon([row(how)], 1e-5).epsilon == math.inf


def test_the_ring_holds_the_longest_sum():
    # 2^20 steps over one coordinate: (2^20 + 1)^2 against 2^40 + 1/4 + 2^20 + 1/2, the less.
    how = dataclasses.replace(CENTRAL, clipping_norm=1.0, scale=2.0**20, noise_multiplier=0.0)
    longest = math.sqrt(2**40 + 2**20)
    most = int(2**31 / longest)
    assert most * longest < 2**31 <= (most + 1) * longest
    assert central_ring_bits(how, dimension=1, clients=most) == 32
    assert central_ring_bits(how, dimension=1, clients=most + 1) == 33
    with pytest.raises(CalibrationError, match="8796093022208 clients"):
        central_ring_bits(how, dimension=1, clients=2**43)
    for name in ("dimension", "clients"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            central_ring_bits(how, **{"dimension": 1, "clients": 1} | {name: 0})


@pytest.mark.parametrize("dimension", [1, 8_192])
@pytest.mark.parametrize("multiplier", [0.01, 1_000.0])
def test_the_ring_holds_the_noise_too(dimension, multiplier):
    how, clients = dataclasses.replace(CENTRAL, noise_multiplier=multiplier), 10
    deviation = multiplier * how.scaled_norm
    half = 2 ** (central_ring_bits(how, dimension=dimension, clients=clients) - 1)
    longest = row(how, dimension).clipping_norm * how.scale
    chance = 2 * dimension * stats.norm.sf((half - clients * longest) / deviation)
    assert chance <= 2.0**-40
    # And not twice as large as it takes: in half of it the chance is above.
    smaller = 2 * dimension * stats.norm.sf((half / 2 - clients * longest) / deviation)
    assert smaller > 2.0**-41 or half == 2**15


@on_the_grid
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clipping_norm": 0.0}, ValueError, "clipping_norm is 0"),
        ({"scale": math.inf}, ValueError, "scale is inf"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1"),
        ({"relation": "swap"}, ValueError, "relation is 'swap'"),
        ({"scale": 1_999.0}, CalibrationError, "999.5 steps of the grid; it must be from 1000"),
        ({"scale": 2.0**32}, CalibrationError, "to 2\\^30"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(mechanism, changes, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(mechanism, **changes)


@pytest.mark.parametrize("mechanism", [INTEGER, DISTRIBUTED], ids=named)
def test_integer_noise_out_of_its_theorem_is_refused(mechanism):
    for multiplier, message in ((0.0, "deviation of 0 steps"), (1e9, "to 2\\^21")):
        with pytest.raises(CalibrationError, match=message):
            dataclasses.replace(mechanism, noise_multiplier=multiplier)


@pytest.mark.parametrize("dimension", [1, 10**7])
@pytest.mark.parametrize("noise_multiplier", [0.5, 20.0])
def test_headroom_bounds_the_chance_of_saturation(dimension, noise_multiplier):
    assert UploadNoise(0.4, 0.0).reach(dimension) == 0.4
    bound = UploadNoise(0.4, noise_multiplier).reach(dimension)
    # The worst coordinate sits at C; the union bound over all of them.
    chance = 2 * dimension * stats.norm.sf((bound - 0.4) / (0.4 * noise_multiplier))
    assert 2.0**-42 < chance < 2.0**-40


def test_saturation_of_noise_is_counted_and_not_refused():
    mechanism = UploadNoise(1.0, 10.0)
    result = mechanism.protect(np.zeros(10_000), Quantiser(10.0, 16), seeded())
    # One standard deviation: 31.7 % of the coordinates.
    assert stats.binomtest(result.saturated, 10_000, 2 * stats.norm.sf(1.0)).pvalue > 1e-6
    assert int(result.levels.max()) == 2**16 - 1


def test_none_refuses_saturation_and_names_the_worst_coordinate():
    vector = np.array([0.0, 8.5, -9.25, 8.0])
    with pytest.raises(UploadSaturated) as caught:
        NoProtection(8.0).protect(vector, Quantiser(8.0, 16), None)
    assert caught.value.index == 2
    # Of the data it states neither the coordinate, nor its place, nor how many there are.
    said = "a coordinate is beyond secure_aggregation.value_bound 8; raise the bound"
    assert str(caught.value) == said


def test_what_was_noised_before_is_cut_and_counted():
    vector = np.array([0.0, 8.5, -9.25, 8.0])
    quantiser = Quantiser(8.0, 24)
    result = NoProtection(8.0, cuts=True).protect(vector, quantiser, None)
    sent = quantiser.dequantise(result.levels)
    np.testing.assert_allclose(sent, [0.0, 8.0, -8.0, 8.0], atol=1e-6)
    assert (result.saturated, result.was_clipped) == (2, False)
    assert result.norm == pytest.approx(float(np.linalg.norm(vector)))


def test_meaningless_mechanisms_are_refused():
    for clipping_norm, noise_multiplier in ((0.0, 1.0), (1.0, -1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match=r"clipping_norm|noise_multiplier"):
            UploadNoise(clipping_norm, noise_multiplier)
    with pytest.raises(ValueError, match="relation"):
        UploadNoise(1.0, 1.0, "swap")
    with pytest.raises(ValueError, match="value_bound"):
        NoProtection(0.0)
    with pytest.raises(ValueError, match="dimension"):
        UploadNoise(1.0, 1.0).reach(0)


def test_every_error_has_one_root():
    errors = [getattr(privacy.errors, name) for name in dir(privacy.errors)]
    own = [error for error in errors if isinstance(error, type)]
    assert own
    assert all(issubclass(error, PrivacyError) for error in own)
