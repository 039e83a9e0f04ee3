"""How things are printed: JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from platform.errors import printable as printable


def print_json(value: Any) -> None:
    """Print strict JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


class _Plain(Console):
    """Shows text as it is, also where it looks like markup, and escapes what is no text."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a text may have several lines of its own."""
        shown = (_lines(item) if isinstance(item, str) else item for item in objects)
        super().print(*shown, **options)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def console(*, error: bool = False, file: IO[str] | None = None) -> Console:
    """Return where people read, wide enough for a report even at an unknown width.

    Args:
        error: To stderr instead of stdout.
        file: Into this instead of either.
    """
    plain = _Plain(stderr=error, file=file, highlight=False, markup=False, emoji=False)
    if not plain.is_terminal:
        plain.width = 120
    return plain


def progress_bar(out: Console, *more: TextColumn) -> Progress:
    """Return a bar that goes when it is done, and is not there where nobody looks at a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *more,
        console=out,
        transient=True,
        # Else lines for stdout would land on stderr where only that is a terminal.
        redirect_stdout=False,
        disable=not out.is_terminal,
    )


class WithBar:
    """Something with a bar on stderr, which is there while it is entered."""

    def __init__(self, *more: TextColumn) -> None:
        """Take columns beside the bar's own."""
        self._error = console(error=True)
        self._progress = progress_bar(self._error, *more)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        self._progress.stop()


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table of text; numbers to the right."""
    heading = None if title is None else _lines(title)
    shown = Table(title=heading, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        shown.add_column(printable(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else printable(str(value)) for value in row))
    return shown


def fraction(value: float | None) -> str:
    """Return an accuracy in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"


def epsilon(value: float | str | None) -> str:
    """Return an epsilon, rounded up so that no less is stated than was spent; infinity as inf."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def rounded_down(left: float | None) -> str:
    """Return what is left of a budget, no more than there is."""
    return "-" if left is None else f"{math.floor(100 * left) / 100:.2f}"


def size(value: int | None) -> str:
    """Return bytes, in decimal units."""
    if value is None:
        return "-"
    return f"{value} B" if value < 1000 else f"{value / 1000:.1f} kB"
