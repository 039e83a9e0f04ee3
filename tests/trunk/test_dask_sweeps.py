"""Sweeps on a Dask cluster: a scheduler and two workers, as anybody would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from platform.errors import ConfigError
from platform.sweeping.clusters import Cluster, cluster_of
from platform.sweeping.dask_jobs import dask_jobs
from platform.sweeping.grid import Cell
from platform.sweeping.submitting import submit_cells
from tests.trunk._runs import Command
from tests.trunk.test_submitting import DIVERGES, PLAIN, cells, grid_of, place, small  # noqa: F401
from tests.trunk.test_sweep import Told, wait_until

pytest.importorskip("distributed")


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
def cluster(scheduler: Path) -> Cluster:
    return cluster_of("dask", ["timeout_min=10", f"scheduler_file={scheduler}"])


def test_a_sweep_is_the_same_by_two_workers_as_here(
    small: str,  # noqa: F811
    place: Path,  # noqa: F811
    scheduler: Path,
    sotto: Command,
    tmp_path: Path,
) -> None:
    common = ("sweep", small, *(f"--set={text}" for text in PLAIN), "--seed", "1,2", "--json")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "cache").symlink_to(place / "cache", target_is_directory=True)
    url = f"sqlite:///{tmp_path}/here/sotto.db"
    here = sotto(*common, "--storage", url, "--output", str(tmp_path / "tables"))
    there = sotto(
        *(*common, "--on", "dask", "--cluster", "timeout_min=10"),
        *("--cluster", f"scheduler_file={scheduler}", "--output", str(place.parent)),
    )
    assert (here.code, there.code) == (0, 0), there.err
    assert cells(there.document) == cells(here.document)
    assert len(list(place.glob("*.db"))) == 2


def test_what_fails_says_why(small: str, place: Path, cluster: Cluster) -> None:  # noqa: F811
    grid = grid_of(small, "training.learning_rate=1000", *DIVERGES)
    (bad,) = submit_cells(grid.cells, Told(), cluster, folder=None, jobs=2, place=place)
    assert bad.summary is None
    assert bad.error is not None and "(job " in bad.error and "Traceback" not in bad.error


def test_what_takes_too_long_is_ended(tmp_path: Path, scheduler: Path) -> None:
    with dask_jobs({"scheduler_file": scheduler, "timeout_min": 1 / 60}, tmp_path) as jobs:
        job = jobs.submit([sys.executable, "-c", "import time; time.sleep(1000)"])
        wait_until(job.done)


def test_no_command_runs_twice(tmp_path: Path, scheduler: Path) -> None:
    """Dask gives a lost worker's tasks to another; what has begun stays with the first."""
    marks = tmp_path / "marks"
    marks.mkdir()
    count = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'x').close(); time.sleep(5)"
    with dask_jobs({"scheduler_file": scheduler, "timeout_min": 1}, tmp_path / "jobs") as jobs:
        job: Any = jobs.submit([sys.executable, "-c", count, str(marks)])
        wait_until(lambda: len(list(marks.iterdir())) == 1)
        workers = [w for w, keys in job.future.client.processing().items() if keys]
        job.future.client.retire_workers(workers, close_workers=True, remove=True)
        wait_until(job.done)
        assert len(list(marks.iterdir())) == 1


def test_an_interrupted_sweep_takes_what_waits_out_of_the_queue(
    small: str,  # noqa: F811
    place: Path,  # noqa: F811
    cluster: Cluster,
) -> None:
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


def test_without_a_scheduler_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.sweeping.dask_jobs._PATIENCE", "1s")
    settings = {"scheduler": "tcp://127.0.0.1:9", "timeout_min": 1}
    with pytest.raises(ConfigError, match="dask cannot be reached at tcp://127"):
        with dask_jobs(settings, tmp_path / "jobs"):
            pass
    assert not (tmp_path / "jobs").exists()
