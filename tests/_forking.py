"""Work in a process of its own, forked from this one: whatever is loaded here is loaded there."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import NoReturn

import torch

BROKEN = 99
"""The exit code of work that raised."""


def forked(work: Callable[[], int]) -> tuple[int, str]:
    """How a child that works ended, its code or minus the signal, and what it printed."""
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            _work(work, printed.fileno())
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        return os.waitstatus_to_exitcode(status), printed.read().decode()


def _work(work: Callable[[], int], printed: int) -> NoReturn:
    code = BROKEN
    try:
        # Coverage is this process's, and what pytest captures as well.
        sys.settrace(None)
        for stream in (1, 2):
            os.dup2(printed, stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
        # The parent's threads, torch's among them, are not in the child.
        torch.set_num_threads(1)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_code(main: Callable[[], object]) -> int:
    """The exit code of a command line."""
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
