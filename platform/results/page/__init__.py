"""The live page: a web server that shows records and changes nothing.

The server knows sheets of tables, plots and plain text, and the `Records` that make them. It does
not know runs, budgets or audit logs, so it shows the same as the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode

from platform.results.report.blocks import Plot


@dataclass(frozen=True)
class Cell:
    """A text that may be a link, to a path and query of this server; nothing becomes markup."""

    text: str
    path: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def href(self) -> str | None:
        """Address of the linked page."""
        if self.path is None:
            return None
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


Row = Sequence[Cell | str | int | float | None]


@dataclass(frozen=True)
class Table:
    """A table, or a text (`empty`) if it has no rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    empty: str = "nothing so far"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a search: its name in the address, for people, its value, and an example."""

    name: str
    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One page.

    Attributes:
        lead: The most important sentence.
        warnings: Warnings to read before any number.
        search: Fields of the search form; empty without a form.
        fails: Whether the sheet reports a fault.
    """

    title: str
    lead: str = ""
    warnings: Sequence[str] = ()
    blocks: Sequence[Plot | Table] = ()
    notes: Sequence[str] = ()
    search: Sequence[Field] = ()
    links: Sequence[Cell] = ()
    fails: bool = False


@dataclass(frozen=True)
class Gauge:
    """Numbers for a monitoring system (Prometheus), each with its values of the labels."""

    name: str
    help: str
    labels: Sequence[str]
    values: Sequence[tuple[Sequence[str], float]]


class Records(Protocol):
    """Makes sheets. Every call reads the records again and keeps nothing open afterwards."""

    def runs(self, text: str, page: int) -> Sheet:
        """Return one page of the runs whose id or name contains a text, newest first."""

    def run(self, run_id: str) -> Sheet:
        """Return one run."""

    def clients(self) -> Sheet:
        """Return the connected clients."""

    def audit(self, asked: Mapping[str, str]) -> Sheet:
        """Return the entries of the audit log that fit a search."""

    def verified(self) -> Sheet:
        """Check all records."""

    def gauges(self) -> Sequence[Gauge]:
        """Return numbers of the newest runs; they name no client."""

    def stamp(self) -> str:
        """Return a text that changes with every write to the records."""
