"""The spending of each client of a run, in the run and in its life, and the rest of its budget.

All numbers follow from ledgers that agree with the other records, by the composition of the run's
own report. Epsilons do not add up. So the cost of an attempt, or of reservations, is the difference
between the epsilon of all rows and the epsilon without them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from platform.agreement.attempts import (
    Coming,
    Fruitless,
    Place,
    fruitless_attempts,
    place_of,
    rounds_to_come,
)
from platform.agreement.checking import require_agreement
from platform.agreement.reading import Agreed
from platform.agreement.statements import guesses_of, stopping_of
from platform.agreement.trail import GONE
from platform.errors import ConfigError, listed
from platform.mechanisms import KNOWN, Mechanisms
from platform.protection.charging import (
    as_releases,
    charged_elsewhere,
    is_by_source,
    is_charged,
    rows_that_count,
)
from platform.rounds.documents import epsilon_document, in_rounds, json_number
from privacy import (
    Epsilons,
    RunningLedger,
    UnknownMechanism,
    UnsupportedEvent,
    claimed_epsilon,
    filter_of,
)
from storage import Database, LedgerRow

HOLDS: Final[Mapping[str | None, str]] = {
    "gaussian": "epsilon is for runs that were fixed beforehand; a limit on it holds for runs that "
    "are chosen by what earlier ones released, as long as all noise is Gaussian without sampling "
    "(Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023)",
    "equal": "epsilon is for runs that were fixed beforehand; a limit on it holds for runs that "
    "are chosen by what earlier ones released, as long as all releases are equal to those so far "
    "(post-processing: Dwork and Roth 2014, Proposition 2.1)",
    None: "epsilon and any limit on it are for a sequence of runs that is fixed beforehand; no "
    "theorem here covers releases of several kinds that are chosen by what earlier ones released",
}
"""How later runs may be chosen, by the theorem that makes a limit a filter."""
MISSED: Final = "missed"
"""The reason of a reserved row whose attempt has a result without its client."""


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A client's spending in all runs of the database.

    Attributes:
        epsilon: At the run's delta; None if the runs cannot be priced together.
        problem: Why they cannot.
        left: Up to the limit, at least 0; None without limit or number.
        runs: The runs that charged the client.
        holds: For which choices of runs the number holds; None if it is not finite.
    """

    epsilon: float | None
    problem: str | None
    left: float | None
    runs: tuple[str, ...]
    holds: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClientBudget:
    """One client's part of a run's budget.

    Attributes:
        pseudonym: Its name in ledger and audit log.
        number: Its number in the federation, from 1; None in a simulation.
        gone: Whether it has left for good.
        epsilons: Against each adversary; the target limits `claimed`.
        releases: Number of its charged ledger rows.
        reserved_epsilon: By how much its epsilon would be smaller without rows that are only
            reserved: such a release may never have left the client.
        reserved_releases: Number of these rows, by reason: `open`, `aborted` and `lost` as the
            attempt is, `missed` if the attempt has a result without the client.
        left: Of the run's target, at least 0; None without target.
        lifetime: Over all runs of the database.
        rounds_left: Further rounds that fit under target and lifetime budget; None without a limit
            or a price, or if the client releases nothing more.
    """

    pseudonym: str
    number: int | None
    gone: bool
    epsilons: Epsilons
    releases: int
    reserved_epsilon: float
    reserved_releases: Mapping[str, int]
    left: float | None
    lifetime: Lifetime
    rounds_left: int | None


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """The budget of one run.

    Attributes:
        epsilons: The largest over all its clients, as its report states them.
        clients: By number, or by pseudonym where they have no numbers.
        attempts: The attempts without a result, each with its cost: by how much the epsilon of the
            client that pays most for it would be smaller without it.
        coming: The rounds to come, None if the run releases nothing more.
    """

    agreed: Agreed
    epsilons: Epsilons
    clients: tuple[ClientBudget, ...]
    attempts: tuple[tuple[Fruitless, float], ...]
    coming: Coming | None

    @property
    def rounds_left(self) -> int | None:
        """The number of further rounds that fit if all remaining clients take part in each."""
        known = (one.rounds_left for one in self.clients)
        return min((n for n in known if n is not None), default=None)


def pseudonyms_of(agreed: Agreed) -> tuple[str, ...]:
    """Return the clients that a run's records name, sorted."""
    told = agreed.spending.entries("client.joined")
    joined = {str(item.detail.get("pseudonym")) for item in told}
    return tuple(sorted(joined | {row.pseudonym for row in agreed.spending.ledger}))


def read_budget(
    database: Database, run_id: str, only: str | None = None, mechanisms: Mechanisms = KNOWN
) -> RunBudget:
    """Read the budget of a run, finished or not; its and all counted runs' records must agree."""
    agreed = require_agreement(database, run_id, mechanisms)
    names = pseudonyms_of(agreed)
    if only is not None:
        require_known_client(only, names, f"run {run_id}")
    chosen = names if only is None else (only,)
    with database.unit_of_work(read_only=True) as uow:
        elsewhere = rows_that_count(uow, agreed.config, agreed.spending.run_id, chosen)
    for other in sorted({row.run_id for row in elsewhere}):
        require_agreement(database, other, mechanisms)
    return budget_of(agreed, elsewhere, only)


def require_known_client(pseudonym: str, known: Collection[str], where: str) -> None:
    """Refuse an unknown client; `ConfigError` names the known ones."""
    if pseudonym not in known:
        raise ConfigError(
            f"--client: {pseudonym!r} is unknown in {where}; valid: {listed(sorted(known))}"
        )


def budget_of(agreed: Agreed, elsewhere: Sequence[LedgerRow], only: str | None = None) -> RunBudget:
    """Price a run's ledger, client by client.

    `elsewhere` is the result of `rows_that_count`. The largest epsilons count all clients, also
    with `only`.
    """
    section = agreed.config.privacy
    names = pseudonyms_of(agreed) if only is None else (only,)
    ledger = agreed.spending.ledger
    told, left = agreed.spending.entries("client.joined"), agreed.spending.entries(*GONE)
    pricing = _Pricing(
        agreed=agreed,
        names=names,
        abroad=elsewhere,
        rows=_by_client(ledger),
        whole=RunningLedger(as_releases(ledger, agreed.config.mechanisms)),
        numbers={str(item.detail.get("pseudonym")): int(item.detail["client"]) for item in told},
        gone={str(item.detail.get("pseudonym")) for item in left},
    )
    attempts = fruitless_attempts(agreed.spending)
    coming = rounds_to_come(agreed)
    clients = [_client(pricing, name, attempts=attempts, coming=coming) for name in names]
    costs = [(one, pricing.cost_of(one.place, names)) for one in attempts]
    return RunBudget(
        agreed=agreed,
        epsilons=pricing.whole.epsilons(section.target_delta, section.accountant),
        clients=tuple(sorted(clients, key=lambda c: (c.number or 0, c.pseudonym))),
        attempts=tuple(costs),
        coming=coming,
    )


@dataclass(frozen=True, kw_only=True)
class _Pricing:
    """One run's ledger with its prices, and the rows of other runs (`abroad`) for lifetimes."""

    agreed: Agreed
    names: Collection[str]
    abroad: Sequence[LedgerRow]
    rows: Mapping[str, Sequence[LedgerRow]]
    whole: RunningLedger
    numbers: Mapping[str, int]
    gone: Collection[str]

    @cached_property
    def elsewhere(self) -> RunningLedger:
        """The clients' charges for other runs."""
        return charged_elsewhere(self.agreed.config, self.abroad, self.names)

    @cached_property
    def runs_abroad(self) -> Mapping[str, frozenset[str]]:
        """The other runs that charged each client."""
        charged = [row for row in self.abroad if is_charged(row)]
        if is_by_source(self.agreed.config):
            return dict.fromkeys(self.names, frozenset(row.run_id for row in charged))
        return {n: frozenset(row.run_id for row in o) for n, o in _by_client(charged).items()}

    def claimed(self, rows: Iterable[LedgerRow]) -> float:
        """Return the cost of these rows of one client, by the claimed epsilon."""
        section = self.agreed.config.privacy
        releases = as_releases(rows, self.agreed.config.mechanisms)
        return claimed_epsilon(releases, section.target_delta, section.accountant).epsilon

    def less(self, rows: Sequence[LedgerRow], without: Sequence[LedgerRow]) -> float:
        """Return by how much the price of one client's rows is smaller without some of them."""
        taken = {row for row in without if is_charged(row)}
        if not taken:
            return 0.0
        whole, rest = self.claimed(rows), self.claimed(r for r in rows if r not in taken)
        if math.isinf(whole):
            # Infinities have no difference: rows cost infinity if their own price is infinite.
            return math.inf if math.isinf(self.claimed(without)) else 0.0
        return whole - rest

    def cost_of(self, place: Place, names: Iterable[str]) -> float:
        """Return the cost of an attempt for the client that paid most for it."""
        ledgers = [self.rows.get(name, ()) for name in names]
        costs = (self.less(o, [row for row in o if place_of(row) == place]) for o in ledgers)
        return max(costs, default=0.0)


def _client(
    pricing: _Pricing, name: str, *, attempts: Sequence[Fruitless], coming: Coming | None
) -> ClientBudget:
    agreed, rows = pricing.agreed, pricing.rows.get(name, ())
    section = agreed.config.privacy
    # Joined from the whole run's ledger, because it remembers which draws were thrown away.
    own = RunningLedger.joined((pricing.whole,), [name])
    spent = own.epsilons(section.target_delta, section.accountant)
    life, lifetime = _lifetime(pricing, own, name)
    gone, rounds_left = name in pricing.gone, None
    if coming is not None and not gone:
        limits = [(own, section.target_epsilon)]
        if life is not None:
            limits.append((life, section.lifetime_budget))
        fitting = [coming.affordable(ledger, name, limit, agreed) for ledger, limit in limits]
        rounds_left = min((n for n in fitting if n is not None), default=None)
    states = {one.place: one.state for one in attempts}
    held = [row for row in rows if row.status == "reserved" and is_charged(row)]
    why = Counter(states.get(place_of(row), MISSED) for row in held)
    return ClientBudget(
        pseudonym=name,
        number=pricing.numbers.get(name),
        gone=gone,
        epsilons=spent,
        releases=sum(map(is_charged, rows)),
        reserved_epsilon=pricing.less(rows, held),
        reserved_releases=dict(sorted(why.items())),
        left=left_of(section.target_epsilon, spent.claimed),
        lifetime=lifetime,
        rounds_left=rounds_left,
    )


def _lifetime(
    pricing: _Pricing, own: RunningLedger, name: str
) -> tuple[RunningLedger | None, Lifetime]:
    """Return a client's spending in all runs, also as a ledger if it has a price."""
    section, nothing = pricing.agreed.config.privacy, ()
    here = {row.run_id for row in pricing.rows.get(name, ()) if is_charged(row)}
    runs = tuple(sorted(here | pricing.runs_abroad.get(name, frozenset())))
    try:
        life = RunningLedger.joined((own, pricing.elsewhere), [name])
        cost = life.claimed_with(nothing, section.target_delta, section.accountant).epsilon
    except (UnsupportedEvent, UnknownMechanism) as error:
        return None, Lifetime(epsilon=None, problem=str(error), left=None, runs=runs)
    left = left_of(section.lifetime_budget, cost)
    holds = None
    if runs and math.isfinite(cost):
        holds = HOLDS[filter_of(life.releases_of(name))]
    return life, Lifetime(epsilon=cost, problem=None, left=left, runs=runs, holds=holds)


def left_of(limit: float | None, spent: float) -> float | None:
    """Return the rest of a limit, at least 0; None without a limit."""
    return None if limit is None else max(limit - spent, 0.0)


def _by_client(ledger: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    found: dict[str, list[LedgerRow]] = {}
    for row in ledger:
        found.setdefault(row.pseudonym, []).append(row)
    return found


SCHEMA_VERSION: Final = 1


def budget_document(budget: RunBudget, warnings: Sequence[str]) -> dict[str, Any]:
    """Return a run's budget as plain data, warnings first; infinity as "inf"."""
    agreed, claims = budget.agreed, budget.agreed.config.mechanism.facts.claims
    return {
        "warnings": list(warnings),
        **terms_document(agreed, budget.epsilons),
        "right_guesses": guesses_of(agreed),
        "clients": [_client_document(one, claims=claims) for one in budget.clients],
        "attempts": [
            {
                "round": one.round_number,
                "attempt": one.attempt,
                "state": one.state,
                "why": one.why,
                "clients_charged": one.charged,
                "cost": json_number(cost),
            }
            for one, cost in budget.attempts
        ],
        "forecast": None
        if budget.coming is None
        else {"rounds_to_come": budget.coming.rounds, "rounds_left": budget.rounds_left},
    }


def terms_document(agreed: Agreed, spent: Epsilons) -> dict[str, Any]:
    """Return the meaning of a run's epsilons, and the epsilons of the worst client."""
    config, facts = agreed.config, agreed.config.mechanism.facts
    claims, is_over = facts.claims, agreed.summary is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": agreed.records.run_id,
        "phase_two_of": config.phase_two_of,
        "status": agreed.records.run.status,
        "finished": is_over,
        "rounds_over": len(in_rounds([row.document for row in agreed.spending.rounds])),
        "rounds_planned": config.rounds,
        "mechanism": facts.name,
        "unit": facts.unit,
        "relation": config.relation if claims else None,
        "delta": config.privacy.target_delta,
        "accountant": spent.accountant,
        # The adversary of `spent`, `left` and every limit.
        "limited_against": ("peers" if facts.is_bare_to_server else "server") if claims else None,
        "target_epsilon": config.privacy.target_epsilon,
        "lifetime_budget": config.privacy.lifetime_budget,
        **_spent(spent, is_known=not agreed.is_unpriced),
        "left": left_of(config.privacy.target_epsilon, spent.claimed),
        "stopping": stopping_of(agreed.spending, config),
    }


def _spent(spent: Epsilons, *, is_known: bool) -> dict[str, Any]:
    """Return the spending; None if the first release will cost infinity."""
    epsilon, claimed = epsilon_document(spent), json_number(spent.claimed)
    if is_known:
        return {"epsilon": epsilon, "spent": claimed}
    return {"epsilon": dict.fromkeys(epsilon), "spent": None}


def _client_document(one: ClientBudget, *, claims: bool) -> dict[str, Any]:
    is_known = claims or one.releases > 0
    life = one.lifetime
    return {
        "pseudonym": one.pseudonym,
        "number": one.number,
        "takes_part": not one.gone,
        **_spent(one.epsilons, is_known=is_known),
        "releases": one.releases,
        "reserved": {
            "epsilon": json_number(one.reserved_epsilon),
            "releases": dict(one.reserved_releases),
        },
        "left": one.left,
        "lifetime": {
            "spent": None
            if life.epsilon is None or not (claims or life.runs)
            else json_number(life.epsilon),
            "left": life.left,
            "problem": life.problem,
            "holds": life.holds,
            "runs": list(life.runs),
        },
        "rounds_left": one.rounds_left,
    }


def overview_document(
    agreed: Agreed, warnings: Sequence[str], only: str | None = None
) -> dict[str, Any]:
    """Return a run's spending as a row of a table; epsilon is `only`'s, or the largest."""
    section = agreed.config.privacy
    ledger = RunningLedger(as_releases(agreed.spending.ledger, agreed.config.mechanisms))
    chosen = ledger if only is None else RunningLedger.joined((ledger,), [only])
    spent = chosen.epsilons(section.target_delta, section.accountant)
    return {"warnings": list(warnings), **terms_document(agreed, spent)}
