"""Command lines that die at a chosen call, each in a process of its own, forked from this one."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from platform.cli.app import main
from tests._forking import exit_code, forked


@dataclass(frozen=True)
class Plan:
    """Where a process ends: it sends itself a real signal at the nth call of `MODULE:NAME`.

    It ignores some signals from the start, as `nohup` has it; in the call `again` Ctrl-C follows.
    """

    target: str
    nth: int
    after: bool
    number: int
    ignored: Sequence[int] = ()
    again: str | None = None


def arm(plan: Plan) -> None:
    module, _, path = plan.target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == plan.nth
        if last and not plan.after:
            os.kill(os.getpid(), plan.number)
        result = original(*args, **kwargs)
        if last and plan.after:
            os.kill(os.getpid(), plan.number)
        return result

    setattr(owner, name, wrapped)


def die(plan: Plan, *arguments: str) -> tuple[int, str]:
    """How the command line ended: its exit code or minus the signal, and what it printed."""

    def work() -> int:
        # A shell starts background jobs with Ctrl-C ignored, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN if number in plan.ignored else signal.SIG_DFL)
        arm(plan)
        if plan.again is not None:
            arm(Plan(plan.again, 1, False, signal.SIGINT))
        sys.argv = ["sotto", *arguments]
        return exit_code(main)

    return forked(work)
