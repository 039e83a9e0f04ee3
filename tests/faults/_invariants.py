"""What must hold of both sides' databases, at every moment and at the end of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from platform.agreement.checking import faults_of
from platform.disk.opening import open_existing
from platform.mechanisms import BUILT_IN
from platform.protection.charging import as_releases
from privacy import RunningLedger
from storage import LedgerRow, open_client_store
from tests.faults._federation import ROUNDS
from tests.faults._processes import found_in, rows_of

DELTA = 1e-5
Charge = tuple[str, int, int, str]
"""Pseudonym, round, attempt and channel."""
ROWS = "SELECT pseudonym, round_number, attempt, channel, status FROM ledger"
ROUND_DOCUMENTS = "SELECT round_number, document FROM rounds"
# A client's ledger names a pseudonym in each row as well; whose store it is, its identity says.
OWN = (
    "SELECT identity.pseudonym, round_number, attempt, channel, status "
    "FROM ledger JOIN identity USING (client)"
)


def charges(rows: Sequence[tuple]) -> set[Charge]:
    """What counts: all but what provably left nobody."""
    return {row[:4] for row in rows if row[4] != "aborted"}


@dataclass
class Watch:
    """Looks at both sides while a run goes on: nothing that was there may ever be gone."""

    folder: Path
    names: Sequence[str]
    _own: dict[str, set[Charge]] = field(default_factory=dict)
    _rows: dict[Charge, str] = field(default_factory=dict)
    _rounds: dict[int, str] = field(default_factory=dict)
    _seen: set[Path] = field(default_factory=set)

    def look(self) -> None:
        """Looks once; what cannot be read at this moment is left for the next look."""
        for name in self.names:
            found = self._found(self.folder / name / "store" / "client.db", OWN)
            if found is not None:
                own = charges(found)
                assert self._own.get(name, set()) <= own, f"{name} has forgotten a charge"
                self._own[name] = own
        # Later, so that all that a client was asked for is charged by now.
        rows = self._found(self.folder / "sotto.db", ROWS)
        if rows is not None:
            self._compare(rows)
        rounds = self._found(self.folder / "sotto.db", ROUND_DOCUMENTS)
        if rounds is not None:
            assert self._rounds.items() <= dict(rounds).items(), "a round has changed"
            self._rounds = dict(rounds)

    def _found(self, database: Path, query: str) -> list[tuple] | None:
        found = found_in(database, query)
        if found is not None:
            self._seen.add(database)
        # A database that was there stays there; that it is locked is for the next look.
        assert database.exists() or database not in self._seen, f"{database} is gone"
        return found

    def require_seen(self) -> None:
        """Fails if a look over a whole run has read nothing of some client, or of the coordinator.

        The ledger of each client was read, even of one that was lost in every round, which has no
        row. Some client was charged, on both sides, and some round was ended.
        """
        for name in self.names:
            assert name in self._own, f"nothing was read in the ledger of {name}"
        assert any(self._own.values()), "no client's ledger has a row"
        assert self._rows, "nothing was read in the coordinator's ledger"
        assert self._rounds, "nothing was read of the coordinator's rounds"

    def _compare(self, rows: Sequence[tuple]) -> None:
        now = {row[:4]: row[4] for row in rows}
        for charge, status in self._rows.items():
            assert charge in now, f"the coordinator has forgotten {charge}"
            settled = status != "reserved"
            assert not settled or now[charge] == status, f"{charge} was {status}: {now[charge]}"
        self._rows = now
        for name, own in self._own.items():
            assert own <= charges(rows), f"{name} released what is not charged"


def require_sound(folder: Path, names: Sequence[str]) -> dict[int, list[str]]:
    """Checks a run that is over, on both sides; returns each round's survivors."""
    ((run_id, status),) = rows_of(folder / "sotto.db", "SELECT run_id, status FROM runs")
    assert status == "finished"
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        assert faults_of(database, run_id)[1] == []
        with database.unit_of_work(read_only=True) as uow:
            rows, rounds = uow.ledger.rows(run_id), uow.rounds.all(run_id)
            trail = uow.audit.query(run=run_id)
    require_one_commit_a_round(rounds, trail)
    summary = json.loads((folder / run_id / "summary.json").read_text())
    require_charged(folder, names, rows, summary)
    return {row.round_number: row.document["survivors"] for row in rounds}


def require_one_commit_a_round(rounds: Sequence, trail: Sequence) -> None:
    """Rounds follow each other, each was ended once, and no attempt goes on behind another."""
    numbers = [row.round_number for row in rounds]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) <= ROUNDS
    ended = [entry.round for entry in trail if entry.action in ("round.committed", "round.lost")]
    assert ended == numbers
    opened = [
        (entry.round, json.loads(entry.detail)["attempt"])
        for entry in trail
        if entry.action == "round.opened"
    ]
    assert opened == sorted(set(opened))


def require_charged(
    folder: Path, names: Sequence[str], rows: Sequence[LedgerRow], summary: dict
) -> None:
    """Whatever a client released is charged, by both, and no more is said to be spent."""
    told = summary["final"]["epsilon"]
    for name in names:
        store = open_client_store(folder / name / "store" / "client.db", read_only=True)
        own, pseudonym = store.rows(), store.identity.pseudonym
        charged = [row for row in rows if row.pseudonym == pseudonym]
        keys = {_key(row) for row in charged if row.status != "aborted"}
        # What a client released is charged; what is charged need not have been released.
        assert {_key(row) for row in own if row.status != "aborted"} <= keys
        spent, theirs = epsilon(own), epsilon(charged)
        assert spent <= theirs * (1 + 1e-9)
        if isinstance(told["server"], float):
            assert theirs <= told["server"] * (1 + 1e-6)
            assert told["server"] <= 8.0 * (1 + 1e-6)


def epsilon(rows: Sequence[LedgerRow]) -> float:
    """What a ledger costs."""
    if not rows:
        return 0.0
    return RunningLedger(as_releases(rows, BUILT_IN)).claimed_with((), DELTA).epsilon


def _key(row: LedgerRow) -> tuple:
    return row.run_id, row.round_number, row.attempt, row.channel
