"""What each adversary could learn about each client: epsilon for server, peers and observer.

The server sees everything that is uploaded; peers see the global parameters of every round, the
experts and the roster; the observer sees only the final global parameters. So server and peers are
charged for the sum, the pool and the metrics. The observer is charged for sum and pool: a pool
entry becomes an expert, steers what others upload next, and so has a part in the final parameters.
Metrics steer nothing. Where one noised vector serves sum and pool (`pool.noise: same`) its single
event is on the sum channel.

Under `dp_sgd` the noise is in every local step and all that a client sends is computed from it, so
each row is charged against all three, on whatever channel, and the batches' own Poisson sampling
(which is not the cohort's) amplifies against all three. Its unit is a record: a ledger that also
has noise for whole clients has no single epsilon and is refused.

Under `distributed_noise` the noise is shared out among the clients and only the sum has all of it,
so it protects against a server that follows the protocol of the secure sum (or is made to by its
active variant) and has at most `corrupt` of the clients on its side. A peer knows its own share, so
peers have an epsilon only where `corrupt` is at least 1. The observer is charged like the server,
though it knows no share at all: that is an upper bound.

Under `central_noise` the coordinator adds the noise, so it sees sums bare and nothing is claimed
against it. Peers know from the roster who was drawn; given that, they learn about a client from the
rounds it was drawn in, and no draw amplifies. The observer does not know who was drawn. Its bound
holds before the draw and therefore counts every round that could have drawn the client, as a
sampled event where amplification is valid. Whoever states a bound for peers where the draw must
not be told writes rows as if all were drawn; else it can be below the observer's for a client that
was drawn seldom.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from privacy._validate import require_member, require_probability
from privacy.accounting.accountants import ACCOUNTANTS, Accountant, EpsilonResult, price
from privacy.accounting.composition import Composition, compose, no_cohort
from privacy.errors import UnsupportedEvent
from privacy.events import IntegerNoise, Release

Adversary = Literal["server", "peers", "observer", "claimed"]
"""The fields of `Epsilons`."""
Measure = Callable[[Composition], EpsilonResult]
"""What one adversary learns of one client."""


@dataclass(frozen=True)
class Epsilons:
    """The largest epsilon over clients, against each adversary, at one delta.

    Attributes:
        server: Against the coordinator; under `distributed_noise` with at most `corrupt` clients;
            infinite under `central_noise` once a client was drawn.
        peers: Against the other clients; infinite under `distributed_noise` with `corrupt` = 0.
        observer: Against whoever gets the final global parameters only.
        claimed: Against the strongest adversary against whom a client's mechanisms claim anything;
            see `claimed_epsilon`.
        accountant: Who gave the numbers; names joined by "+" where clients or adversaries differ.
    """

    server: float
    peers: float
    observer: float
    claimed: float
    accountant: str


@dataclass(frozen=True)
class _Shown:
    """What one client showed to those who take part, priced without amplification."""

    cost: EpsilonResult
    is_bare_to_server: bool
    is_bare_to_peers: bool

    @property
    def server(self) -> float:
        return math.inf if self.is_bare_to_server else self.cost.epsilon

    @property
    def peers(self) -> float:
        return math.inf if self.is_bare_to_peers else self.cost.epsilon

    @property
    def claimed(self) -> float:
        return self.peers if self.is_bare_to_server else self.server


def epsilons(
    releases: Iterable[Release], delta: float, accountant: Accountant = "auto"
) -> Epsilons:
    """Price a ledger per client and adversary, and take the worst client for each.

    Args:
        releases: Rows of any number of clients, in any order. Attempts that are free of charge
            belong to them: they tell that a round was drawn twice.
        delta: Strictly between 0 and 1.
        accountant: One by name, or "auto".

    Returns:
        Epsilon against each adversary; 0 where nothing was released, or delta alone covers it.

    Raises:
        UnsupportedEvent: A release has a sampling that its mechanism knows no use for, units or
            relations are mixed, or the accountant cannot bound it.
        ValueError: `delta` or `accountant` is not valid.
    """
    ledger = list(releases)
    sums = [row for row in ledger if row.mechanism.may_amplify and row.channel == "sum"]
    first: dict[tuple[str, int], int] = {}
    for row in sums:
        key = row.run_id, row.round_number
        first[key] = min(row.attempt, first.get(key, row.attempt))
    return epsilons_of(
        _clients(ledger),
        frozenset(
            row.run_id
            for row in sums
            if row.charged and row.attempt > first[row.run_id, row.round_number]
        ),
        delta,
        accountant,
    )


def epsilons_of(
    clients: Sequence[Sequence[Release]],
    redrawn: Collection[str],
    delta: float,
    accountant: Accountant,
) -> Epsilons:
    """Price the ledgers of several clients, at least one; see `epsilons`.

    A ledger may be empty. `redrawn` are the runs in which a draw was thrown away.
    """
    require_probability(delta=delta)
    return worst_of(clients, redrawn, accountant, lambda one: price(one, delta, accountant))


def worst_of(
    clients: Sequence[Sequence[Release]],
    redrawn: Collection[str],
    accountant: Accountant,
    measure: Measure,
) -> Epsilons:
    """Return the largest measure over clients, against each adversary, in the place of epsilon."""
    _require_priceable(clients, accountant)
    shown = [_shown(rows, measure) for rows in clients]
    left = [_observed(rows, redrawn, measure) for rows in clients]
    names = {result.accountant for result in (*left, *(client.cost for client in shown))}
    return Epsilons(
        server=max(client.server for client in shown),
        peers=max(client.peers for client in shown),
        observer=max(result.epsilon for result in left),
        claimed=max(client.claimed for client in shown),
        accountant="+".join(sorted(names)),
    )


def claimed_epsilon(
    releases: Iterable[Release], delta: float, accountant: Accountant = "auto"
) -> EpsilonResult:
    """Price a ledger against the strongest adversary that the run's claim covers.

    For each client that is the server, unless `central_noise` showed it a release bare: then it is
    the peers, who see every round. It is what a budget limits: limiting the observer's number would
    let the others learn more than the limit. A client with releases bare to the server and others
    bare to peers has no such adversary, and costs infinity. So does anything without noise.

    Args:
        releases: Rows of any number of clients, in any order.
        delta: Strictly between 0 and 1.
        accountant: One by name, or "auto".

    Returns:
        The worst client's epsilon; 0 where nothing was released, or delta alone covers it.

    Raises:
        UnsupportedEvent: As for `epsilons`.
        ValueError: `delta` or `accountant` is not valid.
    """
    return claimed_of(_clients(releases), delta, accountant)


def claimed_of(
    clients: Sequence[Sequence[Release]], delta: float, accountant: Accountant
) -> EpsilonResult:
    """Price the ledgers of several clients, at least one; see `claimed_epsilon`."""
    require_probability(delta=delta)
    _require_priceable(clients, accountant)
    shown = [_shown(rows, lambda one: price(one, delta, accountant)) for rows in clients]
    names = sorted({client.cost.accountant for client in shown})
    return EpsilonResult(max(client.claimed for client in shown), "+".join(names))


def _clients(ledger: Iterable[Release]) -> Sequence[Sequence[Release]]:
    ledgers: dict[str, list[Release]] = defaultdict(list)
    for release in ledger:
        ledgers[release.pseudonym].append(release)
    # An empty ledger still says which accountant would have spoken.
    return list(ledgers.values()) or [[]]


def _require_priceable(clients: Sequence[Sequence[Release]], accountant: Accountant) -> None:
    require_member(ACCOUNTANTS, accountant=accountant)
    ledger = [row for rows in clients for row in rows]
    named = {row.mechanism.unit: row.mechanism.name for row in ledger if row.mechanism.claims}
    if len(named) > 1:
        raise UnsupportedEvent(
            f"a ledger mixes {named['record']}, whose unit is a record, with noise whose unit is a "
            "client; one epsilon has one unit"
        )
    for release in ledger:
        if release.sampling != "none" and not release.mechanism.is_in_steps:
            raise UnsupportedEvent(
                f"sampling {release.sampling!r} amplifies nothing under {release.mechanism.name!r}"
            )


def _shown(rows: Sequence[Release], measure: Measure) -> _Shown:
    seen = [row for row in rows if row.charged and (row.cohort is None or row.cohort.is_drawn)]
    return _Shown(
        measure(compose(seen, no_cohort)),
        any(row.mechanism.is_bare_to_server for row in seen),
        # A peer knows its own share; without a row of shares nothing says that others are enough.
        any(
            row.mechanism.is_shared_out
            and not (isinstance(row.law, IntegerNoise) and row.law.corrupt >= 1)
            for row in seen
        ),
    )


def _observed(rows: Sequence[Release], redrawn: Collection[str], measure: Measure) -> EpsilonResult:
    """Price what the final parameters reveal: the smaller of two valid bounds.

    A pool entry shows that its client was drawn, so it voids the amplification of its run. So does
    state that a client keeps between rounds where cohorts have a fixed size: the platform writes
    such rows without a cohort, because no row says what a method keeps.
    """
    void = {row.run_id for row in rows if row.charged and row.channel == "pool"}.union(redrawn)
    last = [row for row in rows if row.channel != "metrics" or row.mechanism.is_in_steps]
    unamplified = measure(compose(last, no_cohort))
    try:
        amplified = measure(compose(last, lambda row: row.run_id not in void))
    except UnsupportedEvent:
        return unamplified
    return min(unamplified, amplified, key=lambda result: result.epsilon)
