"""Work in a process of its own, forked from this one: whatever is loaded here is loaded there.

Work in a checkout, the repository or a copy of it, finds torch and its like loaded and nothing of
the repository: it imports that checkout's own modules.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
UNPLUGGED = ("cacheprovider", "xdist", "cov")
BROKEN = 99
"""The exit code of work that raised."""


def forked(work: Callable[[], int]) -> tuple[int, str]:
    """How a child that works ended, its code or minus the signal, and what it printed."""
    with tempfile.TemporaryFile() as printed:
        code = ended(started(work, printed.fileno()))
        printed.seek(0)
        return code, printed.read().decode()


def started(work: Callable[[], int], printed: int) -> int:
    """The id of a child that works beside this process and prints to an open file."""
    child = os.fork()
    if child == 0:
        _work(work, printed)
    return child


def ended(child: int) -> int:
    """Waits for a child: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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


def run_tests(checkout: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of `python -m pytest` in a checkout, and what it printed."""
    without = [word for name in UNPLUGGED for word in ("-p", f"no:{name}")]
    return in_checkout(checkout, lambda: int(pytest.main(["-q", *without, *arguments])))


def in_checkout(checkout: Path, work: Callable[[], int]) -> tuple[int, str]:
    """How a child that works in a checkout ended, and what it printed."""

    def there() -> int:
        os.chdir(checkout)
        # What one test of a copy compiles, the next one finds.
        sys.dont_write_bytecode = False
        _forget_the_repository(checkout)
        return work()

    return forked(there)


def _forget_the_repository(checkout: Path) -> None:
    """Lets this process import whatever is the repository's from a checkout, tests included."""
    packages = (path.name for path in ROOT.iterdir() if path.is_dir())
    own = {"conftest", *packages}
    # Plug-ins of a folder, too: their modules hold on to this process's classes.
    known = [name for name in sys.modules if name.partition(".")[0] in own]
    for name in [*known, *(name for name in sys.modules if name.startswith("sotto_"))]:
        del sys.modules[name]
    sys.path[:] = [str(checkout), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    # The parent's rewriting of asserts knows the parent's session.
    hook = "AssertionRewritingHook"
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != hook]
    importlib.invalidate_caches()
