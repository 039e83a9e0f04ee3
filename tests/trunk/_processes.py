"""A federation of real processes on one machine, which may be killed, stopped and started anew."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from platform.bootstrap import Surroundings, stored_config
from platform.bootstrap.federating import new_federation, reopened_federation, through_hub
from platform.bootstrap.joining import serve_holder
from platform.config import load_config
from platform.disk.opening import open_storage
from platform.experiment.conducting import conduct
from platform.holder.settings import load_holder
from platform.relay.forwarding import forward
from platform.relay.hub import Told
from platform.rounds.observing import SilentObserver

# Each process is forked from one that has loaded everything and runs no thread.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "torch", "open_clip"])
STOPPED = 3
"""The exit code of a coordinator whose run can be gone on with."""


def _client(settings: Path) -> None:
    log = (settings.parent / "log.txt").open("a", buffering=1)
    serve_holder(
        load_holder(settings),
        Surroundings(),
        lambda line: print(line, file=log),
        threading.Event(),
    )


def _relay(hub: Path, sockets: dict[str, Path]) -> None:
    forward(hub, sockets, threading.Event())


def _coordinator(config: Path, database: Path) -> None:
    surroundings, observer, url = Surroundings(), SilentObserver(), f"sqlite:///{database}"
    loaded = load_config(config, [f"storage.url={url}"])
    names = runs_in(database)
    reaching = lambda section: through_hub(section, Told())  # noqa: E731
    try:
        if names:
            with open_storage(url) as opened:
                loaded = stored_config(opened, names[0], surroundings)
            setting = reopened_federation(
                names[0], loaded, observer, surroundings, reaching=reaching
            )
        else:
            setting = new_federation(loaded, observer, surroundings, reaching=reaching)
        with setting as conducted:
            conduct(conducted, observer)
    except Exception as error:
        with (database.parent / "coordinator.txt").open("a") as log:
            print(type(error).__name__, error, file=log)
        sys.exit(STOPPED)


def runs_in(database: Path) -> list[str]:
    """The runs that a coordinator's database knows."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        with suppress(sqlite3.OperationalError):
            return [name for (name,) in db.execute("SELECT run_id FROM runs ORDER BY rowid")]
    return []


@dataclass
class Processes:
    """Client processes, a relay and a coordinator, each of which can be started and killed.

    Attributes:
        folder: With each client's own folder, and the coordinator's.
        names: The clients.
    """

    folder: Path
    names: tuple[str, ...]
    living: dict[str, ForkServerProcess] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        """The coordinator's."""
        return self.folder / "sotto.db"

    def start(self, who: str) -> None:
        """Start a process, in place of a dead one of this name."""
        if who == "coordinator":
            work = (_coordinator, (self.folder / "run.yaml", self.database))
        elif who == "relay":
            sockets = {n: self.folder / n / "store" / "client.sock" for n in self.names}
            work = (_relay, (self.folder / "hub.sock", sockets))
        else:
            work = (_client, (self.folder / who / "client.yaml",))
        process = FORKS.Process(target=work[0], args=work[1], name=who)
        process.start()
        self.living[who] = process

    def signal(self, who: str, number: int) -> None:
        """Send a process a signal, if it is alive."""
        process = self.living[who]
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)

    def kill(self, who: str) -> None:
        """Kill a process as a power cut would."""
        self.signal(who, signal.SIGKILL)
        self.living[who].join()

    def start_all(self) -> None:
        """Start everybody."""
        for who in (*self.names, "relay", "coordinator"):
            self.start(who)

    def end(self) -> None:
        """Kill whoever is left."""
        for who in self.living:
            self.signal(who, signal.SIGCONT)
            self.kill(who)


def torment(processes: Processes, draws: random.Random, *, blows: int, seconds: float) -> None:
    """Kill, stop and start processes at random until the run has finished.

    Raises:
        AssertionError: If it has not finished in time.
    """
    end, left = time.monotonic() + seconds, blows
    while time.monotonic() < end:
        coordinator = processes.living["coordinator"]
        coordinator.join(draws.uniform(0.05, 0.8) if left else 0.5)
        if coordinator.exitcode == 0:
            return
        if coordinator.exitcode is not None:
            processes.start("coordinator")
        if left:
            left -= 1
            _blow(processes, draws)
    log = processes.folder / "coordinator.txt"
    raise AssertionError(f"not finished: {log.read_text() if log.exists() else ''}")


def _blow(processes: Processes, draws: random.Random) -> None:
    who = draws.choice((*processes.names, "relay", "coordinator"))
    if draws.random() < 0.3:
        processes.signal(who, signal.SIGSTOP)
        time.sleep(draws.uniform(0.1, 2.0))
        processes.signal(who, signal.SIGCONT)
        return
    processes.kill(who)
    time.sleep(draws.choice((0.0, 0.0, draws.uniform(0.0, 1.5))))
    processes.start(who)
