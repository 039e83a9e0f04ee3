"""`runs` with pruning, `cache`, backups and `charges`: the records that are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import typer

from platform.agreement import require_agreement, stored_tree
from platform.agreement.backups import back_up, require_database, restore, stores_beside
from platform.cli.output import (
    Said,
    Whole,
    answer,
    console,
    epsilon,
    fraction,
    print_json,
    shows_all,
    size,
    table,
)
from platform.data.cache import cached_rows, clear
from platform.disk.archives import Manifest
from platform.disk.files import is_held, write_bytes
from platform.disk.opening import database_file, is_there, open_existing
from platform.errors import ConfigError, PluginMissing, RecordsDisagree
from platform.experiment.pruning import (
    Leftovers,
    leftovers,
    prune,
    pruned_runs,
    require_nothing_follows,
    second_phases_first,
)
from platform.results.reading import numbers_of, resolved
from platform.rounds.attempts import charges_of
from platform.rounds.documents import ADVERSARIES
from platform.wire.charges import encode_charges
from storage import AuditChainBroken, Database, RunRecord, StorageFull, open_client_stores
from storage.client_files import stored_version
from storage.database import schema_version

NEWEST: Final = 20
"""The list states the numbers of this many runs, after comparing all records of each."""
SETTING_UP: Final = timedelta(minutes=10)
"""A run may take this long from its row in the database to the lock of its folder."""
COLUMNS: Final = ("run", "seed", "method", "data", "accuracy", "epsilon", "status", "age")
AGES: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

KEPT = (
    "kept: ledgers, audit log, rounds, configuration, report and metrics, so that `report`, "
    "`budget` and `audit verify` state what was spent as before; nothing can be resumed, exported "
    "or predicted from these runs any more"
)


def runs_command(
    names: Sequence[str] | None,
    storage: str,
    *,
    prune: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Prune runs, or list all; `--all` adds pruned ones, and the numbers of old ones."""
    if prune:
        prune_command(names or (), storage, is_sure=yes, dry_run=dry_run, as_json=as_json)
        return
    if names or yes or dry_run:
        option = f"RUN: {names[0]!r}" if names else "--yes:" if yes else "--dry-run:"
        raise ConfigError(f"{option} means nothing without --prune; valid is with it, or neither")
    if not is_there(storage):
        answer([], f"there is no run in {storage} yet", as_json=as_json)
        return
    now = datetime.now(UTC)
    with open_existing(storage) as database:
        found = run_documents(database, now, most=None if shows_all() else NEWEST)
    answer(found, _listed(found, now), as_json=as_json)


def _listed(found: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[Said]:
    shown = [one for one in found if shows_all() or not one["pruned"]]
    rows = []
    for one in shown:
        phase = "" if one["phase_two_of"] is None else ", second phase"
        # One number if it is the same for all adversaries, else server/peers/observer.
        spent = [epsilon((one["epsilon"] or {}).get(name)) for name in ADVERSARIES]
        limit = "" if one["target_epsilon"] is None else f" of {one['target_epsilon']:g}"
        if one["problem"] is not None:
            status = one["status"]
        elif one["pruned"]:
            status = f"{one['status']}, pruned"
        elif one["status"] == "finished":
            status = "finished"
        else:
            status = f"{one['status']} {one['rounds']}/{one['planned_rounds']}"
        rows.append(
            (
                one["run"],
                str(one["seed"]),
                f"{one['method']}{phase}",
                str(one["dataset"]),
                fraction(one["accuracy"]),
                (spent[0] if len(set(spent)) == 1 else "/".join(spent)) + limit,
                status,
                age(now - _created(one["created"])),
            )
        )
    # A run's name has its time, so lines of few columns go without its age.
    count = len(COLUMNS) if shows_all() else -1
    short = table(None, COLUMNS[:count], [row[:count] for row in rows])
    yield short if rows else "there are no unpruned runs"
    yield from (f"warning: {one['problem']}" for one in shown if one["problem"] is not None)
    if left_out := len(found) - len(shown):
        runs = "1 pruned run is" if left_out == 1 else f"{left_out} pruned runs are"
        yield f"note: {runs} left out; `--all` lists them too, `budget` what they spent"
    if not shows_all() and len(found) > NEWEST:
        yield f"note: numbers of the newest {NEWEST} runs only; `--all` states those of all"


def run_documents(database: Database, now: datetime, *, most: int | None) -> list[dict[str, Any]]:
    """Return a document of each run, newest first; of `most` with accuracy and epsilon."""
    found = []
    with database.unit_of_work(read_only=True) as uow:
        pruned = pruned_runs(uow)
        for run in reversed(uow.runs.list()):
            tree = stored_tree(run)
            first = tree.get("phase_two_of")
            sections = (tree.get(section) for section in ("method", "task", "privacy"))
            method, task, privacy = (one if isinstance(one, dict) else {} for one in sections)
            one: dict[str, Any] = {
                "run": run.run_id,
                "config": run.name,
                "status": status_of(run, database.path.parent / run.run_id, now),
                "created": f"{run.created[:19]}Z",
                # A second phase continues the rounds of its first run and has no rounds itself.
                "rounds": len(uow.rounds.all(first or run.run_id)),
                "phase_two_of": first,
                "seed": tree.get("seed"),
                "method": method.get("name"),
                "dataset": task.get("dataset"),
                "target_epsilon": privacy.get("target_epsilon"),
                "planned_rounds": tree.get("rounds"),
                "pruned": run.run_id in pruned,
            }
            found.append(one | {"accuracy": None, "epsilon": None, "problem": None})
    for one in found[:most]:
        try:
            numbers = numbers_of(require_agreement(database, one["run"]))
        except (RecordsDisagree, AuditChainBroken) as error:
            one |= {"problem": str(error), "status": unreadable(error)}
        else:
            one |= {"accuracy": numbers.accuracy["mean"], "epsilon": numbers.epsilons}
    return found


def unreadable(error: Exception) -> str:
    """Return the status of a run whose records cannot be read."""
    return "plug-in missing" if isinstance(error, PluginMissing) else "records disagree"


def status_of(run: RunRecord, folder: Path, now: datetime) -> str:
    """Return a run's status; a run that was killed is not running, although its row says so."""
    if run.status != "running":
        return run.status
    # The process that runs it locks its folder.
    held = is_held(folder)
    is_being_set_up = held is None and now - _created(run.created) < SETTING_UP
    return "running" if held or is_being_set_up else "interrupted"


def age(passed: timedelta) -> str:
    """Return a duration in whole units, of the largest unit that it reaches."""
    seconds = max(int(passed.total_seconds()), 0)
    unit, length = next((one for one in AGES if seconds >= one[1]), AGES[-1])
    return f"{seconds // length} {unit}"


def _created(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def prune_command(
    names: Sequence[str], storage: str, *, is_sure: bool, dry_run: bool, as_json: bool
) -> None:
    """Erase the models of some runs, or of all that did not finish and that no process runs."""
    if not is_sure and not dry_run and (as_json or not can_be_asked()):
        raise ConfigError("--prune: cannot ask for consent here; valid is --yes or --dry-run")
    found: list[Leftovers] = []
    if names or is_there(storage):
        with closing(open_existing(storage)) as database:
            wanted = {resolved(database, name, storage) for name in names}
            with database.unit_of_work(read_only=True) as uow:
                known, gone = uow.runs.list(), pruned_runs(uow)
                if not names:
                    now, folder = datetime.now(UTC), database.path.parent
                    wanted = {
                        run.run_id
                        for run in known
                        if status_of(run, folder / run.run_id, now) not in ("finished", "running")
                    }
                chosen = second_phases_first([run for run in known if run.run_id in wanted])
                # Refuse before anything is erased, not at a run's turn.
                for number, run_id in enumerate(chosen):
                    require_nothing_follows(uow, run_id, gone | set(chosen[:number]))
            found = [leftovers(database, run_id) for run_id in chosen]
    found = [one for one in found if not one.is_over]
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    out = console()
    if not as_json:
        if not found:
            out.print("there is nothing to prune")
        else:
            out.print(f"of {runs} this would be erased for good:")
            for one in found:
                out.print(f"- {one.run_id} ({one.status}): {_leftover_words(one)}")
            out.print(KEPT)
    erases = bool(found) and not dry_run
    if erases and not is_sure:
        erases = typer.confirm("Erase this for good?")
    freed = 0
    if erases:
        with closing(open_existing(storage, read_only=False)) as database:
            freed = sum(prune(database, one.run_id) for one in found)
    if as_json:
        documents = [asdict(one) for one in found]
        print_json({"runs": documents, "erased": erases, "bytes_freed": freed})
    elif erases:
        out.print(f"pruned {runs}; files are smaller by {size(max(freed, 0))}")
    elif found:
        out.print("nothing was erased")


def can_be_asked() -> bool:
    """Return whether a person sits at a terminal."""
    return sys.stdin.isatty()


def _leftover_words(one: Leftovers) -> str:
    numbers = " and ".join(map(str, one.states))
    parts = [
        (len(one.states), f"what the server had after round {numbers}"),
        (len(one.generations), f"{len(one.generations)} generations of the pool"),
        (one.clients, f"the personal parts of {one.clients} clients"),
    ]
    return ", ".join(text for count, text in parts if count) or "nothing but its place in the list"


SHORT = 12
"""Digits of a fingerprint that people see."""


def list_command(storage: str, *, as_json: bool) -> None:
    """Show the cached rows, by model and kind."""
    found: list[dict[str, Any]] = [
        {
            "model": holding.model,
            "fingerprint": holding.fingerprint,
            "kind": holding.kind,
            "row_shape": list(holding.row_shape),
            "images": holding.images,
            "bytes": holding.num_bytes,
            "last_used": f"{holding.last_used:%Y-%m-%dT%H:%M:%SZ}",
        }
        for holding in cached_rows(database_file(storage).parent / "cache")
    ]
    if not found:
        answer([], f"nothing is cached beside {storage}", as_json=as_json)
        return
    rows = [
        (
            row["model"],
            row["fingerprint"][:SHORT] or "-",
            row["kind"],
            " x ".join(map(str, row["row_shape"])),
            row["images"],
            size(row["bytes"]),
            row["last_used"],
        )
        for row in found
    ]
    names = ("model", "weights", "kind", "of an image", "images", "size", "last used")
    total = f"{size(sum(row['bytes'] for row in found))} in all"
    answer(found, table(None, names, rows), total, as_json=as_json)


def clear_command(storage: str, *, model: str | None, everything: bool, as_json: bool) -> None:
    """Delete the cached rows of one model, or of all."""
    if model is None and not everything:
        raise ConfigError("--model: is missing; valid is a model's name, or --all in its place")
    if model is not None and everything:
        raise ConfigError(f"--all: given beside --model {model!r}; valid is one of the two")
    images, removed = clear(database_file(storage).parent / "cache", model)
    text = f"deleted what was made of {images:,} images, {size(removed)}"
    answer({"images": images, "bytes": removed}, text, as_json=as_json)


def backup_command(file: Path, storage: str, *, as_json: bool) -> None:
    """Back up a database unless something is damaged, and say what is in the backup."""
    show_manifest(file, back_up(storage, file, datetime.now(UTC)), as_json=as_json)


def restore_command(file: Path, storage: str, *, as_json: bool) -> None:
    """Bring a backup back, or leave the folder empty, and say what was in the backup."""
    manifest = restore(file, storage, datetime.now(UTC))
    show_manifest(database_file(storage), manifest, as_json=as_json)


def show_manifest(place: Path, manifest: Manifest, *, as_json: bool) -> None:
    """Say what a backup holds, and where its content lies now."""
    facts = {"schema": manifest.schema, "made": manifest.made, **manifest.facts}
    heads = manifest.facts.get("heads", {}).items()
    answer(
        {"path": str(place), "kind": manifest.kind, **facts, "members": sorted(manifest.digests)},
        Whole(place),
        f"{manifest.kind} of schema {manifest.schema}, made {manifest.made}",
        *(f"{run}: audit log of {count} entries, head {digest}" for run, (count, digest) in heads),
        as_json=as_json,
    )


def upgrade_command(storage: str, *, as_json: bool) -> None:
    """Migrate a database, and the stores of simulated clients beside it; refuse newer files."""
    database = require_database(storage)
    stores = stores_beside(database.parent)
    before = [schema_version(storage), *map(stored_version, stores)]
    open_existing(storage, read_only=False).close()
    for path in stores:
        open_client_stores(path)
    after = [schema_version(storage), *map(stored_version, stores)]
    found, said = [], []
    for path, old, new in zip((database, *stores), before, after, strict=True):
        found.append({"path": str(path), "before": old, "after": new})
        changed = f"schema {old} -> {new}" if old != new else f"schema {new}, nothing to do"
        said.append(Whole(f"{path}: {changed}"))
    answer(found, *said, as_json=as_json)


def charges_command(pseudonym: str, file: Path, storage: str, *, as_json: bool) -> None:
    """Write the charges of one client into a new file."""
    if file.exists():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    with closing(open_existing(storage)) as database:
        with database.unit_of_work(read_only=True) as uow:
            found = charges_of(uow, pseudonym, datetime.now(UTC))
    try:
        write_bytes(file, encode_charges(found))
    except OSError as error:
        raise StorageFull(f"{str(file)!r} cannot be written: {error.strerror}") from error
    counts = {run_id: len(run.rows) for run_id, run in found.runs.items()}
    answer(
        {"path": str(file), "pseudonym": pseudonym, "charges": counts},
        *(f"{run_id}: {count} charges of {pseudonym}" for run_id, count in counts.items()),
        as_json=as_json,
    )
