"""The tables of a client's own store; they never lie in the coordinator's database."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.records import LEDGER_STATUSES
from storage.tables import NAMING_CONVENTION, TYPES, LedgerColumns, one_of


class ClientBase(DeclarativeBase):
    """Root of a client's tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar[dict[Any, Any]] = TYPES


class Identity(ClientBase):
    """The one row that says who the client is."""

    __tablename__ = "identity"
    __table_args__ = (one_of("slot", ("own",)),)

    slot: Mapped[str] = mapped_column(primary_key=True)
    pseudonym: Mapped[str]
    handle_secret: Mapped[bytes]


class Personal(ClientBase):
    """The personal part per run, in two slots: last committed and pending."""

    __tablename__ = "personal"
    __table_args__ = (one_of("slot", ("committed", "pending")),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    slot: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int]
    attempt: Mapped[int]
    personal: Mapped[bytes]
    experts: Mapped[bytes]


class ClientLedger(LedgerColumns, ClientBase):
    """The client's own ledger."""

    __tablename__ = "ledger"
    __table_args__ = (one_of("status", LEDGER_STATUSES),)

    run_id: Mapped[str] = mapped_column(primary_key=True, sort_order=-1)


class Tombstones(ClientBase):
    """What was released under a (run, round, attempt, channel): at most one payload, ever."""

    __tablename__ = "tombstones"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(primary_key=True)
    payload_digest: Mapped[bytes]


class Receipts(ClientBase):
    """What the coordinator acknowledged."""

    __tablename__ = "receipts"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    receipt: Mapped[bytes]


class Failures(ClientBase):
    """What failed inside the client without showing; for its owner's eyes."""

    __tablename__ = "failures"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str]
