"""The log: a leaf for every event and charge, and the hashes of its full tiles.

The rows of older databases get their leaves run by run, as the order of rows across runs is not
known: a run's events first, then its charges, then their settlements.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.log import fill_log

revision = "0.2.0"
down_revision = "0.1.0"

_TRIGGERS = tuple(
    f"""
    CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END
    """
    for table in ("leaves", "tiles")
    for event in ("UPDATE", "DELETE")
)


def upgrade() -> None:
    """Create the log, and the leaves of existing rows."""
    op.create_table(
        "leaves",
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("kind", "run_id")),
        *(
            sa.Column(name, sa.Integer(), nullable=True)
            for name in ("sequence", "round_number", "attempt")
        ),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("pseudonym", "channel", "status")),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("kind IN ('event', 'charge', 'settled')", name="ck_leaves_kind"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_leaves_run_id"),
        sa.PrimaryKeyConstraint("position", name="pk_leaves"),
    )
    op.create_index("ix_leaves_pseudonym", "leaves", ["pseudonym", "run_id"])
    op.create_index("ix_leaves_run_id", "leaves", ["run_id", "sequence"])
    op.create_table(
        "tiles",
        *(
            sa.Column(name, sa.Integer(), nullable=False, autoincrement=False)
            for name in ("level", "position")
        ),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name="pk_tiles"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_audit_action", "audit", ["action", "run_id", "sequence"])
    op.create_index("ix_audit_time", "audit", ["time"])
    fill_log(op.get_bind())
    for statement in _TRIGGERS:
        op.execute(statement)


def downgrade() -> None:
    """Forget the log."""
    op.drop_index("ix_audit_action", "audit")
    op.drop_index("ix_audit_time", "audit")
    op.drop_table("tiles")
    op.drop_table("leaves")
