"""The size at which a benchmark runs, and the folder for its results.

    SMALLEST=FOLDER python benchmarks/NAME.py

runs a benchmark at the smallest size that still reaches all its parts. This takes seconds, and the
numbers mean nothing. Files that would go into the repository go to the folder instead, which starts
as a copy of `docs/results/`. `make bench-smallest` runs all benchmarks this way, as CI does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, TypeVar

Value = TypeVar("Value")
ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = os.environ.get("SMALLEST", "")
SMALLEST: Final = bool(FOLDER)


def sized(usual: Value, smallest: Value) -> Value:
    """Return one of two values, depending on the size at which this process runs."""
    return smallest if SMALLEST else usual


def place(path: Path) -> Path:
    """Return where to write a file or folder of the repository: there, or into the copy."""
    if not SMALLEST:
        return path
    copy = Path(FOLDER).resolve() / path.relative_to(ROOT)
    if path.is_dir() and not copy.exists():
        shutil.copytree(path, copy)
    elif not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            shutil.copy2(path, copy)
    return copy


RESULTS: Final = place(ROOT / "docs" / "results")
START: Final = sized("spawn", "fork")
"""How processes start. A forked one need not load torch again; a spawned one shares no memory."""
FEWER: Final = sized(
    (),
    (
        *("rounds=1", "training.local_epochs=null", "training.local_steps=1"),
        *("task.test_per_class=6", "evaluation.every=1"),
    ),
)
"""Settings that make any configuration's run short."""
