"""What each adversary could learn about each client: epsilon for server, peers and observer.

The server sees everything that is uploaded; peers see the global parameters of every round, the
experts and the roster; the observer sees only the final global parameters. So server and peers are
charged for the sum, the pool and the metrics, the observer for the sum alone. Where one noised
vector serves sum and pool (`pool.noise: same`) its single event is on the sum channel.

Under `dp_sgd` the noise is in every local step and all that a client sends is computed from it, so
each row is charged against all three, on whatever channel, and the batches' own Poisson sampling
(which is not the cohort's) amplifies against all three. Its unit is a record: a ledger that also
has noise for whole clients has no single epsilon and is refused.

Under `distributed_noise` the noise is shared out among the clients and only the sum has all of it,
so it protects against a server that follows the protocol of the secure sum (or is made to by its
active variant) and has at most `corrupt` of the clients on its side. A peer knows its own share, so
peers have an epsilon only where `corrupt` is at least 1. The observer is charged like the server,
though it knows no share at all: that is an upper bound.

No amplification by the cohort's sampling is granted to anybody here: it holds only against the
observer and only under mechanisms that are not available yet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privacy.accounting.headline import Accountant, EpsilonResult, epsilon
from privacy.errors import UnsupportedEvent
from privacy.events import Release

_SETTLED = ("none", "upload_noise", "dp_sgd", "distributed_noise")
"""Mechanisms of which it is settled who sees what."""


@dataclass(frozen=True)
class Epsilons:
    """The largest epsilon over clients, against each adversary, at one delta.

    Attributes:
        server: Against the coordinator; under `distributed_noise` with at most `corrupt` clients.
        peers: Against the other clients; infinite under `distributed_noise` with `corrupt` = 0.
        observer: Against whoever gets the final global parameters only.
        accountant: Who gave the numbers; names joined by "+" where clients differ.
    """

    server: float
    peers: float
    observer: float
    accountant: str


def epsilons(
    releases: Iterable[Release], delta: float, accountant: Accountant = "auto"
) -> Epsilons:
    """Price a ledger per client and adversary, and take the worst client for each.

    Args:
        releases: Rows of any number of clients, in any order.
        delta: Strictly between 0 and 1.
        accountant: One by name, or "auto".

    Returns:
        Epsilon against each adversary; 0 where nothing was released.

    Raises:
        UnsupportedEvent: A release is of a mechanism or a sampling whose adversaries are not
            settled yet, or the accountant cannot bound it.
    """
    ledger = list(releases)
    _require_settled(ledger)
    everything = _worst_client(ledger, delta, accountant)
    sums = [row for row in ledger if row.channel == "sum" or row.mechanism == "dp_sgd"]
    seen_last = _worst_client(sums, delta, accountant)
    return Epsilons(
        server=everything.epsilon,
        peers=math.inf if any(map(_bares_to_peers, ledger)) else everything.epsilon,
        observer=seen_last.epsilon,
        accountant=everything.accountant,
    )


def _bares_to_peers(release: Release) -> bool:
    if release.mechanism != "distributed_noise" or release.integer_noise is None:
        return False
    return release.charged and release.integer_noise.corrupt < 1


def _require_settled(ledger: Sequence[Release]) -> None:
    units = {row.mechanism == "dp_sgd" for row in ledger if row.mechanism != "none"}
    if len(units) > 1:
        raise UnsupportedEvent(
            "a ledger mixes dp_sgd, whose unit is a record, with noise whose unit is a client; "
            "one epsilon has one unit"
        )
    for release in ledger:
        if release.mechanism not in _SETTLED:
            raise UnsupportedEvent(
                f"what adversaries see under mechanism {release.mechanism!r} is not settled yet"
            )
        if release.sampling != "none" and release.mechanism != "dp_sgd":
            raise UnsupportedEvent(
                f"sampling {release.sampling!r} amplifies nothing under {release.mechanism!r}"
            )


def _worst_client(
    releases: Sequence[Release], delta: float, accountant: Accountant
) -> EpsilonResult:
    ledgers: dict[str, list[Release]] = defaultdict(list)
    for release in releases:
        ledgers[release.pseudonym].append(release)
    results = [epsilon(ledger, delta, accountant) for ledger in ledgers.values()]
    # An empty ledger still says which accountant would have spoken.
    results = results or [epsilon([], delta, accountant)]
    names = sorted({result.accountant for result in results})
    return EpsilonResult(max(result.epsilon for result in results), "+".join(names))
