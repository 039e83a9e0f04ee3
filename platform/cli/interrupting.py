"""Signals that end a command: one word on how to go on, nothing half-done, never a trace."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from platform.cli import exit_codes
from platform.cli.options import DEFAULT_STORAGE

if TYPE_CHECKING:
    from platform.bootstrap import Surroundings

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COORDINATOR: Final = ("python", "-m", "platform.coordinator")
CLIENT: Final = ("python", "-m", "platform.client")


class Interrupted(KeyboardInterrupt):
    """Somebody ended the command by a signal."""

    def __init__(self, number: int) -> None:
        """Take the signal."""
        super().__init__()
        self.number = number


class Ended(Exception):
    """A command has ended after a signal; the message says how to go on.

    Attributes:
        number: The signal.
        run_id: The run that was going on, None where there was none.
        command: What goes on with it, as it is typed; None where nothing does.
    """

    def __init__(
        self, number: int, text: str, *, run_id: str | None = None, command: str | None = None
    ) -> None:
        """Take the words without the command."""
        super().__init__(text if command is None else f"{text}; go on with: {command}")
        self.number, self.run_id, self.command = number, run_id, command

    @property
    def exit_code(self) -> int:
        """128 plus the signal."""
        return exit_codes.SIGNALLED + self.number


def ended_run(number: int, run_id: str | None, options: Sequence[str]) -> Ended:
    """Return the end of a run that a signal came to.

    Args:
        number: The signal.
        run_id: The run; None where there is none yet.
        options: Of the command line that finds the run again.
    """
    if run_id is None:
        return Ended(number, "interrupted")
    command = shlex.join((*COORDINATOR, "run", "--resume", run_id, *options))
    return Ended(number, f"run {run_id} is interrupted", run_id=run_id, command=command)


def finding(storage: str, surroundings: Surroundings) -> tuple[str, ...]:
    """Return the options under which a later command finds a run and its method again.

    Args:
        storage: Where the run is; no password is ever in it.
        surroundings: What the run takes from outside.
    """
    found = () if storage == DEFAULT_STORAGE else ("--storage", storage)
    folder = surroundings.registry.folder
    return found if folder is None else (*found, "--methods", str(folder))


def same_again() -> str:
    """Return the coordinator's command line of this process, as it is typed."""
    return shlex.join((*COORDINATOR, *sys.argv[1:]))


def ending_at_once(telling: Callable[[int], Ended]) -> Callable[[int, FrameType | None], NoReturn]:
    """Return what is done of a second signal: the process ends where it is, as if killed.

    Without the interpreter's own end, which would wait for threads and print traces.
    """

    def at_once(number: int, frame: FrameType | None) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, f"{telling(number)}\n".encode())
        os._exit(exit_codes.SIGNALLED + number)

    return at_once


@contextlib.contextmanager
def interruptible(ended: Callable[[int], Ended] | None = None) -> Iterator[None]:
    """While it is entered, a first signal raises and a second one ends the process at once.

    A signal that is ignored, as SIGHUP under `nohup`, stays ignored.

    Args:
        ended: Gives what is said of a signal; None for no more than that there was one.

    Raises:
        Ended: Where a signal came.
    """
    telling = ended or (lambda number: Ended(number, "interrupted"))
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    came: list[int] = []

    def first(number: int, frame: FrameType | None) -> NoReturn:
        came.append(number)
        for each in taken:
            signal.signal(each, ending_at_once(telling))
        raise Interrupted(number)

    for number in taken:
        signal.signal(number, first)
    try:
        yield
    except KeyboardInterrupt as error:
        raise telling(getattr(error, "number", signal.SIGINT)) from None
    finally:
        # After a signal the process ends, and what ends it is not to be disturbed by a trace.
        for number in () if came else taken:
            signal.signal(number, before[number] or signal.SIG_DFL)
