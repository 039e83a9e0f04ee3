"""A data holder's limits on runs, and its own account of its spending.

An offer is a whole configuration. So the holder decides about all fixed settings before it builds
anything of the run. The configuration leaves some costs open, such as the cost of a noise
multiplier. The client prices these round by round from its own ledger, by the same limits.

The account prices the spending exactly as the client does before it answers an invitation: at the
holder's delta, against the strongest adversary against which the mechanisms make a claim. If no
accountant can compose the ledger, the account gives the reason in place of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from methods import Registry
from platform.config import RunConfig
from platform.errors import ConfigError, Declined
from platform.holder.settings import HolderSettings, OwnLimits
from platform.mechanisms import BUILT_IN
from platform.protection.charging import Limits, as_releases
from platform.protection.secure_terms import terms_of_sums
from privacy import RunningLedger, UnknownMechanism, UnsupportedEvent
from storage import ClientStore, LedgerRow

ALONE: Final = 1
"""Uploads in the smallest sum that a coordinator sees without secure aggregation."""


def require_within(settings: HolderSettings, config: RunConfig) -> None:
    """Refuse a run that would pass a limit of the holder; `Declined` names all, and both values."""
    reasons = tuple(_reasons(settings, config))
    if reasons:
        raise Declined(reasons)


def own_limits(settings: HolderSettings, config: RunConfig) -> Limits:
    """Return the most that a run may charge the client: the lower limit of both sides.

    The coordinator does not choose the accountant. Delta is the lower of both, so that every
    epsilon counts at least as much as the run says.
    """
    own, section = settings.limits, config.privacy
    of_run, target_key = _less(
        (section.target_epsilon, "privacy.target_epsilon"),
        (own.epsilon_per_run, "limits.epsilon_per_run"),
    )
    of_life, lifetime_key = _less(
        (section.lifetime_budget, "privacy.lifetime_budget"),
        (own.epsilon_total, "limits.epsilon_total"),
    )
    return Limits(
        delta=min(section.target_delta, own.delta),
        accountant="auto",
        target_epsilon=of_run,
        lifetime_budget=of_life,
        mechanisms=config.mechanisms,
        target_key=target_key,
        lifetime_key=lifetime_key,
    )


def _less(
    theirs: tuple[float | None, str], ours: tuple[float | None, str]
) -> tuple[float | None, str]:
    given = [(limit, key) for limit, key in (ours, theirs) if limit is not None]
    return min(given, key=lambda one: one[0]) if given else ours


def _reasons(settings: HolderSettings, config: RunConfig) -> Iterator[str]:
    limits, section = settings.limits, config.privacy
    target = section.target_epsilon
    for key in ("epsilon_per_run", "epsilon_total"):
        limit: float | None = getattr(limits, key)
        if target is not None and limit is not None and target > limit:
            yield f"privacy.target_epsilon: {target:g} is above limits.{key} = {limit:g}"
    if section.target_delta > limits.delta:
        yield (
            f"privacy.target_delta: {section.target_delta:g} is above limits.delta = "
            f"{limits.delta:g}"
        )
    if section.noise_source != "os":
        yield (
            f"privacy.noise_source: {section.noise_source} protects no data: each party that knows "
            "the seed can remove the noise; a data holder accepts os only"
        )
    relations = limits.relations or ("replace_one", config.mechanism.relations[0])
    if config.mechanism.facts.claims and config.relation not in relations:
        yield (
            f"privacy.relation: {config.relation} is not among limits.relations = "
            f"{', '.join(dict.fromkeys(relations))}"
        )
    mechanisms, methods = allowed_mechanisms(limits), limits.methods
    if methods is None:
        methods = Registry(installed=False).available()
    if section.mechanism not in mechanisms:
        yield (
            f"privacy.mechanism: {section.mechanism} is not among limits.mechanisms = "
            f"{', '.join(mechanisms)}"
        )
    if config.method.name not in methods:
        yield (
            f"method.name: {config.method.name} is not among limits.methods = {', '.join(methods)}"
        )
    key, size = "cohort.size", config.cohort_size
    if config.cohort.sampling == "poisson":
        key, size = "cohort.minimum", config.cohort.minimum
    if size < limits.smallest_cohort:
        yield f"{key}: {size} is below limits.smallest_cohort = {limits.smallest_cohort}"
    yield from _sums(settings, config)
    own, federation = settings.data.classes, config.federation
    # The decision must not depend on the images.
    if own is not None and federation is not None and federation.classes != own:
        yield "federation.classes: the list is not that of data.classes"


def _sums(settings: HolderSettings, config: RunConfig) -> Iterator[str]:
    limits, section = settings.limits, config.secure_aggregation
    if section.adversary != "active" and limits.adversary == "active":
        yield (
            f"secure_aggregation.adversary: {section.adversary} is less than limits.adversary = "
            "active"
        )
    if section.adversary == "active" and settings.identity is None:
        yield (
            "secure_aggregation.adversary: active needs the holder's identity and enrolment, and "
            "it has none"
        )
    if not section.enabled:
        if limits.smallest_sum > ALONE:
            yield (
                "secure_aggregation.enabled: false shows the coordinator each upload alone, and "
                f"limits.smallest_sum = {limits.smallest_sum}"
            )
        return
    try:
        smallest = terms_of_sums(config).smallest_sum
    except ConfigError as error:
        # The coordinator should have refused it, but a client does not rely on that.
        yield str(error)
        return
    if smallest < limits.smallest_sum:
        yield (
            f"secure_aggregation.threshold: opens sums of {smallest}, fewer than "
            f"limits.smallest_sum = {limits.smallest_sum}"
        )


def allowed_mechanisms(limits: OwnLimits) -> tuple[str, ...]:
    """Return the mechanisms under which the holder takes part."""
    if limits.mechanisms is not None:
        return limits.mechanisms
    facts = [mechanism.facts for mechanism in BUILT_IN]
    return tuple(f.name for f in facts if f.claims and not f.is_bare_to_server)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The holder's spending in one run, or in all runs together.

    Attributes:
        run_id: The run; None for all.
        mechanisms: Names of the mechanisms of the charged rows.
        releases: Number of charged rows.
        epsilon: At the holder's delta; infinite without noise, None without a price.
        problem: Why there is no price; None if there is one.
        limit: The holder's own; None without a limit.
    """

    run_id: str | None
    mechanisms: tuple[str, ...]
    releases: int
    epsilon: float | None
    problem: str | None
    limit: float | None

    @property
    def left(self) -> float | None:
        """Epsilon up to the limit, at least 0; None without a limit or a number."""
        if self.limit is None or self.epsilon is None:
            return None
        return max(self.limit - self.epsilon, 0.0)


@dataclass(frozen=True)
class Account:
    """All spending of a holder.

    Attributes:
        runs: One entry a run, by the run's name.
        total: Of all runs together; less than the sum of the runs' epsilons.
    """

    runs: tuple[Spending, ...]
    total: Spending


def account_of(rows: Sequence[LedgerRow], limits: OwnLimits) -> Account:
    """Price a client's own ledger."""
    by_run: dict[str, list[LedgerRow]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    runs = [
        _spending(run_id, by_run[run_id], limits, limits.epsilon_per_run)
        for run_id in sorted(by_run)
    ]
    return Account(tuple(runs), _spending(None, rows, limits, limits.epsilon_total))


def own_account(store: ClientStore, limits: OwnLimits) -> Account:
    """Price the ledger of a holder's own store."""
    return account_of(store.rows(), limits)


def _spending(
    run_id: str | None, rows: Sequence[LedgerRow], limits: OwnLimits, limit: float | None
) -> Spending:
    charged = [row for row in rows if row.status != "aborted"]
    epsilon, problem = None, None
    try:
        epsilon = RunningLedger(as_releases(rows, BUILT_IN)).claimed_with((), limits.delta).epsilon
    except (UnsupportedEvent, UnknownMechanism) as error:
        problem = str(error)
    return Spending(
        run_id=run_id,
        mechanisms=tuple(sorted({row.mechanism for row in charged})),
        releases=len(charged),
        epsilon=epsilon,
        problem=problem,
        limit=limit,
    )
