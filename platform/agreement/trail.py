"""Compares a run, its rounds, state, pool and newest attempt with its audit log.

Compares also the generations that were erased with clients that left, and the result of an audit's
canaries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from platform.agreement.reading import ENDINGS, RunRecords, TrailEntry
from platform.config import RunConfig, dump_yaml
from platform.disk.log_files import bytes_digest, config_digest, document_digest, rows_digest
from platform.rounds.audit_trail import PRUNED
from platform.rounds.documents import COLLECTION, ROUNDS
from privacy.auditing import commitment_to
from storage import RoundRecord

AFTER_THE_END = ("model.exported", "client.left", "client.removed", PRUNED)
"""The actions of entries that may follow the end of a run."""


def run_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the run's own row differs from its audit log."""
    created = records.entries("run.created")
    if len(created) != 1 or created[0].entry.sequence != 1:
        yield f"its audit log has {len(created)} entries run.created and not one, at its beginning"
        return
    recorded = records.run.config_digest
    if created[0].detail.get("config_sha256") != recorded:
        yield f"the SHA-256 of its configuration is not in {created[0].name} what it is in its row"
    try:
        # The stored text: a later version may parse it into further keys.
        is_config = config_digest(dump_yaml(json.loads(records.run.config_json))) == recorded
    except (TypeError, ValueError):
        is_config = False
    if not is_config:
        yield (
            "its configuration is not the one that it was started with, whose SHA-256 is "
            f"{recorded[:16]}..."
        )


def ending_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the run differs from its end in the audit log."""
    ended = records.entries("run.finished")
    if (records.run.status == "finished") != bool(ended):
        told = ended[0].name if ended else "no audit entry says so"
        yield f"its status is {records.run.status!r}, but {told}"
    if len(ended) > 1:
        yield f"it finished twice, in {ended[0].name} and in {ended[1].name}"
    if not ended:
        return
    last = ended[0]
    for item in records.trail[last.entry.sequence :]:
        if item.entry.action not in AFTER_THE_END:
            yield f"{item.name} follows {last.name}"
            break
    if last.detail.get("ledger_sha256") != rows_digest(records.ledger, with_status=True):
        yield f"its ledger is not the one that {last.name} saw"
    if records.is_pruned:
        return
    state = None if records.state is None else bytes_digest(records.state.blob)
    if last.detail.get("state_sha256") != state:
        yield f"its last state is not the one that {last.name} saw"


def round_disagreements(records: RunRecords, kept: int) -> Iterator[str]:
    """Yield where rounds, state or pool differ from the audit log.

    Args:
        records: The run.
        kept: Number of generations that the pool keeps.
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
    """Yield where rounds are not 1, 2, ...; a collection is the first or the last round."""
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
        # After a secret draw the entry commits to the document and states no number.
        ("survivors", count, 0 if lost else item.detail.get("survivors", count)),
        (
            "the SHA-256 of its document",
            document_digest(row.document),
            item.detail.get("document_sha256"),
        ),
    )
    for name, mine, theirs in stated:
        if mine != theirs:
            yield (
                f"round {row.round_number}: {name} is {_shown(mine)} in its row and "
                f"{_shown(theirs)} in {item.name}"
            )


def _shown(value: Any) -> str:
    return f"{value[:16]}..." if isinstance(value, str) and len(value) > 16 else repr(value)


def _state(records: RunRecords, entries: tuple[TrailEntry, ...]) -> Iterator[str]:
    """Yield where the state is not the newest; collections and lost rounds keep no state."""
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
    """Yield where the pool has another number of entries; the log holds only numbers."""
    told = {item.entry.round: item for item in records.entries("pool.committed")}
    alive: list[int | None] = []
    for item in records.entries("pool.committed", PRUNED, *GONE):
        if item.entry.action == PRUNED:
            alive = []
        elif item.entry.action == "pool.committed":
            alive = [*alive, item.entry.round][-kept:]
        else:
            gone = item.detail.get("generations")
            voided = gone if isinstance(gone, list) else ()
            alive = [number for number in alive if number not in voided]

    def number_of(generation: int | None) -> int:
        return -1 if generation is None else generation

    for generation in sorted({*alive, *records.generations}, key=number_of):
        count = records.generations.get(number_of(generation), 0)
        if generation not in alive:
            yield f"the pool has {count} entries of round {generation}, which are not to be there"
        elif told[generation].detail.get("entries") != count:
            yield (
                f"the pool has {count} entries of round {generation}, but {told[generation].name} "
                f"says {told[generation].detail.get('entries')!r}"
            )


ENDED = ("round.aborted", "round.committed", "round.lost")


def attempt_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the newest attempt differs from the audit log."""
    opened, newest = records.entries("round.opened"), records.attempt
    if not opened or newest is None:
        if opened or newest is not None:
            told = "none" if not opened else opened[-1].name
            row = "none" if newest is None else f"round {newest.round_number}"
            yield f"its newest attempt is of {row}, but the audit log saw {told} opened"
        return
    last = opened[-1]
    key = (last.entry.round, last.detail.get("attempt"))
    if (newest.round_number, newest.attempt) != key:
        yield (
            f"its newest attempt is round {newest.round_number}, attempt {newest.attempt}, but "
            f"{last.name} opened round {key[0]}, attempt {key[1]}"
        )
        return
    same = (e for e in records.entries(*ENDED) if (e.entry.round, e.detail.get("attempt")) == key)
    ended = next(same, None)
    if newest.is_open == (ended is not None):
        state = "open" if newest.is_open else "closed"
        told = "no audit entry ended it" if ended is None else f"{ended.name} ended it"
        yield f"its attempt {newest.attempt} at round {newest.round_number} is {state}, but {told}"
    cohort, sealed = newest.plan.get("cohort"), last.detail.get("plan_sha256")
    if sealed is not None and sealed != document_digest(newest.plan):
        yield f"the plan of its newest attempt is not the one that {last.name} commits to"
    elif sealed is None and len(cohort or ()) != last.detail.get("cohort"):
        yield f"the cohort of its newest attempt is not of the size that {last.name} says"


GONE: Final = ("client.left", "client.removed")
"""The actions of audit entries for a client that has left."""


def leaving_disagreements(records: RunRecords, clients: Sequence[str]) -> Iterator[str]:
    """Yield where a client took part after it had left, or one of its generations is alive.

    Args:
        records: The run.
        clients: The federation's, in order; empty for a simulation.
    """
    known = {item.detail.get("client"): item for item in records.entries("client.joined")}
    opened = {
        (e.entry.round, e.detail.get("attempt")): e.entry.sequence
        for e in records.entries("round.opened")
    }
    for item in records.entries(*GONE):
        number = item.detail.get("client")
        if type(number) is not int or not 1 <= number <= len(clients):
            yield f"{item.name} names no client of the federation"
            continue
        if number not in known and item.detail.get("pseudonym") is not None:
            yield f"{item.name} names a pseudonym that no audit entry says had joined"
        elif number in known and item.detail.get("pseudonym") != known[number].detail["pseudonym"]:
            yield f"{item.name} names another pseudonym than {known[number].name}"
        for row in records.rounds:
            if clients[number - 1] not in row.document["survivors"]:
                continue
            where = row.round_number
            if opened.get((where, row.attempt), 0) > item.entry.sequence:
                yield f"round {where} was opened after {item.name}, and its client is in it"
            if records.generations.get(where):
                yield (
                    f"the pool has entries of round {where}, in which the client of {item.name} "
                    "took part"
                )


REVEALED: Final = "canaries.revealed"


def canary_disagreements(records: RunRecords, config: RunConfig) -> Iterator[str]:
    """Yield where an audit's key differs from its commitment, or was revealed too early."""
    begun = records.entries("run.created")
    committed = begun[0].detail.get("canaries") if begun else None
    if (committed is not None) is not (config.audit is not None):
        stated = "no" if committed is None else "a"
        yield f"its audit log commits to {stated} key of canaries, and its configuration differs"
    revealed = records.entries(REVEALED)
    if len(revealed) > 1:
        yield f"its canaries were revealed twice, in {revealed[0].name} and in {revealed[1].name}"
    for item in revealed[:1]:
        commitment = None
        with suppress(KeyError, TypeError, ValueError):
            commitment = commitment_to(bytes.fromhex(item.detail["key"]))
        if commitment != committed:
            yield f"the key of canaries in {item.name} is not the one that the run began with"
        last = records.trail[item.entry.sequence :]
        if not last or last[0].entry.action != "run.finished":
            yield f"{item.name} comes before the run's end, when coins were still in use"


def shown_disagreements(records: RunRecords, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a finished run's statement on its canaries differs from its audit log."""
    revealed = records.entries(REVEALED)
    told = None
    if revealed:
        told = {name: value for name, value in revealed[0].detail.items() if name != "key"}
    if summary.get("canaries") != told:
        yield "summary.json: what canaries showed is not what the audit log has of them"
