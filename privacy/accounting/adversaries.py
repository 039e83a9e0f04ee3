"""What each adversary could learn about each client: epsilon for server, peers and observer.

The server sees everything that is uploaded; peers see the global parameters of every round, the
experts and the roster; the observer sees only the final global parameters. So server and peers are
charged for the sum, the pool and the metrics, the observer for the sum alone. Where one noised
vector serves sum and pool (`pool.noise: same`) its single event is on the sum channel.

No amplification by the cohort's sampling is granted to anybody here: it holds only against the
observer and only under mechanisms that are not available yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privacy.accounting.headline import Accountant, EpsilonResult, epsilon
from privacy.errors import UnsupportedEvent
from privacy.events import Release

_ON_THE_CLIENT = ("none", "upload_noise")
"""Mechanisms under which the noise, if any, is in the upload itself, for all who look at it."""


@dataclass(frozen=True)
class Epsilons:
    """The largest epsilon over clients, against each adversary, at one delta.

    Attributes:
        server: Against the coordinator.
        peers: Against the other clients.
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
    sums = [release for release in ledger if release.channel == "sum"]
    seen_last = _worst_client(sums, delta, accountant)
    return Epsilons(
        server=everything.epsilon,
        peers=everything.epsilon,
        observer=seen_last.epsilon,
        accountant=everything.accountant,
    )


def _require_settled(ledger: Sequence[Release]) -> None:
    for release in ledger:
        if release.mechanism not in _ON_THE_CLIENT:
            raise UnsupportedEvent(
                f"what adversaries see under mechanism {release.mechanism!r} is not settled yet"
            )
        if release.sampling != "none":
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
