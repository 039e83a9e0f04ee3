"""What a document is made of, without a word about how it looks.

Every text here may hold what somebody else has written, so a renderer escapes all of it. Every
number that follows from records is a `Figure` and says what it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass

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
