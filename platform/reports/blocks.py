"""What a document is made of, without a word about how it looks.

Every text here may hold what somebody else has written, so a renderer escapes all of it. Every
number that follows from records is a `Figure` and says what it rests on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

Place = tuple[int, int, str]
"""Round, attempt and channel."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a number rests on: records that anybody who has them can look up.

    Attributes:
        what: The records and what was done with them, in words.
        run_id: Whose ledger rows; empty where it rests on none.
        places: The rounds, attempts and channels of these rows.
        pseudonyms: The clients of these rows; None for all that have rows at these places.
        entries: Entries of the run's audit log, by their numbers.
        check: A command that shows or checks these records.
    """

    what: str
    run_id: str = ""
    places: tuple[Place, ...] = ()
    pseudonyms: tuple[str, ...] | None = None
    entries: tuple[int, ...] = ()
    check: str = ""


@dataclass(frozen=True)
class Figure:
    """A number that follows from records.

    Attributes:
        text: As people read it.
        value: As machines read it: infinity as "inf", None where there is no number.
        basis: What it rests on.
    """

    text: str
    value: float | str | None
    basis: Basis


@dataclass(frozen=True)
class Link:
    """A place in the same document.

    Attributes:
        text: As people read it.
        anchor: Of the place.
    """

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
    """Terms and what they are."""

    rows: tuple[tuple[str, Words], ...]


@dataclass(frozen=True)
class Table:
    """A table whose first column names its row.

    Attributes:
        caption: What it shows.
        columns: Headings.
        rows: Cells.
        anchors: What each row may be linked by; empty where none is.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...]
    anchors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of a plot, told apart by its dashes, its marks and its name, never by colour alone.

    Attributes:
        label: What it is.
        points: Where it goes, in the plot's own units.
    """

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Lines over rounds.

    Attributes:
        title: What it shows.
        says: What a person sees in it, for those who do not.
        across: What is on the horizontal axis.
        up: What is on the vertical axis.
        lines: At most three.
        limit: A level to be compared with, and what it is; None without.
        percent: Whether the vertical axis is a share.
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
    """A part of a document.

    Attributes:
        anchor: By which it is linked.
        title: Its heading.
        blocks: What is in it.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def words(*pieces: Piece) -> Words:
    """Return a sentence of these pieces."""
    return pieces


def paragraph(*pieces: Piece) -> Paragraph:
    """Return a paragraph of these pieces."""
    return Paragraph(pieces)


def bullets(*items: Piece | Words) -> Bullets:
    """Return a list of these sentences."""
    return Bullets(tuple(item if isinstance(item, tuple) else (item,) for item in items))


def text_of(line: Words) -> str:
    """Return a sentence as plain text."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in line)


_MOST_DIGITS: Final = 12


def epsilon_text(value: float | str | None) -> str:
    """Return an epsilon, rounded up so that no less is stated than was spent."""
    if value is None:
        return "not known"
    if isinstance(value, str) or math.isinf(value):
        return "infinite"
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def left_text(value: float) -> str:
    """Return what is left of a budget, no more than there is."""
    return f"{math.floor(100 * value) / 100:.2f}"


def of_a_hundred(share: float) -> str:
    """Return how many of a hundred, rounded up, with as many digits as keep it from reading 100.

    Args:
        share: From 0 to 1; where it is so near to 1 that twelve digits do not tell, 100.
    """
    hundred = 100.0 * share
    for digits in range(2, _MOST_DIGITS + 1):
        scale = 10**digits
        # Down by the last bit, as 75.00000000000001 is 75.
        rounded = math.ceil(hundred * scale * (1.0 - 4e-16)) / scale
        if rounded < 100.0:
            return f"{rounded:.{digits}f}".rstrip("0").rstrip(".")
    return "100"


def share_text(value: float | None) -> str:
    """Return a share in percent."""
    return "not measured" if value is None else f"{100 * value:.1f}%"


def points_text(value: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * value:+.1f} points"


def ranges(numbers: list[int]) -> str:
    """Return whole numbers in words, runs of them as such: 1 to 3, 5."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found)
