"""How things are printed: JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table


def print_json(value: Any) -> None:
    """Strict JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def printable(value: object) -> str:
    """A value as text in which nothing moves a terminal's cursor or starts a line of its own.

    Names and texts of a run may come from a file that somebody else wrote.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def console(*, error: bool = False) -> Console:
    """Where people read; wide enough for a report even if the terminal's width is unknown."""
    # File names and details are shown as they are, also where they look like markup.
    plain = Console(stderr=error, highlight=False, markup=False, emoji=False)
    if not plain.is_terminal:
        plain.width = 120
    return plain


def progress_bar(out: Console, *more: TextColumn) -> Progress:
    """A bar that goes when it is done, and is not there where nobody looks at a terminal."""
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
        """Takes columns beside the bar's own."""
        self._error = console(error=True)
        self._progress = progress_bar(self._error, *more)

    def __enter__(self) -> Self:
        """Shows the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the bar."""
        self._progress.stop()


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of text; numbers to the right."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else printable(value) for value in row))
    return shown


def fraction(value: float | None) -> str:
    """An accuracy in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"


def epsilon(value: float | str | None) -> str:
    """An epsilon, rounded up so that no less is stated than was spent; infinity as inf."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def size(value: int | None) -> str:
    """Bytes, in decimal units."""
    if value is None:
        return "-"
    return f"{value} B" if value < 1000 else f"{value / 1000:.1f} kB"
