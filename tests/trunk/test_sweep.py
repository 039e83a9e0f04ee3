"""Sweeps that run: cells found again, workers, failures, locks, and a sweep that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from platform.errors import ConfigError, RecordsDisagree
from platform.results.sweeping import running
from platform.results.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.results.sweeping.running import (
    Outcome,
    SweepObserver,
    answer_cell,
    known_runs,
    only_sweep_in,
    only_worker_of,
    read_summary,
    run_cell,
    run_cells,
)
from platform.rounds.loop import Federation
from tests.trunk._runs import NONE, SMALL, Storage, comparable, crashed

PLAIN = ("rounds=1", "secure_aggregation.enabled=false")
CHEAP = "secure_aggregation.enabled=false"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def cells_of(config: str, storage: Storage, *settings: str, **more: Any) -> Grid:
    return build_grid(
        SweepRequest(configs=(config,), settings=(NONE, *settings), storage=storage.url, **more)
    )


def statuses(storage: Storage) -> list[tuple[str, str]]:
    return [(str(a), str(b)) for a, b in storage.rows("SELECT run_id, status FROM runs")]


class Told(SweepObserver):
    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.finished: list[Outcome] = []

    def sweep_started(self, total: int, finished: int) -> None:
        self.started.append((total, finished))

    def cell_finished(self, outcome: Outcome) -> None:
        self.finished.append(outcome)


def test_an_unfinished_run_is_gone_on_with_and_then_found_again(small, storage, monkeypatch):
    assert known_runs(storage.url) == {} and not storage.file.exists()
    (cell,) = cells_of(small, storage, CHEAP, "rounds=2").cells
    # That its configuration says another place for the database is no part of what it is.
    begun = storage.create(NONE, CHEAP, "rounds=2")
    unfinished = crashed(monkeypatch, begun, Federation, "_commit", 1, after=True)
    assert not known_runs(storage.url)[cell.identity].finished
    for _ in range(2):
        assert run_cell(cell.run) == unfinished
        assert statuses(storage) == [(unfinished, "finished")]
    known = known_runs(storage.url)[cell.identity]
    assert (known.run_id, known.finished) == (unfinished, True)
    actions = [a for (a,) in storage.rows("SELECT action FROM audit")]
    assert actions.count("run.resumed") == 1 and actions.count("run.created") == 1


def test_a_finished_run_comes_before_a_newer_one_but_not_without_its_summary(
    small, storage, monkeypatch
):
    (cell,) = cells_of(small, storage, CHEAP, "rounds=1").cells
    first = run_cell(cell.run)
    crashed(monkeypatch, storage.create(NONE, CHEAP, "rounds=1"), Federation, "_commit", 1)
    assert len(statuses(storage)) == 2
    assert known_runs(storage.url)[cell.identity].run_id == first
    # What was edited gets into no table.
    path = storage.folder / first / "summary.json"
    whole = path.read_text()
    assert read_summary(storage.url, first, cell.run) == json.loads(whole)
    for text, said in (
        (whole.replace('"delta": 1e-05', '"delta": 1e-06'), "delta is 1e-06"),
        (whole[:-40], "otherwise no JSON"),
    ):
        path.write_text(text)
        with pytest.raises(RecordsDisagree, match=said):
            read_summary(storage.url, first, cell.run)
    path.unlink()
    assert known_runs(storage.url)[cell.identity].run_id != first
    assert not known_runs(storage.url)[cell.identity].finished


class SlowPool:
    """Answers one cell at a time, the last given first; keeps which ran together."""

    def __init__(self) -> None:
        self.busy: dict[int, None] = {}
        self.given: list[int] = []
        self.together: set[frozenset[int]] = set()

    def give(self, index: int, cell: Cell) -> None:
        self.busy[index] = None
        self.given.append(index)
        self.together.add(frozenset(self.busy))

    def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        index, _ = self.busy.popitem()
        yield index, {"run_id": None, "error": "none", "seconds": 0.0}


def test_cells_that_share_a_lifetime_budget_run_one_after_another(small, storage, monkeypatch):
    noise = ("privacy.mechanism=upload_noise", "privacy.lifetime_budget=9")
    sharing = build_grid(
        SweepRequest(configs=(small,), seeds=(0, 1, 2), settings=noise, storage=storage.url)
    ).cells
    others = cells_of(small, storage, seeds=(0, 1)).cells
    pool = SlowPool()

    @contextmanager
    def workers(cells: Any, url: str, folder: Path | None) -> Iterator[SlowPool]:
        yield pool

    monkeypatch.setattr(running, "_workers", workers)
    run_cells((*sharing, *others), Told(), jobs=2, url=storage.url)
    assert [index for index in pool.given if index < 3] == [0, 1, 2]
    assert sorted(pool.given) == [0, 1, 2, 3, 4]
    assert all(len(together & {0, 1, 2}) <= 1 for together in pool.together)
    assert any(len(together) == 2 for together in pool.together)


def test_a_failure_is_an_answer(small, storage, monkeypatch, caplog):
    (cell,) = cells_of(small, storage).cells
    for error, said in (
        (ConfigError("a: b is not valid; c"), "a: b is not valid; c"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ):
        monkeypatch.setattr(running, "run_cell", Mock(side_effect=error))
        answer = answer_cell(cell.run.model_dump(mode="json"))
        assert (answer["run_id"], answer["error"]) == (None, said)
        # A mistake keeps its trace; what was foreseen needs none.
        assert bool(caplog.records) == isinstance(error, ZeroDivisionError)


def test_one_sweep_a_folder(tmp_path):
    output = tmp_path / "deep" / "out"
    # The lock is the open file's: a second opening is refused in the same process, too.
    refused = pytest.raises(ConfigError, match="another sweep works")
    with only_sweep_in(output), refused, only_sweep_in(output):
        pass
    with only_sweep_in(output):
        pass
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="cannot be written"), only_sweep_in(blocked):
        pass


def lockable_elsewhere(storage: Storage, cell: str) -> bool:
    """Whether a process of its own may work on the cell."""
    child = os.fork()
    if child == 0:
        with (storage.folder / "sweep.lock").open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(cell[:15], 16))
            except BlockingIOError:
                os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_worker_a_cell(storage):
    mine, other = "a" * 64, "b" * 64
    with only_worker_of(storage.url, mine):
        assert not lockable_elsewhere(storage, mine)
        assert lockable_elsewhere(storage, other)
    assert lockable_elsewhere(storage, mine)


@pytest.mark.slow
def test_two_workers_share_a_database_and_give_what_a_run_gives(small, storage, make_storage):
    told = Told()
    grid = cells_of(small, storage, *PLAIN, methods=("promptfl", "coop"), seeds=(0, 1))
    # Nothing in it is wrong until somebody looks for the file.
    bad = cells_of(small, storage, *PLAIN, "task.model.pretrained=nowhere.safetensors")
    failed, *outcomes = run_cells((*bad.cells, *grid.cells), told, jobs=2, url=storage.url)
    assert failed.run_id is None and "nowhere.safetensors" in str(failed.error)
    assert [(o.cell, o.error) for o in outcomes] == [(cell, None) for cell in grid.cells]
    assert told.started == [(5, 0)]
    assert {o.run_id for o in told.finished} == {None, *(o.run_id for o in outcomes)}
    assert sorted(statuses(storage)) == sorted((str(o.run_id), "finished") for o in outcomes)
    alone = make_storage("alone")
    cell = grid.cells[1]
    there = cell.run.storage.model_copy(update={"url": alone.url})
    run_id = run_cell(cell.run.model_copy(update={"storage": there}))
    summary = json.loads((alone.folder / run_id / "summary.json").read_text())
    assert outcomes[1].summary is not None
    assert comparable(summary) == comparable(outcomes[1].summary)


@pytest.mark.slow
def test_failed_cells_are_told_at_the_end_and_the_others_are_kept(
    small, sotto, tmp_path, monkeypatch, plain_run
):
    def answer(cell: Cell) -> Outcome:
        if cell.seed == 1:
            return Outcome(cell=cell, error="task.root: nothing is there")
        return Outcome(cell=cell, run_id="run0", summary=plain_run.summary, seconds=1.25)

    def workers(cells: Any, observer: Any, *_: Any, **named: Any) -> tuple[Outcome, ...]:
        observer.sweep_started(len(cells), 0)
        for cell in cells:
            observer.cell_finished(answer(cell))
        return tuple(map(answer, cells))

    monkeypatch.setattr("platform.results.sweeping.study.run_cells", workers)
    options = ("--seed", "0,1", "--set", NONE, "--output", str(tmp_path / "out"))
    told = sotto("sweep", small, *options)
    assert told.code == 1
    failed, count = told.err.splitlines()
    assert "seed 1): task.root" in failed and "1 of 2" in count
    assert "1 of 2 runs" in (tmp_path / "out" / "table.md").read_text()


# Real deaths: a process of its own is killed in the midst of a run.
ROUNDS = 20


def heed_ctrl_c() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def sweep_process(
    config: str, storage: Storage, folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "platform.coordinator", "sweep", config]
    command += ["--seed", "0,1,2", "--jobs", "1", "--storage", storage.url]
    command += ["--set", NONE, "--set", f"rounds={ROUNDS}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=pipe,
        stderr=pipe,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_the_second_run(storage: Storage) -> bool:
    """One run has finished and another has committed a round."""
    if not storage.file.exists():
        return False
    try:
        rows = storage.rows(
            "SELECT status, count(*) FROM runs JOIN rounds USING (run_id) GROUP BY run_id"
        )
    except Exception:  # the tables may not be there yet
        return False
    return [s for s, _ in rows].count("finished") == 1 and len(rows) == 2


def workers_of(storage: Storage) -> bool:
    """Whether another process holds the lock of any cell."""
    with (storage.folder / "sweep.lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_killed_goes_on_with_the_same_command(
    small, storage, make_storage, tmp_path, child_environment, number
):
    with sweep_process(small, storage, tmp_path, child_environment) as process:
        wait_until(lambda: in_the_second_run(storage))
        os.kill(process.pid, number)
        _, error = process.communicate(timeout=60)
    wait_until(lambda: not workers_of(storage))
    before = dict(statuses(storage))
    assert sorted(before.values())[0] == "finished" and len(before) == 2
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in error and "is interrupted" in error.splitlines()[-1]
        assert sorted(before.values()) == ["finished", "interrupted"]
    else:
        assert process.returncode == -signal.SIGKILL
    with sweep_process(small, storage, tmp_path, child_environment) as again:
        out, error = again.communicate(timeout=200)
    assert again.returncode == 0, error
    assert "1 of them" in out.splitlines()[0]
    after = dict(statuses(storage))
    assert set(before) < set(after) and list(after.values()) == ["finished"] * 3
    resumed = storage.rows("SELECT run_id FROM audit WHERE action = 'run.resumed'")
    assert {run_id for (run_id,) in resumed} == {
        run_id for run_id, status in before.items() if status != "finished"
    }
    reference = make_storage("reference")
    for cell in cells_of(small, reference, f"rounds={ROUNDS}", seeds=(0, 1, 2)).cells:
        whole = json.loads((reference.folder / run_cell(cell.run) / "summary.json").read_text())
        known = known_runs(storage.url)[cell.identity]
        found = json.loads((storage.folder / known.run_id / "summary.json").read_text())
        assert comparable(found) == comparable(whole)
    (table,) = (tmp_path / "sweeps").glob("*/table.md")
    assert table.is_file()


@pytest.mark.slow
def test_a_dead_worker_is_one_failed_cell(small, storage, monkeypatch):
    grid = cells_of(small, storage, "rounds=20", seeds=(0, 1))
    pids: list[int] = []
    start = running._start

    def started(folder: Path | None) -> Any:
        made = start(folder)
        pids.append(made.process.pid)
        return made

    class Killer(Told):
        def cell_started(self, cell: Cell) -> None:
            if cell.seed == 0:
                os.kill(pids[-1], signal.SIGKILL)

    monkeypatch.setattr(running, "_start", started)
    first, second = run_cells(grid.cells, Killer(), jobs=1, url=storage.url)
    assert first.error is not None and "was killed" in first.error
    assert second.error is None and len(pids) == 2
    assert [o.error for o in run_cells(grid.cells, Told(), jobs=1, url=storage.url)] == [None] * 2
