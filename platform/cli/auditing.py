"""The commands of `audit`: query, verify, heads, proofs, export and watch."""

from __future__ import annotations

import base64
import csv
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from platform.agreement import erased_folders, faults_of, registry_disagreements, unknown_charges
from platform.cli.ending import AUDIT_BROKEN
from platform.cli.output import answer, console, print_json, printable, table
from platform.disk.files import write_bytes
from platform.disk.log_files import change_key, existing_signer, heads_file, kept_heads, known_key
from platform.disk.opening import open_existing
from platform.errors import ConfigError, listed
from platform.results.reading import resolved
from privacy import Authentication
from privacy.transparency import Checkpoint, NoteKey, NoteSigner, sign_checkpoint, tile_paths
from storage import (
    AuditHead,
    Database,
    DatabaseBusy,
    Leaf,
    LogBroken,
    NotFound,
    StorageError,
    TreeHead,
    UnitOfWork,
)
from storage.files import make_folder
from storage.log import shown
from storage.merkle import root_from_inclusion
from storage.records import LEDGER_STATUSES


def verify_audit(
    run_id: str | None, head: str | None, storage: str, *, key: str | None = None, as_json: bool
) -> None:
    """Compare the records of one run, or of all, with each other; exit code 3 if some do not hold.

    Without a run the command also checks the list of all runs, the folders beside the database,
    and the log over all runs against its kept heads.
    """
    expected = None if head is None else parse_head(head)
    if expected is not None and run_id is None:
        raise ConfigError("--head: needs --run, since every run has a chain of its own")
    if key is not None and run_id is not None:
        raise ConfigError("--key: valid without --run only, since one log is of all runs")
    found = audited(storage, run_id, expected, key=None if key is None else parse_key(key))
    faults = faults_in(found)
    said = [
        f"{run['run']}: {run['count']} entries hold, head {run['hash']}"
        for run in found["runs"]
        if not run["problems"]
    ]
    log = found["log"]
    if log is not None and not log["problems"]:
        signed = "" if log["key"] else ", their signatures unchecked as no key is known"
        heads = f"{log['heads']} kept heads{signed}" if log["heads"] else "no head was kept"
        said.insert(0, f"log: {log['size']} leaves hold, {heads}, root {log['root']}")
        if not faults:
            said.insert(
                0,
                "all records agree; that no newer ones are missing, only a head that somebody "
                "else kept can show: docs/records.md",
            )
    answer(found, said, as_json=as_json)
    for text in () if as_json else faults:
        typer.echo(f"error: {printable(text)}", err=True)
    if faults:
        raise typer.Exit(AUDIT_BROKEN)


def faults_in(found: Mapping[str, Any]) -> list[str]:
    """Return the faults in a document of `audit verify`, each once."""
    # A second phase has the faults of its first run too.
    every = [*found["problems"], *(text for run in found["runs"] for text in run["problems"])]
    return list(dict.fromkeys(every))


def audited(
    storage: str,
    run_id: str | None = None,
    head: AuditHead | None = None,
    *,
    key: NoteKey | None = None,
) -> Any:
    """Return the document of `audit verify`: each run, or one, then the faults of all together.

    `head` is the end of the run's audit chain at an earlier time, and `key` must have signed the
    log's heads; by default it is the key beside the database.
    """
    found: dict[str, Any] = {"runs": [], "log": None, "problems": []}
    try:
        with closing(open_existing(storage)) as database:
            chosen = None if run_id is None else resolved(database, run_id, storage)
            if chosen is None:
                # The file as a whole, the list of runs, and the folders beside it.
                try:
                    database.verify_integrity()
                except StorageError as error:
                    found["problems"].append(str(error))
                with database.unit_of_work(read_only=True) as uow:
                    names = [run.run_id for run in uow.runs.list()]
                    found["problems"] += registry_disagreements(uow)
                known = set(names)
                found["problems"] += erased_folders(database, known)
                found["problems"] += unknown_charges(database, known)
                found["log"] = log_checked(database, key)
                found["problems"] += found["log"]["problems"]
            else:
                names = [chosen]
            for name in names:
                reached, faults = faults_of(database, name, head)
                found["runs"].append(
                    {
                        "run": name,
                        "count": None if reached is None else reached.count,
                        "hash": None if reached is None else reached.hash,
                        "problems": [str(fault) for fault in faults],
                    }
                )
    except DatabaseBusy:
        raise
    except StorageError as error:
        # This command looks for files that cannot be opened or listed: they are not bad input.
        found["problems"].append(str(error))
    return found


def log_checked(database: Database, key: NoteKey | None) -> dict[str, Any]:
    """Return size and root of the log, and the faults of the log and its kept heads."""
    found: dict[str, Any] = {"size": None, "root": None, "heads": 0, "key": None}
    problems: list[str] = []
    heads: tuple[TreeHead, ...] = ()
    name = heads_file(database.path).name
    try:
        trusted = key or known_key(database.path)
        kept = kept_heads(database.path, trusted)
        heads = kept.heads
        found |= {"heads": len(heads), "key": None if kept.key is None else kept.key.encode()}
        if trusted is not None and not heads:
            problems.append(f"{name}: it has no head, but there is a key")
        # Users who name a key have learned it elsewhere, and accept the change.
        if kept.lost and key is None:
            problems.append(
                f"{name}: line {kept.lost[-1]}: a new key took the log over without the old one's"
                " signature; if its operator says so too, give the new one as --key"
            )
    except (Authentication, ConfigError) as error:
        problems.append(str(error))
    try:
        head = database.verify_log(heads)
        found |= {"size": head.size, "root": head.root.hex()}
    except DatabaseBusy:
        raise
    except StorageError as error:
        problems.append(str(error))
    return {**found, "problems": problems}


def parse_key(text: str) -> NoteKey:
    """Return a log's public key; a text that is not a key is refused."""
    try:
        return NoteKey.decode(text)
    except ValueError as error:
        raise ConfigError(
            f"--key: {text!r} is not valid; it must be NAME+ID+KEY as `audit head` states it"
        ) from error


def parse_head(text: str) -> AuditHead:
    """Return a chain's head from `COUNT:HASH`; another form is refused."""
    count, _, digest = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,18}", count) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(
            f"--head: {text!r} is not valid; it must be COUNT:HASH as summary.json states it"
        )
    return AuditHead(int(count), digest)


LARGEST_ROUND: Final = 2**63 - 1
"""The largest number that a database holds."""
CHARGE: Final = "charge."
"""The action of a charge begins with this; the charge's status follows."""
CHARGES: Final = tuple(CHARGE + status for status in LEDGER_STATUSES)
FORMATS: Final = ("table", "json", "csv")

NAMES: Final = ("#", "time", "actor", "action", "round", "channel", "detail")
_FIELDS: Final = (
    *("sequence", "run", "actor", "action", "round", "channel"),
    *("time", "detail", "hash"),
)
# A spreadsheet computes a cell that begins with one of these.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Conditions on the entries that are shown; None is no condition, times are ISO texts."""

    run_id: str | None
    actor: str | None
    action: str | None
    round_number: int | None
    channel: str | None
    status: str | None
    since: str | None
    until: str | None
    detail: str | None

    @property
    def of_charges(self) -> str | None:
        """The status of the charges that are asked for by status or action; None for events."""
        if self.action is not None and self.action.startswith(CHARGE):
            return self.action.removeprefix(CHARGE)
        return self.status


def print_audit(
    *, storage: str, shown_as: str, limit: int | None, as_json: bool, **conditions: Any
) -> None:
    """Print the entries that meet an `AuditFilter`, oldest first, in a form of `FORMATS`."""
    if not as_json and shown_as not in FORMATS:
        raise ConfigError(f"--format: {shown_as!r} is not valid; valid: {', '.join(FORMATS)}")
    wanted = AuditFilter(**conditions)
    _require_shape(wanted, limit)
    with closing(open_existing(storage)) as database:
        found = matching(database, wanted, storage, limit)
    if not as_json and shown_as == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_FIELDS)
        for entry in found:
            detail = json.dumps(entry["detail"], sort_keys=True, separators=(",", ":"))
            texts = (*(entry[name] for name in _FIELDS[:-2]), detail, entry["hash"])
            # A spreadsheet shows the text as it is, and the text controls no terminal.
            writer.writerow(
                printable(f"'{text}" if text.startswith(_FORMULA) else text)
                if isinstance(text, str)
                else text
                for text in texts
            )
    else:
        answer(found, table(None, NAMES, entry_rows(found)), as_json=as_json or shown_as == "json")


def matching(
    database: Database, wanted: AuditFilter, storage: str, limit: int | None
) -> list[dict[str, Any]]:
    """Return the entries that meet all conditions, oldest first; refuse what none could meet."""
    _require_shape(wanted, limit)
    run_id = None if wanted.run_id is None else resolved(database, wanted.run_id, storage)
    with database.unit_of_work(read_only=True) as uow:
        of_client = wanted.actor is not None and wanted.actor in uow.log.pseudonyms()
        if wanted.of_charges is not None or of_client:
            _require_charges(uow, wanted, of_client=of_client)
            charges = uow.log.charges(
                run_id=run_id,
                pseudonym=wanted.actor,
                round_number=wanted.round_number,
                channel=wanted.channel,
                status=wanted.of_charges,
                limit=limit,
            )
            found: list[dict[str, Any]] = []
            for leaf in charges:
                # In the form of an event; `uow` checks that the row fits its leaf.
                _, text = uow.log.data(leaf).split(b"\n", 1)
                found.append(
                    {
                        "sequence": None,
                        "leaf": leaf.position,
                        "run": leaf.run_id,
                        "actor": leaf.pseudonym,
                        "action": f"{CHARGE}{leaf.status or 'reserved'}",
                        "round": leaf.round_number,
                        "channel": leaf.channel,
                        "time": None,
                        "detail": json.loads(text),
                        "hash": leaf.hash.hex(),
                    }
                )
        else:
            events = uow.audit.query(
                run=run_id,
                actor=wanted.actor,
                action=wanted.action,
                round=wanted.round_number,
                channel=wanted.channel,
                since=_time("--since", wanted.since),
                until=_time("--until", wanted.until),
                detail_contains=wanted.detail,
                limit=limit,
            )
            found = [asdict(entry) for entry in events]
            for entry in found:
                # A detail that was edited and does not parse stays a text.
                with suppress(ValueError, RecursionError):
                    entry["detail"] = json.loads(entry["detail"])
        if not found:
            # Names that no entry has are refused; known names need not have a common entry.
            valid = {
                "--actor": (wanted.actor, {*uow.audit.known("actor"), *uow.log.pseudonyms()}),
                "--action": (wanted.action, {*uow.audit.known("action"), *CHARGES}),
                "--channel": (wanted.channel, {*uow.audit.known("channel"), *uow.log.channels()}),
            }
            for option, (value, known) in valid.items():
                if value is not None and value not in known:
                    names = listed(sorted(known))
                    raise ConfigError(f"{option}: {value!r} matches nothing; valid: {names}")
    return found


def entry_rows(found: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the cells of each entry, one for each column of `NAMES`."""
    return [
        (
            entry["leaf"] if entry["time"] is None else entry["sequence"],
            None if entry["time"] is None else f"{entry['time'][:19]}Z",
            *(entry[name] for name in ("actor", "action", "round", "channel")),
            json.dumps(entry["detail"], sort_keys=True, ensure_ascii=False),
        )
        for entry in found
    ]


def _require_charges(uow: UnitOfWork, wanted: AuditFilter, *, of_client: bool) -> None:
    """Refuse conditions that charges cannot meet."""
    for option, value in (("--since", wanted.since), ("--until", wanted.until)):
        if value is not None:
            raise ConfigError(f"{option}: {value!r} matches no charge, as charges have no time")
    for option, name in (("--detail", wanted.detail), ("--action", wanted.action)):
        if name is not None and not (option == "--action" and name.startswith(CHARGE)):
            raise ConfigError(f"{option}: {name!r} matches no charge; valid: {', '.join(CHARGES)}")
    if wanted.actor is not None and not of_client:
        known = listed(uow.log.pseudonyms())
        raise ConfigError(f"--actor: {wanted.actor!r} was never charged; valid: {known}")


def _require_shape(wanted: AuditFilter, limit: int | None) -> None:
    if wanted.round_number is not None and not 0 <= wanted.round_number <= LARGEST_ROUND:
        raise ConfigError(
            f"--round: {wanted.round_number} is not valid; it must be 0 to {LARGEST_ROUND}"
        )
    if wanted.status is not None and wanted.status not in LEDGER_STATUSES:
        known = ", ".join(LEDGER_STATUSES)
        raise ConfigError(f"--status: {wanted.status!r} is not valid; valid: {known}")
    if limit is not None and not 1 <= limit <= LARGEST_ROUND:
        raise ConfigError(
            f"--limit: {limit} is not valid; it must be at least 1 and at most {LARGEST_ROUND}"
        )


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is not an ISO time such as 2026-01-31") from error
    if parsed.tzinfo is None:
        return parsed.replace(tzinfo=UTC)
    try:
        return parsed.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError(f"{option}: {text!r} is not within the years 1 to 9999") from error


_LONGEST: Final = (1 << 16) - 1
"""The largest length that the two bytes before an entry can state."""
ENTRIES: Final = "entries"
SALTS: Final = "salts.jsonl"
CHECKPOINT: Final = "checkpoint"


def print_head(storage: str, *, as_json: bool) -> None:
    """Print the log's head as a signed checkpoint."""
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        with database.unit_of_work(read_only=True) as uow:
            tree = uow.log.tree()
            root = tree.root()
    note = sign_checkpoint(Checkpoint(signer.name, tree.size, root), signer)
    key, size = signer.key.encode(), tree.size
    if as_json:
        found = {"origin": signer.name, "size": size, "root": root.hex()}
        print_json(found | {"key": key, "checkpoint": note})
        return
    _write(f"key {key}\n\n{note}")


def print_proof(event: str, storage: str, *, as_json: bool) -> None:
    """Print the proof that an event or a charge is in the log, or nothing if it does not hold."""
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        with database.unit_of_work(read_only=True) as uow:
            run, _, number = event.rpartition(":")
            if not re.fullmatch(r"[0-9]{1,18}", number):
                raise ConfigError(
                    f"EVENT: {event!r} is not valid; it must be RUN:NUMBER of an event, or a "
                    "leaf's number"
                )
            try:
                if run:
                    leaf = uow.log.of_event(resolved(database, run, storage), int(number))
                else:
                    leaf = uow.log.leaf(int(number))
            except NotFound as error:
                raise ConfigError(f"EVENT: {event!r}: {error}") from error
            found = proof_of(uow, leaf, signer)
    if as_json:
        print_json(found)
        return
    steps = "\n".join(f"  {step}" for step in found["proof"]) or "  none, as it is the only leaf"
    _write(
        f"leaf {found['leaf']} of {found['size']}, {found['kind']} of run {found['run']}:\n"
        f"{printable(found['says'])}\n\nhash {found['hash']}\nproof, from the leaf up:\n{steps}\n"
        f"key {found['key']}\n\n{found['checkpoint']}"
    )


def proof_of(uow: UnitOfWork, leaf: Leaf, signer: NoteSigner) -> dict[str, Any]:
    """Return the proof that a leaf is in the log now; a leaf that does not fit is `LogBroken`."""
    tree = uow.log.tree()
    data, root = uow.log.data(leaf), tree.root()
    proof = tree.inclusion_proof(leaf.position)
    if root_from_inclusion(leaf.hash, leaf.position, tree.size, proof) != root:
        raise LogBroken(leaf.position, "its proof does not lead to the root")
    return {
        "leaf": leaf.position,
        "kind": leaf.kind,
        "run": leaf.run_id,
        "data": base64.b64encode(shown(leaf, data)).decode("ascii"),
        "says": data.decode("ascii"),
        "salt": None if leaf.salt is None else leaf.salt.hex(),
        "hash": leaf.hash.hex(),
        "proof": [base64.b64encode(step).decode("ascii") for step in proof],
        "size": tree.size,
        "root": root.hex(),
        "key": signer.key.encode(),
        "checkpoint": sign_checkpoint(Checkpoint(signer.name, tree.size, root), signer),
    }


def change_log_key(storage: str) -> None:
    """Print the new public key of the log, to which the old one has handed over."""
    with closing(open_existing(storage)) as database:
        key = change_key(database.path)
    _write(f"key {key.encode()}\n")


def _write(text: str) -> None:
    """Print lines as they are: a folded note could not be checked any more."""
    sys.stdout.write("\n".join(map(printable, text.split("\n"))))


def export_log(folder: Path, storage: str, *, with_salts: bool, as_json: bool) -> None:
    """Write tiles of hashes and of entries, and at last the checkpoint if the log holds."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"DIR: {str(folder)!r} exists already; valid is a new folder")
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        head = database.verify_log()
        make_folder(folder)
        names = []
        # Leaves never change, so a transaction of its own reads each tile.
        for tile in tile_paths(head.size):
            start = tile.position << 8
            with database.unit_of_work(read_only=True) as uow:
                hashes = uow.log.tree(head.size).read(tile.level, start, tile.width)
                files = {tile.path(): b"".join(hashes)}
                if tile.level == 0:
                    leaves = uow.log.leaves(start, start + tile.width)
                    files[tile.path(ENTRIES)] = _entries(uow, leaves)
            for name, data in files.items():
                write_bytes(folder / name, data)
                names.append(name)
        if with_salts:
            write_bytes(folder / SALTS, b"".join(_salts(database, head.size)))
            names.append(SALTS)
    note = sign_checkpoint(Checkpoint(signer.name, head.size, head.root), signer)
    write_bytes(folder / CHECKPOINT, note.encode())
    text = f"{head.size} leaves in {len(names)} files below {folder}; key {signer.key.encode()}"
    found = {"size": head.size, "root": head.root.hex(), "files": sorted(names)}
    answer(found, printable(text), as_json=as_json)


def _entries(uow: UnitOfWork, leaves: Sequence[Leaf]) -> bytes:
    """Return what leaves show, each after its length."""
    found = b""
    for leaf in leaves:
        entry = shown(leaf, uow.log.data(leaf))
        if len(entry) > _LONGEST:
            raise LogBroken(leaf.position, f"it has {len(entry)} bytes, more than a tile can hold")
        found += len(entry).to_bytes(2, "big") + entry
    return found


def _salts(database: Database, size: int) -> Iterator[bytes]:
    for start in range(0, size, 256):
        with database.unit_of_work(read_only=True) as uow:
            leaves = uow.log.leaves(start, min(size, start + 256))
            said = [(leaf, uow.log.data(leaf)) for leaf in leaves if leaf.salt is not None]
        for leaf, data in said:
            line = {"leaf": leaf.position, "salt": (leaf.salt or b"").hex(), "says": data.decode()}
            yield f"{json.dumps(line)}\n".encode("ascii")


def follow_log(storage: str, seconds: float, *, as_json: bool) -> None:
    """Print each new leaf of the log until a signal ends the command."""
    out = console()
    for entry in followed(storage, lambda: time.sleep(seconds)):
        if as_json:
            sys.stdout.write(json.dumps(entry, sort_keys=True) + "\n")
            sys.stdout.flush()
            continue
        says = entry["says"]
        if entry["kind"] == "event":
            _, sequence, run, actor, action, number, channel, moment, detail = says
            where = "" if number is None else f" round {number}"
            what = f"{action}{where}{'' if channel is None else f' {channel}'} {detail}"
            text = f"{moment[:19]}Z {run} {sequence} {actor} {what}"
        else:
            charge = f"charge.{says.get('status', 'reserved')} round {says['round_number']}"
            text = f"{'':20} {says['run_id']} {says['pseudonym']} {charge} {says['channel']}"
        out.print(printable(text))


def followed(storage: str, pause: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield each new leaf of the log, which must go on from its earlier leaves.

    Each look is a transaction of its own, so that no writer waits for a reader; `pause` waits
    between two looks.
    """
    # Opened for writing, the database can be read beside its writers at any time.
    with closing(open_existing(storage, read_only=False)) as database:
        seen: TreeHead | None = None
        while True:
            with database.unit_of_work(read_only=True) as uow:
                tree, size = uow.log.tree(), uow.log.size()
                new: list[dict[str, Any]] = []
                if seen is not None:
                    if size < seen.size:
                        raise LogBroken(size, f"it had {seen.size} leaves before")
                    if uow.log.tree(seen.size).root() != seen.root:
                        last = max(seen.size - 1, 0)
                        text = f"its first {seen.size} leaves are not those of before"
                        raise LogBroken(last, text)
                    for leaf in uow.log.leaves(seen.size, size):
                        _, data = uow.log.data(leaf).split(b"\n", 1)
                        says = json.loads(data)
                        new.append({"leaf": leaf.position, "kind": leaf.kind, "says": says})
                seen = TreeHead(tree.size, tree.root())
            yield from new
            pause()
