"""The expert pool, stored so that its rows cannot be tied to clients (`disk` adversary).

Four traces could reveal who wrote a row. The table removes each:

- *Order of insertion*, which a hidden rowid keeps: the table has no rowid, its key is random, and a
  generation is shuffled before it is written. Both draw on the operating system's entropy.
- *Time*: rows have no time, and generations are deleted whole.
- *Being alone*: a generation has at least two entries.
- *Old pages*: deleted cells are zeroed (`secure_delete`) and the write-ahead log is truncated after
  each commit. That is not enough by itself: when SQLite splits a page it copies rows to another
  page and leaves stale copies in the old page's free space, which a later deletion does not zero.
  Only the first bytes of a long row lie in such pages, the rest in overflow pages, which are never
  copied. So each row starts with a `cover` of zeros as long as the longest such part (SQLite file
  format, section 1.6), and handle and entry come after it.

Each row ends in a digest of all its fields, which shows a damaged entry. The digest comes after the
entry, so old pages do not hold it either, and it is in no index. It covers the row's own random
key: the same handle and entry have another digest in every other row and file. So a digest ties a
row only to itself, and a search for it elsewhere finds nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial

from storage._validate import require_bytes, require_count
from storage.errors import AlreadyExistsError, InvalidRecordError
from storage.records import PoolEntry
from storage.runs import require_run
from storage.sealing import Repository
from storage.tables import Pool

MINIMUM_ENTRIES = 2
KEY_BYTES = 16

Entries = Sequence[tuple[bytes, bytes]]


class PoolRepository(Repository):
    """The expert pools of all runs."""

    def add_generation(self, run_id: str, generation: int, entries: Entries) -> None:
        """Add one round's entries, all at once and shuffled; `generation` is the round's number.

        Entries are at least two pairs (handle, entry); handles differ.

        Raises:
            AlreadyExistsError: The generation exists; entries are never overwritten.
            InvalidRecordError: Fewer than two entries, or a handle twice.
        """
        require_count(generation=generation)
        if len(entries) < MINIMUM_ENTRIES:
            raise InvalidRecordError(
                f"generation {generation} has {len(entries)} entries; a lone entry names its "
                f"owner, so at least {MINIMUM_ENTRIES} are needed"
            )
        for handle, entry in entries:
            require_bytes(handle=handle, entry=entry)
            if not handle or not entry:
                raise InvalidRecordError("handle and entry must not be empty")
        if len({handle for handle, _ in entries}) != len(entries):
            raise InvalidRecordError(f"generation {generation} holds the same handle twice")
        require_run(self._rows, run_id)
        if generation in self._generations(run_id):
            raise AlreadyExistsError(
                f"generation {generation} of run {run_id!r} is in the pool already"
            )
        cover = bytes(local_payload_limit(self._rows.statements.page_size))
        shuffle, key = secrets.SystemRandom().shuffle, partial(secrets.token_bytes, KEY_BYTES)
        rows = arrange(entries, shuffle=shuffle, key=key)
        shared = {"run_id": run_id, "generation": generation, "cover": cover}
        self._rows.insert(
            Pool,
            *(
                {"key": key, "handle": handle, "entry": entry, **shared}
                for key, handle, entry in rows
            ),
        )

    def entries(self, run_id: str) -> tuple[PoolEntry, ...]:
        """Return all live entries, ordered by generation and then by their own bytes.

        So equal contents have the same order, regardless of who wrote them and when.
        """
        require_run(self._rows, run_id)
        order = ("generation", "entry", "handle")
        rows = self._rows.read(Pool, {"run_id": run_id}, order=order)
        return tuple(PoolEntry(row.generation, row.handle, row.entry) for row in rows)

    def generations(self, run_id: str) -> tuple[int, ...]:
        """Return the run's live generations, oldest first; reads no entry."""
        require_run(self._rows, run_id)
        return self._generations(run_id)[::-1]

    def keep_generations(self, run_id: str, n: int) -> None:
        """Delete all but the run's newest `n` generations, whole."""
        require_count(n=n)
        require_run(self._rows, run_id)
        expired = self._generations(run_id)[n:]
        if expired:
            self._rows.delete(Pool, {"run_id": run_id, "generation": expired})

    def drop_generations(self, run_id: str, generations: Collection[int]) -> tuple[int, ...]:
        """Delete some of the run's generations, whole; return those that existed.

        One entry of a generation is never deleted alone: the gap would name its owner.
        """
        require_run(self._rows, run_id)
        found = tuple(sorted(set(self._generations(run_id)) & set(generations)))
        if found:
            self._rows.delete(Pool, {"run_id": run_id, "generation": found})
        return found

    def _generations(self, run_id: str) -> tuple[int, ...]:
        """Return the run's generations, newest first."""
        return self._rows.column(Pool, "generation", {"run_id": run_id}, newest_first=True)


def arrange(
    entries: Entries,
    *,
    shuffle: Callable[[list[tuple[bytes, bytes]]], None],
    key: Callable[[], bytes],
) -> list[tuple[bytes, bytes, bytes]]:
    """Return the rows (key, handle, entry) of pairs (handle, entry) in the order of writing.

    `shuffle` permutes a list in place; `key` draws a row's key.
    """
    shuffled = list(entries)
    shuffle(shuffled)
    return [(key(), handle, entry) for handle, entry in shuffled]


def local_payload_limit(page_size: int) -> int:
    """Return the most bytes of a row that a table without rowid keeps outside overflow pages.

    Source: SQLite file format, section 1.6, "index b-tree pages", no reserved bytes.
    """
    return (page_size - 12) * 64 // 255 - 23
