"""The coordinator's tables, typed; `storage.records` says what each column means.

`storage.migrations` writes a database's real schema; a test compares the two. `run_id` is in every
table, because one file serves all runs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.records import LEAF_KINDS, LEDGER_STATUSES, RUN_STATUSES

# Named constraints, because SQLite can only alter a table by copying it (Alembic's batch mode).
NAMING_CONVENTION = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "ix": "ix_%(table_name)s_%(column_0_name)s",
}

TYPES: dict[Any, Any] = {str: Text, bytes: LargeBinary, float: Double, int: Integer, bool: Boolean}


class Sealed:
    """A table whose rows carry a digest of all their other columns (`storage.sealing`)."""

    __tablename__: str
    __table__: ClassVar[FromClause]

    digest: Mapped[bytes] = mapped_column(sort_order=1)


def one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    """Return the constraint that a text column holds one of some words."""
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class Base(DeclarativeBase):
    """Root of the coordinator's tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: ClassVar[dict[Any, Any]] = TYPES


class Runs(Sealed, Base):
    """One row per run."""

    __tablename__ = "runs"
    __table_args__ = (one_of("status", RUN_STATUSES),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    config_json: Mapped[str]
    config_digest: Mapped[str]
    versions_json: Mapped[str]
    status: Mapped[str]
    created: Mapped[str]


class States(Sealed, Base):
    """Server states; only the newest two of each run are kept."""

    __tablename__ = "states"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    blob: Mapped[bytes]


class Rounds(Sealed, Base):
    """One row per committed round."""

    __tablename__ = "rounds"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    document: Mapped[str]


class Attempts(Sealed, Base):
    """One row per attempt at a round: its plan, fixed before anything was sent."""

    __tablename__ = "attempts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    plan: Mapped[str]
    is_open: Mapped[bool]


class Stages(Sealed, Base):
    """The results of the open attempt's stages so far; erased when it ends."""

    __tablename__ = "stages"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(primary_key=True)
    blob: Mapped[bytes]


class LedgerColumns:
    """The columns of a privacy ledger; the coordinator's and each client's have the same."""

    round_number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    pseudonym: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(primary_key=True)
    mechanism: Mapped[str]
    standard_deviation: Mapped[float]
    clipping_norm: Mapped[float]
    relation: Mapped[str]
    sampling: Mapped[str]
    status: Mapped[str]
    sampling_probability: Mapped[float]
    count: Mapped[int]
    noise_kind: Mapped[str | None]
    share_deviation: Mapped[float | None]
    shares: Mapped[int | None]
    dimension: Mapped[int | None]
    corrupt: Mapped[int | None]
    cohort_kind: Mapped[str | None]
    cohort_size: Mapped[int | None]
    cohort_population: Mapped[int | None]
    cohort_drawn: Mapped[bool | None]


class Ledger(LedgerColumns, Sealed, Base):
    """The coordinator's ledger: rows are added and settled, never deleted (triggers enforce it)."""

    __tablename__ = "ledger"
    __table_args__ = (one_of("status", LEDGER_STATUSES),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True, sort_order=-1)


class Audit(Base):
    """The audit log: rows are only ever added (triggers enforce it)."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_action", "action", "run_id", "sequence"),
        Index("ix_audit_time", "time"),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    actor: Mapped[str]
    action: Mapped[str]
    round_number: Mapped[int | None]
    channel: Mapped[str | None]
    time: Mapped[str]
    detail: Mapped[str]
    hash: Mapped[str]


class Leaves(Base):
    """The leaves of the log: rows are only ever added (triggers enforce it)."""

    __tablename__ = "leaves"
    __table_args__ = (
        one_of("kind", LEAF_KINDS),
        Index("ix_leaves_run_id", "run_id", "sequence"),
        Index("ix_leaves_pseudonym", "pseudonym", "run_id"),
    )

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    sequence: Mapped[int | None]
    round_number: Mapped[int | None]
    attempt: Mapped[int | None]
    pseudonym: Mapped[str | None]
    channel: Mapped[str | None]
    status: Mapped[str | None]
    salt: Mapped[bytes | None]
    hash: Mapped[bytes]


class Tiles(Base):
    """Hashes of full tiles of the log: rows are only ever added (triggers enforce it)."""

    __tablename__ = "tiles"
    __table_args__ = ({"sqlite_with_rowid": False},)

    level: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[bytes]


class Pool(Sealed, Base):
    """The expert pool; `storage.pool` explains its form.

    The order of the columns matters: `cover` fills the part of a row that SQLite may copy when it
    splits a page, so that `handle`, `entry` and `digest` never lie there.
    """

    __tablename__ = "pool"
    __table_args__ = (Index("ix_pool_run_id", "run_id", "generation"), {"sqlite_with_rowid": False})

    key: Mapped[bytes] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    generation: Mapped[int]
    cover: Mapped[bytes]
    handle: Mapped[bytes]
    entry: Mapped[bytes]


SEALED_TABLES: tuple[type[Sealed], ...] = (Runs, States, Rounds, Attempts, Stages, Ledger, Pool)
