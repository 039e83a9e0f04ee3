"""What a client keeps of a coordinator's log: receipts, and the newest head of each log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from storage._validate import require_bytes, require_count, require_text
from storage.client_rows import OwnRows
from storage.client_tables import Logs, Receipts
from storage.client_tables import Receipted as ReceiptedRow
from storage.errors import InvalidRecordError
from storage.records import KeptReceipt, Receipted, SeenLog

Transaction = Callable[..., AbstractContextManager[OwnRows]]


class ClientReceipts:
    """The receipts of one client; none is ever deleted, as charges are not."""

    def __init__(self, transaction: Transaction) -> None:
        """Made by `ClientStore` only."""
        self._transaction = transaction

    def all(self, run_id: str | None = None) -> tuple[KeptReceipt, ...]:
        """Return the receipts of a run, or of all, by run and size."""
        where = {} if run_id is None else {"run_id": run_id}
        with self._transaction(read_only=True) as rows:
            found = rows.read(Receipts, where, order=("run_id", "size"))
        return tuple(KeptReceipt(row.run_id, row.size, row.receipt) for row in found)

    def of(self, run_id: str, size: int) -> bytes | None:
        """Return the receipt of a run at some size of the log, None if there is none."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Receipts, {"run_id": run_id, "size": size})
        return found[0].receipt if found else None

    def reached(self, run_id: str) -> Receipted | None:
        """Return how far the receipts of a run have come, None before the first."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(ReceiptedRow, {"run_id": run_id})
        names = Receipted._fields
        return Receipted(*(getattr(found[0], name) for name in names)) if found else None

    def seen(self, origin: str) -> SeenLog | None:
        """Return the newest head that was seen of a log, None before the first."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Logs, {"origin": origin})
        return SeenLog(origin, found[0].signer, found[0].size, found[0].root) if found else None

    def keep(self, kept: KeptReceipt, reached: Receipted, seen: SeenLog) -> None:
        """Keep a receipt that was checked, how far it goes, and the head that it is of.

        Raises:
            InvalidRecordError: The client has seen a longer log under that origin.
        """
        require_text(run_id=kept.run_id, origin=seen.origin, signer=seen.signer)
        require_count(size=kept.size, round_number=reached.round_number, attempt=reached.attempt)
        require_bytes(receipt=kept.receipt, root=seen.root)
        with self._transaction() as rows:
            before = rows.read(Logs, {"origin": seen.origin})
            if before and before[0].size > seen.size:
                raise InvalidRecordError(
                    f"log {seen.origin!r} has {seen.size} leaves, but {before[0].size} were seen"
                )
            rows.put(Receipts, kept._asdict())
            rows.put(ReceiptedRow, {"run_id": kept.run_id, **reached._asdict()})
            rows.put(Logs, seen._asdict())
