"""A federation of real processes on one machine, which may be killed, stopped and started anew.

Each runs the command line that a person would type, forked from a process that has loaded all of it
and runs no thread. What they print is kept.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.faults._children import beside, child, limit

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults._warm", child.__module__])
COORDINATOR = "coordinator"
RELAY = "relay"
UNREADABLE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN}
"""Errors of SQLite that say that a database is locked, or that its file has just gone."""
PATIENCE = 5.0
"""Seconds that a database may be locked."""


def found_in(database: Path, query: str) -> list[tuple] | None:
    """What a database says, beside the processes that write to it.

    Returns None only where it cannot be read at this moment: it is locked, its file is not there,
    or no table has been made in it yet. A query that is wrong raises.
    """
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", timeout=PATIENCE, uri=True)) as db:
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return list(db.execute(query)) if tables else None
    except sqlite3.OperationalError as error:
        # The lower byte is the kind of error, the others say more of it.
        if error.sqlite_errorcode & 0xFF not in UNREADABLE:
            raise
        return None


def rows_of(database: Path, query: str) -> list[tuple]:
    """What a database says; nothing where it cannot be read at this moment."""
    return found_in(database, query) or []


@dataclass
class Processes:
    """Client processes, a relay and a coordinator, each of which can be started and killed."""

    folder: Path
    names: tuple[str, ...]
    hub: Path | None
    sockets: dict[str, Path]
    said: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
    living: dict[str, ForkServerProcess] = field(default_factory=dict)
    _ears: list[threading.Thread] = field(default_factory=list)
    _reaped: list[ForkServerProcess] = field(default_factory=list)

    @property
    def database(self) -> Path:
        """The coordinator's."""
        return self.folder / "sotto.db"

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Names and statuses of the coordinator's runs."""
        return rows_of(self.database, "SELECT run_id, status FROM runs ORDER BY rowid")

    @property
    def everybody(self) -> tuple[str, ...]:
        """All that can be started and killed."""
        return (*self.names, *(() if self.hub is None else (RELAY,)), COORDINATOR)

    def start(self, who: str, *, under: str | None = None) -> None:
        """Starts a process, in place of a dead one; a second one beside it under another name."""
        kind = who if who in (COORDINATOR, RELAY) else "client"
        name = under or who
        receiver, sender = FORKS.Pipe(duplex=False)
        work = (kind, name, self.folder, self._arguments(who), sender)
        process = FORKS.Process(target=child, args=work, name=name)
        process.start()
        sender.close()
        ear = threading.Thread(target=self._hear, args=(name, receiver), daemon=True)
        ear.start()
        self._ears.append(ear)
        self.living[name] = process

    def _arguments(self, who: str) -> list[str]:
        if who == RELAY:
            return [str(self.hub), *(f"{name}={path}" for name, path in self.sockets.items())]
        if who != COORDINATOR:
            return [str(self.folder / who / "client.yaml")]
        url, runs = f"sqlite:///{self.database}", self.runs
        if runs:
            return ["run", "--resume", runs[0][0], "--storage", url]
        return ["run", str(self.folder / "run.yaml"), "--storage", url]

    def _hear(self, name: str, receiver: Connection) -> None:
        said = self.said.setdefault(name, [])
        with open(receiver.fileno(), encoding="utf-8", errors="replace", closefd=False) as out:
            said.extend(out)
        receiver.close()

    def signal(self, who: str, number: int) -> None:
        """Sends a process a signal, if it is alive."""
        process = self.living[who]
        if process.is_alive() and process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def kill(self, who: str) -> None:
        """Kills a process as a power cut would."""
        self.reap(who)
        self.signal(who, signal.SIGKILL)
        self.living[who].join()

    def ask_to_end(self, who: str, seconds: float) -> None:
        """Ends a process as an operator would, and kills it if it has not ended in time."""
        self.signal(who, signal.SIGTERM)
        self.living[who].join(seconds)
        self.kill(who)

    def reap(self, who: str) -> bool:
        """Whether it has ended by itself, which is noted."""
        process = self.living[who]
        if process.exitcode is not None and process not in self._reaped:
            self._reaped.append(process)
            self.ends.setdefault(who, []).append(process.exitcode)
        return process.exitcode is not None

    def fill(self, who: str, size: int | None) -> None:
        """Lets a process, and who is started after it, write no file beyond a size."""
        file = beside(self.folder, who, "full")
        if size is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(str(size))
        pid = self.living[who].pid
        if pid is not None and self.living[who].is_alive():
            limit(pid, size)

    def tell(self, who: str, what: str, text: str) -> None:
        """Writes a file that the process looks at."""
        part = beside(self.folder, who, f"{what}.part")
        part.write_text(text)
        part.rename(beside(self.folder, who, what))

    def start_all(self) -> None:
        """Starts everybody."""
        for who in self.everybody:
            self.start(who)

    def end(self) -> None:
        """Kills whoever is left."""
        for who in self.living:
            self.signal(who, signal.SIGCONT)
            self.kill(who)
        for ear in self._ears:
            ear.join(10)
