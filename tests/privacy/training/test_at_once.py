"""Fits side by side: each client has the result of a fit of its own, or its own error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import privacy.training.at_once as at_once
from methods.interface.method import ParameterGroup
from privacy.errors import NonFiniteUpdate
from privacy.training import LocalTrainer, TrainingPlan, side_by_side, together
from tests.privacy._recorded import seeded
from tests.privacy.training._gated import TRAINED, make_examples, make_gated, make_parameters
from tests.privacy.training._linear import mechanism

CLASSES = 4
SIZES = (10, 6, 4, 9, 5)
GATED = make_gated()


def make_trainer(**changes):
    plan = {"local_epochs": 2, "batch_size": 4, "learning_rate": 0.1, **changes}
    return LocalTrainer(TrainingPlan(**plan))


def data_of(client):
    return make_examples(SIZES[client], CLASSES, seed=client)


def start_of(client):
    start = make_parameters(CLASSES)
    return {**start, "context": start["context"] + 0.1 * client}


def train(client, trainer, **more):
    return trainer.fit(
        more.pop("objective", GATED),
        start_of(client),
        more.pop("examples", data_of(client)),
        groups=more.pop("groups", [ParameterGroup(TRAINED)]),
        rng=np.random.default_rng(client),
        **more,
    )


@pytest.fixture
def stacked(monkeypatch):
    """How many fits each stack had."""
    sizes = []

    class Counting(at_once._Stacked):
        def run(self):
            sizes.append(len(self._fits))
            return super().run()

    monkeypatch.setattr(at_once, "_Stacked", Counting)
    return sizes


def pull(client):
    def penalty(parameters, encoded):
        return (client + 1) * (parameters["context"] ** 2).sum() + encoded["text"].sum()

    return penalty


def shift(client):
    """Moves a tensor in place, by another amount for each client and step."""
    steps = iter(range(1, 100))

    def after_step(tensors):
        tensors["mix"] += 0.01 * client * next(steps)

    return after_step


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ({}, lambda client: {}),
        ({"momentum": 0.9, "weight_decay": 0.1, "rate_factor": 0.5}, lambda client: {}),
        ({"optimizer": "adamw", "weight_decay": 0.1, "eps": 0.01}, lambda client: {}),
        ({}, lambda client: {"penalty": pull(client), "after_step": shift(client)}),
        ({}, lambda client: {"groups": [ParameterGroup(("mix",), 0.5)]}),
        ({}, lambda client: {"steps": 1 + client}),
    ],
)
def test_each_has_the_result_of_its_own_fit(plan, more, stacked):
    trainer, clients = make_trainer(**plan), range(len(SIZES))
    alone = [train(client, trainer, **more(client)) for client in clients]
    beside = together([partial(train, client, trainer, **more(client)) for client in clients])
    assert stacked == [len(SIZES)]
    for one, other in zip(beside, alone, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert array.dtype == other[name].dtype
            np.testing.assert_allclose(array, other[name], rtol=1e-9, atol=1e-12)


def test_one_client_s_nan_is_its_own(stacked):
    trainer = make_trainer()

    def with_data(client):
        examples = data_of(client)
        if client == 2:
            examples["features"] = np.full_like(examples["features"], np.nan)
        return train(client, trainer, examples=examples)

    alone = [with_data(client) for client in (0, 1, 3, 4)]
    with pytest.raises(NonFiniteUpdate) as caught:
        with_data(2)
    outcomes = side_by_side([partial(with_data, client) for client in range(5)])
    assert stacked == [5]
    failed = outcomes.pop(2)
    assert isinstance(failed, NonFiniteUpdate)
    assert str(failed) == str(caught.value)
    for one, other in zip(outcomes, alone, strict=True):
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], rtol=1e-9, atol=1e-12)


def test_errors_of_any_kind_stay_with_their_client():
    def work(number):
        first = train(number, make_trainer())
        if number == 1:
            raise KeyError(number)
        again = train(number, make_trainer(local_epochs=number + 1))
        return first, again

    outcomes = side_by_side([partial(work, number) for number in range(3)])
    assert [type(one) for one in outcomes] == [tuple, KeyError, tuple]
    np.testing.assert_allclose(outcomes[2][1]["context"], work(2)[1]["context"], rtol=1e-9)
    with pytest.raises(KeyError):
        together([partial(work, number) for number in range(3)])


def test_a_label_that_there_is_not_fails_its_own_client():
    def work(client):
        examples = data_of(client)
        if client == 1:
            examples["labels"][0] = CLASSES
        return train(client, make_trainer(), examples=examples)

    outcomes = side_by_side([partial(work, client) for client in range(3)])
    assert [type(one) for one in outcomes] == [dict, IndexError, dict]
    np.testing.assert_array_equal(outcomes[2]["context"], work(2)["context"])


def test_an_interrupt_ends_all():
    reached = []

    def work(number):
        train(number, make_trainer())
        reached.append(number)
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side([partial(work, number) for number in range(3)])
    # The one with the most steps comes last.
    assert reached == [2, 1]


@dataclass(frozen=True)
class Scaled:
    """A loss with a tensor of the client's own, and a number."""

    weights: torch.Tensor
    factor: float = 1.0
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters):
        return {"scaled": self.weights * self.factor}

    def losses(self, parameters, encoded, batch):
        logits = batch["features"] @ parameters["head"] * encoded["scaled"]
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")


def linear(client, objective):
    rng = np.random.default_rng(client)
    examples = {"features": rng.normal(size=(6, 3)), "labels": rng.integers(0, CLASSES, 6)}
    start = {"head": np.zeros((3, CLASSES))}
    trainer, groups = make_trainer(), [ParameterGroup(("head",))]
    return trainer.fit(objective, start, examples, groups=groups, rng=rng)["head"]


def test_a_client_s_own_tensors_stay_its_own(stacked):
    objectives = [Scaled(torch.rand(CLASSES, dtype=torch.float64)) for _ in range(3)]
    works = [partial(linear, client, one) for client, one in enumerate(objectives)]
    np.testing.assert_allclose(together(works), [work() for work in works], rtol=1e-9)
    assert stacked == [3]


def test_other_numbers_and_other_closures_are_other_fits(stacked):
    weights = torch.ones(CLASSES, dtype=torch.float64)
    objectives = [Scaled(weights, factor=factor) for factor in (1.0, 2.0)]
    works = [partial(linear, 0, one) for one in objectives]
    np.testing.assert_allclose(together(works), [work() for work in works], rtol=1e-9)
    assert not stacked

    def closure(value):
        return lambda: value

    assert at_once.is_same(closure(1), closure(1))
    assert not at_once.is_same(closure(1), closure(2))
    assert not at_once.is_same(closure(weights), closure(weights.clone()))
    assert not at_once.is_same(closure([1]), closure([1]))


def test_a_loss_that_looks_at_values_is_trained_by_itself(stacked):
    @dataclass(frozen=True)
    class Looking(Scaled):
        def losses(self, parameters, encoded, batch):
            if parameters["head"].sum() > 1e9:
                raise ValueError
            return super().losses(parameters, encoded, batch)

    works = [partial(linear, client, Looking(torch.ones(CLASSES))) for client in range(2)]
    np.testing.assert_array_equal(together(works), [work() for work in works])
    assert not stacked


def test_an_encoding_without_a_gradient_is_refused_beside_others_too(stacked):
    @dataclass(frozen=True)
    class Detached(Scaled):
        encoder_parameters: frozenset[str] = frozenset({"head"})

        def encode(self, parameters):
            return {"scaled": self.weights, "head": parameters["head"].detach()}

        def losses(self, parameters, encoded, batch):
            return super().losses(encoded, encoded, batch)

    works = [partial(linear, client, Detached(torch.ones(CLASSES))) for client in range(2)]
    assert [type(outcome) for outcome in side_by_side(works)] == [ValueError, ValueError]
    assert not stacked


def test_noised_steps_are_taken_by_themselves(stacked):
    def work(client):
        trainer = LocalTrainer(make_trainer().plan, dp_sgd=mechanism(), noise=seeded(client))
        return train(client, trainer)["context"]

    works = [partial(work, client) for client in range(2)]
    np.testing.assert_array_equal(together(works), [work() for work in works])
    assert not stacked


def test_memory_bounds_how_many_are_at_once(stacked, monkeypatch):
    needed = at_once._needed

    def small(fit):
        return None if needed(fit) is None else at_once.ROOM // 2

    monkeypatch.setattr(at_once, "_needed", small)
    trainer = make_trainer()
    beside = together([partial(train, client, trainer) for client in range(5)])
    assert stacked == [2, 2]
    np.testing.assert_allclose(beside[3]["context"], train(3, trainer)["context"], rtol=1e-9)
