"""The tables of clients' own stores; they never lie in the coordinator's database.

A file holds one client's store in a federation, and those of all clients in a simulation, where one
commit makes a whole stage durable. So a row's client stands first in every key.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.records import LEDGER_STATUSES
from storage.tables import NAMING_CONVENTION, TYPES, LedgerColumns, Sealed, one_of


class ClientBase(DeclarativeBase):
    """Root of a client's tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar[dict[Any, Any]] = TYPES


class Owned(Sealed):
    """A table whose rows each belong to one of the file's stores."""

    client: Mapped[str] = mapped_column(primary_key=True, sort_order=-2)


class Identity(Owned, ClientBase):
    """One row a store: the client's identity."""

    __tablename__ = "identity"

    pseudonym: Mapped[str]
    handle_secret: Mapped[bytes]
    enrolment_serial: Mapped[int]


class Personal(Owned, ClientBase):
    """The personal part per run, in two slots: last committed and pending."""

    __tablename__ = "personal"
    __table_args__ = (one_of("slot", ("committed", "pending")),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    slot: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int]
    attempt: Mapped[int]
    personal: Mapped[bytes]
    experts: Mapped[bytes]


class Noise(Owned, ClientBase):
    """The state from which the noise of a run's next attempt continues; it never goes back."""

    __tablename__ = "noise"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[bytes]


class ClientLedger(LedgerColumns, Owned, ClientBase):
    """The client's own ledger."""

    __tablename__ = "ledger"
    __table_args__ = (one_of("status", LEDGER_STATUSES),)

    run_id: Mapped[str] = mapped_column(primary_key=True, sort_order=-1)


class Tombstones(Owned, ClientBase):
    """The payload of a (run, round, attempt, channel): at most one, ever."""

    __tablename__ = "tombstones"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(primary_key=True)
    payload_digest: Mapped[bytes]


class Sessions(Owned, ClientBase):
    """The newest attempt of a run that the client answered, and its progress in it.

    Round and attempt stay for good, so that the client never answers an older attempt; the state is
    emptied once the attempt is committed.
    """

    __tablename__ = "sessions"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int]
    attempt: Mapped[int]
    noiseless_round: Mapped[int]
    state: Mapped[bytes]


class Replies(Owned, ClientBase):
    """The client's answers in that attempt, by request; erased with the attempt's state."""

    __tablename__ = "replies"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    request_digest: Mapped[bytes] = mapped_column(primary_key=True)
    reply: Mapped[bytes]


class Failures(Owned, ClientBase):
    """A failure inside the client in an attempt, for its owner alone."""

    __tablename__ = "failures"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str]


class Restored(Owned, ClientBase):
    """When the store last came back from a backup, and whether it has caught up since.

    At most one row a store. `caught_up` is empty until the store knows its later releases again.
    """

    __tablename__ = "restored"

    restored: Mapped[str]
    caught_up: Mapped[str]


class Receipts(Owned, ClientBase):
    """The receipts of the coordinator's log about the client, each as it came."""

    __tablename__ = "receipts"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True)
    receipt: Mapped[bytes]


class Logs(Owned, ClientBase):
    """The newest head that the client has seen of each log, and the key that signed it."""

    __tablename__ = "logs"

    origin: Mapped[str] = mapped_column(primary_key=True)
    signer: Mapped[str]
    size: Mapped[int]
    root: Mapped[bytes]


class Receipted(Owned, ClientBase):
    """The progress of a run's receipts, and the charges that they named before their round."""

    __tablename__ = "receipted"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    origin: Mapped[str]
    size: Mapped[int]
    round_number: Mapped[int]
    attempt: Mapped[int]
    ahead: Mapped[str]
    cosignature: Mapped[str]


CLIENT_TABLES: tuple[type[Owned], ...] = (
    Identity,
    Personal,
    Noise,
    ClientLedger,
    Tombstones,
    Sessions,
    Replies,
    Failures,
    Restored,
    Receipts,
    Receipted,
    Logs,
)
