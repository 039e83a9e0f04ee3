"""What record-level training costs: oracles, adversaries, calibration, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import pytest

from privacy import (
    DpSgd,
    IntegerNoise,
    UploadNoise,
    accountant_table,
    calibrate_noise_multiplier,
    epsilon,
    epsilons,
)
from privacy.accounting.calibration import bracket, calibrate_sampled
from privacy.accounting.composition import Composition, IntegerTerm, Term
from privacy.errors import CalibrationError, UnsupportedEvent
from privacy.training import opacus_adapters
from tests.privacy._rows import release_of, release_of_fits

DELTA = 1e-5


def mechanism(**changes):
    fields = {
        "noise_multiplier": 1.0,
        "clipping_norm": 0.3,
        "sampling_probability": 0.1,
        "steps": 10,
        "expected_batch_size": 8.0,
    }
    return DpSgd(**fields | changes)


def rows(private, rounds=1, **changes):
    return [release_of_fits(private, round_number=n, **changes) for n in range(rounds)]


@pytest.mark.parametrize(
    ("private", "rounds", "expected"),
    [
        (mechanism(), 10, {"pld": 7.0466, "rdp": 7.9039, "prv": 7.0571}),
        pytest.param(
            mechanism(noise_multiplier=1.3, sampling_probability=250 / 60000, steps=3600),
            1,
            {"pld": 0.8530, "rdp": 0.9422, "prv": 0.8630},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_oracles(private, rounds, expected):
    table = accountant_table(rows(private, rounds), DELTA)
    assert str(table.pop("exact")).startswith("n/a: the exact")
    assert table == pytest.approx(expected, abs=1e-4)
    result = epsilon(rows(private, rounds), DELTA)
    assert (result.epsilon, result.accountant) == (table["pld"], "pld")


def test_replace_one_with_sampling_is_priced_by_pld_alone():
    private = mechanism(noise_multiplier=4.0, steps=1, relation="replace_one")
    table = accountant_table(rows(private), 1e-3)
    assert "rdp" in table and str(table["rdp"]).startswith("n/a: ")
    assert "under replace_one" in str(table["prv"])
    removed = mechanism(noise_multiplier=4.0, steps=1)
    assert epsilon(rows(private), 1e-3).epsilon > epsilon(rows(removed), 1e-3).epsilon
    with pytest.raises(UnsupportedEvent, match="PoissonSampledDpEvent"):
        epsilon(rows(private), 1e-3, "rdp")


def test_tables_of_nothing_and_of_everything():
    assert set(accountant_table([], DELTA).values()) == {0.0}
    bare = accountant_table(rows(mechanism(noise_multiplier=0.0)), DELTA)
    assert set(bare.values()) == {math.inf}
    with pytest.raises(ValueError, match="delta"):
        accountant_table([], 0.0)


@pytest.mark.parametrize(
    ("z", "steps"), [pytest.param(0.07, 10, marks=pytest.mark.slow), (1e-9, 1)]
)
def test_prv_gives_no_number_where_its_grid_overflows_nor_of_integer_noise(z, steps):
    composition = Composition("add_or_remove_one", (Term(z, 1.0, steps),))
    with pytest.raises(UnsupportedEvent, match="Opacus' PRV"):
        opacus_adapters.prv_epsilon(composition, DELTA)
    noise = IntegerNoise(name="skellam", share_deviation=9.0, shares=3, dimension=2)
    composition = Composition("add_or_remove_one", (), integer_terms=(IntegerTerm(3.0, noise, 1),))
    with pytest.raises(UnsupportedEvent, match="no integer noise"):
        opacus_adapters.prv_epsilon(composition, DELTA)


@pytest.mark.parametrize("channel", ["pool", "metrics"])
def test_training_is_charged_to_the_observer_on_whatever_channel(channel):
    # Without sampling, which takes an accountant that is quick.
    (row,) = rows(mechanism(sampling_probability=1.0))
    result = epsilons([dataclasses.replace(row, channel=channel)], DELTA)
    assert result.observer == result.server == result.peers > 0.0


def test_a_row_of_many_steps_is_as_many_rows():
    one, ten = (mechanism(noise_multiplier=8.0, steps=steps) for steps in (1, 10))
    assert epsilon(rows(one, 10), DELTA) == epsilon(rows(ten), DELTA)
    assert rows(mechanism(steps=7))[0].count == 7


def test_mixed_units_have_no_single_epsilon():
    noised = release_of(UploadNoise(1.0, 4.0, "add_or_remove_one"), pseudonym="b")
    with pytest.raises(UnsupportedEvent, match="mixes dp_sgd"):
        epsilons([*rows(mechanism()), noised], DELTA)


@pytest.mark.slow
def test_calibrated_noise_just_fits():
    calibrate_sampled.cache_clear()
    sampled = {"relation": "replace_one", "sampling_probability": 0.5, "steps": 4}
    plan = {"releases_per_round": 1, "rounds": 5} | sampled
    z = calibrate_noise_multiplier(3.0, DELTA, **plan)
    assert epsilon(rows(mechanism(noise_multiplier=z, **sampled), 5), DELTA).epsilon <= 3.0
    less = mechanism(noise_multiplier=z * (1 - 4e-5), **sampled)
    assert epsilon(rows(less, 5), DELTA).epsilon > 3.0
    assert calibrate_noise_multiplier(3.0, DELTA, **plan) == z
    assert calibrate_sampled.cache_info().hits == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"steps": 0}, CalibrationError, "steps is 0"),
        ({"target_epsilon": 1e7, "accountant": "rdp"}, CalibrationError, "below 0.2"),
        ({"accountant": "exact"}, UnsupportedEvent, "does not cover sampled"),
        ({"accountant": "rdp", "relation": "replace_one"}, UnsupportedEvent, "refuses a release"),
        ({"sampling_probability": 1.5}, CalibrationError, "sampling_probability is 1.5"),
    ],
)
def test_calibrations_that_are_refused(changes, error, message):
    plan = {
        "target_epsilon": 2.0,
        "target_delta": DELTA,
        "releases_per_round": 1,
        "rounds": 2,
        "relation": "add_or_remove_one",
        "sampling_probability": 0.2,
        "steps": 3,
    }
    with pytest.raises(error, match=message):
        calibrate_noise_multiplier(**plan | changes)
    with pytest.raises(CalibrationError, match="up to 1e"):
        bracket(lambda log_z: 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", -1.0),
        ("sampling_probability", 0.0),
        ("sampling_probability", 1.01),
        ("steps", 0),
        ("relation", "neighbour"),
    ],
)
def test_meaningless_mechanisms_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        mechanism(**{name: value})


def test_the_row_states_noise_norm_and_sampling_apart():
    (row,) = rows(mechanism(noise_multiplier=2.0), status="released")
    assert (row.standard_deviation, row.clipping_norm, row.sensitivity) == (0.6, 0.3, 0.3)
    assert (row.sampling, row.sampling_probability, row.count) == ("poisson", 0.1, 10)
    assert (row.mechanism.name, row.channel, row.status) == ("dp_sgd", "sum", "released")
    (whole,) = rows(mechanism(sampling_probability=1.0, relation="replace_one"))
    assert (whole.sampling, whole.sensitivity) == ("none", 0.6)
