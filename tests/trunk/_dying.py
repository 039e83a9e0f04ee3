"""Runs command lines that die at a chosen call, each in a process of its own.

`python _dying.py PLAN` reads a list of `{"target", "nth", "after", "signal", "arguments", "log"}`,
and prints how each process ended. It imports everything once and forks, so a death costs no import.
The signal is a real one that the process sends to itself in the middle of the chosen call.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

PRELOADED = ("platform.cli.running", "methods.clip.adapter", "methods.pfedmoap", "privacy.training")


def arm(plan: dict[str, Any]) -> None:
    """Lets the nth call of the target raise the signal, before it works or after."""
    module, _, path = plan["target"].partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        last = next(calls) == plan["nth"]
        if last and not plan["after"]:
            os.kill(os.getpid(), plan["signal"])
        result = original(*args, **kwargs)
        if last and plan["after"]:
            os.kill(os.getpid(), plan["signal"])
        return result

    setattr(owner, name, wrapped)


def die(plan: dict[str, Any]) -> None:
    """Runs the command line in this process, its output in a file."""
    log = os.open(plan["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from platform.cli.app import main

    # A shell starts background jobs with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN if number in plan.get("ignored", ()) else signal.SIG_DFL
        )
    arm(plan)
    sys.argv = ["sotto", *plan["arguments"]]
    code = 99
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(plan: dict[str, Any]) -> int:
    """How the process ended: its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        die(plan)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    plans = json.loads(Path(sys.argv[1]).read_text())
    from tests._sharing import load_once, one_shipped_model

    load_once("sotto-tiny")
    with one_shipped_model():
        sys.stdout.write(json.dumps([run(plan) for plan in plans]))
