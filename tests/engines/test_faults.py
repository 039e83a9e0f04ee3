"""Schedules of faults over each engine, which itself is killed, stopped and cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from platform.relay.flower import flower_on_localhost
from platform.relay.nvflare.development import nvflare_poc, processes_of
from tests.engines._flare import MISSING
from tests.engines._flare import PYTHON as FLARE
from tests.faults._federation import NAMES
from tests.faults._proxy import Proxy
from tests.faults._schedules import ENGINE
from tests.faults._tormenting import Parts, proxies_in, torment
from tests.repository._source import ROOT

FLOWER = ROOT / ".venv-flower" / "bin" / "python"
SECONDS = 270.0
TIMES = {"phase_seconds": 10.0, "training_seconds": 15.0, "joining_seconds": 60.0}
BLOWS = 6
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "continue": signal.SIGCONT}
Reached = tuple[Mapping[str, Proxy], Parts]


@contextmanager
def tormented_flower(folder: Path) -> Iterator[Reached]:
    """SuperLink, link and nodes, one of them behind a proxy of its own."""
    sockets = {name: folder / f"{name}.way" for name in NAMES}
    with (
        proxies_in(folder) as proxies,
        flower_on_localhost(folder / "hub.way", sockets, folder / "flower", FLOWER) as running,
    ):

        def do(part: str, what: str) -> None:
            if what == "start":
                running.start(part)
            elif what == "kill":
                running.kill(part)
            else:
                os.killpg(running.processes[part].pid, SIGNALS[what])

        command = running.commands["north"]
        at = command.index("--superlink") + 1
        host, _, port = command[at].partition(":")
        with Proxy(("127.0.0.1", 0), (host, int(port)), framed=False) as between:
            running.kill("north")
            command[at] = f"{host}:{between.address[1]}"
            running.start("north")
            names = {"superlink": "superlink", "link": "link", "node north": "north"}
            parts = {name: partial(do, part) for name, part in names.items()}
            yield {**proxies, ENGINE: between}, parts


@contextmanager
def tormented_flare(folder: Path) -> Iterator[Reached]:
    """Server and sites, which FLARE starts again by itself."""
    sockets = {name: folder / f"{name}.way" for name in NAMES}
    with (
        proxies_in(folder) as proxies,
        nvflare_poc(folder / "hub.way", sockets, folder / "flare", python=FLARE) as kits,
    ):

        def do(site: str, word: str, what: str) -> None:
            # FLARE's own scripts and its keeper start again what was killed.
            for pid in processes_of(kits / site, word) if what != "start" else ():
                os.kill(pid, SIGNALS[what])

        parts = {
            "server": partial(do, "localhost", "server_train"),
            "server's job": partial(do, "localhost", "runner_process"),
            "site's job": partial(do, "north", "worker_process"),
        }
        yield proxies, parts


def hold(folder: Path, seed: int, reached: Reached) -> None:
    """Holds a federation through an engine under a schedule; what that left stopped goes on."""
    proxies, parts = reached
    try:
        torment(folder, seed, proxies, blows=BLOWS, seconds=SECONDS, engine=parts, **TIMES)
    finally:
        for do in parts.values():
            do("continue")


SEEDS = range(3)
"""One of each setup."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flower(tmp_path_factory) -> Iterator[Reached]:
    with tormented_flower(tmp_path_factory.mktemp("fl")) as reached:
        yield reached


@pytest.fixture(scope="module")
def flare(tmp_path_factory) -> Iterator[Reached]:
    with tormented_flare(tmp_path_factory.mktemp("nv")) as reached:
        yield reached


@pytest.mark.skipif(not FLOWER.exists(), reason="Flower is not installed: `make flower`")
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_over_flower_survives_a_schedule(tmp_path_factory, flower, seed):
    hold(tmp_path_factory.mktemp("s"), seed, flower)


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.xdist_group("nvflare")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_over_flare_survives_a_schedule(tmp_path_factory, flare, seed):
    hold(tmp_path_factory.mktemp("s"), seed, flare)
