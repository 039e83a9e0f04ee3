"""The live page: a web server that shows what records say, and changes nothing.

It knows sheets of tables, plots and words, all of them plain text, and the `Records` that draw
them up. It does not know what a run, a budget or an audit log is, so it shows what the command
line shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode


@dataclass(frozen=True)
class Cell:
    """A text, and where it leads.

    Attributes:
        text: Shown as it is; whatever is in it is never markup.
        path: A page of this server, None for none.
        query: What that page is asked.
    """

    text: str
    path: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def href(self) -> str | None:
        """The address of what it leads to."""
        if self.path is None:
            return None
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


Row = Sequence[Cell | str | int | float | None]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; without rows, what is said in its place.

    Attributes:
        caption: What it holds.
        columns: The headings.
        rows: From the top.
        empty: What an empty one means.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    empty: str = "nothing so far"


@dataclass(frozen=True)
class Point:
    """One point of a plot.

    Attributes:
        x: Across.
        y: Up, from 0 to 1.
        label: What it is, in words.
    """

    x: float
    y: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Shares against a quantity, one point a round.

    Attributes:
        title: What it shows.
        across: What the horizontal axis is.
        up: What the vertical axis is.
        points: In order.
        absent: What is said where there is no point.
    """

    title: str
    across: str
    up: str
    points: Sequence[Point]
    absent: str


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a search.

    Attributes:
        name: How the address calls it.
        label: How people do.
        value: What stands in it.
        hint: An example.
    """

    name: str
    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One page.

    Attributes:
        title: What it is of.
        lead: The most important sentence.
        warnings: What must be known before any number is read.
        blocks: Tables and plots, from the top.
        notes: What to know beside them.
        search: Fields of a form that asks the page anew; none without one.
        links: To more of the same.
        fails: Whether it tells of something wrong.
    """

    title: str
    lead: str = ""
    warnings: Sequence[str] = ()
    blocks: Sequence[Plot | Table] = ()
    notes: Sequence[str] = ()
    search: Sequence[Field] = ()
    links: Sequence[Cell] = ()
    fails: bool = False


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A number for a monitoring system.

    Attributes:
        name: In Prometheus's form.
        help: What it is.
        labels: Names of what tells its values apart.
        values: By these labels.
    """

    name: str
    help: str
    labels: Sequence[str]
    values: Sequence[tuple[Sequence[str], float]]


class Records(Protocol):
    """Who draws sheets up; every call reads anew, and holds nothing open afterwards."""

    def runs(self, text: str, page: int) -> Sheet:
        """Return the runs whose id or name contains a text, a page of them, newest first."""

    def run(self, run_id: str) -> Sheet:
        """Return all of one run."""

    def clients(self) -> Sheet:
        """Return who is connected."""

    def audit(self, asked: Mapping[str, str]) -> Sheet:
        """Return the audit log's entries that meet conditions."""

    def verified(self) -> Sheet:
        """Check every record that there is."""

    def gauges(self) -> Sequence[Gauge]:
        """Return the newest runs' numbers, without the name of any client."""

    def stamp(self) -> str:
        """Return a text that is another one whenever something was written."""
