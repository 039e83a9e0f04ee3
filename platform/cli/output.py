"""How things are printed: JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Final, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from platform.errors import printable as printable

LABEL: Final = re.compile(
    r"(note|warning|WARNING|recognised|forecast): |- |(ok {6}|failed {2})\w+ +| *"
)
"""Beginnings of lines below which the rest of a sentence is indented."""


UNITS: Final = ("kB", "MB", "GB", "TB")

GAP: Final = "  "
"""Between two columns."""
INDENT: Final = "  "
"""Before what stands below the name of its row."""
ROOMY: Final = 24
"""Cells that a column of sentences needs to be read at ease."""
LONG: Final = 40
"""Cells from which a last column is better off below its row."""
NUMBER: Final = re.compile(r"[-+]?[0-9][0-9.,]*%?|-|n/a|inf|")
Row = tuple[str, ...]


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


@dataclass(frozen=True)
class Sheet:
    """A table that is laid out when it is printed; no word is cut while there is room for it.

    Five shapes are tried, from one line a row to one line a value: all columns side by side; the
    first above the others, as a name of thirty letters takes much of a line; the last below them,
    where it holds sentences; both; and every value beside its column's name. Only a word that is
    longer than a line by itself is cut.

    Attributes:
        title: Above it, None for none.
        columns: Their names.
        rows: One text a column.
    """

    title: str | None
    columns: Row
    rows: tuple[Row, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines, no longer than there is room for."""
        rule = "-" if options.ascii_only else "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
        for line in _sheet_lines(self, console, options.max_width, rule):
            line.no_wrap, line.overflow = True, "ignore"
            line.rstrip()
            yield line


def _sheet_lines(sheet: Sheet, console: Console, room: int, rule: str) -> Iterator[Text]:
    if sheet.title is not None:
        yield from Text(sheet.title, style="italic").wrap(console, room, overflow="fold")
    shape = shape_of((sheet.columns, *sheet.rows), room)
    if shape is None:
        yield from _stacked(sheet, console, room, rule)
        return
    to_right = _to_right([shape.middle(row) for row in sheet.rows], shape.widths)
    yield from _in_shape(sheet.columns, shape, console, room=room, to_right=to_right, style="bold")
    if shape.is_plain:
        yield Text(GAP.join(rule * width for width in shape.widths), style="dim")
    else:
        yield Text(rule * room, style="dim")
    for row in sheet.rows:
        yield from _in_shape(row, shape, console, room=room, to_right=to_right)


@dataclass(frozen=True)
class Shape:
    """How the rows of a table are laid out.

    Attributes:
        above: Columns that stand above the others: none, or the first.
        below: Columns that stand below them: none, or the last.
        widths: Of the others, in cells.
    """

    above: int
    below: int
    widths: list[int]

    @property
    def is_plain(self) -> bool:
        """Whether all columns stand side by side."""
        return not self.above and not self.below

    def middle(self, row: Row) -> Row:
        """Return the texts that stand side by side."""
        return row[self.above : len(row) - self.below]


def shape_of(rows: Sequence[Row], room: int) -> Shape | None:
    """Return the first shape in which no word is cut, None if there is none.

    Args:
        rows: The texts, the columns' names first.
        room: Cells of a line.
    """
    count = len(rows[0])
    is_long = max(_longest(row[-1].split("\n")) for row in rows) > LONG
    one_off = [(0, 1), (1, 0)] if is_long else [(1, 0), (0, 1)]
    for above, below in [(0, 0), *one_off, (1, 1)]:
        if above + below and count < 4:
            continue
        shape = Shape(above, below, [])
        left = room - len(INDENT) * above
        widths = fitting([shape.middle(row) for row in rows], left, is_pairs=count == 2)
        if widths is not None:
            return Shape(above, below, widths)
    return None


def fitting(rows: Sequence[Row], room: int, *, is_pairs: bool = False) -> list[int] | None:
    """Return how wide each column may be so that all fit and no word is cut; None if none may.

    Args:
        rows: The texts, the columns' names first.
        room: Cells of a line.
        is_pairs: Of names and values, where a value with a longer word than there is room for
            beside its name stands below it.
    """
    columns = list(zip(*rows, strict=True))
    wanted = [max(_longest(text.split("\n")) for text in column) for column in columns]
    least = [_least(column) for column in columns]
    room -= len(GAP) * (len(columns) - 1)
    if is_pairs:
        least[1] = min(least[1], room - max(least[0], min(wanted[0], room // 2)))
    if sum(least) > room:
        return None
    widths = list(wanted)
    while sum(widths) > room:
        loose = [index for index, width in enumerate(widths) if width > least[index]]
        widths[max(loose, key=widths.__getitem__)] -= 1
    return widths


def _least(column: Sequence[str]) -> int:
    """Return the cells of a column's longest word, and more where there are sentences."""
    longest = max(_longest(text.split()) for text in column)
    wanted = max((_longest(text.split("\n")) for text in column[1:]), default=0)
    return max(longest, min(wanted, ROOMY))


def _longest(texts: Sequence[str]) -> int:
    return max((cell_len(text) for text in texts), default=0)


def _in_shape(
    row: Row,
    shape: Shape,
    console: Console,
    *,
    room: int,
    to_right: Sequence[bool],
    style: str = "",
) -> Iterator[Text]:
    for name in row[: shape.above]:
        yield from (Text(line, style=style) for line in _wrapped(name, console, room))
    indent, cells, below = INDENT * shape.above, shape.middle(row), row[len(row) - shape.below :]
    if len(row) == 2 and _longest(cells[1].split()) > shape.widths[1]:
        cells, below = (cells[0], ""), (cells[1],)
    yield from _row(cells, console, shape.widths, to_right, indent=indent, style=style)
    indent += INDENT
    for text in below:
        for line in _wrapped(text, console, room - len(indent)) if text else ():
            yield Text(f"{indent}{line}", style=style)


def _to_right(rows: Sequence[Row], widths: Sequence[int]) -> list[bool]:
    """Return which columns hold numbers only."""
    return [_is_numeric(column) for column in zip(*rows, strict=True)] or [False] * len(widths)


def _stacked(sheet: Sheet, console: Console, room: int, rule: str) -> Iterator[Text]:
    width = min(_longest(sheet.columns), max(room // 2 - len(GAP), 1))
    widths = [width, max(room - width - len(GAP), 1)]
    yield Text(rule * room, style="dim")
    pair = Shape(0, 0, widths)
    for row in sheet.rows:
        for one in zip(sheet.columns, row, strict=True):
            yield from _in_shape(one, pair, console, room=room, to_right=[False, False])
        yield Text(rule * room, style="dim")


def _row(
    cells: Row,
    console: Console,
    widths: Sequence[int],
    to_right: Sequence[bool],
    *,
    indent: str = "",
    style: str = "",
) -> Iterator[Text]:
    wrapped = [_wrapped(cell, console, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        parts = []
        for lines, width, right in zip(wrapped, widths, to_right, strict=True):
            text = lines[number] if number < len(lines) else ""
            padding = " " * (width - cell_len(text))
            parts.append(f"{padding}{text}" if right else f"{text}{padding}")
        yield Text(f"{indent}{GAP.join(parts)}", style=style)


def _wrapped(text: str, console: Console, width: int) -> list[str]:
    if "\n" not in text and cell_len(text) <= width:
        return [text]
    lines = Text(text).wrap(console, max(width, 1), overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]


def _is_numeric(column: Sequence[str]) -> bool:
    return any(column) and all(NUMBER.fullmatch(text) for text in column)
