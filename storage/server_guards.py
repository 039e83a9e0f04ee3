"""What keeps rows of a server's database from being changed: triggers, as SQLite's file has them.

They say the same as those in the migrations say for SQLite, and hold for ``TRUNCATE`` as well,
which SQLite has not. Each is ``ENABLE ALWAYS``, so that a session that poses as a replica's is
refused too. Like the migrations, what was kept here once is never edited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

REFUSE: Final = "sotto_refuse"
REFUSE_SETTLED: Final = "sotto_refuse_settled"

FUNCTIONS: Final = {
    REFUSE: "BEGIN RAISE EXCEPTION '%', TG_ARGV[0]; END",
    REFUSE_SETTLED: (
        "BEGIN IF OLD.status <> 'reserved' THEN RAISE EXCEPTION '%', TG_ARGV[0]; END IF;"
        " RETURN NEW; END"
    ),
}
"""By name the body of each function, in PL/pgSQL."""

ROW: Final = 1
BEFORE: Final = 2
# Bits of pg_trigger.tgtype; an insertion is 4.
EVENTS: Final = {"DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}


class Guard(NamedTuple):
    """One trigger, which comes before what it guards against.

    Attributes:
        name: The trigger's.
        table: Whose rows it guards.
        event: ``UPDATE``, ``DELETE`` or ``TRUNCATE``.
        message: What it says.
        columns: An update of which it is about; empty for all.
        function: What it calls.
    """

    name: str
    table: str
    event: str
    message: str
    columns: tuple[str, ...] = ()
    function: str = REFUSE

    @property
    def kind(self) -> int:
        """What ``pg_trigger.tgtype`` says of it."""
        return BEFORE | EVENTS[self.event] | (0 if self.event == "TRUNCATE" else ROW)

    def statements(self) -> tuple[str, str]:
        """Return what makes it, and has it always fire."""
        of = f" OF {', '.join(self.columns)}" if self.columns else ""
        each = "ROW" if self.kind & ROW else "STATEMENT"
        made = (
            f"CREATE TRIGGER {self.name} BEFORE {self.event}{of} ON {self.table}"
            f" FOR EACH {each} EXECUTE FUNCTION {self.function}('{self.message}')"
        )
        return made, f"ALTER TABLE {self.table} ENABLE ALWAYS TRIGGER {self.name}"


def _fixed(table: str, message: str) -> tuple[Guard, ...]:
    return tuple(Guard(f"{table}_no_{event.lower()}", table, event, message) for event in EVENTS)


_FACTS: Final = (
    *("run_id", "round_number", "attempt", "pseudonym", "channel", "mechanism"),
    *("standard_deviation", "clipping_norm", "relation", "sampling", "sampling_probability"),
    *("count", "noise_kind", "share_deviation", "shares", "dimension", "corrupt"),
    *("cohort_kind", "cohort_size", "cohort_population", "cohort_drawn"),
)
_SETTLED: Final = "a settled ledger row may not change"

FIRST_GUARDS: Final = (
    *_fixed("audit", "the audit log is append-only"),
    Guard("ledger_no_delete", "ledger", "DELETE", "ledger rows are never deleted"),
    Guard("ledger_no_truncate", "ledger", "TRUNCATE", "ledger rows are never deleted"),
    Guard(
        *("ledger_facts_fixed", "ledger", "UPDATE"),
        "only the status of a ledger row may change",
        columns=_FACTS,
    ),
    Guard(
        *("ledger_settled_once", "ledger", "UPDATE", _SETTLED),
        columns=("status", "digest"),
        function=REFUSE_SETTLED,
    ),
)
LOG_GUARDS: Final = (
    *_fixed("leaves", "the log is append-only"),
    *_fixed("tiles", "the log is append-only"),
)
GUARDS: Final = (*FIRST_GUARDS, *LOG_GUARDS)


def guard(
    execute: Callable[[str], object], guards: Sequence[Guard], *, is_first: bool = False
) -> None:
    """Make triggers, and with the first of them the functions that they call."""
    for name, body in FUNCTIONS.items() if is_first else ():
        execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    for item in guards:
        for statement in item.statements():
            execute(statement)
