"""What happens inside a process that is tormented: its own command line, with a clock that jumps,
a disk that fills, and mischief at a named place, each told by a file beside its own.
"""

from __future__ import annotations

import datetime as dates
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from platform.cli import app, client_app
from platform.cli.running import resume_command, run_command
from platform.cli.serving import serve_command
from platform.holder.serving import Host
from platform.relay import __main__ as relaying
from platform.relay.hub import HubTransport
from platform.rounds.loop import Federation
from platform.rounds.runner import DatabaseJournal

MAINS: dict[str, Callable[[], object]] = {
    "coordinator": app.main,
    "client": client_app.main,
    "relay": lambda: sys.exit(relaying.main(sys.argv[1:])),
}
LOADED = (run_command, resume_command, serve_command)
"""Imported here so that a process that is forked from this one has them."""
PLACES: dict[str, tuple[tuple[Any, str], ...]] = {
    "client": ((Host, "handle"),),
    "coordinator": ((HubTransport, "exchange"), (Federation, "_commit"), (DatabaseJournal, "keep")),
    "relay": (),
}
MISCHIEF = {
    kind: tuple(
        f"{word}-{when}:{name}" for _, name in places for word in words for when in ("at", "after")
    )
    for (kind, places), words in zip(
        PLACES.items(), (("raise", "die", "hang"), ("die",), ("die",)), strict=True
    )
}
"""What can be done to each kind of process, and where."""
HANG = 2.5
"""Seconds."""


class Mischief(Exception):
    """Raised in a client where nobody expects it."""


def beside(folder: Path, who: str, what: str) -> Path:
    """The file by which a process is told something."""
    return folder / f"{who}.{what}"


def child(kind: str, who: str, folder: Path, arguments: list[str], out: Connection) -> None:
    """Runs a command line as a process of its own would."""
    os.chdir(folder)
    for number in (1, 2):
        os.dup2(out.fileno(), number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    with suppress(FileNotFoundError):
        limit(os.getpid(), int(beside(folder, who, "full").read_text()))
    jumping(beside(folder, who, "clock"))
    for owner, name in PLACES[kind]:
        mischievous(owner, name, beside(folder, who, "mischief"))
    sys.argv = [kind, *arguments]
    MAINS[kind]()


def limit(pid: int, size: int | None) -> None:
    """Lets a process write no file beyond a size; None lets it write again."""
    # It may end at this very moment.
    with suppress(ProcessLookupError):
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        soft = hard if size is None else size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def jumping(file: Path) -> None:
    """Has every wall clock of ours go by so many seconds more as a file says at any moment."""

    def shift() -> float:
        try:
            return float(file.read_text())
        except (FileNotFoundError, ValueError):
            return 0.0

    true_time = time.time

    class Jumping(dates.datetime):
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> dates.datetime:
            return dates.datetime.fromtimestamp(true_time() + shift(), tz)

    time.time = lambda: true_time() + shift()
    for name, module in list(sys.modules.items()):
        ours = name.split(".")[0] in ("platform", "storage", "methods", "privacy")
        if ours and getattr(module, "datetime", None) is dates.datetime:
            module.datetime = Jumping  # type: ignore[attr-defined]


def mischievous(owner: Any, name: str, file: Path) -> None:
    """Has a method do what a file says, once, before or after its own work."""
    original = getattr(owner, name)

    def befall(when: str) -> None:
        taken = file.with_name(f"{file.name}.taken")
        with suppress(FileNotFoundError):
            word, _, place = file.read_text().partition(":")
            if place == name and word.endswith(f"-{when}"):
                file.rename(taken)
                _strike(word.partition("-")[0])

    @wraps(original)
    def work(*args: Any, **named: Any) -> Any:
        befall("at")
        found = original(*args, **named)
        befall("after")
        return found

    setattr(owner, name, work)


def _strike(word: str) -> None:
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "hang":
        time.sleep(HANG)
    else:
        raise Mischief("it went wrong")
