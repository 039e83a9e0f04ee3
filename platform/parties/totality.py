"""A client's part of a round, from the broadcast to the protected upload; failures do not show.

Whether training fails depends on the data. With one huge bias in the broadcast the loss is infinite
for the clients that hold that class, and their errors would tell so, without noise and without a
charge. So if the unit is the client, any failure between data and clipped vector becomes the zero
vector: the client learns nothing, keeps its personal part, and its upload has noise, masks and a
charge like any other. Zero lies in the ball that the accountant assumes.

Under `dp_sgd` the unit is a record. Then a client's failure does not depend on noised sums alone,
and a record that is not finite counts as zero in the sums (`privacy.training`). The client may
replace only results of noised steps, by a rule that looks at nothing else. Under `none` failures
raise.

The bound on one record holds for the results of noised steps and for values computed from them. So
the method gets sealed data, which only the trainer opens. Update, pool entry and personal state
must be arrays that the trainer returned in this round, or that were known before. The client also
checks personal state, because later releases start from it.

This module uses no keys, stores and budgets, so their errors stay errors. A client that failed
trains once more, on arrays that no coordinator chose, and discards the result. So its answer comes
no sooner than usual. The module promises nothing more about timing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from methods import Arrays, BrokenPlugin, ClientView, Examples, LocalResult, Trainer
from platform.config.randomness import stream
from platform.parties.profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    as_sent,
    batches_of,
    first_state,
    noise_of,
    view_of,
)
from platform.parties.scoring import VALIDATION, accuracy
from platform.protection.uploads import Prepared, Protection
from platform.wire.codec import Attempt, encode_arrays
from platform.wire.layout import encode_experts, entry_base
from privacy import NoiseSource, NoiseState, NonFiniteUpdate, SensitivityViolation
from privacy.training import LocalTrainer, require_released, seal

Work = Callable[[ClientView, Examples, Trainer, np.random.Generator], LocalResult]
"""`Method.client_update` or `Method.contribute`."""


def train_privately(
    work: Work,
    view: ClientView,
    data: Examples,
    *,
    trainer: LocalTrainer,
    steps: int,
    rng: np.random.Generator,
) -> LocalResult:
    """Return one client's training in one round.

    Args:
        work: The method's work in this round.
        view: The broadcast, pool entries released under the same mechanism, and the client's state,
            which is a result of this function or the initial state.
        data: The client's examples.
        trainer: The trainer, which adds noise.
        steps: Noised steps that are charged for this round; 0 if the client may not train.
        rng: For batches, in a simulation.

    Raises:
        SensitivityViolation: If the method read its data without the trainer, returned arrays that
            the trainer did not return, or took more steps than are charged.
    """
    trainer.released.clear()
    result = work(view, Examples(seal(data.arrays)), trainer, rng)
    constants = [view.broadcast, *view.experts, view.personal]
    parts = {
        "update": result.update,
        "pool entry": result.pool_entry or {},
        "personal state": result.personal,
    }
    for part, arrays in parts.items():
        require_released(arrays, trainer.released, constants, part=part)
    if trainer.released.steps > steps:
        raise SensitivityViolation(
            f"the method took {trainer.released.steps} noised steps in a round; {steps} are "
            "charged (training.local_steps)"
        )
    return result


def train(
    profile: ClientProfile,
    make_trainer: TrainerFactory,
    view: ClientView,
    *,
    round_number: int,
    noise: NoiseSource,
) -> LocalResult:
    """Return one client's training in one round, with privacy if the run asks for it.

    The round's number fixes the batches of a simulation, and whether the client gives its update
    or, in the collection, its pool entry. `noise` is unused without noised steps; see
    `train_privately`.
    """
    protection, rng = profile.protection.in_round(round_number), batches_of(profile, round_number)
    collects = protection is profile.protection.collection
    work = profile.method.contribute if collects else profile.method.client_update
    # Learning rates follow the rounds that train; a collection before them does not count.
    nth = round_number - profile.protection.first_round + 1
    mechanism, scheduled = protection.training, None if collects else nth
    if mechanism is None:
        return work(view, profile.data, make_trainer(None, round_number=scheduled), rng)
    steps = mechanism.steps if protection.charged else 0
    trainer = make_trainer(noise, round_number=scheduled)
    return train_privately(work, view, profile.data, trainer=trainer, steps=steps, rng=rng)


Result = TypeVar("Result")
Remember = Callable[[str], None]
"""Hears of each failure: the error's type and place, which must stay with the client."""


@dataclass(frozen=True, kw_only=True)
class LocalRound:
    """One client's inputs in one round.

    Attributes:
        protection: The protection of this round, at its clipping norm.
        state: The client's state before.
        noise_state: The state that the last attempt left for the noise of this attempt.
    """

    profile: ClientProfile
    make_trainer: TrainerFactory
    protection: Protection
    attempt: Attempt
    broadcast: Arrays
    experts: tuple[Arrays, ...]
    state: PersonalState
    noise_state: NoiseState = field(default_factory=dict, repr=False)

    @property
    def noise(self) -> NoiseSource:
        """The attempt's own noise, from its first draw."""
        number, attempt = self.attempt
        return noise_of(self.profile, number, attempt=attempt)


@dataclass(frozen=True)
class Ready:
    """The results of one round: the upload, and the state that the client keeps after the commit.

    Attributes:
        personal: Personal arrays, as they are stored.
        experts: The experts that belong to them, as they are stored.
    """

    prepared: Prepared
    personal: bytes
    experts: bytes


def work(local: LocalRound, remember: Remember) -> Ready:
    """Train and protect; a failure that must not show gives the zero vector, others are raised.

    Names, shapes and dtypes are checked already. `remember` hears of a failure that does not show.
    """
    hides = partial(_hides_in_round, local.profile, local.protection)
    done = or_none(partial(_work, local), hides, remember)
    if done is not None:
        return done
    if local.protection.training is None:
        with suppress(Exception):
            _work(_on_known_ground(local))
    return Ready(
        local.protection.prepare_nothing(local.broadcast, local.noise, local.noise_state),
        encode_arrays(local.state.personal),
        encode_experts(local.state.experts),
    )


def personalise(
    profile: ClientProfile,
    make_trainer: TrainerFactory,
    view: ClientView,
    *,
    round_number: int,
    remember: Remember,
) -> Arrays:
    """Return personal arrays after the last release, or the old ones if a failure must not show."""

    def compute() -> Arrays:
        rng = batches_of(profile, round_number)
        personal = profile.method.personalise(view, profile.data, make_trainer(None), rng)
        # Arrays that cannot be stored are a failure as well.
        encode_arrays(personal)
        return personal

    protection = profile.protection
    is_private = protection.training is not None or protection.noises_entry

    def hides(error: Exception) -> bool:
        return is_private and not _may_show(profile)

    personal = or_none(compute, hides, remember)
    return view.personal if personal is None else personal


def train_or_stay(
    profile: ClientProfile,
    make_trainer: TrainerFactory,
    view: ClientView,
    *,
    round_number: int,
    noise: NoiseSource,
) -> LocalResult:
    """Return training whose result is not sent, with an update of zero where `work` gives zero."""
    hides = partial(_hides_in_round, profile, profile.protection.in_round(round_number))
    compute = partial(train, profile, make_trainer, view, round_number=round_number, noise=noise)
    spec = profile.method.shared_spec()
    nothing = {name: np.zeros(tensor.shape, tensor.dtype) for name, tensor in spec.items()}
    return or_none(compute, hides, forget) or LocalResult(nothing, None, view.personal)


def forget(failure: str) -> None:
    """Forget failures of local twins and newcomers, which are only measured."""


def or_none(
    compute: Callable[[], Result], hides: Callable[[Exception], bool], remember: Remember
) -> Result | None:
    """Return a computation's result, None after a failure that must not show."""
    try:
        return compute()
    # Every type of error: the sender of a broadcast could choose the type.
    except Exception as error:
        if not hides(error):
            raise
        remember(describe(error))
    return None


def describe(error: Exception) -> str:
    """Return type and place of an error; its text might hold data."""
    if isinstance(error, BrokenPlugin) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = type(error).__name__
    if trace is None:
        return name
    code = trace.tb_frame.f_code
    return f"{name} in {code.co_qualname} ({Path(code.co_filename).name}:{trace.tb_lineno})"


def _work(local: LocalRound) -> Ready:
    profile, noise, validation = local.profile, local.noise, None
    if local.protection.extras.metric is not None:
        # The model after the last round, on the client's own validation images, with the experts of
        # the last round, as in every measurement between two rounds. A client without such images
        # says a half, whose coordinate is 0 as in a failed round.
        validation, images = 0.5, profile.measured.own.get(VALIDATION)
        if images is not None and images.examples.num_examples:
            view = as_sent(profile, view_of(local.broadcast, local.state))
            validation = accuracy(profile.method, view, images)
    view = as_sent(profile, ClientView(local.broadcast, local.experts, local.state.personal))
    result = train(profile, local.make_trainer, view, round_number=local.attempt[0], noise=noise)
    prepared = local.protection.prepare(
        result, local.broadcast, noise, validation, state=local.noise_state
    )
    # Encoded here, so that a personal part with NaN fails no later than an update with NaN.
    return Ready(prepared, encode_arrays(result.personal), encode_experts(local.experts))


def _on_known_ground(local: LocalRound) -> LocalRound:
    """Return the same round with arrays that no coordinator chose."""
    profile, method = local.profile, local.profile.method
    state = method.init_server(stream(profile.randomness.initialisation, "server"))
    broadcast, policy = method.broadcast(state, profile.name), method.pool_policy()
    expert = {} if policy is None else entry_base(broadcast, policy.spec)
    return replace(
        local,
        broadcast=broadcast,
        experts=(expert,) * len(local.experts),
        state=PersonalState(first_state(profile), ()),
    )


def _hides_in_round(profile: ClientProfile, protection: Protection, error: Exception) -> bool:
    if _may_show(profile):
        return False
    if protection.training is not None:
        # The trainer raises this error only for results of noised steps.
        return isinstance(error, NonFiniteUpdate)
    return protection.mechanism.facts.claims


def _may_show(profile: ClientProfile) -> bool:
    """Return whether a test asked for failures to show, which only a simulation allows."""
    return profile.safeguards.shows_failures and profile.safeguards.simulated
