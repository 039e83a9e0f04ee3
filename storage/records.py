"""The frozen values that storage takes and gives: one type per table, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

RunStatus = Literal["running", "finished", "interrupted", "stopped", "failed"]
LedgerStatus = Literal["reserved", "released", "aborted"]

RUN_STATUSES: Final = ("running", "finished", "interrupted", "stopped", "failed")
LEDGER_STATUSES: Final = ("reserved", "released", "aborted")

LeafKind = Literal["event", "charge", "settled"]
LEAF_KINDS: Final = ("event", "charge", "settled")

GENESIS_HASH: Final = "0" * 64
"""The hash before the first entry of a run's audit chain."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    Attributes:
        run_id: The run's key.
        name: The configuration's name, for people.
        config_json: The effective configuration as JSON text.
        config_digest: Digest of its canonical form, as text.
        versions_json: Versions of the software as JSON text.
        status: The run's state.
        created: ISO 8601, UTC, microseconds.
    """

    run_id: str
    name: str
    config_json: str
    config_digest: str
    versions_json: str
    status: RunStatus
    created: str


class StateRecord(NamedTuple):
    """The server state after a round: round number and opaque bytes."""

    round_number: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One committed round.

    Attributes:
        round_number: The round.
        attempt: The attempt that succeeded.
        document: Its metrics, as they were given.
    """

    round_number: int
    attempt: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One release of one client: facts only, never a bare multiplier or a price.

    Attributes:
        run_id: The run.
        round_number: The round.
        attempt: The attempt within the round.
        pseudonym: The client whose data it is.
        channel: What carries the release: ``sum``, ``pool``, ``metrics``, ...
        mechanism: Name of the mechanism.
        standard_deviation: Of the noise, in the units of `clipping_norm`; at least 0, finite.
        clipping_norm: L2 bound on the release; above 0, infinity without a bound.
        relation: Neighbouring relation, such as `replace_one`.
        sampling: The sampling assumption, as the caller's own text.
        status: `reserved` before anything leaves, then `released` or `aborted`.
        sampling_probability: Of the sampling's coin; above 0, at most 1.
        count: How many equal compositions the row stands for; at least 1.
        noise_kind: Law of the noise, as the caller's own text. Every new row states one. Rows from
            before laws were named never change, as they are sealed, logged and receipted: they say
            None where the noise was not made of integers.
        share_deviation: Of one share of integer noise, in steps of the grid; above 0, finite; this
            and the next three are all None where the noise is not made of integers.
        shares: Honest shares in the sum; at least 1.
        dimension: Coordinates that carry noise; at least 1.
        corrupt: Clients that may show their share without touching `shares`; at least 0.
        cohort_kind: How the round's clients were drawn in secret; this and the next three are all
            None where they were not.
        cohort_size: Clients of a round; from 1 to `cohort_population`.
        cohort_population: Clients that were drawn from.
        cohort_drawn: Whether this client is charged as if it was drawn. Only rows of early
            versions say no; they tell who was drawn.
    """

    run_id: str
    round_number: int
    attempt: int
    pseudonym: str
    channel: str
    mechanism: str
    standard_deviation: float
    clipping_norm: float
    relation: str
    sampling: str
    status: LedgerStatus = "reserved"
    sampling_probability: float = 1.0
    count: int = 1
    noise_kind: str | None = None
    share_deviation: float | None = None
    shares: int | None = None
    dimension: int | None = None
    corrupt: int | None = None
    cohort_kind: str | None = None
    cohort_size: int | None = None
    cohort_population: int | None = None
    cohort_drawn: bool | None = None

    def as_own(self) -> LedgerRow:
        """Return the row as its client has it: reserved, without the draw of the cohort."""
        unknown: dict[str, Any] = dict.fromkeys(COHORT)
        return replace(self, status="reserved", **unknown)

    def is_release_of(self, other: LedgerRow) -> bool:
        """Return whether both rows are the same to their client."""
        return bool(_OWN_FACTS(self) == _OWN_FACTS(other))


COHORT: Final = ("cohort_kind", "cohort_size", "cohort_population", "cohort_drawn")
"""Columns that a client does not know of its row: how the coordinator drew the cohort."""
_NOT_OWN: Final = ("status", *COHORT)
_OWN_FACTS: Final = attrgetter(*[f.name for f in fields(LedgerRow) if f.name not in _NOT_OWN])


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One expert of the pool; it does not reveal its owner.

    Attributes:
        generation: The round that wrote it.
        handle: Opaque key that its owner can recompute.
        entry: The expert itself.
    """

    generation: int
    handle: bytes = field(repr=False)
    entry: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One row of the audit log.

    Attributes:
        sequence: 1, 2, ... within the run.
        run: The run.
        actor: Who acted.
        action: What was done.
        round: The round, if any.
        channel: The channel, if any.
        time: ISO 8601, UTC, microseconds.
        detail: Canonical JSON text of an object.
        hash: Hex SHA-256 over the previous hash and all other fields.
    """

    sequence: int
    run: str
    actor: str
    action: str
    round: int | None
    channel: str | None
    time: str
    detail: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The end of a run's audit chain; kept elsewhere, it shows a cut tail.

    Attributes:
        count: Number of entries.
        hash: Hex hash of the last one.
    """

    count: int
    hash: str


class Leaf(NamedTuple):
    """One leaf of the log: its row, and the hash of that row's contents.

    Attributes:
        position: From 0, over all runs of the database.
        kind: `event` of the audit log, `charge` of the ledger, or a `settled` charge.
        run_id: The run.
        sequence: The event's, None for the other kinds.
        round_number: The charge's round, None for an event, like all that follows here.
        attempt: The charge's attempt.
        pseudonym: The client whose data it is.
        channel: What carries the release.
        status: New status of a settled charge, None for the other kinds.
        salt: Of the commitment that is hashed; None where the leaf is hashed in clear.
        hash: RFC 9162's hash of the leaf.
    """

    position: int
    kind: LeafKind
    run_id: str
    sequence: int | None
    round_number: int | None
    attempt: int | None
    pseudonym: str | None
    channel: str | None
    status: str | None
    salt: bytes | None
    hash: bytes


class TreeHead(NamedTuple):
    """The log at some time: the number of leaves, and the root of their tree."""

    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client's identity towards the coordinator.

    Attributes:
        pseudonym: Its public name.
        handle_secret: 32 bytes that key its pool handles; never leaves the client's store.
    """

    pseudonym: str
    handle_secret: bytes = field(repr=False)


class PersonalState(NamedTuple):
    """A client's personal part after (round, attempt): its own arrays and its experts."""

    round_number: int
    attempt: int
    personal: bytes
    experts: bytes


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt at a round, as the coordinator has opened it.

    Attributes:
        round_number: The round.
        attempt: The attempt.
        plan: What was fixed before anything was sent, a JSON object.
        is_open: Whether it is neither committed nor given up.
    """

    round_number: int
    attempt: int
    plan: Mapping[str, Any]
    is_open: bool


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A client's progress in the newest attempt of a run that it answered.

    Attributes:
        run_id: The run.
        round_number: The round.
        attempt: The attempt; with the round it never goes back.
        noiseless_round: The last round in which a masked vector without noise of its own left the
            client, 0 for none.
        state: The client's state for the next request; it may hold secrets.
    """

    run_id: str
    round_number: int
    attempt: int
    noiseless_round: int = 0
    state: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure inside a client in an attempt; it never leaves the client."""

    run_id: str
    round_number: int
    attempt: int
    reason: str


class SeenLog(NamedTuple):
    """The newest head that a client has seen of a log.

    Attributes:
        origin: The log.
        signer: The public key that signed the head, as text.
        size: Its number of leaves.
        root: Of their tree.
    """

    origin: str
    signer: str
    size: int
    root: bytes


class Receipted(NamedTuple):
    """The progress of a run's receipts at a client.

    Attributes:
        origin: The receipts' log.
        size: Its size at the newest receipt.
        round_number: The last round that the receipt tells of.
        attempt: The attempt that gave that round's result.
        ahead: Charges of later rounds that receipts named already, a text a line.
        cosignature: The client's signature as a witness of that log.
    """

    origin: str
    size: int
    round_number: int
    attempt: int
    ahead: str
    cosignature: str


class KeptReceipt(NamedTuple):
    """A receipt that a client has checked: its run, the log's size, and the receipt as it came."""

    run_id: str
    size: int
    receipt: bytes
