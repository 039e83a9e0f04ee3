"""The log as it is read: its leaves, what they say, and the proofs of its tree."""

from __future__ import annotations

from functools import partial
from typing import Final

from storage.errors import LogBroken, NotFound
from storage.leaf_data import charge_data, event_data, sealed_data, settled_data
from storage.leaves import LEAF_COLUMNS, read_hashes, tree_size
from storage.ledger import read_rows
from storage.merkle import MerkleTree, leaf_hash
from storage.records import GENESIS_HASH, Leaf, LedgerRow
from storage.sealing import Rows
from storage.tables import Ledger

_SELECTION: Final = f"SELECT {LEAF_COLUMNS} FROM leaves"  # noqa: S608
_BETWEEN: Final = f"{_SELECTION} WHERE position >= ? AND position < ? ORDER BY position"
_OF_EVENT: Final = f"{_SELECTION} WHERE run_id = ? AND sequence = ?"
_OF_CLIENT: Final = (
    f"{_SELECTION} WHERE run_id = ? AND pseudonym = ? AND position >= ? ORDER BY position"
)
_PSEUDONYMS: Final = (
    "SELECT DISTINCT pseudonym FROM leaves WHERE pseudonym IS NOT NULL ORDER BY pseudonym"
)
_CHANNELS: Final = "SELECT DISTINCT channel FROM ledger ORDER BY channel"
_EVENT: Final = (
    "SELECT sequence, run_id, actor, action, round_number, channel, time, detail FROM audit"
    " WHERE run_id = ? AND sequence = ?"
)
_HASH: Final = "SELECT hash FROM audit WHERE run_id = ? AND sequence = ?"

# Bytes where a text was written, or no number: SQLite keeps any type in any column.
ODD: Final = "its row holds a value of a type that none of ours has"


class LogRepository:
    """Reads the log within one transaction; what that adds is not in it before its commit."""

    def __init__(self, rows: Rows) -> None:
        """Work within one transaction."""
        self._rows = rows
        self._statements = rows.statements

    def size(self) -> int:
        """Return how many leaves there are."""
        return tree_size(self._statements)

    def tree(self, size: int | None = None) -> MerkleTree:
        """Return the tree of the first so many leaves, of all by default.

        Raises:
            NotFound: There are not so many.
        """
        known = self.size()
        if size is not None and not 0 <= size <= known:
            raise NotFound(f"the log has {known} leaves, not {size}")
        return MerkleTree(partial(read_hashes, self._statements), known if size is None else size)

    def leaves(self, start: int, end: int) -> tuple[Leaf, ...]:
        """Return the leaves from one place, counted from 0, to before another."""
        return tuple(Leaf(*row) for row in self._statements.run(_BETWEEN, (start, end)))

    def leaf(self, position: int) -> Leaf:
        """Return a leaf by its place, from 0.

        Raises:
            NotFound: There is no such leaf.
        """
        for leaf in self.leaves(position, position + 1):
            return leaf
        raise NotFound(f"the log has no leaf {position}; it has {self.size()}, counted from 0")

    def of_event(self, run_id: str, sequence: int) -> Leaf:
        """Return the leaf of an event.

        Raises:
            NotFound: There is no such event.
        """
        for row in self._statements.run(_OF_EVENT, (run_id, sequence)):
            return Leaf(*row)
        raise NotFound(f"run {run_id!r} has no event {sequence} in the log")

    def of_client(self, run_id: str, pseudonym: str, since: int = 0) -> tuple[Leaf, ...]:
        """Return the leaves of a client's charges in a run, and of what became of them.

        Args:
            run_id: The run.
            pseudonym: The client's.
            since: From this place on.
        """
        rows = self._statements.run(_OF_CLIENT, (run_id, pseudonym, since))
        return tuple(Leaf(*row) for row in rows)

    def charges(
        self,
        *,
        run_id: str | None = None,
        pseudonym: str | None = None,
        round_number: int | None = None,
        channel: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> tuple[Leaf, ...]:
        """Return the leaves of charges, and of what became of them, that meet every condition.

        A charge that was reserved has no other status than that; None is no condition.
        """
        equal = (
            ("run_id", run_id),
            ("pseudonym", pseudonym),
            ("round_number", round_number),
            ("channel", channel),
            ("coalesce(status, 'reserved')", status),
        )
        known = [(name, value) for name, value in equal if value is not None]
        where = "".join(f" AND {name} = ?" for name, _ in known)
        query = f"{_SELECTION} WHERE kind <> 'event'{where} ORDER BY position"
        values = tuple(value for _, value in known)
        if limit is not None:
            query, values = f"{query} LIMIT ?", (*values, limit)
        return tuple(Leaf(*row) for row in self._statements.run(query, values))

    def pseudonyms(self) -> tuple[str, ...]:
        """Return all clients that were ever charged, in order."""
        return tuple(name for (name,) in self._statements.run(_PSEUDONYMS))

    def channels(self) -> tuple[str, ...]:
        """Return all channels that were ever charged, in order."""
        return tuple(name for (name,) in self._statements.run(_CHANNELS))

    def data(self, leaf: Leaf) -> bytes:
        """Return what a leaf's row says, in clear also where the log shows a commitment alone.

        Raises:
            LogBroken: The row is gone, or no longer fits the leaf.
        """
        try:
            data = self._event_data(leaf) if leaf.kind == "event" else self._ledger_data(leaf)
            found = leaf_hash(shown(leaf, data))
        except (TypeError, ValueError) as error:
            raise LogBroken(leaf.position, ODD) from error
        if found != leaf.hash:
            raise LogBroken(leaf.position, f"its {leaf.kind} is not what was logged")
        return data

    def _event_data(self, leaf: Leaf) -> bytes:
        sequence = leaf.sequence or 0
        event = self._statements.run(_EVENT, (leaf.run_id, sequence))
        before = self._statements.run(_HASH, (leaf.run_id, sequence - 1))
        if not event:
            raise LogBroken(leaf.position, "its event is gone")
        return event_data(before[0][0] if before else GENESIS_HASH, event[0])

    def _ledger_data(self, leaf: Leaf) -> bytes:
        names = ("run_id", "round_number", "attempt", "pseudonym", "channel")
        found = read_rows(self._rows, Ledger, {name: getattr(leaf, name) for name in names})
        if not found:
            raise LogBroken(leaf.position, "its ledger row is gone")
        return ledger_data(leaf, found[0])


def ledger_data(leaf: Leaf, row: LedgerRow) -> bytes:
    """Return what a leaf of a ledger row says."""
    if leaf.kind == "charge":
        return charge_data(row)
    # Of another status than the row's it is that leaf which tells.
    return settled_data(row, leaf.status)


def shown(leaf: Leaf, data: bytes) -> bytes:
    """Return what is hashed of a leaf: what it says, or a commitment to it."""
    return data if leaf.salt is None else sealed_data(leaf.run_id, data, leaf.salt)
