"""Why personal state must be trained privately too (and what happens where it is not).

One dimension. The shared scalar's gradient is x_i times the sign of a personal gate, far above the
clipping norm, so each record contributes plus or minus C as the gate says. One record more, with
no gradient on the shared scalar at all, turns the gate if that is trained on raw gradients: all 32
others change sign, and the released sum moves by 64 C where the accountant was told C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import ParameterGroup
from privacy.randomness import SystemNoise
from privacy.training import DpSgd, LocalTrainer, TrainingPlan

Arrays = dict[str, NDArray[Any]]

C = 0.25
BATCH = 32
PRIVATE = DpSgd(
    noise_multiplier=0.0,  # what is compared is the sums below the noise
    clipping_norm=C,
    sampling_probability=1.0,
    steps=1,
    expected_batch_size=1.0,
)


@dataclass(frozen=True)
class GatedScalar:
    """Loss of record i: 1000 x_i gate shared + a_i gate."""

    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {}

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        gate = parameters["gate"]
        return 1000.0 * batch["x"] * gate * parameters["shared"] + batch["a"] * gate


def make_records(*, with_one_more: bool) -> Arrays:
    """32 records that move the shared scalar, and perhaps one that moves the gate alone."""
    x, a = np.ones(BATCH), np.zeros(BATCH)
    if with_one_more:
        x, a = np.append(x, 0.0), np.append(a, 100.0)
    return {"x": x, "a": a, "labels": np.zeros(len(x), dtype=np.int64)}


def train(learner: LocalTrainer, start: Arrays, names: tuple[str, ...], records: Arrays) -> Arrays:
    return learner.fit(
        GatedScalar(),
        start,
        records,
        groups=[ParameterGroup(names)],
        rng=np.random.default_rng(0),
    )


def private_trainer(dp_sgd: DpSgd = PRIVATE) -> LocalTrainer:
    plan = TrainingPlan(local_steps=1, batch_size=1, learning_rate=1.0)
    return LocalTrainer(plan, dp_sgd=dp_sgd, noise=SystemNoise())


def released_sum(gate: NDArray[Any], names: tuple[str, ...], records: Arrays) -> NDArray[Any]:
    """The clipped sum of one private step, over the parameters that are named."""
    start = {"shared": np.zeros(1), "gate": gate}
    result = train(private_trainer(), start, names, records)
    return np.concatenate([start[name] - result[name] for name in names])


def movement(gates: tuple[NDArray[Any], NDArray[Any]], names: tuple[str, ...]) -> float:
    """How far one record moves the released sum, given the state that each world starts from."""
    sums = [
        released_sum(gate, names, make_records(with_one_more=more))
        for gate, more in zip(gates, (False, True), strict=True)
    ]
    return float(np.linalg.norm(sums[1] - sums[0]))


def raw_gate(*, with_one_more: bool) -> NDArray[Any]:
    """A personal gate after one ordinary step on raw gradients: the rule switched off."""
    plan = TrainingPlan(local_steps=1, batch_size=64, learning_rate=0.1)
    start = {"shared": np.zeros(1), "gate": np.full(1, 0.01)}
    records = make_records(with_one_more=with_one_more)
    return train(LocalTrainer(plan), start, ("gate",), records)["gate"]


def test_a_gate_trained_on_raw_gradients_moves_the_sum_by_64_norms() -> None:
    gates = raw_gate(with_one_more=False), raw_gate(with_one_more=True)
    assert gates[0] > 0 > gates[1]
    assert movement(gates, ("shared",)) == pytest.approx(2 * BATCH * C, rel=1e-6)


@pytest.mark.parametrize("names", [("shared",), ("shared", "gate"), ("gate", "shared")])
@pytest.mark.parametrize("gate", [0.01, -0.01, 0.0])
def test_from_equal_state_one_record_moves_the_sum_by_at_most_one_norm(
    names: tuple[str, ...], gate: float
) -> None:
    state = np.full(1, gate)
    assert movement((state, state), names) <= C * (1 + 1e-9)


def test_a_gate_trained_jointly_is_a_release_like_the_other() -> None:
    """The rule on: the worlds differ by C in the joint vector, before noise of that scale.

    The gate that the next step starts from is what noised steps returned, so given that (equal in
    both worlds) the previous test bounds the next release, and so on by composition.
    """
    start = np.full(1, 0.01)
    joint = ("shared", "gate")
    assert movement((start, start), joint) == pytest.approx(C, rel=1e-6)
    noisy = DpSgd(
        noise_multiplier=1.0,
        clipping_norm=C,
        sampling_probability=1.0,
        steps=2,
        expected_batch_size=1.0,
    )
    learner = private_trainer(noisy)
    result = train(
        learner, {"shared": np.zeros(1), "gate": start}, joint, make_records(with_one_more=True)
    )
    assert result["gate"] in learner.released
    assert result["shared"] in learner.released
