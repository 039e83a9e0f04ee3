"""Two processes where there may be one: on one store, one database, one socket."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from platform.errors import ConfigError
from platform.experiment.joining import serve_holder
from platform.experiment.planning import Surroundings
from platform.holder.settings import HolderSettings, load_holder
from tests._forking import ended, exit_code, started
from tests.faults._federation import NAMES, write_federation
from tests.faults._processes import COORDINATOR, Processes
from tests.trunk._federations import write_holder
from tests.trunk._hubs import running

LONG = 120.0


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("two")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("socket", [None, "other.sock"], ids=["its socket", "another socket"])
def test_a_second_process_on_one_store_is_refused_by_name(folder, socket):
    """Whatever it would listen at: both would answer, each knowing half of what was released."""
    settings = write_holder(folder, "east")
    processes = Processes(folder, NAMES, None, {})
    try:
        processes.start("east")
        until(lambda: "listens at" in "".join(processes.said.get("east", ())))
        if socket is not None:
            settings.write_text(settings.read_text() + f"socket: {folder}/{socket}\n")
        processes.start("east", under="second")
        processes.living["second"].join(LONG)
        assert processes.living["second"].exitcode == 2
        until(lambda: bool(processes.said["second"]))
        (line,) = processes.said["second"]
        assert line.startswith("error: storage: ") and f"'{folder}/east/store'" in line
        assert processes.living["east"].is_alive()
    finally:
        processes.end()


def serve(settings: HolderSettings) -> None:
    serve_holder(settings, Surroundings(), lambda line: None, threading.Event())


def test_a_stopped_process_still_has_its_store(folder):
    write_holder(folder, "east")
    settings = load_holder(folder / "east" / "client.yaml")
    with (folder / "said").open("wb") as printed:
        child = started(lambda: exit_code(lambda: serve(settings)), printed.fileno())
    try:
        until(settings.socket_path.exists)
        os.kill(child, signal.SIGSTOP)
        said = f"another process answers with the store in '{folder}/east/store'"
        with pytest.raises(ConfigError, match=said):
            serve(settings)
    finally:
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
    over = threading.Event()
    with running(lambda _: serve_holder(settings, Surroundings(), lambda line: None, over)):
        until(settings.socket_path.exists)
        over.set()


@pytest.mark.slow
def test_a_second_coordinator_of_one_run_is_refused_and_disturbs_nothing(folder):
    """It takes over neither socket nor run, also while the first one is stopped."""
    write_federation(folder, "noised", folder / "hub.sock", joining_seconds=LONG)
    processes = Processes(folder, NAMES, folder / "hub.sock", {})
    processes.sockets = {name: folder / name / "store" / "client.sock" for name in NAMES}
    try:
        processes.start(COORDINATOR)
        until(lambda: bool(processes.runs) and (folder / "hub.sock").is_socket())
        for stopped in (False, True):
            name = f"second, stopped: {stopped}"
            if stopped:
                processes.signal(COORDINATOR, signal.SIGSTOP)
            processes.start(COORDINATOR, under=name)
            processes.living[name].join(LONG)
            assert processes.living[name].exitcode == 2
            until(lambda name=name: bool(processes.said[name]))
            (line,) = processes.said[name]
            assert line.startswith("error: federation.socket: ") and f"{folder}/hub.sock" in line
        processes.signal(COORDINATOR, signal.SIGCONT)
        for who in (*NAMES, "relay"):
            processes.start(who)
        processes.living[COORDINATOR].join(LONG)
        assert processes.living[COORDINATOR].exitcode == 0
    finally:
        processes.end()
