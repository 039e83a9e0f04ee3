"""Signals that end a command as Ctrl-C does: with a word on how to go on, and nothing half-done."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import typer

from platform.cli import exit_codes

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Beside SIGINT, which Python turns into `KeyboardInterrupt` itself."""


class Interrupted(KeyboardInterrupt):
    """Somebody ended the command by a signal."""

    def __init__(self, number: int) -> None:
        """Take the signal."""
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """While it is entered, SIGTERM and SIGHUP raise where Ctrl-C would.

    A signal that is ignored, as SIGHUP under `nohup`, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def farewell(error: KeyboardInterrupt, text: str) -> typer.Exit:
    """Say the last words and return the exit to raise, whose code names the signal."""
    # After SIGHUP there may be no terminal left to write to.
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)
    return typer.Exit(exit_codes.SIGNALLED + getattr(error, "number", signal.SIGINT))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)
