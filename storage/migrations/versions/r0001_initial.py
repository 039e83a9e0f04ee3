"""The first schema: runs, states, rounds, attempts, ledger, audit log and expert pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# Digests of rows are part of what a version means.
revision = "0.1.0"
down_revision = None

_AUDIT_TRIGGERS = tuple(
    f"""
    CREATE TRIGGER audit_no_{event.lower()} BEFORE {event} ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """
    for event in ("UPDATE", "DELETE")
)

_LEDGER_TRIGGERS = (
    """
    CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'ledger rows are never deleted'); END
    """,
    """
    CREATE TRIGGER ledger_facts_fixed
    BEFORE UPDATE OF run_id, round_number, attempt, pseudonym, channel, mechanism,
        standard_deviation, clipping_norm, relation, sampling, sampling_probability, count,
        noise_kind, share_deviation, shares, dimension, corrupt,
        cohort_kind, cohort_size, cohort_population, cohort_drawn ON ledger
    BEGIN SELECT RAISE(ABORT, 'only the status of a ledger row may change'); END
    """,
    """
    CREATE TRIGGER ledger_settled_once BEFORE UPDATE OF status, digest ON ledger
    WHEN OLD.status <> 'reserved'
    BEGIN SELECT RAISE(ABORT, 'a settled ledger row may not change'); END
    """,
)


def upgrade() -> None:
    """Create all tables and the triggers that guard the append-only ones."""
    _create_run_tables()
    _create_attempts()
    _create_ledger()
    _create_audit()
    _create_pool()
    for statement in _AUDIT_TRIGGERS + _LEDGER_TRIGGERS:
        op.execute(statement)


def downgrade() -> None:
    """There is nothing before the first schema."""
    for table in ("pool", "audit", "ledger", "stages", "attempts", "rounds", "states", "runs"):
        op.drop_table(table)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _integer(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _double(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _bytes(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=False)


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=f"fk_{table}_run_id")


def _create_run_tables() -> None:
    op.create_table(
        "runs",
        *(_text(name) for name in ("run_id", "name", "config_json", "config_digest")),
        *(_text(name) for name in ("versions_json", "status", "created")),
        _bytes("digest"),
        sa.CheckConstraint(
            "status IN ('running', 'finished', 'interrupted', 'stopped', 'failed')",
            name="ck_runs_status",
        ),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_table(
        "states",
        _text("run_id"),
        _integer("round_number"),
        _bytes("blob"),
        _bytes("digest"),
        _of_run("states"),
        sa.PrimaryKeyConstraint("run_id", "round_number", name="pk_states"),
    )
    op.create_table(
        "rounds",
        _text("run_id"),
        _integer("round_number"),
        _integer("attempt"),
        _text("document"),
        _bytes("digest"),
        _of_run("rounds"),
        sa.PrimaryKeyConstraint("run_id", "round_number", name="pk_rounds"),
    )


def _create_attempts() -> None:
    key = ("run_id", "round_number", "attempt")
    op.create_table(
        "attempts",
        _text("run_id"),
        *(_integer(name) for name in ("round_number", "attempt")),
        _text("plan"),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        _bytes("digest"),
        _of_run("attempts"),
        sa.PrimaryKeyConstraint(*key, name="pk_attempts"),
    )
    op.create_table(
        "stages",
        _text("run_id"),
        *(_integer(name) for name in ("round_number", "attempt")),
        _text("stage"),
        _bytes("blob"),
        _bytes("digest"),
        _of_run("stages"),
        sa.PrimaryKeyConstraint(*key, "stage", name="pk_stages"),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger",
        _text("run_id"),
        _integer("round_number"),
        _integer("attempt"),
        *(_text(name) for name in ("pseudonym", "channel", "mechanism")),
        _double("standard_deviation"),
        _double("clipping_norm"),
        *(_text(name) for name in ("relation", "sampling", "status")),
        _double("sampling_probability"),
        _integer("count"),
        _text("noise_kind", nullable=True),
        _double("share_deviation", nullable=True),
        *(_integer(name, nullable=True) for name in ("shares", "dimension", "corrupt")),
        _text("cohort_kind", nullable=True),
        *(_integer(name, nullable=True) for name in ("cohort_size", "cohort_population")),
        sa.Column("cohort_drawn", sa.Boolean(), nullable=True),
        _bytes("digest"),
        sa.CheckConstraint(
            "status IN ('reserved', 'released', 'aborted')", name="ck_ledger_status"
        ),
        _of_run("ledger"),
        sa.PrimaryKeyConstraint(
            "run_id", "round_number", "attempt", "pseudonym", "channel", name="pk_ledger"
        ),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        _text("run_id"),
        _integer("sequence"),
        _text("actor"),
        _text("action"),
        _integer("round_number", nullable=True),
        _text("channel", nullable=True),
        *(_text(name) for name in ("time", "detail", "hash")),
        _of_run("audit"),
        sa.PrimaryKeyConstraint("run_id", "sequence", name="pk_audit"),
    )


def _create_pool() -> None:
    op.create_table(
        "pool",
        _bytes("key"),
        _text("run_id"),
        _integer("generation"),
        _bytes("cover"),
        _bytes("handle"),
        _bytes("entry"),
        _bytes("digest"),
        _of_run("pool"),
        sa.PrimaryKeyConstraint("key", name="pk_pool"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_pool_run_id", "pool", ["run_id", "generation"])
