"""Thresholds and graphs computed from what they have to withstand.

On the complete graph the rules are exact counts: t > c against semi-honest parties, 2t > n + c
against active ones (Bonawitz et al. 2017, section 6). On the k-regular graph (Bell et al. 2020,
section 3) they are union bounds over hypergeometric tails, because the graph is a uniformly random
order of the clients that neither the corrupted nor the dropped ones could foresee:

    secrecy      n P[Hyp(n-1, c, k) >= t]        no client has t corrupted neighbours
               + n P[Hyp(n, c+d, k/2) = k/2]     no k/2 in a row are gone, so honest survivors
                                                 stay connected and only their whole sum opens
    correctness  n P[Hyp(n-1, d, k) > k - t]     every client keeps t neighbours

Hyp(n, m, s) is the number of marked ones among s drawn from n of whom m are marked. A client holds
a share of its own secrets as well, which the bounds do not count on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from privacy.errors import CalibrationError

SECURITY_BITS = 40
CORRECTNESS_BITS = 20

# Up to here the complete graph costs a client milliseconds and rests on no bound.
_SMALL_COHORT = 64

GraphChoice = Literal["auto", "complete", "k_regular"]


@dataclass(frozen=True)
class Plan:
    """A graph and a threshold, and what they withstand.

    Attributes:
        clients: Number n of clients.
        active: Whether the adversary may lie.
        degree: Number k of neighbours of a client; 0 stands for the complete graph.
        threshold: Number t of shares that rebuild a secret.
        corrupt: Number c of clients that may collude with the server.
        dropouts: Number d of clients that may be lost.
        smallest_sum: n - d, the fewest vectors in a sum.
        security_bits: Minus the logarithm to base 2 of the secrecy bound; infinity where it holds
            for certain.
        correctness_bits: The same of the correctness bound.
    """

    clients: int
    active: bool
    degree: int
    threshold: int
    corrupt: int
    dropouts: int
    smallest_sum: int
    security_bits: float
    correctness_bits: float

    @property
    def neighbours(self) -> int:
        """Number of other clients that each one shares keys with."""
        return self.degree or self.clients - 1


def two_thirds_and_one(clients: int) -> int:
    """Return floor(2n/3) + 1."""
    return 2 * clients // 3 + 1


def active_threshold(holders: int, corrupt: int) -> int:
    """Return the smallest t with 2t > n + c."""
    return (holders + corrupt) // 2 + 1


def rounded_up(rate: float, clients: int) -> int:
    """Return how many clients a share of them is, rounded up.

    Args:
        rate: Share of the clients; 0.07 of 100 is 7, although their float product is slightly more.
        clients: Number of clients.
    """
    return math.ceil(rate * clients - 1e-9)


def plan(
    clients: int,
    *,
    corrupt_rate: float = 0.05,
    dropout_rate: float = 0.1,
    active: bool = False,
    graph: GraphChoice = "auto",
    security_bits: float = SECURITY_BITS,
    correctness_bits: float = CORRECTNESS_BITS,
) -> Plan:
    """Choose graph and threshold.

    `auto` takes the smallest k-regular graph that meets both bounds where there are more than 64
    clients and it at least halves the number of neighbours; otherwise, and always against active
    adversaries, the complete graph.

    Args:
        clients: Number of clients in the round, at least 2.
        corrupt_rate: Share of them that may collude with the server, in [0, 1); rounded up.
        dropout_rate: Share of them that may be lost, in [0, 1); rounded up.
        active: Whether the adversary may lie.
        graph: Which graphs may be taken.
        security_bits: The secrecy bound is at most 2^-security_bits.
        correctness_bits: The correctness bound is at most 2^-correctness_bits.

    Returns:
        The plan.

    Raises:
        CalibrationError: If no graph and threshold withstand that.
        ValueError: If a number is out of its range.
    """
    _require_rates(clients, corrupt_rate, dropout_rate)
    corrupt, dropouts = rounded_up(corrupt_rate, clients), rounded_up(dropout_rate, clients)
    if active and graph == "k_regular":
        raise CalibrationError("graph is 'k_regular'; an active adversary needs 'complete'")
    if graph != "complete" and not active:
        found = _regular(clients, corrupt, dropouts, (security_bits, correctness_bits))
        is_worth = clients > _SMALL_COHORT and found and 2 * found.degree <= clients - 1
        if found and (is_worth or graph == "k_regular"):
            return found
        if graph == "k_regular":
            raise CalibrationError(
                f"no k-regular graph of {clients} clients withstands {corrupt} corrupt and "
                f"{dropouts} lost ones; the complete graph may"
            )
    return _complete(clients, corrupt, dropouts, active)


def require_safe_graph(
    clients: int, *, corrupt: int, dropouts: int, degree: int, threshold: int
) -> None:
    """Refuse a k-regular graph whose secrecy bound is above 2^-40.

    Raises:
        ValueError: With the bound.
    """
    bits = secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=threshold)
    if bits < SECURITY_BITS:
        raise ValueError(
            f"degree {degree} with threshold {threshold} gives {bits:.1f} bits of security for "
            f"{clients} clients, {corrupt} of them corrupt and {dropouts} lost; "
            f"valid is at least {SECURITY_BITS}"
        )


@lru_cache(maxsize=256)
def secrecy_bits(
    clients: int, corrupt: int, dropouts: int, *, degree: int, threshold: int
) -> float:
    """Return minus the logarithm to base 2 of the secrecy bound of a k-regular graph."""
    gone = min(corrupt + dropouts, clients)
    return _bits(
        _log2_tail(clients - 1, corrupt, degree, threshold),
        _log2_tail(clients, gone, degree // 2, degree // 2),
        clients=clients,
    )


@lru_cache(maxsize=256)
def correct_bits(clients: int, dropouts: int, degree: int, threshold: int) -> float:
    """Return minus the logarithm to base 2 of the correctness bound of a k-regular graph."""
    return _bits(_log2_tail(clients - 1, dropouts, degree, degree - threshold + 1), clients=clients)


def _regular(clients: int, corrupt: int, dropouts: int, bits: tuple[float, float]) -> Plan | None:
    for degree in range(2, clients - 1, 2):
        threshold = _smallest_threshold(clients, corrupt, dropouts, degree, bits=bits[0])
        if threshold is None or correct_bits(clients, dropouts, degree, threshold) < bits[1]:
            continue
        return _spend_slack(
            clients, corrupt, dropouts, degree=degree, threshold=threshold, bits=bits[1]
        )
    return None


def _smallest_threshold(
    clients: int, corrupt: int, dropouts: int, degree: int, *, bits: float
) -> int | None:
    if secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=degree) < bits:
        return None
    low, high = 2, degree
    while low < high:
        middle = (low + high) // 2
        if secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=middle) >= bits:
            high = middle
        else:
            low = middle + 1
    return low


def _spend_slack(
    clients: int, corrupt: int, dropouts: int, *, degree: int, threshold: int, bits: float
) -> Plan:
    # What correctness leaves over is spent on secrecy: the largest threshold that still works.
    while threshold < degree and correct_bits(clients, dropouts, degree, threshold + 1) >= bits:
        threshold += 1
    return Plan(
        clients=clients,
        active=False,
        degree=degree,
        threshold=threshold,
        corrupt=corrupt,
        dropouts=dropouts,
        smallest_sum=clients - dropouts,
        security_bits=secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=threshold),
        correctness_bits=correct_bits(clients, dropouts, degree, threshold),
    )


def _complete(clients: int, corrupt: int, dropouts: int, active: bool) -> Plan:
    least = max(2, active_threshold(clients, corrupt) if active else corrupt + 1)
    most = clients - dropouts
    if least > most:
        raise CalibrationError(
            f"{clients} clients, {corrupt} of them corrupt, need a threshold of {least}, but only "
            f"{most} are left after {dropouts} dropouts"
        )
    return Plan(
        clients=clients,
        active=active,
        degree=0,
        threshold=min(max(two_thirds_and_one(clients), least), most),
        corrupt=corrupt,
        dropouts=dropouts,
        smallest_sum=most,
        security_bits=math.inf,
        correctness_bits=math.inf,
    )


def _require_rates(clients: int, corrupt_rate: float, dropout_rate: float) -> None:
    if clients < 2:
        raise ValueError(f"clients is {clients}; secure aggregation needs at least 2")
    for name, rate in (("corrupt_rate", corrupt_rate), ("dropout_rate", dropout_rate)):
        if not 0 <= rate < 1:
            raise ValueError(f"{name} is {rate}; valid are 0 up to but not including 1")


def _bits(*log2_tails: float, clients: int) -> float:
    total = sum(2.0**tail for tail in log2_tails)
    # Below the smallest float the sum is 0, and the largest term is as good.
    log2 = math.log2(total) if total > 0 else max(log2_tails)
    return -(log2 + math.log2(clients))


def _log2_tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return log2 of P[Hyp(population, marked, drawn) >= least]."""
    # SciPy's statistics take most of a second to load, and only this needs them.
    from scipy.stats import hypergeom

    if least > min(marked, drawn):
        return -math.inf
    return float(hypergeom.logsf(least - 1, population, marked, drawn)) / math.log(2)
