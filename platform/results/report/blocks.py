"""The parts of a document: sentences, lists, tables and plots, without their looks.

Texts may come from outside, so a renderer escapes all of them. Every number that follows from
records is a `Figure`, which names the records that the number rests on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from platform.rounds.documents import json_number

Place = tuple[int, int, str]
"""Round, attempt and channel."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The records that a number follows from.

    Attributes:
        what: The records, and how the number follows from them, in words.
        run_id: The run of these records; empty if the number rests on no run.
        places: Rounds, attempts and channels of the ledger rows.
        pseudonyms: The clients of these rows; None for all clients with rows at these places.
        entries: Numbers of entries in the run's audit log.
        check: A command that shows or checks the records.
    """

    what: str
    run_id: str = ""
    places: tuple[Place, ...] = ()
    pseudonyms: tuple[str, ...] | None = None
    entries: tuple[int, ...] = ()
    check: str = ""

    def epsilon(self, value: float | None) -> Figure:
        """Return an epsilon that rests on these records."""
        stated = None if value is None or math.isnan(value) else json_number(value)
        return Figure(epsilon_text(value), stated, self)

    def left(self, value: float) -> Figure:
        """Return the rest of a budget, rounded down: never more than is left."""
        return Figure(f"{math.floor(100 * value) / 100:.2f}", value, self)

    def count(self, value: int) -> Figure:
        """Return a whole number."""
        return Figure(str(value), value, self)

    def share(self, value: float) -> Figure:
        """Return a share in percent."""
        return Figure(share_text(value), value, self)


@dataclass(frozen=True)
class Figure:
    """A number as people and machines read it (infinity is "inf"), and the records behind it."""

    text: str
    value: float | str | None
    basis: Basis


@dataclass(frozen=True)
class Link:
    """A link to an anchor in the same document."""

    text: str
    anchor: str


Piece = str | Figure | Link
Words = tuple[Piece, ...]
"""A sentence, or a cell of a table, in pieces."""


@dataclass(frozen=True)
class Paragraph:
    """Sentences."""

    words: Words


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: tuple[Words, ...]


@dataclass(frozen=True)
class Facts:
    """Terms with their values."""

    rows: tuple[tuple[str, Words], ...]


@dataclass(frozen=True)
class Table:
    """A table whose first column names its row; the rows may have anchors."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...]
    anchors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of a plot: its name, its points in the plot's units, and a note on each, if any."""

    label: str
    points: tuple[tuple[float, float], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plot:
    """At most three lines over rounds or an amount, and a level to compare with, with its name.

    `says` has the content in words, for people who cannot see the picture.
    """

    title: str
    says: str
    across: str
    up: str
    lines: tuple[Line, ...]
    limit: tuple[float, str] | None = None
    percent: bool = False


Block = Paragraph | Bullets | Facts | Table | Plot


@dataclass(frozen=True)
class Section:
    """A part of a document: the anchor for links, the heading and the content."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def words(said: Piece | Words) -> Words:
    """Return one piece, or several, as a sentence."""
    return said if isinstance(said, tuple) else (said,)


def paragraph(*pieces: Piece) -> Paragraph:
    """Return the pieces as one paragraph."""
    return Paragraph(pieces)


def bullets(*items: Piece | Words) -> Bullets:
    """Return the sentences as a list."""
    return Bullets(tuple(map(words, items)))


def facts(*rows: tuple[str, Piece | Words]) -> Facts:
    """Return terms with their values."""
    return Facts(tuple((term, words(said)) for term, said in rows))


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Piece | Words]],
    anchors: Iterable[str] = (),
) -> Table:
    """Return a table of cells, each one piece or several."""
    cells = tuple(tuple(map(words, row)) for row in rows)
    return Table(caption, tuple(columns), cells, tuple(anchors))


def text_of(line: Words) -> str:
    """Return a sentence as plain text."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in line)


def epsilon_text(value: float | str | None) -> str:
    """Return an epsilon, rounded up: the report never states less than was spent."""
    if value is None:
        return "not known"
    if isinstance(value, str) or math.isinf(value):
        return "infinite"
    # Without the small term, a run that was calibrated to 8 would read 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def of_a_hundred(share: float) -> str:
    """Return a share from 0 to 1 as a number of 100, rounded up."""
    hundred = 100.0 * share
    # As many digits as a share below 1 needs to read less than 100.
    for digits in range(1, 13):
        scale = 10**digits
        # Without the last factor, 75.00000000000001 would read 75.01.
        rounded = math.ceil(hundred * scale * (1.0 - 4e-16)) / scale
        if rounded < 100.0:
            return f"{rounded:.{digits}f}".rstrip("0").rstrip(".")
    return "100"


def share_text(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.1f}%"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in words, such as "1 to 3, 5"."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found)
