"""One process a run: whoever comes second is refused or waits, and nobody is charged twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from platform.disk.files import only_process_of
from platform.errors import RunBusy
from platform.sweeping.grid import SweepRequest, build_grid
from platform.sweeping.running import run_cell
from tests.trunk._runs import NONE, SMALL, Command, Storage

ROUNDS = 40


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rounds_of(storage: Storage) -> int:
    if not storage.file.exists():
        # To look would make an empty one, which the run refuses.
        return 0
    try:
        return len(storage.rows("SELECT * FROM rounds"))
    except Exception:  # the file and its tables may not be there yet
        return 0


@contextmanager
def run_by_hand(
    config: Path, storage: Storage, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """`run` in a process of its own that has committed a round and not its last."""
    command = [sys.executable, "-m", "platform.coordinator", "run", str(config)]
    command += ["--set", f"storage.url={storage.url}", "--set", f"rounds={ROUNDS}", "--set", NONE]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            wait_until(lambda: rounds_of(storage) > 0 or process.poll() is not None)
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_run_by_hand_is_neither_resumed_nor_swept_beside_itself(
    storage: Storage, tmp_path: Path, sotto: Command, child_environment: dict[str, str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    request = SweepRequest(
        configs=(str(config),), settings=(NONE, f"rounds={ROUNDS}"), storage=storage.url
    )
    (cell,) = build_grid(request).cells
    with run_by_hand(config, storage, child_environment) as process:
        run_id = storage.only_run()
        refused = sotto("run", "--resume", run_id, "--storage", storage.url)
        assert refused.code == 1
        assert refused.err == (
            f"error: run {run_id}: is being run by another process; wait until that has ended\n"
        )
        # Nor by what only reads.
        assert sotto("runs", "--storage", storage.url).code == 0
        assert rounds_of(storage) < ROUNDS, "the test needs more rounds"
        assert run_cell(cell.run) == run_id
        assert process.wait(30) == 0
    charges = storage.rows(
        "SELECT round_number, attempt, pseudonym, channel, count(*) FROM ledger GROUP BY 1, 2, 3, 4"
    )
    assert charges and {row[-1] for row in charges} == {1}
    assert {row[1] for row in charges} == {1}
    actions = [action for (action,) in storage.rows("SELECT action FROM audit")]
    assert "run.resumed" not in actions


def test_the_lock_is_one_processs_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        with only_process_of(folder):
            (folder / "held").touch()
            os.read(reader, 1)
            os._exit(9)
    wait_until(lambda: (folder / "held").exists())
    with (
        pytest.raises(RunBusy, match="run run-1: is being run by another"),
        only_process_of(folder),
    ):
        pass
    os.close(writer)
    os.waitpid(child, 0)
    with only_process_of(folder):
        pass
