"""What a client's store knows of having come back from a backup.

A backup is older than what its client released last. So a store that was restored says so, goes on
with no attempt that was open in it, and is caught up with by adding what the client was charged
since: charges are only ever added, and attempts are only ever over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from storage._validate import require_count, require_text, utc_text
from storage.client_rows import OwnRows, identity_row
from storage.client_tables import ClientLedger, Noise, Replies, Restored, Sessions, Tombstones
from storage.errors import InvalidRecordError
from storage.ledger import add_rows, read_rows, require_ledger_row
from storage.records import LedgerRow

Transaction = Callable[..., AbstractContextManager[OwnRows]]
_NEVER: Final = ""
_UNKNOWN_PAYLOAD: Final = b""
"""In place of a digest: what was released is not known here any more, so nothing is that again."""


class ClientRestoring:
    """Whether one store came back from a backup, and its catching up."""

    def __init__(self, transaction: Transaction) -> None:
        """Made by `ClientStore` only."""
        self._transaction = transaction

    def pending_since(self) -> str | None:
        """Return when the store was restored, None where it has nothing to catch up with."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Restored, {})
        return found[0].restored if found and found[0].caught_up == _NEVER else None

    def mark(self, moment: datetime) -> None:
        """Note that the store was restored just now, and let go of every attempt in it.

        An attempt that was open in the backup may have been gone on with since: answered anew, it
        would be a second release under the same keys.

        Args:
            moment: Now, with a time zone.
        """
        row = {"restored": utc_text("moment", moment), "caught_up": _NEVER}
        with self._transaction() as rows:
            rows.put(Restored, row)
            rows.update(Sessions, {}, state=b"")
            rows.delete(Replies, {})
            # What followed in the noise has left already; starting anew uses none of it twice.
            rows.delete(Noise, {})

    def take_over(self, charged: Sequence[LedgerRow], newest: Mapping[str, tuple[int, int]]) -> int:
        """Add charges that are not in the client's own ledger, and end all attempts up to some.

        Args:
            charged: The client's, of status ``reserved``; what is known already stays as it is.
            newest: By run the newest (round, attempt) that the client may have answered: neither it
                nor an older one will be answered again.

        Returns:
            How many charges were added.

        Raises:
            InvalidRecordError: A row is another client's, no valid row, or states other facts than
                the client's own ledger; nothing changes.
        """
        with self._transaction() as rows:
            pseudonym = identity_row(rows).pseudonym
            fresh = [row for row in charged if _is_new(rows, row, pseudonym)]
            for row in fresh:
                rows.insert(Tombstones, {**_key(row), "payload_digest": _UNKNOWN_PAYLOAD})
            add_rows(rows, ClientLedger, fresh)
            ends = {run_id: tuple(place) for run_id, place in newest.items()}
            for row in charged:
                place = (row.round_number, row.attempt)
                ends[row.run_id] = max(place, ends.get(row.run_id, place))
            for run_id, (round_number, attempt) in ends.items():
                _end(rows, run_id, round_number, attempt)
        return len(fresh)

    def settle(self, moment: datetime) -> None:
        """Note that everything was taken over; does nothing where there was nothing to.

        Args:
            moment: Now, with a time zone.
        """
        with self._transaction() as rows:
            rows.update(Restored, {"caught_up": _NEVER}, caught_up=utc_text("moment", moment))

    def has_taken_over(self, run_id: str, attempt: tuple[int, int]) -> bool:
        """Return whether a charge of this attempt was taken over and not made here."""
        where = {"run_id": run_id, "round_number": attempt[0], "attempt": attempt[1]}
        with self._transaction(read_only=True) as rows:
            found = rows.read(Tombstones, where)
        return any(row.payload_digest == _UNKNOWN_PAYLOAD for row in found)


def _is_new(rows: OwnRows, row: LedgerRow, pseudonym: str) -> bool:
    require_ledger_row(row)
    if row.pseudonym != pseudonym:
        raise InvalidRecordError(f"pseudonym is {row.pseudonym!r}; valid: {pseudonym!r}")
    known = read_rows(rows, ClientLedger, _key(row))
    if not known:
        return True
    if any(own.as_own() != row.as_own() for own in known):
        raise InvalidRecordError(
            f"channel {row.channel!r} of round {row.round_number}, attempt {row.attempt} of run"
            f" {row.run_id!r} is charged otherwise in the client's own ledger"
        )
    return False


def _key(row: LedgerRow) -> dict[str, object]:
    names = ("run_id", "round_number", "attempt", "channel")
    return {name: getattr(row, name) for name in names}


def _end(rows: OwnRows, run_id: str, round_number: int, attempt: int) -> None:
    """Let neither this attempt nor an older one be answered, as if it had been here."""
    require_text(run_id=run_id)
    require_count(round_number=round_number, attempt=attempt)
    known = rows.read(Sessions, {"run_id": run_id})
    newest, noiseless = (round_number, attempt), round_number
    if known:
        newest = max(newest, (known[0].round_number, known[0].attempt))
        # A masked vector without noise may have left in any attempt of that round.
        noiseless = max(noiseless, known[0].noiseless_round)
    ended = {"round_number": newest[0], "attempt": newest[1], "noiseless_round": noiseless}
    rows.put(Sessions, {"run_id": run_id, **ended, "state": b""})
    rows.delete(Replies, {"run_id": run_id})
