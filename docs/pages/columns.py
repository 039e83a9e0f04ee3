"""Build the page of the columns that `platform.results.results` returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs.pages.markdown import begun, table
from platform.results import COLUMNS
from platform.results.frames import RUN

BESIDE = Path(__file__).resolve().parents[1] / "plots.md"


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    return "\n".join(
        (
            begun("Columns of frames", BESIDE, "shows how to get a frame.", folder),
            *(part for per in COLUMNS for part in _part(per)),
        )
    )


def _part(per: str) -> Iterator[str]:
    """Yield the columns of one kind of row; other rows begin with the columns of their run."""
    yield f"## A row a {per}\n"
    if per != "run":
        yield f"Each row begins with {', '.join(f'`{n}`' for n in RUN)}.\n"
    rows = [
        (f"`{name}`", kind, meaning)
        for name, (kind, meaning) in COLUMNS[per].items()
        if per == "run" or name not in RUN
    ]
    yield table([("column", "type", "meaning"), *rows])
