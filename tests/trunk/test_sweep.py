"""Sweeps that run: cells found again, workers, failures, locks, and a sweep that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from platform.cli.sweep import _jobs, cell_line
from platform.errors import ConfigError, RecordsDisagree
from platform.rounds.loop import Federation
from platform.sweeping import running
from platform.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.sweeping.running import (
    KnownRun,
    Outcome,
    SweepObserver,
    answer_cell,
    known_runs,
    mark_cells_interrupted,
    only_sweep_in,
    only_worker_of,
    read_summary,
    run_cell,
    run_cells,
)
from tests.trunk._runs import NONE, SMALL, Command, Crash, Storage, comparable, crash_at

OPTIONS = ("--set", NONE, "--set", "rounds=1")
PLAIN = ("rounds=1", "secure_aggregation.enabled=false")


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
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.finished: list[Outcome] = []

    def sweep_started(self, total: int, finished: int) -> None:
        self.started.append((total, finished))

    def cell_finished(self, outcome: Outcome) -> None:
        self.finished.append(outcome)


def test_a_cell_is_an_ordinary_run_and_is_found_again(small: str, storage: Storage) -> None:
    (cell,) = cells_of(small, storage, "rounds=1").cells
    run_id = run_cell(cell.run)
    assert run_cell(cell.run) == run_id
    assert statuses(storage) == [(run_id, "finished")]
    known = known_runs(storage.url)[cell.identity]
    assert (known.run_id, known.finished) == (run_id, True)


def test_a_plain_run_counts_as_a_cell(small: str, storage: Storage) -> None:
    # Its configuration says another place for the database: that is no part of what it is.
    plain = storage.run(NONE, "rounds=1")
    (cell,) = cells_of(small, storage, "rounds=1").cells
    assert run_cell(cell.run) == plain.run_id


def test_an_unfinished_run_is_gone_on_with(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells_of(small, storage).cells
    with monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", 2, after=True)
        with pytest.raises(Crash):
            run_cell(cell.run)
    (unfinished,) = [run_id for run_id, _ in statuses(storage)]
    assert not known_runs(storage.url)[cell.identity].finished
    assert run_cell(cell.run) == unfinished
    assert statuses(storage) == [(unfinished, "finished")]
    actions = [a for (a,) in storage.rows("SELECT action FROM audit")]
    assert actions.count("run.resumed") == 1 and actions.count("run.created") == 1


def test_a_finished_run_comes_before_a_newer_one_but_not_without_its_summary(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells_of(small, storage, "rounds=1").cells
    first = run_cell(cell.run)
    with monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", 1)
        with pytest.raises(Crash):
            storage.run(NONE, "rounds=1")
    assert len(statuses(storage)) == 2
    assert known_runs(storage.url)[cell.identity].run_id == first
    (storage.folder / first / "summary.json").unlink()
    assert known_runs(storage.url)[cell.identity].run_id != first
    assert not known_runs(storage.url)[cell.identity].finished


def test_an_edited_summary_gets_into_no_table(small: str, storage: Storage) -> None:
    (cell,) = cells_of(small, storage, "rounds=1").cells
    run_id = run_cell(cell.run)
    path = storage.folder / run_id / "summary.json"
    whole = path.read_text()
    assert read_summary(storage.url, run_id) == json.loads(whole)
    path.write_text(whole.replace('"delta": 1e-05', '"delta": 1e-06'))
    assert path.read_text() != whole
    with pytest.raises(RecordsDisagree, match=r"delta is 1e-06 there, but 1e-05 follows"):
        read_summary(storage.url, run_id)
    path.write_text(whole[:-40])
    with pytest.raises(RecordsDisagree, match=r"summary\.json is empty, cut or otherwise no JSON"):
        read_summary(storage.url, run_id)


def test_without_a_database_no_run_is_known(storage: Storage) -> None:
    assert known_runs(storage.url) == {}
    assert not storage.file.exists()


def test_runs_that_were_under_way_are_labelled(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, begun, never = cells_of(small, storage, "rounds=1", seeds=(0, 1, 2)).cells
    run_cell(done.run)
    with monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", 1)
        with pytest.raises(Crash):
            run_cell(begun.run)
    mark_cells_interrupted(storage.url, [cell.identity for cell in (done, begun, never)])
    assert [status for _, status in statuses(storage)] == ["finished", "interrupted"]


def test_a_run_that_has_finished_since_it_was_read_stays_finished(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells_of(small, storage, "rounds=1").cells
    run_cell(cell.run)
    earlier = {cell.identity: KnownRun(storage.only_run(), finished=False)}
    monkeypatch.setattr("platform.sweeping.running.known_runs", lambda url: earlier)
    mark_cells_interrupted(storage.url, [cell.identity])
    assert [status for _, status in statuses(storage)] == ["finished"]


def test_what_cannot_be_labelled_hides_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.file.write_bytes(b"no database at all" * 100)
    mark_cells_interrupted(storage.url, ["a" * 64])


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


def test_cells_that_share_a_lifetime_budget_run_one_after_another(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("device", "has_cuda", "one"),
    [("cuda", True, True), ("auto", True, True), ("auto", False, False), ("cpu", True, False)],
)
def test_cells_on_an_accelerator_run_alone_unless_told(
    monkeypatch: pytest.MonkeyPatch, device: str, has_cuda: bool, one: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    grid = build_grid(SweepRequest(configs=("comparison",), device=device))
    assert _jobs(grid) == (1 if one else 7)


def test_the_line_of_a_cell_says_that_it_goes_on_with_a_run(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, begun = cells_of(small, storage, "rounds=1", seeds=(0, 1)).cells
    with monkeypatch.context() as patch:
        crash_at(patch, Federation, "_commit", 1)
        with pytest.raises(Crash):
            run_cell(begun.run)

    class InThisProcess(SlowPool):
        def give(self, index: int, cell: Cell) -> None:
            super().give(index, cell)
            self.cell = cell

        def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
            index, _ = self.busy.popitem()
            yield index, answer_cell(self.cell.run.model_dump(mode="json"))

    @contextmanager
    def workers(cells: Any, url: str, folder: Path | None) -> Iterator[SlowPool]:
        yield InThisProcess()

    monkeypatch.setattr(running, "_workers", workers)
    first, second = run_cells((new, begun), Told(), jobs=1, url=storage.url)
    assert cell_line(first).endswith(f"s, run {first.run_id}")
    assert cell_line(second).endswith(f"s, continues run {second.run_id}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("a: b is not valid; c"), "a: b is not valid; c"),
        (OSError("disk"), "disk"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_is_an_answer(
    small: str,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*arguments: Any) -> str:
        raise error

    monkeypatch.setattr(running, "run_cell", fail)
    (cell,) = cells_of(small, storage).cells
    answer = answer_cell(cell.run.model_dump(mode="json"))
    assert (answer["run_id"], answer["error"]) == (None, said)
    # A mistake keeps its trace; what was foreseen needs none.
    assert bool(caplog.records) == isinstance(error, ZeroDivisionError)


def test_one_sweep_a_folder(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    # The lock is the open file's: a second opening is refused in the same process, too.
    said = re.escape(f"--output: another sweep works in {str(output)!r} just now")
    with only_sweep_in(output), pytest.raises(ConfigError, match=said), only_sweep_in(output):
        pass
    with only_sweep_in(output):
        pass
    blocked = tmp_path / "file"
    blocked.write_text("")
    refused = pytest.raises(ConfigError, match=r"--output: .* cannot be written to")
    with refused, only_sweep_in(blocked):
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


def test_one_worker_a_cell(storage: Storage) -> None:
    mine, other = "a" * 64, "b" * 64
    with only_worker_of(storage.url, mine):
        assert not lockable_elsewhere(storage, mine)
        assert lockable_elsewhere(storage, other)
    assert lockable_elsewhere(storage, mine)


# One sweep with two workers for all that reads.
@pytest.fixture(scope="module")
def swept(
    small: str, make_storage: Callable[[str], Storage]
) -> tuple[Storage, Told, tuple[Outcome, ...], Grid]:
    storage, told = make_storage("swept"), Told()
    grid = cells_of(small, storage, *PLAIN, methods=("promptfl", "coop"), seeds=(0, 1))
    # Nothing in it is wrong until somebody looks for the file.
    bad = cells_of(small, storage, *PLAIN, "task.model.pretrained=nowhere.safetensors")
    failed, *outcomes = run_cells((*bad.cells, *grid.cells), told, jobs=2, url=storage.url)
    assert failed.run_id is None and "nowhere.safetensors" in str(failed.error)
    return storage, told, tuple(outcomes), grid


@pytest.mark.slow
def test_two_workers_share_a_database(
    swept: tuple[Storage, Told, tuple[Outcome, ...], Grid],
) -> None:
    storage, told, outcomes, grid = swept
    assert [o.error for o in outcomes] == [None] * 4
    assert [o.cell for o in outcomes] == list(grid.cells)
    assert told.started == [(5, 0)]
    assert {o.run_id for o in told.finished} == {None, *(o.run_id for o in outcomes)}
    assert sorted(statuses(storage)) == sorted((str(o.run_id), "finished") for o in outcomes)
    for outcome in outcomes:
        assert outcome.summary is not None
        assert outcome.summary["method"] == outcome.cell.method
        config = json.loads(
            storage.rows("SELECT config_json FROM runs WHERE run_id = ?", outcome.run_id)[0][0]
        )
        assert config["seed"] == outcome.cell.seed


def test_a_worker_gives_what_a_run_gives(
    swept: tuple[Storage, Told, tuple[Outcome, ...], Grid], make_storage: Callable[[str], Storage]
) -> None:
    _, _, outcomes, grid = swept
    alone = make_storage("alone")
    cell = grid.cells[1]
    there = cell.run.storage.model_copy(update={"url": alone.url})
    run_id = run_cell(cell.run.model_copy(update={"storage": there}))
    summary = json.loads((alone.folder / run_id / "summary.json").read_text())
    assert outcomes[1].summary is not None
    assert comparable(summary) == comparable(outcomes[1].summary)


def test_what_has_finished_needs_no_worker(
    swept: tuple[Storage, Told, tuple[Outcome, ...], Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, _, outcomes, grid = swept

    def refuse() -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(running, "_start", refuse)
    told = Told()
    again = run_cells(grid.cells, told, jobs=2, url=storage.url)
    assert told.started == [(4, 4)] and told.finished == []
    assert [o.run_id for o in again] == [o.run_id for o in outcomes]
    assert [o.summary for o in again] == [o.summary for o in outcomes]


def test_the_command_prints_tables_and_leaves_files(
    swept: tuple[Storage, Told, tuple[Outcome, ...], Grid],
    small: str,
    sotto: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, _, outcomes, grid = swept
    monkeypatch.chdir(tmp_path)
    command = (
        *("sweep", small, "--method", "promptfl,coop", "--seed", "0,1", *OPTIONS),
        *("--set", "secure_aggregation.enabled=false", "--storage", storage.url),
    )
    answer = sotto(*command)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "4 cells, 4 of them finished before"
    folder = Path("sweeps") / f"small-{grid.digest[:8]}"
    assert lines[-1] == f"written to {folder}"
    means = [o.summary["final"]["accuracy"]["mean"] for o in outcomes if o.summary]
    shown = f"{100 * (means[0] + means[1]) / 2:.2f} ± "
    assert shown in (folder / "table.md").read_text() and shown in answer.out
    assert "local training: sgd" in answer.out
    as_json = sotto(*command, "--json", "--output", "there").document
    values = as_json["cells"][0]["selections"]["last"]["local"]["values"]
    assert values == means[:2]
    assert (as_json["output"], as_json["failed"]) == ("there", [])
    for name in ("results.csv", "table.tex", "curves.svg"):
        assert (folder / name).read_bytes() == (Path("there") / name).read_bytes()


def test_a_refused_cell_starts_nothing(
    small: str, sotto: Command, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = sotto(
        *("sweep", small, "--storage", storage.url, "--set", "task.clients=5,1", "--seed", "0")
    )
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith("error: cell (small, pfedmoap, seed 0, task.clients=1): ")
    assert len(answer.err.splitlines()) == 1
    assert not storage.file.exists() and not Path("sweeps").exists()


def fake_workers(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Cell], Outcome]) -> None:
    def run(cells: Any, observer: Any, folder: Any, *, jobs: int, url: str) -> tuple[Outcome, ...]:
        observer.sweep_started(len(cells), 0)
        for cell in cells:
            observer.cell_started(cell)
            observer.cell_finished(answer(cell))
        return tuple(map(answer, cells))

    monkeypatch.setattr("platform.cli.sweep.run_cells", run)


def test_failed_cells_are_told_at_the_end_and_the_others_are_kept(
    swept: tuple[Storage, Told, tuple[Outcome, ...], Grid],
    small: str,
    sotto: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, outcomes, _ = swept

    def answer(cell: Cell) -> Outcome:
        if cell.seed == 1:
            return Outcome(cell=cell, error="task.root: nothing is there")
        return Outcome(cell=cell, run_id="run0", summary=outcomes[0].summary, seconds=1.25)

    fake_workers(monkeypatch, answer)
    told = sotto("sweep", small, "--seed", "0,1", *OPTIONS, "--output", str(tmp_path / "out"))
    assert told.code == 1
    assert told.err.splitlines() == [
        "error: cell (small, pfedmoap, seed 1): task.root: nothing is there",
        "1 of 2 cells failed",
    ]
    share = outcomes[0].summary["final"]["accuracy"]["mean"]  # type: ignore[index]
    assert told.out.splitlines()[1:3] == [
        f"[1/2] small, pfedmoap, seed 0: {100 * share:.1f}%, 1.2 s, run run0",
        "[2/2] small, pfedmoap, seed 1: failed: task.root: nothing is there",
    ]
    assert "1 of 2 runs are missing" in (tmp_path / "out" / "table.md").read_text()


def test_ctrl_c_says_how_to_go_on(
    small: str, sotto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(cell: Cell) -> Outcome:
        raise KeyboardInterrupt

    fake_workers(monkeypatch, interrupt)
    arguments = ("sweep", small, *OPTIONS, "--output", str(tmp_path / "out"))
    told = sotto(*arguments)
    out = str(tmp_path / "out")
    command = shlex.join(["python", "-m", "platform.coordinator", *arguments])
    assert (told.code, told.err) == (130, f"sweep {out} is interrupted; go on with: {command}\n")


@pytest.mark.parametrize("argument", [("--jobs", "0"), ("--seed", "x"), ("--method", ",")])
def test_bad_options_are_refused(small: str, sotto: Command, argument: tuple[str, str]) -> None:
    assert sotto("sweep", small, *argument).code == 2


def test_the_command_is_in_the_help(sotto: Command) -> None:
    assert "sweep" in sotto("--help").out
    told = sotto("sweep", "--help").out
    assert all(option in told for option in ("--method", "--seed", "--set", "--for", "--jobs"))


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
    small: str,
    storage: Storage,
    make_storage: Callable[[str], Storage],
    tmp_path: Path,
    child_environment: dict[str, str],
    number: signal.Signals,
) -> None:
    with sweep_process(small, storage, tmp_path, child_environment) as process:
        wait_until(lambda: in_the_second_run(storage))
        os.kill(process.pid, number)
        _, error = process.communicate(timeout=60)
    wait_until(lambda: not workers_of(storage))
    before = dict(statuses(storage))
    assert sorted(before.values())[0] == "finished" and len(before) == 2
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert error.count("\n") == 1 and " is interrupted; go on with: python -m " in error
        assert sorted(before.values()) == ["finished", "interrupted"]
    else:
        assert process.returncode == -signal.SIGKILL
    with sweep_process(small, storage, tmp_path, child_environment) as again:
        out, error = again.communicate(timeout=200)
    assert (again.returncode, error) == (0, "")
    assert out.splitlines()[0] == "3 cells, 1 of them finished before"
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
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert (folder / "table.md").is_file()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_dead_worker_is_one_failed_cell(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert first.error is not None and "its process was killed" in first.error
    assert second.error is None and len(pids) == 2
    assert [o.error for o in run_cells(grid.cells, Told(), jobs=1, url=storage.url)] == [None] * 2


@pytest.mark.slow
def test_workers_are_replaced_before_they_have_grown_large(
    small: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = running._start

    def counted(folder: Path | None) -> Any:
        started.append(start(folder))
        return started[-1]

    monkeypatch.setattr(running, "_start", counted)
    monkeypatch.setattr(running, "CELLS_A_WORKER", 2)
    grid = cells_of(small, storage, seeds=(0, 1, 2))
    outcomes = run_cells(grid.cells, Told(), jobs=1, url=storage.url)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert len(started) == 2
