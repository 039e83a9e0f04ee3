"""Whether the rounds and the state of a run are those that its audit log saw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from platform.agreement.departures import GONE, voided
from platform.agreement.reading import ENDINGS, RunRecords, TrailEntry
from platform.disk.digests import bytes_digest, document_digest
from platform.rounds.audit_trail import PRUNED
from platform.rounds.documents import COLLECTION, ROUNDS
from storage import RoundRecord


def round_disagreements(records: RunRecords, kept: int) -> Iterator[str]:
    """Yield where rounds, state or pool are not what the audit log saw.

    Args:
        records: The run.
        kept: Generations of the pool that are kept.
    """
    yield from _gaps(records)
    entries = records.entries(*ENDINGS)
    of_round: dict[int | None, list[TrailEntry]] = {}
    for item in entries:
        of_round.setdefault(item.entry.round, []).append(item)
    for row in records.rounds:
        found = of_round.pop(row.round_number, [])
        if len(found) != 1:
            seen = ", ".join(item.name for item in found) or "nothing"
            yield f"round {row.round_number} has a row, of which the audit log says {seen}"
        else:
            yield from _differences(row, found[0])
    for item in (left for several in of_round.values() for left in several):
        yield f"{item.name} ended round {item.entry.round}, which has no row"
    yield from _state(records, entries)
    yield from _pool(records, kept)


def _gaps(records: RunRecords) -> Iterator[str]:
    """Yield rounds are 1, 2, ...; a collection is round 1, or comes after all, and may be early."""
    phases = [(row.round_number, row.document.get("phase", ROUNDS)) for row in records.rounds]
    trained = [number for number, phase in phases if phase != COLLECTION]
    collected = [number for number, phase in phases if phase == COLLECTION]
    for expected, number in enumerate(trained, start=2 if collected[:1] == [1] else 1):
        if number != expected:
            yield f"round {expected} has no row, but round {number} has one"
            return
    is_within = collected[:1] != [1] and collected and trained and collected[0] < trained[-1]
    if len(collected) > 1 or is_within:
        yield f"round {collected[0]} is a collection, but is neither the first row nor the last"


def _differences(row: RoundRecord, item: TrailEntry) -> Iterator[str]:
    survivors = row.document.get("survivors")
    count = len(survivors) if isinstance(survivors, list) else None
    lost = item.entry.action == "round.lost"
    stated = (
        ("attempt", row.attempt, item.detail.get("attempt")),
        # Of a secret draw the entry commits to the document, and states no number.
        ("survivors", count, 0 if lost else item.detail.get("survivors", count)),
        ("document", document_digest(row.document), item.detail.get("document_sha256")),
    )
    for name, mine, theirs in stated:
        if mine != theirs:
            yield (
                f"round {row.round_number}: {_named(name)} {_shown(mine)} in its row and "
                f"{_shown(theirs)} in {item.name}"
            )


def _named(name: str) -> str:
    return "the SHA-256 of its document is" if name == "document" else f"{name} is"


def _shown(value: Any) -> str:
    return f"{value[:16]}..." if isinstance(value, str) and len(value) > 16 else repr(value)


def _state(records: RunRecords, entries: tuple[TrailEntry, ...]) -> Iterator[str]:
    """Yield a collection and a lost round leave the state as it was, and then say nothing of it."""
    kept = [item for item in entries if item.detail.get("state_sha256") is not None]
    newest, state = (kept[-1] if kept else None), records.state
    if records.is_pruned:
        if state is not None:
            yield f"there is a state of round {state.round_number}, though its models were erased"
        return
    if newest is None:
        if state is not None:
            yield f"there is a state of round {state.round_number}, of which no audit entry tells"
        return
    if state is None or state.round_number != newest.entry.round:
        held = "none" if state is None else f"of round {state.round_number}"
        kept_then = f"{newest.name} kept one of round {newest.entry.round}"
        yield f"the newest state is {held}, but {kept_then}"
        return
    if bytes_digest(state.blob) != newest.detail["state_sha256"]:
        yield f"the state of round {state.round_number} is not the one that {newest.name} kept"


def _pool(records: RunRecords, kept: int) -> Iterator[str]:
    """Yield counted only: the audit log must tell nothing of an entry."""
    told = {item.entry.round: item for item in records.entries("pool.committed")}
    alive = _alive(records, kept)
    for generation in sorted({*alive, *records.generations}, key=_number):
        count = records.generations.get(_number(generation), 0)
        if generation not in alive:
            yield f"the pool has {count} entries of round {generation}, which are not to be there"
        elif told[generation].detail.get("entries") != count:
            yield (
                f"the pool has {count} entries of round {generation}, but {told[generation].name} "
                f"says {told[generation].detail.get('entries')!r}"
            )


def _alive(records: RunRecords, kept: int) -> list[int | None]:
    """Return the generations that are to be there: the newest, less what went with who has left."""
    alive: list[int | None] = []
    for item in records.entries("pool.committed", PRUNED, *GONE):
        if item.entry.action == PRUNED:
            alive = []
        elif item.entry.action == "pool.committed":
            alive = [*alive, item.entry.round][-kept:]
        else:
            alive = [number for number in alive if number not in voided(item)]
    return alive


def _number(value: int | None) -> int:
    return -1 if value is None else value
