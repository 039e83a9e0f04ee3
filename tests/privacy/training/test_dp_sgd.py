"""Record-level DP-SGD: noise, coins, clipping and divisor, tested on the code that is run.

Statistical tests draw from the operating system and fail a right build with probability 1e-9.
"""

from __future__ import annotations

import os
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import stats

from methods.interface.method import ParameterGroup
from privacy.errors import NonFiniteUpdate
from privacy.randomness import SystemNoise
from privacy.training import LocalTrainer, TrainingPlan, steps
from privacy.training.plan import poisson_batches
from tests.privacy._recorded import seeded
from tests.privacy.training._gated import TRAINED, make_gated
from tests.privacy.training._gated import make_examples as gated_examples
from tests.privacy.training._gated import make_parameters as gated_parameters
from tests.privacy.training._linear import Toy, fit, make_examples, mechanism, trainer

ALPHA = 1e-9
SILENT = SystemNoise()
WIDTH = 4000


def zeros(count=3, shared=WIDTH, personal=WIDTH):
    return make_examples(np.zeros((count, shared)), np.zeros((count, personal)))


def require_variance(draws, standard_deviation):
    """Two-sided chi-square test of zero-mean normal draws at level ALPHA."""
    statistic = float(((draws / standard_deviation) ** 2).sum())
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], draws.size)
    assert low < statistic < high, f"variance is off by a factor {statistic / draws.size:.3f}"


@pytest.mark.parametrize("noise", [SystemNoise(), seeded()])
def test_noise_has_the_variance_that_the_ledger_states(noise):
    """Noise of z C / B on every coordinate, personal ones too, whatever the data."""
    private = mechanism(noise_multiplier=1.5, clipping_norm=0.4, expected_batch_size=8.0)
    result = fit(trainer(private, noise), zeros())
    for name in ("shared", "personal"):
        require_variance(result[name], 1.5 * 0.4 / 8.0)


@pytest.mark.parametrize("noise", [SystemNoise(), seeded()])
def test_noise_is_fresh_each_step_and_for_each_parameter(noise):
    """Increments of consecutive steps, and of the two parameters, are uncorrelated."""
    positions = [np.zeros(2 * WIDTH)]

    def keep(tensors):
        positions.append(torch.cat([tensors["shared"], tensors["personal"]]).numpy().copy())

    private = mechanism(noise_multiplier=1.0, steps=4)
    fit(trainer(private, noise), zeros(), after_step=keep)
    increments = np.diff(np.array(positions), axis=0)
    rows = np.concatenate(np.split(increments, 2, axis=1))
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    # Of independent Gaussians r sqrt(n) is standard normal for n in the thousands.
    limit = stats.norm.isf(ALPHA / 2 / len(correlations)) / np.sqrt(WIDTH)
    assert np.abs(correlations).max() < limit


def test_every_example_is_clipped_over_all_parameters_jointly():
    """A canary of norm 10 C over both parameters moves the sum by C; so does each of 200."""
    canary = make_examples(np.full((1, 1), 6.0), np.full((1, 1), 8.0))
    result = fit(trainer(mechanism(), SILENT), canary)
    np.testing.assert_allclose([result["shared"][0], result["personal"][0]], [-0.6, -0.8], 1e-5)
    many = {name: np.repeat(array, 200, axis=0) for name, array in canary.items()}
    result = fit(trainer(mechanism(), SILENT), many)
    assert np.hypot(result["shared"][0], result["personal"][0]) == pytest.approx(200, rel=1e-5)


def test_an_empty_batch_takes_a_step_of_pure_noise():
    private = mechanism(noise_multiplier=2.0, sampling_probability=1e-12, steps=3)
    learner = trainer(private, SystemNoise())
    result = fit(learner, zeros(count=5))
    require_variance(result["shared"], 2.0 * np.sqrt(3))
    assert learner.fitted == [[0, 0, 0]]


@pytest.mark.parametrize("count", [0, 7])
def test_steps_and_noise_do_not_depend_on_the_number_of_examples(count):
    private = mechanism(noise_multiplier=1.0, sampling_probability=0.3, steps=4)
    # Neither do epochs and batch size of the plan, which would.
    learner = trainer(private, SystemNoise(), local_steps=None, local_epochs=3, batch_size=2)
    result = fit(learner, zeros(count))
    assert len(learner.fitted[0]) == learner.released.steps == 4
    require_variance(result["shared"], 2.0)


def test_the_sum_is_divided_by_a_constant():
    """Three examples of gradient 1, divisor 8: 3/8, and not the mean 1."""
    private = mechanism(clipping_norm=5.0, expected_batch_size=8.0)
    result = fit(trainer(private, SILENT), make_examples(np.ones((3, 1))))
    np.testing.assert_allclose(result["shared"], [-3.0 / 8.0])


@pytest.mark.parametrize("count", [steps.AT_ONCE, 2 * steps.AT_ONCE + 3])
def test_large_batches_are_taken_in_pieces(count):
    """Noise is added once, whatever the number of pieces, and the divisor stays."""
    rng = np.random.default_rng(1)
    examples = make_examples(rng.normal(size=(count, 3)), rng.normal(size=(count, 2)))
    rows = np.concatenate([examples["x"], examples["y"]], axis=1)
    norms = np.linalg.norm(rows, axis=1)
    expected = (rows * np.minimum(1.0, 1.0 / norms)[:, None]).sum(axis=0) / 4.0
    learner = trainer(mechanism(expected_batch_size=4.0), SILENT)
    result = fit(learner, examples)
    np.testing.assert_allclose(np.r_[result["shared"], result["personal"]], -expected, 1e-5)
    assert learner.fitted == [[count]]
    noised = mechanism(noise_multiplier=1.0, clipping_norm=1e-3)
    draws = fit(trainer(noised, SystemNoise()), zeros(count))
    require_variance(draws["shared"], 1e-3)


@pytest.mark.parametrize("probability", [0.004, 0.9])
def test_batch_sizes_are_binomial(probability):
    """Mean and variance: coins of their own, not a fixed size and not blocks."""
    count, batches = 200, 4000
    sizes = np.array(
        [len(r) for r in islice(poisson_batches(count, probability, os.urandom), batches)]
    )
    mean, variance = count * probability, count * probability * (1 - probability)
    limit = stats.norm.isf(ALPHA / 2)
    assert abs(sizes.mean() - mean) < limit * np.sqrt(variance / batches)
    # Kurtosis of a binomial: 3 + (1 - 6 p (1 - p)) / variance.
    spread = np.sqrt((2 + (1 - 6 * probability * (1 - probability)) / variance) / batches)
    assert abs(sizes.var() / variance - 1) < 1.2 * limit * spread


def test_coins_are_exact_at_their_ends():
    def fixed(word):
        return lambda size: word.to_bytes(8, "little") * (size // 8)

    half = 2**63
    assert list(next(poisson_batches(2, 0.5, fixed(half - 1)))) == [0, 1]
    assert len(next(poisson_batches(2, 0.5, fixed(half)))) == 0
    assert list(next(poisson_batches(2, 1.0, fixed(2**64 - 1)))) == [0, 1]
    assert len(next(poisson_batches(0, 1.0, os.urandom))) == 0
    assert len(next(poisson_batches(3, 2.0**-64, fixed(1)))) == 0
    assert len(next(poisson_batches(3, 2.0**-70, fixed(0)))) == 0


def test_a_recorded_seed_repeats_a_simulation_and_not_a_protected_run():
    private = mechanism(noise_multiplier=1.0, sampling_probability=0.5, steps=3)
    examples = make_examples(np.eye(30))
    again = [fit(trainer(private, seeded(1)), examples, seed=2)["shared"] for _ in range(2)]
    np.testing.assert_array_equal(*again)
    silent = mechanism(sampling_probability=0.5, steps=3)
    drawn = {fit(trainer(silent, SystemNoise()), examples)["shared"].tobytes() for _ in range(5)}
    assert len(drawn) == 5  # equal batches twice: probability 2^-87


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_and_sampling_it_is_clipped_full_batch_descent(momentum):
    """Against Opacus' own optimiser without our overrides, on prompt, gate and transformer."""
    count, norm = 7, 0.05
    plan = TrainingPlan(
        local_steps=4, batch_size=count, learning_rate=0.1, momentum=momentum, weight_decay=0.01
    )
    private = mechanism(
        noise_multiplier=1e-12, clipping_norm=norm, steps=4, expected_batch_size=float(count)
    )
    options = {"rng": np.random.default_rng(0)}
    groups = [ParameterGroup(TRAINED)]
    arrays = gated_parameters(4), gated_examples(count, 4)
    noisy = LocalTrainer(plan, dp_sgd=private, noise=SystemNoise())
    ours = noisy.fit(make_gated(), *arrays, groups=groups, **options)
    clipped = LocalTrainer(plan, norm).fit(make_gated(), *arrays, groups=groups, **options)
    for name in TRAINED:
        np.testing.assert_allclose(ours[name], clipped[name], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_an_example_without_finite_gradient_counts_as_zero_and_nothing_is_raised(bad):
    x = np.full((5, 2), 0.1)
    x[2, 1] = bad
    learner = trainer(mechanism(), SILENT)
    result = fit(learner, make_examples(x))
    np.testing.assert_allclose(result["shared"], [-0.4, -0.4], rtol=1e-5)


def test_a_parameter_without_axes():
    scalar = Toy(lambda p, e, b: b["x"][:, 0] * p["shared"] + b["y"] @ p["personal"])
    start = {"shared": np.array(0.0), "personal": np.zeros(1)}
    examples = make_examples(np.array([[0.5], [np.nan], [3.0]]))
    learner = trainer(mechanism(), SILENT)
    result = fit(learner, examples, objective=scalar, parameters=start)
    np.testing.assert_allclose(result["shared"], -1.5, rtol=1e-5)


def test_a_result_that_is_not_finite_is_refused_as_it_follows_from_noised_gradients():
    with pytest.raises(NonFiniteUpdate, match="'shared' is not finite"):
        fit(
            trainer(mechanism(noise_multiplier=1.0), SystemNoise()),
            zeros(),
            after_step=lambda tensors: tensors["shared"].fill_(np.inf),
        )


def test_amounts_above_the_charge_are_refused_and_below_are_taken():
    learner = trainer(mechanism(noise_multiplier=1.0, steps=3), SystemNoise())
    with pytest.raises(ValueError, match="steps is 4"):
        fit(learner, zeros(), steps=4)
    with pytest.raises(ValueError, match="steps is 0"):
        fit(learner, zeros(), steps=0)
    assert learner.released.steps == 0
    fit(learner, zeros(), steps=2)
    assert (len(learner.fitted[0]), learner.released.steps) == (2, 2)
    assert learner.charged_steps == 3


PRIVATE = {"dp_sgd": mechanism(), "noise": SystemNoise()}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dp_sgd": mechanism()}, ValueError, "without noise"),
        ({"noise": SystemNoise()}, ValueError, "without dp_sgd"),
        (PRIVATE | {"per_sample_clipping_norm": 1.0}, ValueError, "1.0 beside dp_sgd"),
        (PRIVATE | {"noise": np.random.default_rng(0)}, TypeError, "SystemNoise or SeededNoise"),
    ],
)
def test_contradictions_at_the_door(options, error, message):
    plan = TrainingPlan(local_steps=1, batch_size=1, learning_rate=1.0)
    with pytest.raises(error, match=message):
        LocalTrainer(plan, **options)
