"""Compares a run's rounds, state, pool, attempts and ledger with its audit log.

Compares also the coordinator's ledger with the clients' own ledgers, the generations that were
erased with clients that left, and the result of an audit's canaries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from platform.agreement.reading import ENDINGS, RunRecords, TrailEntry
from platform.config import RunConfig, Sources, dump_yaml, parse_config
from platform.disk.log_files import bytes_digest, config_digest, document_digest, rows_digest
from platform.errors import ConfigError, PluginMissing, RecordsDisagree
from platform.mechanisms import Mechanisms
from platform.parties.identities import client_names, stores_file
from platform.protection.charging import as_releases, law_of, stored_tree
from platform.rounds.audit_trail import PRUNED, release_facts
from platform.rounds.documents import COLLECTION, ROUNDS
from privacy import UnknownMechanism
from privacy.auditing import commitment_to
from storage import LedgerRow, RoundRecord, RunRecord, open_client_stores
from storage.records import COHORT

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
    """Yield where rounds, state or pool, of `kept` generations, differ from the audit log."""
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

    `clients` are the federation's, in order; empty for a simulation.
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


Reserved = tuple[int, int, str]
"""Round, attempt and channel: one audit entry reserves one of these."""


def ledger_disagreements(records: RunRecords, mechanisms: Mechanisms) -> Iterator[str]:
    """Yield where the ledger differs from the reservations, or settles rows wrongly."""
    reserved: dict[object, list[TrailEntry]] = {}
    for item in records.entries("release.reserved"):
        key = (item.entry.round, item.detail.get("attempt"), item.entry.channel)
        reserved.setdefault(key, []).append(item)
    groups = grouped(records.ledger)
    for key, rows in groups.items():
        entries = reserved.pop(key, [])
        if len(entries) != 1:
            yield f"the ledger has {_many(key, rows)}, which {len(entries)} audit entries reserved"
            continue
        yield from _facts(rows, entries[0], mechanisms)
    for entry in (left for several in reserved.values() for left in several):
        yield f"{entry.name} reserved releases of round {entry.entry.round}, which the ledger lacks"
    yield from _settled(records, groups)


def grouped(ledger: Sequence[LedgerRow]) -> dict[Reserved, list[LedgerRow]]:
    """Return the rows by round, attempt and channel."""

    def key(row: LedgerRow) -> Reserved:
        return row.round_number, row.attempt, row.channel

    return {found: list(rows) for found, rows in groupby(sorted(ledger, key=key), key)}


def place(row: LedgerRow) -> str:
    """Return the name of a ledger row in messages."""
    return (
        f"row (round {row.round_number}, attempt {row.attempt}, channel {row.channel}, client "
        f"{row.pseudonym})"
    )


def _many(key: Reserved, rows: Sequence[LedgerRow]) -> str:
    return f"{len(rows)} rows of round {key[0]}, attempt {key[1]}, channel {key[2]}"


def _facts(rows: Sequence[LedgerRow], entry: TrailEntry, mechanisms: Mechanisms) -> Iterator[str]:
    first = rows[0]
    key = first.round_number, first.attempt, first.channel
    stated = {name: value for name, value in entry.detail.items() if name not in _OF_ALL}
    try:
        releases = as_releases(rows, mechanisms)
    except (UnknownMechanism, ValueError) as error:
        yield f"ledger {place(first)} cannot be priced: {error}"
        return
    for row, release in zip(rows, releases, strict=True):
        own = release_facts(release)
        for name in sorted({*own, *stated}):
            if own.get(name) != stated.get(name):
                yield (
                    f"ledger {place(row)}: {name} is {own.get(name)!r} there and "
                    f"{stated.get(name)!r} in {entry.name}"
                )
                return
    if entry.detail.get("clients") != len(rows):
        reserved = entry.detail.get("clients")
        yield f"the ledger has {_many(key, rows)}, but {entry.name} reserved {reserved!r}"
    elif entry.detail.get("rows_sha256") != rows_digest(rows, with_status=False):
        yield f"the ledger's {_many(key, rows)} are not those that {entry.name} reserved"


_OF_ALL = ("clients", "rows_sha256")
"""Keys of an audit entry's detail that describe all its rows together."""


def _settled(records: RunRecords, groups: Mapping[Reserved, Sequence[LedgerRow]]) -> Iterator[str]:
    committed = {row.round_number: row for row in records.rounds if row.document.get("survivors")}
    aborted = {
        (item.entry.round, item.detail.get("attempt")): item
        for item in records.entries("round.aborted")
    }
    for (number, attempt, _), rows in groups.items():
        ended, given_up = committed.get(number), aborted.get((number, attempt))
        free = given_up is not None and given_up.detail.get("charged") is False
        why = "no audit entry says" if given_up is None else f"{given_up.name} does not say"
        for row in rows:
            if (row.status == "aborted") != free:
                yield (
                    f"ledger {place(row)} is {row.status}, but {given_up.name} says that nothing "
                    "had left a client"
                    if free and given_up is not None
                    else f"ledger {place(row)} is aborted, but {why} that nothing had left a client"
                )
                break
        kept = ended is not None and ended.attempt == attempt
        yield from _released(records, number, attempt, rows, kept=kept)


def _released(
    records: RunRecords, number: int, attempt: int, rows: Sequence[LedgerRow], *, kept: bool
) -> Iterator[str]:
    released = [row for row in rows if row.status == "released"]
    over = {row.round_number: row.attempt for row in records.rounds}
    if released and over.get(number) != attempt:
        yield f"ledger {place(released[0])} is released, but no round has this attempt"
    if not kept:
        return
    (document,) = (row.document for row in records.rounds if row.round_number == number)
    survivors = len(document["survivors"])
    # If cohorts are secret, the rows of clients that were not drawn are settled as well.
    secret = any(row.cohort_kind is not None for row in rows)
    if len(released) < survivors or (len(released) > survivors and not secret):
        yield (
            f"the ledger has {len(released)} released rows of round {number}, attempt {attempt}, "
            f"channel {rows[0].channel}, but the round's row has {survivors} survivors"
        )


RowKey = tuple[int, int, str, str]


@dataclass(frozen=True)
class OwnLedger:
    """A client's own ledger.

    Attributes:
        client: Its name, as rounds list survivors.
    """

    client: str
    pseudonym: str
    rows: tuple[LedgerRow, ...]


def client_disagreements(
    records: RunRecords, own: Sequence[OwnLedger], rounds_then: Sequence[RoundRecord]
) -> Iterator[str]:
    """Yield where a client's own ledger and the coordinator's differ.

    `rounds_then` were over before `own` was read. If the run goes on, later rounds may be missing
    in `own`.
    """
    known = {ledger.pseudonym for ledger in own}
    for row in records.ledger:
        if row.pseudonym not in known:
            yield (
                f"a client's store is missing or another's: none is of ledger {place(row)}; put it "
                "back or start a new run"
            )
            return
    mine = {_key(row): row for row in records.ledger}
    for ledger in own:
        theirs = {_key(row): row for row in ledger.rows if row.run_id == records.run_id}
        for key, row in theirs.items():
            yield from _compared(ledger, row, mine.get(key))
        survived = {
            (row.round_number, row.attempt)
            for row in rounds_then
            if ledger.client in row.document.get("survivors", ())
        }
        for row in records.ledger:
            if row.pseudonym != ledger.pseudonym or (row.round_number, row.attempt) not in survived:
                continue
            if _key(row) not in theirs:
                whose = f"{ledger.client}'s own ledger"
                yield f"ledger {place(row)} is not in {whose}, though it survived"
            if row.status != "released":
                yield f"ledger {place(row)} is {row.status}, though {ledger.client} survived"


def _key(row: LedgerRow) -> RowKey:
    return row.round_number, row.attempt, row.channel, row.pseudonym


def _compared(ledger: OwnLedger, own: LedgerRow, row: LedgerRow | None) -> Iterator[str]:
    where = f"{place(own)} of {ledger.client}'s own ledger"
    if row is None:
        yield f"{where} is not in the coordinator's"
        return
    if row.status == "aborted":
        yield f"{where} is aborted in the coordinator's, though the client had made its upload"
    if own.status == "released" and row.status != "released":
        yield f"{where} is released, but {row.status} in the coordinator's"
    if row.cohort_drawn is False:
        yield f"{where} is of a client that was not drawn, says the coordinator's"
    # An attempt that was open during a software update may name its law on one side only.
    facts, theirs = ({**asdict(one), "noise_kind": law_of(one)} for one in (own, row))
    for name in facts:
        unknown = name in COHORT and facts[name] is None
        if name != "status" and not unknown and facts[name] != theirs[name]:
            yield (
                f"{where}: {name} is {facts[name]!r} there and {theirs[name]!r} in the "
                "coordinator's"
            )


def config_of(run: RunRecord, mechanisms: Mechanisms) -> RunConfig:
    """Return the configuration in a run's row; `RecordsDisagree` if these mechanisms refuse it.

    Nothing but its mechanism says what a run's rows mean, so a run under a mechanism that is not
    here has no price, and the error says so.
    """
    tree = stored_tree(run)
    name = tree.get("privacy", {}).get("mechanism")
    if isinstance(name, str) and name not in mechanisms.names:
        raise PluginMissing(
            run.run_id,
            f"its mechanism {name!r} is code from outside that is not here, so nobody can say what "
            "its charges mean; valid: --plugins DIR with the folder that has it (SOTTO_PLUGINS=DIR "
            "for a command without this option), or its package installed",
        )
    try:
        return parse_config(tree, sources=Sources(mechanisms=mechanisms))
    except (ConfigError, TypeError) as error:
        raise RecordsDisagree(run.run_id, f"its configuration is not valid: {error}") from error


def read_own_ledgers(config: RunConfig, folder: Path) -> tuple[OwnLedger, ...]:
    """Return the own ledgers of a simulation's clients; missing stores are left out."""
    path = stores_file(config, folder)
    if not path.is_file() or not path.stat().st_size:
        return ()
    opened = open_client_stores(path, read_only=True)
    names = {*client_names(config.task.clients), *config.canary_names}
    with opened.kept_open():
        opened.verify_integrity()
        return tuple(
            OwnLedger(name, store.identity.pseudonym, store.rows())
            for name, store in opened.stores.items()
            if name in names
        )
