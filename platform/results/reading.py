"""Reads runs of a database or a sweep, and refuses a run if its records do not agree.

`sweep.json` lists the cells of a sweep, so that readers find its runs while the sweep still runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from platform.agreement import Agreed, require_agreement, stored_tree
from platform.agreement.statements import stated_document
from platform.config import Sources
from platform.config.run import code_of, identity, recorded_origins
from platform.disk.opening import is_there, open_existing, run_folder
from platform.errors import ConfigError, UnknownRun, listed
from platform.results.numbers import Axes, RunNumbers
from platform.rounds.audit_trail import parsed_detail
from storage import Database
from storage.homes import PREFIX

SWEEP_FILE: Final = "sweep.json"
_LARGEST: Final = 1 << 26


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One run of a sweep, whether or not it has begun.

    Attributes:
        config: The name of its configuration in tables.
        identity: The key that finds its run.
        database: Its own database's path from the sweep's folder; None for the sweep's database.
    """

    config: str
    method: str
    seed: int
    axes: Axes
    identity: str
    database: str | None


@dataclass(frozen=True)
class _Sweep:
    """What `sweep.json` holds."""

    schema_version: Literal[1]
    cells: tuple[SweepCell, ...]


_SWEEP: Final = TypeAdapter(_Sweep)


def sweep_file(cells: Sequence[SweepCell]) -> str:
    """Return the text of `sweep.json`."""
    return json.dumps(asdict(_Sweep(1, tuple(cells))), indent=2) + "\n"


def read_sweep(folder: Path) -> tuple[SweepCell, ...]:
    """Return the cells of a sweep, if its `sweep.json` is there and sound."""
    path = folder / SWEEP_FILE
    try:
        with path.open("rb") as file:
            return _SWEEP.validate_json(file.read(_LARGEST), strict=True).cells
    except FileNotFoundError as error:
        raise ConfigError(
            f"SWEEP: {str(folder)!r} has no {SWEEP_FILE}; valid is a folder that `sweep` has "
            "written to, and the same `sweep` command writes the missing file"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"SWEEP: {str(path)!r} cannot be read ({error.strerror}); valid is a file that can"
        ) from error
    except ValidationError as error:
        raise ConfigError(
            f"SWEEP: {str(path)!r} is not what a sweep writes; the same `sweep` command writes it "
            "anew"
        ) from error


LATEST: Final = "latest"


def numbers_of(agreed: Agreed) -> RunNumbers:
    """Return the numbers of a run whose records agree."""
    config = agreed.config
    return RunNumbers(
        run_id=agreed.records.run_id,
        config=config.name,
        dataset=config.task.dataset,
        method=config.method.name,
        seed=config.seed,
        protocol=config.evaluation.protocol,
        document=stated_document(agreed),
    )


def read_runs(url: str, names: Iterable[str] | None = None) -> list[Agreed]:
    """Return runs whose records agree, by ids or `latest`; without names all, oldest first."""
    with closing(open_existing(url)) as database:
        if names is None:
            with database.unit_of_work(read_only=True) as uow:
                wanted = [run.run_id for run in uow.runs.list()]
        else:
            wanted = [resolved(database, name, url) for name in names]
        return [require_agreement(database, run_id) for run_id in dict.fromkeys(wanted)]


def resolve_run(run_id: str, storage: str) -> str:
    """Return the run's full id; `latest` is the newest run, and an unknown one is refused."""
    with closing(open_existing(storage)) as database:
        return resolved(database, run_id, storage)


def resolved(database: Database, run_id: str, storage: str) -> str:
    """Return the run's full id in an open database, as `resolve_run` does."""
    with database.unit_of_work(read_only=True) as uow:
        known = [run.run_id for run in uow.runs.list()]
    if run_id in known:
        return run_id
    if run_id != LATEST:
        newest = [LATEST, *reversed(known)] if known else []
        raise UnknownRun(
            f"RUN: {run_id!r} is unknown in {storage}; valid: {listed(newest)} (`runs` lists all)"
        )
    if not known:
        raise UnknownRun(f"RUN: there is no run in {storage} yet")
    return known[-1]


def resolved_once(database: Database, names: Sequence[str], storage: str, option: str) -> list[str]:
    """Return full ids of runs, of which `option` must name each once."""
    found = [resolved(database, name, storage) for name in names]
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ConfigError(f"{option}: {twice[0]!r} is named twice; valid is each run once")
    return found


def agreed_run(run_id: str, storage: str, sources: Sources | None = None) -> Agreed:
    """Return a run whose records agree, finished or not; `sources` has its mechanism."""
    mechanisms = (sources or Sources()).mechanisms
    with closing(open_existing(storage)) as database:
        return require_agreement(database, resolved(database, run_id, storage), mechanisms)


def require_summary(run_id: str, storage: str, sources: Sources | None = None) -> dict[str, Any]:
    """Return a finished run's summary, if its records agree; refuse an unfinished run."""
    agreed = agreed_run(run_id, storage, sources)
    if agreed.summary is None:
        found = agreed.records.run_id
        raise UnknownRun(f"RUN: {found} has not finished; go on with `run --resume {found}`")
    return dict(agreed.summary)


def read_sweep_runs(folder: Path, url: str) -> tuple[list[tuple[RunNumbers, Agreed]], int]:
    """Return the begun runs of a sweep, in the order of its cells, and how many have not begun.

    The URL is of the database of runs without their own. A sweep without a run is refused.
    """
    cells = read_sweep(folder)
    found: dict[str, tuple[RunNumbers, Agreed]] = {}
    for own in dict.fromkeys(cell.database for cell in cells):
        place = url if own is None else f"{PREFIX}{folder.absolute() / own}"
        if not is_there(place):
            continue
        with closing(open_existing(place)) as database:
            known = runs_by_cell(database, place)
            for cell in cells:
                if cell.database == own and cell.identity in known:
                    agreed = require_agreement(database, known[cell.identity].run_id)
                    # Under the names that the sweep uses.
                    numbers = replace(numbers_of(agreed), config=cell.config, axes=cell.axes)
                    found[cell.identity] = numbers, agreed
    if not found:
        raise UnknownRun(
            f"SWEEP: no run of {str(folder)!r} has begun in {url}; valid is the --storage that the "
            "sweep was given"
        )
    runs = [found[cell.identity] for cell in cells if cell.identity in found]
    return runs, len(cells) - len(runs)


class KnownRun(NamedTuple):
    """A run of a cell, and whether it has a summary."""

    run_id: str
    finished: bool


def runs_by_cell(database: Database, url: str) -> dict[str, KnownRun]:
    """Return one run for each cell's identity: finished if possible, else the newest."""
    found: dict[str, KnownRun] = {}
    with database.unit_of_work(read_only=True) as uow:
        rows = uow.runs.list()
        begun = {entry.run: parsed_detail(entry) for entry in uow.audit.beginnings()}
    for row in rows:
        key = identity(stored_tree(row), code_of(recorded_origins(begun.get(row.run_id, {}))))
        is_finished = row.status == "finished"
        if is_finished and not (run_folder(url, row.run_id) / "summary.json").is_file():
            # A lost summary cannot be written again, so the cell must run again.
            continue
        # Oldest first: a later run replaces an earlier one that did not finish.
        if is_finished or key not in found or not found[key].finished:
            found[key] = KnownRun(row.run_id, is_finished)
    return found
