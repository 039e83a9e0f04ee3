"""The log that a report's records are in, read once it was found to hold."""

from __future__ import annotations

from collections.abc import Iterable

from platform.disk.log_files import heads_file, kept_heads, known_key
from platform.errors import RunStopped
from platform.reports.log_view import LogView
from privacy import ReleaseKey
from storage import Database, Leaf, UnitOfWork


def read_log(database: Database, run_ids: Iterable[str]) -> LogView:
    """Recompute the log from its rows, and return where in it the records of some runs are.

    Args:
        database: The coordinator's.
        run_ids: The runs whose leaves are wanted.

    Raises:
        Authentication: If a head that was kept does not hold.
        LogBroken: If the log does not, or does not go through such a head.
        RunStopped: If no head is kept, although there is a key that signs them.
    """
    trusted = known_key(database.path)
    kept = kept_heads(database.path, trusted)
    if trusted is not None and not kept.heads:
        raise RunStopped(f"{heads_file(database.path).name}: no head is there, as there must be")
    head = database.verify_log(kept.heads)
    charges: dict[ReleaseKey, int] = {}
    events: dict[tuple[str, int], int] = {}
    with database.unit_of_work(read_only=True) as uow:
        for run_id in sorted(set(run_ids)):
            charged = uow.log.charges(run_id=run_id)
            charges |= {_key(leaf): leaf.position for leaf in charged if leaf.kind == "charge"}
            events |= _events(uow, run_id)
    return LogView(
        size=head.size,
        root=head.root.hex(),
        key=None if kept.key is None else kept.key.encode(),
        heads=len(kept.heads),
        was_lost=bool(kept.lost),
        charges=charges,
        events=events,
    )


def _events(uow: UnitOfWork, run_id: str) -> dict[tuple[str, int], int]:
    entries = uow.audit.query(run=run_id)
    found = (uow.log.of_event(run_id, entry.sequence) for entry in entries)
    return {(run_id, leaf.sequence or 0): leaf.position for leaf in found}


def _key(leaf: Leaf) -> ReleaseKey:
    return ReleaseKey(
        run_id=leaf.run_id,
        round_number=leaf.round_number or 0,
        attempt=leaf.attempt or 0,
        pseudonym=leaf.pseudonym or "",
        channel=leaf.channel or "",  # type: ignore[arg-type]
    )
