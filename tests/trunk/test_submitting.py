"""Sweeps beyond one machine: a command line a cell, handed to a cluster's queue."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.cli import sweep
from platform.errors import ConfigError
from platform.rounds.loop import Federation
from platform.sweeping import submitting
from platform.sweeping.clusters import Cluster, cluster_of
from platform.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.sweeping.known_runs import known_runs
from platform.sweeping.submitting import command_of, submit_cells
from platform.sweeping.worker import run_cell
from tests.trunk._runs import NONE, SMALL, Command, Crash, comparable, crash_at
from tests.trunk.test_sweep import Told

LOCAL = Cluster("local")
PLAIN = (NONE, "rounds=1", "secure_aggregation.enabled=false")
ROOT = Path(__file__).resolve().parents[2]


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


# Each step multiplies weights by ten thousand, until they overflow.
DIVERGES = ("training.weight_decay=10", "training.local_steps=12", "training.optimizer=sgd")


def grid_of(config: str, *settings: str, **more: Any) -> Grid:
    return build_grid(SweepRequest(configs=(config,), settings=(*PLAIN, *settings), **more))


def submitted(grid: Grid, place: Path, told: Told, **more: Any) -> tuple[Any, ...]:
    return submit_cells(grid.cells, told, LOCAL, folder=None, jobs=2, place=place, **more)


@pytest.mark.slow
def test_a_sweep_is_the_same_by_jobs_as_here(
    small: str, place: Path, sotto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same grid, tables and summaries; what has finished is not run again."""
    common = ("sweep", small, *(f"--set={text}" for text in PLAIN), "--seed", "1,2", "--json")
    url = f"sqlite:///{tmp_path}/here/sotto.db"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "cache").symlink_to(place / "cache", target_is_directory=True)
    here = sotto(*common, "--storage", url, "--output", str(tmp_path / "tables"))
    out = ("--output", str(place.parent))
    monkeypatch.setattr(sweep, "cluster_of", lambda *_: LOCAL)
    there = sotto(*common, "--on", "slurm", "--jobs", "2", *out)
    assert (here.code, there.code) == (0, 0), there.err
    assert cells(there.document) == cells(here.document)
    databases = sorted(place.glob("*.db"))
    assert len(databases) == 2
    jobs = sorted((place / "jobs").iterdir())
    again = sotto(*common, "--on", "slurm", *out)
    assert again.document["cells"] == there.document["cells"]
    assert sorted((place / "jobs").iterdir()) == jobs
    for database in databases:
        verified = sotto("audit", "verify", "--storage", f"sqlite:///{database}")
        assert verified.code == 0


def cells(document: Any) -> Any:
    """What was found of each, without the names of runs."""
    return [{k: v for k, v in cell.items() if k != "runs"} for cell in document["cells"]]


def test_what_travels_is_one_command_line(small: str, place: Path) -> None:
    (cell,) = grid_of(small).cells
    command = command_of(cell, place, Path("mine"))
    name = cell.identity[:16]
    assert command == [
        *(sys.executable, "-m", "platform.coordinator", "run", f"{place}/{name}.yaml"),
        *("--methods", str(Path("mine").absolute()), "--storage", f"sqlite:///{place}/{name}.db"),
    ]
    # Read back, it is the cell: a summary is found again by it.
    (again,) = build_grid(SweepRequest(configs=(command[4],))).cells
    assert again.identity == cell.identity


def test_an_unfinished_run_is_gone_on_with(
    small: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = grid_of(small).cells
    own = cell.run.model_copy(
        update={"storage": submitting.StorageConfig(url=submitting.database_of(cell, place))}
    )
    with monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", 1)
        with pytest.raises(Crash):
            run_cell(own)
    (run,) = known_runs(submitting.database_of(cell, place)).values()
    assert command_of(cell, place, None)[4:6] == ["--resume", run.run_id]
    told = Told()
    (outcome,) = submitted(grid_of(small), place, told)
    assert (outcome.run_id, outcome.error) == (run.run_id, None)
    assert told.started == [(1, 0)]
    assert told.finished == [outcome]


def test_a_cell_that_fails_says_why_and_leaves_the_others(small: str, place: Path) -> None:
    grid = grid_of(small, "training.learning_rate=0.05,1000", *DIVERGES)
    told = Told()
    good, bad = submitted(grid, place, told)
    assert good.error is None and good.summary is not None
    assert bad.summary is None
    assert bad.error is not None and "job" in bad.error and "Traceback" not in bad.error
    assert {outcome.cell for outcome in told.finished} == {good.cell, bad.cell}


class Waiting:
    """A job that waits in the queue until it is cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def done(self) -> bool:
        return False

    def cancel(self, check: bool) -> None:
        self.is_cancelled = True
        raise OSError("the queue cannot be reached")


def test_an_interrupted_sweep_cancels_all_jobs(
    small: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first of them cannot be."""
    waiting: list[Waiting] = []

    class Executor:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def update_parameters(self, **_: Any) -> None: ...

        def submit(self, _: Any) -> Waiting:
            waiting.append(Waiting())
            return waiting[-1]

    class Interrupted(Told):
        def cell_started(self, cell: Cell) -> None:
            if len(waiting) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("submitit.AutoExecutor", Executor)
    grid = grid_of(small, seeds=(1, 2, 3))
    with pytest.raises(KeyboardInterrupt):
        submitted(grid, place, Interrupted())
    assert [job.is_cancelled for job in waiting] == [True, True]


FAKES = {
    # What is submitted runs at once.
    "sbatch": """
        script="${@: -1}"
        export SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1
        export SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_JOB_NODELIST=here
        cp "$script" "$FAKE_LOG"
        bash "$script" >/dev/null 2>&1 </dev/null &
        echo "Submitted batch job 7"
    """,
    "srun": """
        while [[ "$1" == --* ]]; do
            case "$1" in
                --output) output="${2//%j/7}"; output="${output//%t/0}"; shift 2 ;;
                --error) error="${2//%j/7}"; error="${error//%t/0}"; shift 2 ;;
                *) shift ;;
            esac
        done
        "$@" >"${output:-/dev/null}" 2>"${error:-/dev/null}"
    """,
    "sacct": """
        state=RUNNING
        [[ -e "$FAKE_JOBS/7_0_result.pkl" ]] && state=COMPLETED
        echo "JobID|State|NodeList"; echo "7|$state|here"
    """,
    "scancel": "exit 0",
}


def test_slurm_is_handed_a_script(
    small: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that runs at once, by programs of the names of Slurm's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "script"))
    monkeypatch.setenv("FAKE_JOBS", str(place / "jobs"))
    cluster = cluster_of("slurm", ["timeout_min=7", "slurm_partition=lab", "gpus_per_node=1"])
    grid = grid_of(small)
    (outcome,) = submit_cells(grid.cells, Told(), cluster, folder=None, jobs=1, place=place)
    assert outcome.error is None and outcome.summary is not None
    assert outcome.summary["rounds"]
    script = (tmp_path / "script").read_text()
    for line in ("--time=7", "--partition=lab", "--gpus-per-node=1", "--job-name=sotto"):
        assert line in script
    assert shlex.quote(str(place / "jobs")) in script


def test_without_slurm_it_is_refused(
    small: str, place: Path, sotto: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    limit = ("--cluster", "timeout_min=5")
    answer = sotto("sweep", small, "--on", "slurm", *limit, "--output", str(place.parent))
    assert answer.code == 2
    assert "--on: slurm cannot be used here" in answer.err
    assert list(place.glob("*.db")) == []


REFUSED: dict[str, tuple[list[str], str]] = {
    "another engine": (["--on", "cloud"], "--on: 'cloud' is not valid; it must be slurm or dask"),
    "unknown key": (["--on", "slurm", "--cluster", "x=1"], "'x=1' is not valid"),
    "no value": (["--on", "slurm", "--cluster", "timeout_min"], "'timeout_min' is not valid"),
    "no number": (["--on", "slurm", "--cluster", "timeout_min=a"], "must be a number above 0"),
    "minus": (["--on", "slurm", "--cluster", "timeout_min=-5"], "must be a number above 0"),
    "endless": (["--on", "slurm", "--cluster", "mem_gb=inf"], "must be a number above 0"),
    "another line": (
        ["--on", "slurm", "--cluster", "slurm_partition=a\n#SBATCH --uid=0"],
        "without spaces",
    ),
    "a space": (["--on", "slurm", "--cluster", "slurm_partition=a b"], "without spaces"),
    "no limit": (["--on", "slurm"], "timeout_min is missing"),
    "a setting of Slurm's": (["--on", "dask", "--cluster", "gpus_per_node=1"], "KEY one of"),
    "no scheduler": (
        ["--on", "dask", "--cluster", "timeout_min=1"],
        "one of scheduler and scheduler_file must be given",
    ),
    "no address": (["--on", "dask", "--cluster", "scheduler=here"], "such as tcp://HOST:PORT"),
    "no file": (["--on", "dask", "--cluster", "scheduler_file=x"], "a file that is there"),
    "settings of nothing": (["--cluster", "timeout_min=1"], "means nothing without --on"),
    "a database": (["--on", "slurm", "--storage", "sqlite:///x.db"], "means nothing with --on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, small: str, place: Path, sotto: Command) -> None:
    arguments, message = REFUSED[case]
    answer = sotto("sweep", small, *arguments, "--output", str(place.parent))
    assert answer.code == 2
    assert message in answer.err
    assert [path.name for path in place.iterdir()] == ["cache"]


def test_cells_that_share_clients_are_refused(small: str, place: Path) -> None:
    grid = build_grid(
        SweepRequest(configs=(small,), settings=("privacy.lifetime_budget=9", "rounds=1"))
    )
    with pytest.raises(ConfigError, match=r"has privacy\.lifetime_budget"):
        submitted(grid, place, Told())


def test_what_a_job_returns_is_never_read(
    small: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a pickle in a folder that others may write to."""
    from submitit.core import core

    def read(*_: object) -> None:
        raise AssertionError("a result was unpickled")

    for name in ("result", "results", "exception", "_get_outcome_and_result"):
        if hasattr(core.Job, name):
            monkeypatch.setattr(core.Job, name, read)
    (outcome,) = submitted(grid_of(small), place, Told())
    assert outcome.error is None
    assert comparable(outcome.summary)["rounds"]


def test_a_scheduler_leaves_logging_as_it_is(place: Path) -> None:
    """A handler that is closed may close its stream, which may be this process' standard error."""
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "class Handler(logging.StreamHandler):\n"
        "    def close(self):\n"
        "        raise SystemExit('closed')\n"
        "handler = Handler()\n"
        "from platform.sweeping.slurm_jobs import slurm_jobs\n"
        f"with slurm_jobs('local', {{}}, Path({str(place)!r})):\n"
        "    logging._handlerList.clear()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
