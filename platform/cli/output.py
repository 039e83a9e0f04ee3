"""How commands print: JSON for machines, tables for people."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Self

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from platform.cli.command_line import ALL
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
SCREEN: Final = 25
"""Lines that a command prints without `--all`."""
EVERY: Final = 10.0
"""Seconds between two lines of progress without a terminal."""
Row = tuple[str, ...]


def print_json(value: Any) -> None:
    """Print strict JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


class Whole(str):
    """A line that is never folded, such as a path that people copy."""


class _Plain(Console):
    """Shows text as it is, even if it looks like markup, and escapes control characters."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print texts, of one line or several, wrapped between words unless `soft_wrap` is set."""
        shown = []
        for item in objects:
            if isinstance(item, str):
                lines = _lines(item)
                if not soft_wrap:
                    lines = "\n".join(p for line in lines.split("\n") for p in self._wrapped(line))
                shown.append(lines)
            else:
                shown.append(item)
        super().print(*shown, soft_wrap=soft_wrap, **options)

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
    """Return a console for people: as wide as their terminal or COLUMNS, else 80 columns."""
    plain = _Plain(stderr=error, file=file, highlight=False, markup=False, emoji=False)
    if not plain.is_terminal:
        plain.width = shutil.get_terminal_size().columns
    return plain


def shows_all() -> bool:
    """Whether the command line asks for `--all`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(ALL))


def answer(document: Any, *said: Said | Iterable[Said], as_json: bool) -> None:
    """Print what a command answers: a document under `--json`, else lines and tables for people.

    Lines may come from generators, which do not begin under `--json`. Of many lines the first are
    printed, unless the command line asks for all.
    """
    if as_json:
        print_json(document)
        return
    out = console()
    with out.capture() as captured:
        for part in said:
            for one in [part] if isinstance(part, str | Sheet) else part:
                out.print(one, soft_wrap=isinstance(one, Whole))
    lines = captured.get().split("\n")[:-1]
    if len(lines) > SCREEN and not shows_all():
        more = len(lines) - SCREEN + 1
        lines[SCREEN - 1 :] = [f"... {more} more lines: --all"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def progress_bar(out: Console) -> Progress:
    """Return a bar that goes when it is done; without a terminal there is no bar."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=out,
        transient=True,
        # Otherwise, if only stderr is a terminal, lines for stdout would land on stderr.
        redirect_stdout=False,
        disable=not out.is_terminal,
    )


class WithBar:
    """Shows a bar on stderr while it is entered, and lines on stdout."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet` leaves stdout to JSON."""
        self._error, self._out, self._quiet = console(error=True), console(), quiet
        self._progress = progress_bar(self._error)
        self._due = time.monotonic() + EVERY

    def beat(self, text: str) -> None:
        """Say where the work is on stderr if there is no bar, at most once in `EVERY` seconds."""
        now = time.monotonic()
        if not self._quiet and not self._error.is_terminal and now >= self._due:
            self._due = now + EVERY
            self._error.print(text)

    def tell(self, text: str) -> None:
        """Print a line, unless stdout is left to JSON."""
        if not self._quiet:
            # Through the bar if both share a screen, so that neither overwrites the other.
            shared = self._out.is_terminal and self._error.is_terminal
            (self._error if shared else self._out).print(text)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Remove the bar."""
        self._progress.stop()


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
    """Return a table of text; numbers to the right."""
    return Sheet(
        None if title is None else _lines(title),
        tuple(map(printable, columns)),
        tuple(tuple("" if cell is None else _lines(str(cell)) for cell in row) for row in rows),
    )


def brief(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
    """Return a table of names and what they are; `--all` adds the other columns."""
    count = len(columns) if shows_all() else 2
    return table(None, columns[:count], [row[:count] for row in rows])


def fraction(value: float | None) -> str:
    """Return an accuracy in percent."""
    return "-" if value is None else f"{100 * value:.1f}%"


def epsilon(value: float | str | None) -> str:
    """Return an epsilon, rounded up so that it states no less than was spent; infinity as inf."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def rounded_down(left: float | None) -> str:
    """Return the rest of a budget, rounded down so that it states no more than there is."""
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
    first above the others, as a name of thirty letters takes much of a line; the last below the
    others, if it holds sentences; both; and every value beside its column's name. Only a word that
    is longer than a line is cut.
    """

    title: str | None
    columns: Row
    rows: tuple[Row, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines, which are no longer than the room."""
        rule = "-" if options.ascii_only else "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
        for line in self._lines(console, options.max_width, rule):
            line.no_wrap, line.overflow = True, "ignore"
            line.rstrip()
            yield line

    def _lines(self, console: Console, room: int, rule: str) -> Iterator[Text]:
        if self.title is not None:
            yield from Text(self.title, style="italic").wrap(console, room, overflow="fold")
        shape = shape_of((self.columns, *self.rows), room)
        if shape is None:
            # Every value beside its column's name.
            width = min(_longest(self.columns), max(room // 2 - len(GAP), 1))
            pair = Shape(0, 0, [width, max(room - width - len(GAP), 1)])
            yield Text(rule * room, style="dim")
            for row in self.rows:
                for one in zip(self.columns, row, strict=True):
                    yield from _in_shape(one, pair, console, room=room, to_right=[False, False])
                yield Text(rule * room, style="dim")
            return
        columns = list(zip(*(shape.middle(row) for row in self.rows), strict=True))
        # Columns of numbers stand to the right.
        right = [
            any(column) and all(NUMBER.fullmatch(text) for text in column) for column in columns
        ] or [False] * len(shape.widths)
        yield from _in_shape(self.columns, shape, console, room=room, to_right=right, style="bold")
        rules = [rule * width for width in shape.widths]
        is_plain = not shape.above and not shape.below
        yield Text(GAP.join(rules) if is_plain else rule * room, style="dim")
        for row in self.rows:
            yield from _in_shape(row, shape, console, room=room, to_right=right)


Said = str | Sheet


@dataclass(frozen=True)
class Shape:
    """How rows are laid out: 0 or 1 columns above and below the others, and the others' widths."""

    above: int
    below: int
    widths: list[int]

    def middle(self, row: Row) -> Row:
        """Return the texts that stand side by side."""
        return row[self.above : len(row) - self.below]


def shape_of(rows: Sequence[Row], room: int) -> Shape | None:
    """Return the first shape in which no word is cut; the columns' names are the first row."""
    count = len(rows[0])
    is_long = max(_longest(row[-1].split("\n")) for row in rows) > LONG
    one_off = [(0, 1), (1, 0)] if is_long else [(1, 0), (0, 1)]
    for above, below in [(0, 0), *one_off, (1, 1)]:
        if above + below and count < 4:
            continue
        middles = [row[above : count - below] for row in rows]
        if (widths := fitting(middles, room - len(INDENT) * above)) is not None:
            return Shape(above, below, widths)
    return None


def fitting(rows: Sequence[Row], room: int) -> list[int] | None:
    """Return widths of the columns at which all fit and no word is cut; None if there are none."""
    columns = list(zip(*rows, strict=True))
    widths = [max(_longest(text.split("\n")) for text in column) for column in columns]
    # A column is as wide as its longest word, and wider if it holds sentences.
    least = [
        max(
            max(_longest(text.split()) for text in column),
            min(max((_longest(text.split("\n")) for text in column[1:]), default=0), ROOMY),
        )
        for column in columns
    ]
    room -= len(GAP) * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        loose = [index for index, width in enumerate(widths) if width > least[index]]
        widths[max(loose, key=widths.__getitem__)] -= 1
    return widths


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
    wrapped = [
        _wrapped(cell, console, width) for cell, width in zip(cells, shape.widths, strict=True)
    ]
    for number in range(max(map(len, wrapped))):
        parts = []
        for lines, width, right in zip(wrapped, shape.widths, to_right, strict=True):
            text = lines[number] if number < len(lines) else ""
            padding = " " * (width - cell_len(text))
            parts.append(f"{padding}{text}" if right else f"{text}{padding}")
        yield Text(f"{indent}{GAP.join(parts)}", style=style)
    indent += INDENT
    for text in below:
        for line in _wrapped(text, console, room - len(indent)) if text else ():
            yield Text(f"{indent}{line}", style=style)


def _wrapped(text: str, console: Console, width: int) -> list[str]:
    if "\n" not in text and cell_len(text) <= width:
        return [text]
    lines = Text(text).wrap(console, max(width, 1), overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]
