"""Local training: plans, laws, clipping by Opacus and by hand, penalties, and what is refused."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.interface.method import ParameterGroup
from privacy.errors import NonFiniteUpdate
from privacy.training import LocalTrainer, TrainingPlan
from privacy.training.plan import shuffled_batches
from tests._batches import BatchTrainer
from tests.privacy._recorded import seeded
from tests.privacy.training._gated import (
    TRAINED,
    looped_gradients,
    make_examples,
    make_gated,
    make_parameters,
    to_tensors,
)
from tests.privacy.training._linear import Toy, mechanism
from tests.privacy.training._linear import fit as fit_linear
from tests.privacy.training._linear import make_examples as linear_examples
from tests.privacy.training._linear import trainer as linear_trainer

CLASSES = 4
BOTH = [None, 0.05]


def make_plan(**changes):
    return TrainingPlan(**{"local_steps": 3, "batch_size": 4, "learning_rate": 0.1, **changes})


def fit(trainer, *, count=10, seed=5, **options):
    groups = options.pop("groups", [ParameterGroup(TRAINED)])
    return trainer.fit(
        make_gated(),
        options.pop("parameters", make_parameters(CLASSES)),
        options.pop("examples", make_examples(count, CLASSES)),
        groups=groups,
        rng=np.random.default_rng(seed),
        **options,
    )


def clipped_mean(gradients, norm):
    """By hand, in numpy: each example's gradient as one vector, scaled, averaged; share scaled."""
    arrays = {name: g.numpy() for name, g in gradients.items()}
    size = len(next(iter(arrays.values())))
    total = {name: np.zeros(g.shape[1:]) for name, g in arrays.items()}
    scaled = 0
    for i in range(size):
        length = np.sqrt(sum(float((g[i] ** 2).sum()) for g in arrays.values()))
        scaled += length > norm
        for name, g in arrays.items():
            total[name] += g[i] * min(1.0, norm / length) / size
    return total, scaled / size


def middle_norm(count):
    """A clipping norm that half of the examples exceed."""
    gradients = looped_gradients(
        make_gated(),
        to_tensors(make_parameters(CLASSES)),
        to_tensors(make_examples(count, CLASSES)),
    )
    flat = torch.cat([g.reshape(count, -1) for g in gradients.values()], dim=1)
    return float(flat.norm(dim=1).median()) * 1.01


# Without momentum a step is learning_rate x mean; the size is also the number of classes once.
@pytest.mark.parametrize("count", [1, CLASSES, 10])
def test_opacus_clips_as_by_hand_over_all_tensors_jointly(count):
    norm = middle_norm(count) if count > 1 else 0.3
    trainer = LocalTrainer(make_plan(local_steps=1, batch_size=count), norm)
    start = make_parameters(CLASSES)
    result = fit(trainer, count=count)
    gradients = looped_gradients(
        make_gated(), to_tensors(start), to_tensors(make_examples(count, CLASSES))
    )
    mean, scaled = clipped_mean(gradients, norm)
    assert 0.0 < scaled <= 1.0
    assert count == 1 or scaled < 1.0
    for name in TRAINED:
        # Opacus adds 1e-6 to each norm before dividing.
        np.testing.assert_allclose(
            start[name] - result[name], 0.1 * mean[name], rtol=1e-5, atol=1e-9
        )


@pytest.mark.parametrize("trained", [TRAINED, ("context",)])
def test_a_huge_norm_is_unclipped_training(trained):
    plan = make_plan(local_steps=7, momentum=0.9, weight_decay=0.01)
    groups = [ParameterGroup(trained)]
    clipped = LocalTrainer(plan, 1e6)
    plain = LocalTrainer(plan)
    ours, expected = fit(clipped, groups=groups), fit(plain, groups=groups)
    for name in expected:
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("norm", BOTH)
def test_the_same_generator_gives_the_same_bits_whatever_was_trained_before(norm):
    trainer = BatchTrainer(make_plan(momentum=0.9), norm)
    first, again, other = fit(trainer), fit(trainer), fit(trainer, seed=6)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["context"], other["context"])
    assert list(map(len, trainer.fitted)) == [3, 3, 3]


@pytest.mark.parametrize("norm", BOTH)
def test_arrays_are_copied_in_and_out(norm):
    parameters, examples = make_parameters(CLASSES), make_examples(10, CLASSES)
    before = {name: array.copy() for name, array in parameters.items()}
    for array in (*parameters.values(), *examples.values()):
        array.flags.writeable = False  # as memory-mapped features are
    result = fit(LocalTrainer(make_plan(), norm), parameters=parameters, examples=examples)
    assert result.keys() == parameters.keys()
    for name, array in result.items():
        assert np.array_equal(parameters[name], before[name])
        assert not np.shares_memory(array, parameters[name])
        assert array.flags.writeable
        assert (array.shape, array.dtype) == (before[name].shape, before[name].dtype)
    for name in ("class_tokens", "experts"):
        assert np.array_equal(result[name], before[name])
    assert all(not np.array_equal(result[name], before[name]) for name in TRAINED)


@pytest.mark.parametrize("norm", BOTH)
def test_after_step_sees_and_corrects_the_trained_tensors(norm):
    seen = []

    def reset(tensors):
        seen.append(set(tensors))
        tensors["context"].fill_(0.25 * len(seen))

    groups = [ParameterGroup(("context",)), ParameterGroup(("mix",))]
    result = fit(LocalTrainer(make_plan(), norm), groups=groups, after_step=reset)
    assert seen == [{"context", "mix"}] * 3
    assert np.array_equal(result["context"], np.full_like(result["context"], 0.75))


@pytest.mark.parametrize("norm", BOTH)
def test_each_group_has_its_own_learning_rate(norm):
    rates = {"context": 0.3, "mix": 0.001, "gate.in_proj_bias": 0.0}
    start = make_parameters(CLASSES)
    together = fit(
        LocalTrainer(make_plan(local_steps=1), norm),
        groups=[ParameterGroup((n,), rate) for n, rate in rates.items()],
    )
    default = fit(
        LocalTrainer(make_plan(local_steps=1), norm), groups=[ParameterGroup(tuple(rates))]
    )
    for name, rate in rates.items():
        expected = (default[name] - start[name]) * (rate / 0.1)
        np.testing.assert_allclose(together[name] - start[name], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("plan", "steps", "expected"),
    [
        (make_plan(local_steps=5), None, (5, 4 + 4 + 2 + 4 + 4)),
        (make_plan(local_steps=None, local_epochs=2), None, (6, 20)),
        (make_plan(local_steps=5), 2, (2, 8)),
    ],
)
def test_amount_of_training(plan, steps, expected):
    trainer = BatchTrainer(plan)
    fit(trainer, steps=steps)
    assert (len(trainer.fitted[0]), sum(trainer.fitted[0])) == expected


@given(count=st.integers(1, 30), size=st.integers(1, 40), seed=st.integers(0, 99))
def test_each_epoch_visits_every_example_once(count, size, seed):
    per_epoch = -(-count // size)
    batches = list(
        islice(shuffled_batches(count, size, np.random.default_rng(seed)), 3 * per_epoch)
    )
    for epoch in range(3):
        rows = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [len(r) for r in rows[:-1]] == [size] * (per_epoch - 1)
        assert sorted(np.concatenate(rows).tolist()) == list(range(count))


def counted(runs, *encoded):
    """Counts how often the encoder runs."""

    def encode(parameters):
        runs.append(1)
        return {"text": parameters["prompt"] * 2.0}

    def losses(p, e, b):
        return (p["head"] * e["text"]).sum() * b["labels"].double()

    return Toy(losses, encode, frozenset(encoded))


@pytest.mark.parametrize("norm", BOTH)
@pytest.mark.parametrize(("trained", "runs"), [("head", 1), ("prompt", 3)])
def test_a_constant_encoding_is_computed_once(norm, trained, runs):
    counts = []
    LocalTrainer(make_plan(), norm).fit(
        counted(counts, "prompt"),
        {"prompt": np.ones(2), "head": np.ones(2)},
        {"labels": np.arange(8)},
        groups=[ParameterGroup((trained,))],
        rng=np.random.default_rng(0),
    )
    assert len(counts) == runs


@pytest.mark.parametrize(("norm", "gradient"), [(None, 3.0), (2.0, 2.0)])
def test_two_steps_by_hand(norm, gradient):
    """Loss 3 p h with h = 1 constant: gradient 3, or 2 once clipped; decay is added after that."""
    plan = make_plan(local_steps=2, learning_rate=0.5, momentum=0.5, weight_decay=0.1)
    result = LocalTrainer(plan, norm).fit(
        counted([]),
        {"prompt": np.ones(1), "head": np.array([2.0])},
        {"labels": np.full(4, 1.5)},
        groups=[ParameterGroup(("head",))],
        rng=np.random.default_rng(0),
    )
    velocity = gradient + 0.1 * 2.0
    head = 2.0 - 0.5 * velocity
    velocity = 0.5 * velocity + gradient + 0.1 * head
    np.testing.assert_allclose(result["head"], [head - 0.5 * velocity], rtol=1e-5)


@pytest.mark.parametrize("norm", BOTH)
def test_non_finite_training_is_an_error(norm):
    examples = make_examples(10, CLASSES)
    examples["features"][3] = np.nan
    with pytest.raises(NonFiniteUpdate, match="loss is not"):
        fit(LocalTrainer(make_plan(), norm), examples=examples)
    with pytest.raises(NonFiniteUpdate, match="'context' is not finite"):
        fit(LocalTrainer(make_plan(local_steps=1), norm), after_step=lambda t: t["context"].div_(0))


@pytest.mark.parametrize("norm", BOTH)
def test_an_infinite_gradient_is_an_error(norm):
    with pytest.raises(NonFiniteUpdate, match="gradient of 'w'"):
        LocalTrainer(make_plan(), norm).fit(
            # A finite loss with an infinite gradient at zero.
            Toy(lambda p, e, b: p["w"].sqrt() * b["labels"]),
            {"w": np.zeros(())},
            {"labels": np.ones(4)},
            groups=[ParameterGroup(("w",))],
            rng=np.random.default_rng(0),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": [ParameterGroup(("nosuch",))]}, "'nosuch' is unknown"),
        ({"groups": [ParameterGroup(("mix",)), ParameterGroup(("mix",))]}, "named twice"),
        ({"groups": []}, "name no parameter"),
        ({"groups": [ParameterGroup(("mix",), -0.1)]}, "learning_rate of a group is -0.1"),
        ({"parameters": {**make_parameters(CLASSES), "mix": np.array(1)}}, "floating-point"),
        ({"examples": {"features": np.ones((3, 8))}}, "'labels' is missing"),
        ({"examples": make_examples(0, CLASSES)}, "at least one example"),
        ({"examples": {"features": np.ones((3, 8)), "labels": np.zeros(2)}}, "number of rows"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_mistakes_at_the_door(options, message):
    with pytest.raises(ValueError, match=message):
        fit(LocalTrainer(make_plan()), **options)


RATE, TINY = 0.1, 1e-4


def one_step(norm=None, **options):
    """All examples in one step of plain descent, so that a step is RATE times a gradient."""
    plan = make_plan(local_steps=1, batch_size=8, learning_rate=RATE)
    return fit(LocalTrainer(plan, norm), count=8, **options)


def pull(parameters, encoded):
    """3/2 ||context - 1||^2, whose gradient is 3 (context - 1)."""
    return 1.5 * ((parameters["context"] - 1.0) ** 2).sum()


def read_text(parameters, encoded):
    return (encoded["text"] ** 3).sum()


@pytest.mark.parametrize("norm", [None, TINY])
def test_a_penalty_adds_its_own_gradient(norm):
    """Also where every example is clipped to next to nothing: the penalty is not."""
    start, without, with_it = make_parameters(CLASSES), one_step(norm), one_step(norm, penalty=pull)
    moved = with_it["context"] - without["context"]
    np.testing.assert_allclose(moved, -RATE * 3.0 * (start["context"] - 1.0), rtol=1e-9)
    for name in set(TRAINED) - {"context"}:
        np.testing.assert_array_equal(with_it[name], without[name])
    if norm is not None:
        assert np.abs(without["context"] - start["context"]).max() <= RATE * TINY


@pytest.mark.parametrize("norm", [None, TINY])
def test_a_penalty_reaches_the_prompt_through_the_encoder(norm):
    leaves = to_tensors(make_parameters(CLASSES))
    leaves["context"].requires_grad_()
    encoded = make_gated().encode(leaves)
    read_text(leaves, encoded).backward()
    moved = one_step(norm, penalty=read_text)["context"] - one_step(norm)["context"]
    np.testing.assert_allclose(moved, -RATE * leaves["context"].grad.numpy(), rtol=1e-7, atol=1e-12)
    assert np.abs(moved).max() > 1e-4


def test_a_penalty_is_added_behind_the_noise():
    """With the same noise the two results differ by the penalty's gradient alone, undivided."""
    examples = linear_examples(np.ones((3, 5)), np.ones((3, 5)))
    private = mechanism(noise_multiplier=2.0, expected_batch_size=16.0)

    def slope(parameters, encoded):
        return 7.0 * parameters["shared"].sum()

    without, with_it = (
        fit_linear(linear_trainer(private, seeded(1)), examples, penalty=penalty)
        for penalty in (None, slope)
    )
    # The learning rate is 1.
    np.testing.assert_allclose(with_it["shared"] - without["shared"], -7.0, rtol=1e-5)
    np.testing.assert_array_equal(with_it["personal"], without["personal"])


def test_a_penalty_that_is_not_finite_stops_training():
    with pytest.raises(NonFiniteUpdate, match="not finite"):
        one_step(penalty=lambda parameters, encoded: parameters["context"].sum() * torch.inf)


# Loss w^2 / 2 whatever the example: the gradient is w.
PARABOLA = Toy(lambda p, e, b: (p["w"] ** 2).sum() / 2.0 + 0.0 * b["labels"])


def trained(start, *, rate=None, **plan):
    fields = {"batch_size": 1, "local_steps": 1, "learning_rate": 0.6}
    (result,) = LocalTrainer(TrainingPlan(**fields | plan)).fit(
        PARABOLA,
        {"w": np.array([start])},
        {"labels": np.zeros(1)},
        groups=[ParameterGroup(("w",), rate)],
        rng=np.random.default_rng(0),
    )["w"]
    return float(result)


ADAM = {"optimizer": "adam", "betas": (0.5, 0.5), "eps": 1.0}


def test_two_steps_of_adam_by_hand():
    # Step 1: both means are corrected to g = 3 and g^2 = 9; 0.6 x 3 / (3 + 1) = 0.45.
    assert trained(3.0, **ADAM) == pytest.approx(2.55, abs=1e-6)
    # Step 2: g = 2.55; (0.5 x 1.5 + 0.5 x 2.55) / 0.75 = 2.7 and (0.5 x 4.5 + 0.5 x 6.5025) / 0.75
    # = 7.335, whose root is 2.708321; 0.6 x 2.7 / 3.708321 = 0.436855.
    assert trained(3.0, local_steps=2, **ADAM) == pytest.approx(2.113145, abs=1e-6)


def test_adamw_decays_apart_by_hand():
    # First 3 x (1 - 0.6 x 0.1) = 2.82, then the step of 0.45 as above.
    assert trained(3.0, **{**ADAM, "optimizer": "adamw", "weight_decay": 0.1}) == pytest.approx(
        2.37, abs=1e-6
    )


@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_factor_is_of_all_rates(rate):
    # 4 - 0.25 x rate x 4
    wanted = 4.0 - (0.6 if rate is None else rate)
    assert trained(4.0, rate=rate, rate_factor=0.25) == pytest.approx(wanted, abs=1e-6)
    plan = TrainingPlan(local_steps=1, batch_size=1, learning_rate=0.5, rate_factor=0.25)
    assert LocalTrainer(plan).learning_rate == 0.125


def test_the_factor_is_of_noised_steps_too():
    """One step from zero along gradient and noise: half the rate, half the way."""

    def moved(factor):
        learner = linear_trainer(mechanism(noise_multiplier=1.0), seeded(1), rate_factor=factor)
        return fit_linear(learner, linear_examples(np.array([[0.6, 0.8]])))["shared"]

    np.testing.assert_allclose(moved(0.5), 0.5 * moved(1.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_steps": None}, "exactly one"),
        ({"local_epochs": 1}, "exactly one"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"betas": (1.0, 0.9)}, r"betas are \(1\.0, 0\.9\)"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"rate_factor": 0.0}, "rate_factor is 0.0"),
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'; valid: sgd, adam, adamw"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is 0.9 with optimizer 'adam'"),
    ],
)
def test_plans_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**changes)


@pytest.mark.parametrize("norm", [0.0, float("nan")])
def test_norms_that_make_no_sense(norm):
    with pytest.raises(ValueError, match="per_sample_clipping_norm"):
        LocalTrainer(make_plan(), norm)
