"""How things are printed: JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Final, Self

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from platform.cli.sheets import Sheet
from platform.errors import printable as printable

LABEL: Final = re.compile(
    r"(note|warning|WARNING|recognised|forecast): |- |(ok {6}|failed {2})\w+ +| *"
)
"""Beginnings of lines below which the rest of a sentence is indented."""


UNITS: Final = ("kB", "MB", "GB", "TB")


def print_json(value: Any) -> None:
    """Print strict JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


class _Plain(Console):
    """Shows text as it is, also where it looks like markup, and escapes what is no text."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print; a text may have several lines of its own, and is wrapped between its words.

        Args:
            objects: Texts, and what rich can show.
            soft_wrap: Leave lines as they are, however long, as a path that somebody may copy.
            options: Of rich.
        """
        shown = (
            self._fitting(item, is_whole=bool(soft_wrap)) if isinstance(item, str) else item
            for item in objects
        )
        super().print(*shown, soft_wrap=soft_wrap, **options)

    def _fitting(self, text: str, *, is_whole: bool) -> str:
        lines = _lines(text)
        if is_whole:
            return lines
        return "\n".join(part for line in lines.split("\n") for part in self._wrapped(line))

    def _wrapped(self, line: str) -> list[str]:
        found = LABEL.match(line)
        label = "" if found is None else found[0]
        room = self.width - len(label)
        if any(cell_len(word) > room for word in line.split()):
            # A path, say, that has room only from the left.
            label, room = "", self.width
        parts = Text(line.removeprefix(label)).wrap(self, max(room, 1), overflow="fold")
        first, *more = [part.plain.rstrip() for part in parts] or [""]
        return [label + first, *(" " * len(label) + part for part in more)]


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def console(*, error: bool = False, file: IO[str] | None = None) -> Console:
    """Return where people read: as wide as their terminal or COLUMNS, else 80 columns.

    Args:
        error: To stderr instead of stdout.
        file: Into this instead of either.
    """
    plain = _Plain(stderr=error, file=file, highlight=False, markup=False, emoji=False)
    if not plain.is_terminal:
        plain.width = shutil.get_terminal_size().columns
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


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
    """Return a table of text; numbers to the right."""
    return Sheet(
        None if title is None else _lines(title),
        tuple(map(printable, columns)),
        tuple(tuple("" if cell is None else _lines(str(cell)) for cell in row) for row in rows),
    )


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
    """Return bytes, in decimal units and at most three digits."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value} B"
    power = 1
    while value >= 999.5 * 1000**power and power < len(UNITS):
        power += 1
    shown = value / 1000**power
    return f"{shown:.{0 if shown >= 99.95 else 1}f} {UNITS[power - 1]}"
