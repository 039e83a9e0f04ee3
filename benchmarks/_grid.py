"""A grid of runs in worker processes: each run is saved, and a later call measures the rest."""

from __future__ import annotations

import csv
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _sizes import FEWER, SMALLEST, START

from platform.config import load_config
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run
from platform.experiment.simulation import Simulation
from platform.rounds.observing import SilentObserver

Row = Mapping[str, Any]
Key = tuple[str, ...]


def read_rows(path: Path) -> list[Row]:
    """The rows measured so far, with all values as text."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Write all rows in the order of their keys; a reader never sees half a file."""
    ordered = sorted(rows, key=lambda row: key_of(row, key))
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(ordered[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)
    partial.replace(path)


def key_of(row: Row, key: Sequence[str]) -> Key:
    """The fields that distinguish a row from the others."""
    return tuple(str(row[name]) for name in key)


def run_missing(
    path: Path,
    wanted: Sequence[Row],
    measure: Callable[[Row, str], Row],
    *,
    key: Sequence[str],
    jobs: int,
) -> list[Row]:
    """Measure the settings that the file lacks, and write the file after each run.

    Args:
        path: The CSV file.
        wanted: Settings, each with the fields of `key`.
        measure: Makes a setting's row in another process, given a folder that all processes share.
        key: Fields that distinguish rows.
        jobs: Number of processes.

    Returns:
        All rows, including those of earlier runs.
    """
    rows = read_rows(path)
    if rows and not set(key) <= set(rows[0]):
        raise ValueError(f"{path.name} has columns {list(rows[0])}; valid includes {list(key)}")
    known = {key_of(row, key) for row in rows}
    missing = [setting for setting in wanted if key_of(setting, key) not in known]
    if SMALLEST:
        # Measure all wanted settings again, and drop their known rows.
        again = {key_of(setting, key) for setting in wanted}
        rows = [row for row in rows if key_of(row, key) not in again]
        missing, jobs = list(wanted), 1
    if not missing:
        return rows
    with shared_folder() as folder:
        pool, failed = workers(jobs), []
        try:
            waiting = {pool.submit(measure, setting, folder): setting for setting in missing}
            for done, future in enumerate(as_completed(waiting), start=1):
                if (error := future.exception()) is not None:
                    # Keep the other runs, and report the failed ones at the end.
                    failed.append(f"{dict(waiting[future])}: {error}")
                    continue
                rows.append(future.result())
                write_rows(path, rows, key)
                print(f"{done}/{len(missing)}", dict(rows[-1]), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    if failed:
        raise RuntimeError(f"{len(failed)} runs failed: {'; '.join(failed)}")
    return read_rows(path)


def one_of_each(rows: Sequence[Row], *names: str) -> list[Row]:
    """The first row of each combination of some fields; the smallest benchmark measures these."""
    return list({key_of(row, names): row for row in reversed(rows)}.values())[::-1]


def among(rows: Sequence[Row], wanted: Sequence[Row], key: Sequence[str]) -> list[Row]:
    """The rows of these settings; a file may also hold rows of earlier seeds or rates."""
    keys = {key_of(setting, key) for setting in wanted}
    return [row for row in rows if key_of(row, key) in keys]


@contextmanager
def created_run(config: str, overrides: Sequence[str], folder: str) -> Iterator[Simulation]:
    """A packaged configuration's run, in its own folder that is deleted after use."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        # Runs share the feature cache, which lies beside the database.
        (Path(own) / "cache").symlink_to(Path(folder) / "cache")
        url = f"storage.url=sqlite:///{own}/sotto.db"
        loaded = load_config(Path(config), [*overrides, *FEWER, url])
        simulation = create_run(loaded, SilentObserver(), Surroundings())
        try:
            yield simulation
        finally:
            simulation.database.close()


def summarise_run(config: str, overrides: Sequence[str], folder: str) -> tuple[Row, float]:
    """Run a packaged configuration in its own folder; return its summary and seconds."""
    started = time.perf_counter()
    with created_run(config, overrides, folder) as simulation:
        summary = execute(simulation, SilentObserver())
    return summary, time.perf_counter() - started


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes that all have the same number of threads."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context(START))


@contextmanager
def shared_folder() -> Iterator[str]:
    """A folder that runs share, with one for cached features; it is deleted after use."""
    # In memory where possible, because durability is not measured here.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        (Path(folder) / "cache").mkdir()
        yield folder
