"""`sotto.Plan` beside formulas of papers, and beside the epsilon of runs."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import sotto


def gaussian_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def mu_of(rounds, noise_multiplier, sensitivity=2.0):
    return math.sqrt(rounds) * sensitivity / noise_multiplier


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_gaussian_noise_costs_what_the_formula_says(relation):
    plan = sotto.Plan("upload_noise", rounds=10, noise_multiplier=3.8, relation=relation)
    mu = mu_of(10, 3.8, 2.0 if relation == "replace_one" else 1.0)
    expected = brentq(lambda e: gaussian_delta(e, mu) - 1e-5, 0.0, 100.0, xtol=1e-10)
    found = plan.epsilon(delta=1e-5)
    assert (found.server, found.peers, found.observer) == pytest.approx((expected,) * 3, rel=1e-6)


@pytest.mark.parametrize("prior", [0.1, 0.5, 0.9])
def test_guesses_are_those_of_the_best_test(prior):
    """A Bayesian is right with probability 1 - prior + prior delta(log((1 - prior) / prior))."""
    odds = math.log((1 - prior) / prior)
    exact = 1 - prior + prior * gaussian_delta(odds, mu_of(10, 3.8))
    found = sotto.Plan("upload_noise", rounds=10, noise_multiplier=3.8).guesses(prior=prior)
    assert found == pytest.approx(exact, abs=1e-6) and found >= exact - 1e-9


@pytest.mark.parametrize(
    "more",
    [
        {"mechanism": "distributed_noise", "size": 100, "clients": 20},
        {"mechanism": "distributed_noise", "size": 100, "clients": 20, "distribution": "skellam"},
        {"mechanism": "dp_sgd", "sampling_probability": 0.1, "steps": 3},
        {"mechanism": "central_noise", "size": 9, "clients": 20, "population": 1000},
    ],
)
def test_more_noise_leaves_fewer_right_guesses_than_any_one_epsilon_says(more):
    shares = []
    for z in (2.0, 4.0, 8.0):
        plan = sotto.Plan(rounds=4, noise_multiplier=z, **more)
        shares.append(plan.guesses())
        for delta in (1e-5, 0.01, 0.1, 0.3):
            tail = math.exp(plan.epsilon(delta).claimed)
            assert shares[-1] <= (tail + delta) / (tail + 1) + 1e-9
    assert 1 > shares[0] > shares[1] > shares[2] > 0.5


def test_nobody_guesses_better_than_certain_or_worse_than_the_prior():
    bare = sotto.Plan("none")
    assert bare.epsilon(1e-5).server == math.inf and bare.guesses() == 1.0
    private = sotto.Plan("upload_noise", noise_multiplier=1e6)
    assert private.guesses(0.7) == pytest.approx(0.7, abs=1e-3)


def test_colluders_and_a_secret_draw_change_who_learns_what():
    shared = {"rounds": 3, "noise_multiplier": 8.0, "size": 100}
    none, two = (
        sotto.Plan("distributed_noise", clients=20, corrupt=c, **shared).epsilon(1e-5)
        for c in (0, 2)
    )
    assert none.peers == math.inf and two.peers < math.inf
    drawn = sotto.Plan("central_noise", clients=20, population=1000, **shared).epsilon(1e-5)
    assert drawn.server == math.inf and drawn.observer < drawn.peers


def test_calibrated_noise_is_the_least_that_keeps_the_target():
    plan = sotto.calibrate(sotto.Plan("upload_noise", rounds=5), epsilon=2.0, delta=1e-6)
    assert plan.noise_multiplier is not None
    assert 2.0 * (1 - 1e-5) < plan.epsilon(1e-6).claimed <= 2.0
    steps = {"sampling_probability": 0.2, "steps": 2}
    trained = sotto.calibrate(sotto.Plan("dp_sgd", rounds=2, **steps), epsilon=4.0)
    assert 4.0 * (1 - 1e-3) < trained.epsilon(1e-5).claimed <= 4.0


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"mechanism": "magic"}, "mechanism"),
        ({"mechanism": "upload_noise", "rounds": 0}, "rounds"),
        ({"mechanism": "upload_noise", "relation": "same"}, "relation"),
        ({"mechanism": "upload_noise", "distribution": "laplace"}, "distribution"),
        ({"mechanism": "upload_noise", "noise_multiplier": 0.0}, "noise_multiplier"),
        ({"mechanism": "upload_noise", "noise_multiplier": math.inf}, "noise_multiplier"),
        ({"mechanism": "none", "noise_multiplier": 1.0}, "noise_multiplier"),
        ({"mechanism": "upload_noise", "corrupt": 1}, "corrupt"),
        ({"mechanism": "distributed_noise", "size": 9, "clients": 3, "corrupt": 3}, "corrupt"),
        ({"mechanism": "upload_noise", "rounds": "10"}, "rounds"),
        ({"mechanism": "upload_noise", "clients": 9}, "clients"),
        ({"mechanism": "distributed_noise", "clients": 9}, "size"),
        ({"mechanism": "distributed_noise", "size": 9}, "clients"),
        ({"mechanism": "dp_sgd"}, "sampling_probability"),
        ({"mechanism": "upload_noise", "sampling_probability": 0.1}, "sampling_probability"),
    ],
)
def test_what_is_missing_or_means_nothing_is_named(plan, field):
    with pytest.raises(sotto.Error) as caught:
        sotto.Plan(**plan)
    assert caught.value.field == field and str(caught.value).startswith(f"{field}: ")


def test_noise_that_is_too_little_for_the_grid_is_refused():
    with pytest.raises(sotto.Error, match="change scale or noise_multiplier"):
        sotto.Plan("distributed_noise", noise_multiplier=1e-9, clients=9, size=9)


@pytest.mark.parametrize("call", ["epsilon", "guesses", "calibrate"])
def test_what_cannot_be_asked_is_refused(call):
    plan = sotto.Plan("upload_noise")
    with pytest.raises(sotto.Error):
        {
            "epsilon": lambda: plan.epsilon(1e-5),
            "guesses": lambda: sotto.Plan("none").guesses(prior=1.0),
            "calibrate": lambda: sotto.calibrate(sotto.Plan("none"), epsilon=1.0),
        }[call]()
