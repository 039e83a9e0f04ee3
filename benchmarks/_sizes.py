"""At which size a benchmark runs, and where its results go.

    SMALLEST=FOLDER python benchmarks/NAME.py

runs a benchmark at the smallest size at which its parts are reached. It takes seconds and its
numbers mean nothing; what it would write into the repository goes to the folder, which begins as a
copy of `docs/results/`. `make bench-smallest` runs all of them so, as CI does.
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
    """Return one of two values, by the size at which this process runs."""
    return smallest if SMALLEST else usual


def place(path: Path) -> Path:
    """Return where a file or folder of the repository is written: there, or as a copy."""
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
FEWER: Final = sized(
    (),
    (
        *("rounds=1", "training.local_epochs=null", "training.local_steps=1"),
        *("task.test_per_class=6", "evaluation.every=1"),
    ),
)
"""What makes any run of a configuration short."""
