"""Accounting alone: what a planned run costs, and the noise that a target needs.

Accountants see what a run would write into its ledger, so a plan and a run of the same numbers have
the same epsilon. Noise is relative to the clipping norm, which is therefore 1 here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from platform.mechanisms import BUILT_IN, Mechanism, Settings, Steps, Sums
from privacy import (
    Accountant,
    Adversary,
    CohortSampling,
    Epsilons,
    PrivacyError,
    Relation,
    Release,
    ReleaseKey,
    RunningLedger,
    UnknownMechanism,
    calibrate_noise_multiplier,
    default_scale,
    epsilons,
    release_of_upload,
    reserved,
    smallest_multiplier,
)
from privacy import calibrate as calibrate_ledger
from sotto.errors import Error, invalid

_KEY = ReleaseKey(run_id="plan", round_number=1, attempt=0, pseudonym="client")


@dataclass(frozen=True)
class Plan:
    """A run as far as accounting is concerned: one client that takes part in every round.

    Attributes:
        mechanism: `none`, `dp_sgd`, `upload_noise`, `distributed_noise` or `central_noise`.
        rounds: Number of rounds, at least 1.
        noise_multiplier: Standard deviation of the noise over the clipping norm: of one step's
            gradients under `dp_sgd`, of the sum under `distributed_noise` and `central_noise`, else
            of one upload. None under `none`, and where `calibrate` shall find it.
        relation: How neighbours differ, `replace_one` or `add_or_remove_one`; the mechanism's
            default if None.
        distribution: Law of the noise, `gaussian`, `discrete_gaussian` or `skellam`; the
            mechanism's default if None.
        size: Number of coordinates of an upload, where it is rounded to an integer grid.
        clients: Fewest clients of a sum under `distributed_noise`; clients of a round under
            `central_noise` if they are drawn in secret.
        corrupt: How many of them may show the server their share of the noise.
        population: From how many the clients of a round are drawn, in secret and each by a coin of
            its own; only under `central_noise`, where it helps against the observer.
        sampling_probability: With which a record is in a batch, under `dp_sgd`.
        steps: Steps of one round, under `dp_sgd`.

    Raises:
        Error: A value is not valid, or the mechanism needs one that is missing.
    """

    mechanism: str
    rounds: int = 1
    noise_multiplier: float | None = None
    relation: Relation | None = None
    distribution: str | None = None
    size: int | None = None
    clients: int | None = None
    corrupt: int = 0
    population: int | None = None
    sampling_probability: float | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        """Refuse what no run can be planned with."""
        for field in ("rounds", "steps"):
            if not isinstance(found := getattr(self, field), Integral) or found < 1:
                raise invalid(field, found, "a whole number from 1")
        mechanism = self._built_in
        if self.relation not in (None, *mechanism.relations):
            raise invalid("relation", self.relation, ", ".join(mechanism.relations))
        if self.distribution not in (None, *mechanism.distributions):
            raise invalid("distribution", self.distribution, ", ".join(mechanism.distributions))
        z, corrupt = vars(self)["noise_multiplier"], vars(self)["corrupt"]
        if z is not None and not (
            mechanism.facts.claims and isinstance(z, Real) and 0 < float(z) < math.inf
        ):
            valid = "a finite number above 0" if mechanism.facts.claims else "None, without noise"
            raise invalid("noise_multiplier", z, valid)
        facts = self._built_in.facts
        for field, needed in {
            "size": not self._is_gaussian or facts.is_bare_to_server,
            "clients": facts.is_shared_out or self.population is not None,
            "population": self.population is not None and facts.may_amplify,
            "sampling_probability": facts.is_in_steps,
        }.items():
            value = getattr(self, field)
            if needed and not isinstance(value, Real):
                raise invalid(field, value, f"a number, which {self.mechanism} needs")
            if not needed and value is not None:
                raise invalid(field, value, f"None, as {self.mechanism} has no use for it")
        most = (self.clients or 1) - 1 if mechanism.needs_masks else 0
        if not (isinstance(corrupt, int) and 0 <= corrupt <= most):
            raise invalid("corrupt", corrupt, f"0 to {most} under {self.mechanism}")
        if z is not None:
            self.ledger()

    @property
    def _built_in(self) -> Mechanism:
        try:
            return BUILT_IN.named(self.mechanism)
        except UnknownMechanism:
            valid = ", ".join(mechanism.name for mechanism in BUILT_IN.all)
            raise invalid("mechanism", self.mechanism, valid) from None

    @property
    def _law(self) -> str | None:
        return self.distribution or next(iter(self._built_in.distributions), None)

    @property
    def _is_gaussian(self) -> bool:
        return self._law in (None, "gaussian")

    @property
    def _relation(self) -> Relation:
        return self.relation or self._built_in.relations[0]

    def ledger(self) -> list[Release]:
        """Return the rows that one client's ledger has after the run: one that counts all rounds.

        Raises:
            Error: The noise multiplier is missing, or no mechanism can be built with these numbers.
        """
        mechanism = self._built_in
        if self.noise_multiplier is None and mechanism.facts.claims:
            raise invalid("noise_multiplier", None, "a number above 0, or `sotto.calibrate` it")
        try:
            row = self._row(mechanism)
        except (ValueError, PrivacyError) as error:
            raise Error(str(error)) from error
        return [replace(row, count=row.count * self.rounds)]

    def _row(self, mechanism: Mechanism) -> Release:
        steps = sums = None
        if self.sampling_probability is not None:
            # The size of a batch is in the average gradient only, which accounting does not see.
            steps = Steps(1.0, self.sampling_probability, self.steps, batch_size=1)
        if mechanism.needs_masks:
            sums = Sums(self.clients or 0, self.corrupt)
        settings = Settings(
            relation=self._relation,
            distribution=self._law,
            value_bound=1.0,
            clipping_norm=1.0 if mechanism.clips_uploads else None,
            noise_multiplier=self.noise_multiplier,
            sums=sums,
            steps=steps,
        )
        training = mechanism.build_training(settings)
        if training is not None:
            return reserved(_KEY, training.facts, training.protected())
        cohort = None
        if self.population is not None:
            cohort = CohortSampling(
                kind="poisson", size=self.clients or 0, population=self.population, is_drawn=True
            )
        return release_of_upload(mechanism.build_upload(settings), self.size or 1, _KEY, cohort)

    def overrides(self) -> dict[str, Any]:
        """Return the keys of a configuration that has this plan's privacy."""
        keys = {
            "rounds": self.rounds,
            "privacy.mechanism": self.mechanism,
            "privacy.relation": self.relation,
            "privacy.noise_distribution": self.distribution,
        }
        if self._built_in.facts.claims:
            keys |= {
                "privacy.noise_multiplier": self.noise_multiplier,
                "privacy.target_epsilon": None,
            }
        if self._built_in.needs_masks:
            keys |= {"secure_aggregation.corrupt": self.corrupt}
        if self.sampling_probability is not None:
            keys |= {
                "privacy.sampling_probability": self.sampling_probability,
                "training.local_steps": self.steps,
                # What is clipped is each image's gradient; the noise is relative to the norm.
                "privacy.clipping_norm": None,
                "privacy.per_sample_clipping_norm": 1.0,
            }
        if self.population is not None:
            keys |= {"cohort.size": self.clients, "cohort.sampling": "poisson"}
        return keys

    def epsilon(self, delta: float = 1e-5, accountant: Accountant = "auto") -> Epsilons:
        """Return epsilon at `delta` against server, peers and observer.

        `claimed` is that against the strongest of them against whom the mechanism claims anything.

        Raises:
            Error: An argument is not valid, or the accountant cannot price the mechanism.
        """
        try:
            return epsilons(self.ledger(), delta, accountant)
        except (ValueError, PrivacyError) as error:
            raise Error(str(error)) from error

    def guesses(self, prior: float = 0.5, against: Adversary = "claimed") -> float:
        """Return the largest share of right guesses whether a client's data are the real ones.

        Somebody who holds it for true with probability `prior` cannot be right more often, whatever
        else they know. It is the least of what epsilon proves at any delta, so under Gaussian noise
        it is exact: 1 - prior + prior delta(log((1 - prior) / prior)).

        Args:
            prior: Strictly between 0 and 1.
            against: Who guesses.

        Raises:
            Error: An argument is not valid, or no accountant can price the mechanism.
        """
        if not 0.0 < prior < 1.0:
            raise invalid("prior", prior, "a number between 0 and 1")
        try:
            return RunningLedger(self.ledger()).right_guesses(prior=prior)[against]
        except (ValueError, PrivacyError) as error:
            raise Error(str(error)) from error


def calibrate(
    plan: Plan, *, epsilon: float, delta: float = 1e-5, accountant: Accountant = "auto"
) -> Plan:
    """Return the plan with the least noise that keeps it within `epsilon` at `delta`.

    That is the epsilon `claimed`, and no secret draw of clients counts, as when a run is stopped at
    its budget.

    Args:
        plan: Its noise multiplier does not matter.
        epsilon: The target, above 0.
        delta: Strictly between 0 and 1.
        accountant: Who prices it.

    Raises:
        Error: An argument is not valid, the mechanism has no noise, or none reaches the target.
    """
    mechanism = plan._built_in
    if not mechanism.facts.claims:
        raise invalid("mechanism", plan.mechanism, "one with noise")
    try:
        if mechanism.facts.is_in_steps:
            multiplier = calibrate_noise_multiplier(
                epsilon,
                delta,
                releases_per_round=1,
                rounds=plan.rounds,
                relation=plan._relation,
                accountant=accountant,
                sampling_probability=plan.sampling_probability or 1.0,
                steps=plan.steps,
            )
        else:
            multiplier = calibrate_ledger(
                lambda z: replace(plan, noise_multiplier=z).ledger(),
                epsilon,
                delta,
                smallest=_least(plan, mechanism),
                accountant=accountant,
            )
    except (ValueError, PrivacyError) as error:
        raise Error(str(error).replace("privacy.target_", "")) from error
    return replace(plan, noise_multiplier=multiplier)


def _least(plan: Plan, mechanism: Mechanism) -> float:
    """Return the least multiplier that the mechanism allows."""
    if plan._is_gaussian:
        return 1e-6
    shares = (plan.clients or 0) - plan.corrupt if mechanism.needs_masks else 1
    return smallest_multiplier(default_scale(1.0), shares)
