"""Formulas of a round, from the protocol's page: bytes by stage, and uses of each primitive.

n clients are invited; L of them are lost before they train; s = n - L are in the sum. Each has k
neighbours (n - 1 on the complete graph); t is the threshold; an update has d values of b bits.
Sizes are those of `docs/protocol/secure-aggregation.md`, section 3; `frames` adds the bytes of the
platform's messages around them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from platform.wire.codec import Envelope
from platform.wire.messages import (
    Answer,
    Disclosure,
    EnrolledCohort,
    Invitation,
    MaskGraph,
    Relay,
    SecureRound,
    SumTerms,
    Upload,
    encode_answer,
    encode_disclosure,
    encode_invitation,
    encode_relay,
    encode_upload,
)
from privacy.secure_aggregation import plan

HEADER, CHECKSUM, SIGNATURE = 52, 16, 64
INDEX, KEY, BOX, SHARE = 4, 32, 94, 33
COMMITMENTS = 2 * KEY
CORRUPT, DROPOUTS = 0.05, 0.1
"""Shares of the cohort that the tables assume."""


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        kind: `regular`, `complete`, `active` or `plain`.
        clients: n.
        lost: L.
        length: d.
        bits: b.
        degree: k.
        threshold: t.
    """

    kind: str
    clients: int
    lost: int
    length: int
    bits: int
    degree: int
    threshold: int

    @property
    def survivors(self) -> int:
        """Return s."""
        return self.clients - self.lost

    @property
    def is_active(self) -> bool:
        """Whether messages are signed."""
        return self.kind == "active"


def round_of(kind: str, clients: int, length: int) -> Round:
    """Return the round of the tables, with the graph that the platform chooses."""
    lost = math.ceil(DROPOUTS * clients)
    if kind == "plain":
        return Round(kind, clients, lost, length, 64, 0, 0)
    graph = "k_regular" if kind == "regular" else "complete"
    found = plan(
        clients,
        corrupt_rate=CORRUPT,
        dropout_rate=DROPOUTS,
        active=kind == "active",
        graph=graph,  # type: ignore[arg-type]
    )
    # 20 bits for a value, plus the bits that the sum of n needs.
    bits = 20 + math.ceil(math.log2(clients))
    return Round(kind, clients, lost, length, bits, found.neighbours, found.threshold)


def frames(around: Round) -> Mapping[str, int]:
    """Return the bytes around a payload, from this version's encoders with empty payloads."""
    envelope = Envelope("scale-20261123-000000-0000", 1, 1)
    seat = SecureRound(
        index=around.clients,
        clients=around.clients,
        vector_length=around.length,
        ring_bits=around.bits,
        terms=SumTerms(around.threshold, around.clients // 20, around.survivors),
        graph=MaskGraph(around.degree if around.kind == "regular" else 0, b""),
        enrolled=EnrolledCohort((), 1) if around.is_active else None,
    )
    return {
        "invitation": len(
            encode_invitation(Invitation(envelope, (), None if around.kind == "plain" else seat))
        ),
        "answer": len(encode_answer(Answer(envelope, (), b""))),
        "relay": len(encode_relay(Relay(envelope, b""))),
        "upload": len(encode_upload(Upload(envelope, b"", None, 0))),
        "disclosure": len(
            encode_disclosure(Disclosure(envelope=envelope, payload=b"", handle=b"", entry={}))
        ),
    }


def payloads(r: Round) -> dict[str, int]:
    """Return the protocol's own bytes of a whole round, by direction and stage, without frames."""
    if r.kind == "plain":
        return {}
    n, s, k, active = r.clients, r.survivors, r.degree, r.is_active
    down, up = HEADER + CHECKSUM, HEADER + (SIGNATURE if active else CHECKSUM)
    signed, committed = SIGNATURE * active, COMMITMENTS * active
    found = {
        "down advertise": n * (KEY * n if active else 0 if r.kind == "complete" else KEY),
        "up advertise": n * (up + 2 * KEY),
        "down share": n * (down + (k + 1) * (INDEX + 2 * KEY + signed)),
        "up share": n * (up + KEY + committed + k * (INDEX + BOX + committed)),
        "down train": n * (down + k * (INDEX + BOX + committed)),
        "up train": s * (up + math.ceil(r.length * r.bits / 8)),
        "down unmask": s * (down + INDEX * s),
        "up unmask": s * (up + (k + 1) * (INDEX + 1 + SHARE)),
    }
    if active:
        found["down confirm"] = found["down unmask"]
        found["up confirm"] = s * (up + KEY)
        found["down unmask"] = s * (down + r.threshold * (INDEX + SIGNATURE))
    return found


def byte_counts(r: Round) -> dict[str, int]:
    """Return all bytes of a round's messages, by direction and stage."""
    around, n, s, found = frames(r), r.clients, r.survivors, payloads(r)
    masked = r.kind != "plain"
    # The broadcast in float32, and the names of its arrays.
    assignment = around["relay"] + 4 * r.length + 80
    total = {
        "down advertise": n * around["invitation"],
        "up advertise": n * around["answer"],
        "down train": n * assignment,
        "up train": s * (around["upload"] + (0 if masked else 8 * r.length + 24)),
    }
    if masked:
        total["down share"] = total["up share"] = n * around["relay"]
        total["down unmask"] = s * around["relay"]
        total["up unmask"] = s * around["disclosure"]
    if r.is_active:
        total["down confirm"] = total["up confirm"] = s * around["relay"]
    return {name: total[name] + found.get(name, 0) for name in total}


def uses(r: Round) -> dict[str, int]:
    """Return how often all clients together use each primitive; survivors stay to the end."""
    if r.kind == "plain":
        return {}
    n, s, k = r.clients, r.survivors, r.degree
    return {
        "agreements": n * k + s * k,
        "boxes sealed": n * k,
        "boxes opened": s * k,
        "share values": 2 * n * (k + 1),
        "mask values": s * (k + 1) * r.length,
    }


def server_uses(r: Round) -> dict[str, float]:
    """Return how often the coordinator uses each primitive."""
    requests = {"plain": 2, "active": 5}.get(r.kind, 4) * r.clients
    if r.kind == "plain":
        return {"requests": requests, "ledger rows": r.clients}
    pairs = r.lost * r.degree * r.survivors / r.clients
    return {
        "requests": requests,
        "ledger rows": r.clients,
        "agreements": pairs,
        "mask values": (r.survivors + pairs) * r.length,
        "secrets rebuilt": r.clients,
        "bytes": sum(byte_counts(r).values()),
    }


def held(r: Round) -> int:
    """Return the bytes of the largest stage's messages, which the coordinator holds at once."""
    counts = byte_counts(r)
    return max(counts.values())
