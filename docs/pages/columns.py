"""Build the page of the columns that `platform.results.results` returns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from docs.pages.markdown import table
from platform.results import COLUMNS
from platform.results.frames import RUN

BESIDE = Path(__file__).resolve().parents[1] / "plots.md"


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    beside = os.path.relpath(BESIDE, folder)
    return "\n".join(
        (
            "# Columns of frames\n",
            f"[plots.md]({beside}) shows how to get a frame.\n",
            *(part for per in COLUMNS for part in _part(per)),
        )
    )


def _part(per: str) -> Iterator[str]:
    """Yield the columns of one kind of row; other rows begin with the columns of their run."""
    yield f"## A row a {per}\n"
    begins = "" if per == "run" else f"Each row begins with {', '.join(f'`{n}`' for n in RUN)}.\n"
    yield begins
    rows = [
        (f"`{name}`", kind, meaning)
        for name, (kind, meaning) in COLUMNS[per].items()
        if per == "run" or name not in RUN
    ]
    yield table([("column", "type", "meaning"), *rows])
