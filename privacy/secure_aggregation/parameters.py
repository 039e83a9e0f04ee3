"""What all parties of one secure aggregation agree on: thresholds, graph and parameters.

**Plans** are thresholds and graphs computed from what they have to withstand. On the complete graph
the rules are exact counts: t > c against semi-honest parties, 2t > n + c against active ones
(Bonawitz et al. 2017, section 6). On the k-regular graph (Bell et al. 2020, section 3) they are
union bounds over hypergeometric tails, because the graph is a uniformly random order of the clients
that neither the corrupted nor the dropped ones could foresee:

    secrecy      n P[Hyp(n-1, c, k) >= t]        no client has t corrupted neighbours
               + n P[Hyp(n, c+d, k/2) = k/2]     no k/2 in a row are gone, so honest survivors
                                                 stay connected and only their whole sum opens
    correctness  n P[Hyp(n-1, d, k) > k - t]     every client keeps t neighbours

Hyp(n, m, s) is the number of marked ones among s drawn from n of whom m are marked. A client holds
a share of its own secrets as well, which the bounds do not count on.

**The graph** says which clients mask with each other and hold each other's shares (Bell et al.
2020). The clients stand on a ring in an order that a public seed gives, and each is joined to the k
/ 2 before it and the k / 2 after it (a Harary graph over a random permutation, section 3 there).
Every party can compute the graph from the round's parameters, so the server cannot hand out two.

**The parameters** are agreed on before the first message. They are a value, and their digest stands
at the start of every message, in every key derivation, in every signature and in the associated
data of every ciphertext. Two parties that disagree on anything (the run, the attempt, the
threshold, the cohort, the graph, the ring, whose identity is whose) therefore refuse each other's
first message instead of adding up vectors that were masked under different rules.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal

from privacy.errors import CalibrationError

SECURITY_BITS = 40
CORRECTNESS_BITS = 20

# Up to here the complete graph costs a client milliseconds and rests on no bound.
_SMALL_COHORT = 64

GraphChoice = Literal["auto", "complete", "k_regular"]


@dataclass(frozen=True)
class Plan:
    """A graph and a threshold, and how many corrupt and lost clients they allow.

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
    """Return a share of the clients as a number, rounded up.

    0.07 of 100 is 7, although their float product is slightly more.
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
    if clients < 2:
        raise ValueError(f"clients is {clients}; secure aggregation needs at least 2")
    for name, rate in (("corrupt_rate", corrupt_rate), ("dropout_rate", dropout_rate)):
        if not 0 <= rate < 1:
            raise ValueError(f"{name} is {rate}; valid are 0 up to but not including 1")
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


SEED_BYTES = 32

_ORDER = b"sotto/secure-aggregation/graph-order"


def ring_order(clients: Sequence[int], seed: bytes) -> tuple[int, ...]:
    """Return the clients in the order of SHA-256(label, seed, index).

    The 32 public bytes are drawn after the cohort is fixed; the permutation is uniform over them.
    """
    prefix = hashlib.sha256(_ORDER + seed)

    def key(client: int) -> bytes:
        hasher = prefix.copy()
        hasher.update(struct.pack("<I", client))
        return hasher.digest()

    return tuple(sorted(clients, key=key))


def closed_neighbourhoods(
    clients: Sequence[int], degree: int, seed: bytes
) -> Mapping[int, tuple[int, ...]]:
    """Return every client's k neighbours and itself, ascending; k is even and below n."""
    order = ring_order(clients, seed)
    reach, count = degree // 2, len(order)
    around = order[-reach:] + order + order[:reach]
    return MappingProxyType(
        {order[at]: tuple(sorted(around[at : at + 2 * reach + 1])) for at in range(count)}
    )


PROTOCOL_VERSION = 4
"""Of messages, parameters and stored states alike."""
LARGEST_INDEX = 2**32 - 1
LARGEST_SERIAL = 2**63 - 1
IDENTITY_BYTES = 32

# Rounds that a process takes part in at a time, and few more: one of many clients is large.
_REMEMBERED = 8

# Version, ring, adversary, round, attempt, threshold, corrupt, smallest sum, length, degree, serial
# of the enrolment; then the sizes of graph seed, identities, run id and cohort.
_FIXED = struct.Struct("<BBBIIIIIIIQBBHI")


class Phase(StrEnum):
    """Stages of the protocol (Bonawitz et al. 2017, figure 4), as errors and refusals name them."""

    ADVERTISE_KEYS = "advertise_keys"
    SHARE_KEYS = "share_keys"
    MASKED_INPUT = "masked_input"
    CONSISTENCY_CHECK = "consistency_check"
    UNMASKING = "unmasking"


class Adversary(StrEnum):
    """Against whom the round is run: parties that only look, or parties that also lie."""

    SEMI_HONEST = "semi_honest"
    ACTIVE = "active"


_ADVERSARIES = (Adversary.SEMI_HONEST, Adversary.ACTIVE)


def default_threshold(clients: int) -> int:
    """Return floor(2n/3) + 1, which meets the semi-honest rule for any c up to two thirds of n.

    It is also the smallest threshold that Bonawitz et al. 2017 (section 6.2) give against an
    active adversary who corrupts fewer than a third of the clients.

    Args:
        clients: Number n of clients in the round, at least 2.

    Returns:
        The number of clients whose shares are needed to unmask.

    Raises:
        ValueError: If there are fewer than 2 clients.
    """
    if clients < 2:
        raise ValueError(f"clients is {clients}; secure aggregation needs at least 2")
    return two_thirds_and_one(clients)


@dataclass(frozen=True)
class RoundParameters:
    """One attempt at one round, as all its parties know it.

    Attributes:
        run_id: Name of the run, 1 to 65,535 bytes of UTF-8.
        round_number: Round within the run, from 0.
        attempt: Attempt within the round, from 0. A retry is a new attempt with fresh keys.
        clients: Share indices of the invited clients: distinct, ascending, each at least 1,
            because index 0 of a Shamir polynomial is the secret itself.
        threshold: Number t of shares that rebuild a secret, 2 <= t <= number of holders. On the
            complete graph it also bounds from below how many vectors a sum may hold.
        vector_length: Number of ring elements in every vector, at least 1.
        ring_bits: Size of the ring of the sum, 16 to 64: the integers modulo 2^ring_bits.
        corrupt: Number c of clients that may pool what they see with the server. Semi-honest
            parties need t > c (Bonawitz et al. 2017, theorem 6.3), an active adversary needs
            2t > n + c (section 6.2), and a k-regular graph the bounds of `plan`.
        adversary: Whether messages are signed and survivor lists agreed on.
        identities: Under an active adversary each client's Ed25519 public key, in the order of
            `clients`; empty otherwise.
        degree: Number k of neighbours of a client in the Harary graph, even; 0 stands for the
            complete graph, the only one built against an active adversary.
        graph_seed: 32 public bytes that order the clients around the ring of the graph.
        smallest_sum: Fewest vectors that a sum may hold; 0 stands for the threshold.
        enrolment_serial: Under an active adversary the serial number of the enrolment file that
            says whose identities these are; 0 otherwise.

    Raises:
        ValueError: If a field is out of its range, by name.
    """

    run_id: str
    round_number: int
    attempt: int
    clients: tuple[int, ...]
    threshold: int
    vector_length: int
    ring_bits: int
    corrupt: int = 0
    adversary: Adversary = Adversary.SEMI_HONEST
    identities: tuple[bytes, ...] = ()
    degree: int = 0
    graph_seed: bytes = b""
    smallest_sum: int = 0
    enrolment_serial: int = 0

    def __post_init__(self) -> None:
        """Refuse what no round can be run with."""
        if not 1 <= len(self.run_id.encode()) <= 65_535:
            raise ValueError("run_id must hold 1 to 65,535 bytes of UTF-8")
        for name in ("round_number", "attempt", "corrupt"):
            _require_between(name, getattr(self, name), 0, LARGEST_INDEX)
        _require_between("vector_length", self.vector_length, 1, LARGEST_INDEX)
        _require_between("ring_bits", self.ring_bits, 16, 64)
        if len(self.clients) < 2:
            raise ValueError(f"clients holds {len(self.clients)} indices; at least 2 are needed")
        if any(low >= high for low, high in zip(self.clients, self.clients[1:], strict=False)):
            raise ValueError("clients must be distinct share indices in ascending order")
        for index in (self.clients[0], self.clients[-1]):
            _require_between("a share index in clients", index, 1, LARGEST_INDEX)
        _require_between("smallest_sum", self.smallest_sum, 0, len(self.clients))
        largest = LARGEST_SERIAL if self.is_active else 0
        _require_between("enrolment_serial", self.enrolment_serial, 0, largest)
        expected = len(self.clients) if self.is_active else 0
        if len(self.identities) != expected or len(set(self.identities)) != expected:
            raise ValueError(
                f"identities holds {len(self.identities)} keys; an adversary that is "
                f"{self.adversary.value!r} needs {expected} distinct ones"
            )
        if any(len(identity) != IDENTITY_BYTES for identity in self.identities):
            raise ValueError("identities must be Ed25519 public keys of 32 bytes")
        if self.degree:
            self._require_regular()
        else:
            self._require_complete()

    def _require_complete(self) -> None:
        if self.graph_seed:
            raise ValueError("graph_seed is given, but the complete graph needs none")
        _require_between("threshold", self.threshold, 2, len(self.clients))
        if self.threshold <= self.corrupt:
            raise ValueError(
                f"threshold is {self.threshold}; it must be above corrupt, which is {self.corrupt}"
            )
        least = active_threshold(len(self.clients), self.corrupt)
        if self.is_active and self.threshold < least:
            raise ValueError(
                f"threshold is {self.threshold}; against an active adversary with corrupt = "
                f"{self.corrupt} of {len(self.clients)} clients it must be at least {least}"
            )

    def _require_regular(self) -> None:
        if self.is_active:
            raise ValueError("degree must be 0: an active adversary needs the complete graph")
        if self.degree % 2 or not 2 <= self.degree < len(self.clients):
            raise ValueError(
                f"degree is {self.degree}; valid are even numbers from 2 to {len(self.clients) - 1}"
            )
        if len(self.graph_seed) != SEED_BYTES:
            raise ValueError(f"graph_seed has {len(self.graph_seed)} bytes; valid is 32")
        _require_between("threshold", self.threshold, 2, self.degree + 1)
        _require_between("smallest_sum", self.smallest_sum, self.threshold, len(self.clients))
        clients, dropouts = len(self.clients), len(self.clients) - self.smallest_sum
        graph = {"degree": self.degree, "threshold": self.threshold}
        bits = secrecy_bits(clients, self.corrupt, dropouts, **graph)
        if bits < SECURITY_BITS:
            raise ValueError(
                f"degree {self.degree} with threshold {self.threshold} gives {bits:.1f} bits of "
                f"security for {clients} clients, {self.corrupt} of them corrupt and {dropouts} "
                f"lost; valid is at least {SECURITY_BITS}"
            )

    @property
    def is_active(self) -> bool:
        """Whether the adversary may lie."""
        return self.adversary is Adversary.ACTIVE

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of this round; only an active adversary makes survivor lists be agreed on."""
        return tuple(p for p in Phase if self.is_active or p is not Phase.CONSISTENCY_CHECK)

    @property
    def least_survivors(self) -> int:
        """Fewest clients with which the round goes on."""
        return max(self.threshold, self.smallest_sum)

    def holders(self, client: int) -> tuple[int, ...]:
        """Return who holds shares of a client: its neighbours and itself, ascending."""
        return self._neighbourhoods[client] if self.degree else self.clients

    def identity(self, client: int) -> bytes:
        """Return the public key with which a client signs; only under an active adversary."""
        return self._identities[client]

    @cached_property
    def invited(self) -> frozenset[int]:
        """The clients as a set."""
        return frozenset(self.clients)

    @cached_property
    def _neighbourhoods(self) -> Mapping[int, tuple[int, ...]]:
        return closed_neighbourhoods(self.clients, self.degree, self.graph_seed)

    @cached_property
    def _identities(self) -> Mapping[int, bytes]:
        return MappingProxyType(dict(zip(self.clients, self.identities, strict=True)))

    def encode(self) -> bytes:
        """Return the one canonical encoding, little-endian; `decode_parameters` reads it back."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        run_id = self.run_id.encode()
        fixed = _FIXED.pack(
            PROTOCOL_VERSION,
            self.ring_bits,
            _ADVERSARIES.index(self.adversary),
            self.round_number,
            self.attempt,
            self.threshold,
            self.corrupt,
            self.smallest_sum,
            self.vector_length,
            self.degree,
            self.enrolment_serial,
            len(self.graph_seed),
            IDENTITY_BYTES if self.identities else 0,
            len(run_id),
            len(self.clients),
        )
        cohort = struct.pack(f"<{len(self.clients)}I", *self.clients)
        return b"".join((fixed, self.graph_seed, run_id, cohort, *self.identities))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding, 32 bytes; it stands for all fields in messages."""
        return hashlib.sha256(b"sotto/secure-aggregation/parameters" + self.encode()).digest()


def decode_parameters(data: bytes) -> RoundParameters:
    """Read back what `RoundParameters.encode` wrote.

    Args:
        data: Exactly one canonical encoding.

    Returns:
        The parameters; for the same bytes the same object, with the graph that it has computed.

    Raises:
        ValueError: If the bytes are not a canonical encoding of valid parameters.
    """
    if not isinstance(data, bytes) or len(data) < _FIXED.size:
        raise ValueError("encoded parameters are truncated")
    return _decoded(data)


@lru_cache(maxsize=_REMEMBERED)
def _decoded(data: bytes) -> RoundParameters:
    (version, ring_bits, adversary, round_number, attempt, threshold, corrupt, *rest) = (
        _FIXED.unpack_from(data)
    )
    smallest_sum, length, degree, serial, seed_size, identity_size, name_size, count = rest
    seed_end = _FIXED.size + seed_size
    name_end = seed_end + name_size
    cohort_end = name_end + 4 * count
    if (
        version != PROTOCOL_VERSION
        or adversary >= len(_ADVERSARIES)
        or identity_size not in (0, IDENTITY_BYTES)
        or len(data) != cohort_end + count * identity_size
    ):
        raise ValueError("encoded parameters have another version or the wrong length")
    starts = range(cohort_end, len(data), IDENTITY_BYTES)
    return RoundParameters(
        run_id=data[seed_end:name_end].decode(),
        round_number=round_number,
        attempt=attempt,
        clients=struct.unpack_from(f"<{count}I", data, name_end),
        threshold=threshold,
        vector_length=length,
        ring_bits=ring_bits,
        corrupt=corrupt,
        adversary=_ADVERSARIES[adversary],
        identities=tuple(data[at : at + IDENTITY_BYTES] for at in starts),
        degree=degree,
        graph_seed=data[_FIXED.size : seed_end],
        smallest_sum=smallest_sum,
        enrolment_serial=serial,
    )


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; valid are {low} to {high}")
