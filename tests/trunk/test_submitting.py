"""Sweeps beyond one machine: a command line a cell, handed to a scheduler and two Dask workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from platform.errors import ConfigError
from platform.results.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.results.sweeping.submitting import cluster_of, command_of, dask_jobs, submit_cells
from tests.trunk._runs import NONE, SMALL
from tests.trunk.test_sweep import Told, wait_until

pytestmark = pytest.mark.slow

pytest.importorskip("distributed")

PLAIN = (NONE, "rounds=1", "secure_aggregation.enabled=false")


@pytest.fixture
def small(tmp_path: Path, features: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    (tmp_path / "out" / "cells").mkdir(parents=True)
    (tmp_path / "out" / "cells" / "cache").symlink_to(features, target_is_directory=True)
    return str(path)


@pytest.fixture
def place(small: str) -> Path:
    return Path(small).parent / "out" / "cells"


def grid_of(config: str, *settings: str, **more: Any) -> Grid:
    return build_grid(SweepRequest(configs=(config,), settings=(*PLAIN, *settings), **more))


@contextmanager
def program(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One of Dask's own, until the block ends; what it started goes with it."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that says where a scheduler with two workers listens."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    alone = ("--host", "127.0.0.1", "--no-dashboard")
    with ExitStack() as stack:
        stack.enter_context(
            program(
                "scheduler", *alone, "--port", "0", "--scheduler-file", str(file),
                log=folder / "scheduler.log",
            )
        )  # fmt: skip
        wait_until(file.exists)
        for number in range(2):
            stack.enter_context(
                program(
                    "worker", *alone, "--scheduler-file", str(file), "--nthreads", "1",
                    "--local-directory", str(folder / f"worker-{number}"),
                    log=folder / f"worker-{number}.log",
                )
            )  # fmt: skip
        yield file


@pytest.fixture
def cluster(scheduler: Path) -> Mapping[str, Any]:
    return cluster_of("dask", ["timeout_min=10", f"scheduler_file={scheduler}"])


def test_a_sweep_is_the_same_by_two_workers_as_here(small, place, scheduler, sotto, tmp_path):
    common = ("sweep", small, *(f"--set={text}" for text in PLAIN), "--seed", "1,2", "--json")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "cache").symlink_to(place / "cache", target_is_directory=True)
    url = f"sqlite:///{tmp_path}/here/sotto.db"
    here = sotto(*common, "--storage", url, "--output", str(tmp_path / "tables"))
    elsewhere = (
        *(*common, "--on", "dask", "--cluster", "timeout_min=10"),
        *("--cluster", f"scheduler_file={scheduler}", "--output", str(place.parent)),
    )
    there = sotto(*elsewhere)
    assert (here.code, there.code) == (0, 0), there.err
    assert cells(there.document) == cells(here.document)
    assert len(list(place.glob("*.db"))) == 2
    again = sotto(*elsewhere)
    assert again.document["cells"] == there.document["cells"]
    assert len(list((place / "jobs").iterdir())) == 2
    for database in place.glob("*.db"):
        assert sotto("audit", "verify", "--storage", f"sqlite:///{database}").code == 0


def cells(document: Any) -> Any:
    return [{k: v for k, v in cell.items() if k != "runs"} for cell in document["cells"]]


def test_what_travels_is_one_command_line(small, place):
    (cell,) = grid_of(small).cells
    command = command_of(cell, place, Path("mine"))
    name = cell.identity[:16]
    assert command == [
        *(sys.executable, "-m", "platform.coordinator", "run", f"{place}/{name}.yaml"),
        *("--plugins", str(Path("mine").absolute()), "--storage", f"sqlite:///{place}/{name}.db"),
    ]
    # Read back, it is the cell: a summary is found again by it.
    (again,) = build_grid(SweepRequest(configs=(command[4],))).cells
    assert again.identity == cell.identity


def test_no_command_runs_twice(tmp_path, scheduler):
    """Dask gives a lost worker's tasks to another; what has begun stays with the first."""
    marks = tmp_path / "marks"
    marks.mkdir()
    count = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'x').close(); time.sleep(5)"
    with dask_jobs({"scheduler_file": scheduler, "timeout_min": 1}, tmp_path / "jobs") as submit:
        job = submit([sys.executable, "-c", count, str(marks)])
        wait_until(lambda: len(list(marks.iterdir())) == 1)
        workers = [w for w, keys in job.future.client.processing().items() if keys]
        job.future.client.retire_workers(workers, close_workers=True, remove=True)
        wait_until(job.future.done)
        assert len(list(marks.iterdir())) == 1


def test_an_interrupted_sweep_takes_what_waits_out_of_the_queue(small, place, cluster):
    class Interrupted(Told):
        def cell_started(self, cell: Cell) -> None:
            super().cell_started(cell)
            raise KeyboardInterrupt

    grid = grid_of(small, seeds=(1, 2))
    with pytest.raises(KeyboardInterrupt):
        submit_cells(grid.cells, Interrupted(), cluster, folder=None, jobs=2, place=place)
    # The same call goes on, whether the first cell had begun or not.
    outcomes: tuple[Any, ...] = ()
    deadline = time.monotonic() + 120.0
    while not outcomes or any(outcome.error for outcome in outcomes):
        assert time.monotonic() < deadline, outcomes
        outcomes = submit_cells(grid.cells, Told(), cluster, folder=None, jobs=2, place=place)
    assert all(outcome.summary is not None for outcome in outcomes)


REFUSED: dict[str, tuple[list[str], str]] = {
    "Slurm itself": (["--on", "slurm"], "must be dask"),
    "endless": (["--on", "dask", "--cluster", "timeout_min=inf"], "number above 0"),
    "no limit": (["--on", "dask"], "timeout_min is missing"),
    "no scheduler": (["--on", "dask", "--cluster", "timeout_min=1"], "scheduler_file"),
    "a database": (["--on", "dask", "--storage", "sqlite:///x.db"], "nothing with --on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, small, place, sotto):
    arguments, message = REFUSED[case]
    answer = sotto("sweep", small, *arguments, "--output", str(place.parent))
    assert answer.code == 2 and message in answer.err
    assert [path.name for path in place.iterdir()] == ["cache"]


def test_cells_that_share_clients_are_refused(small, place):
    settings = ("privacy.lifetime_budget=9", "rounds=1")
    grid = build_grid(SweepRequest(configs=(small,), settings=settings))
    with pytest.raises(ConfigError, match=r"privacy\.lifetime_budget"):
        submit_cells(grid.cells, Told(), {}, folder=None, jobs=2, place=place)
