"""The page of what engines cost, made from all its tables; each benchmark rewrites one table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from _scores import provenance
from _sizes import RESULTS


@dataclass(frozen=True)
class Table:
    """One table of the page.

    Attributes:
        path: The file of its rows.
        fields: Its columns.
        text: The text above it.
        command: The command that writes it.
    """

    path: Path
    fields: tuple[str, ...]
    text: tuple[str, ...]
    command: str


EXCHANGES = Table(
    RESULTS / "federation.csv",
    ("engine", "clients", "bytes", "median", "slowest"),
    (
        "# What an exchange costs on each engine",
        "",
        "In one exchange each client gets a message and answers it, through hub, relay or engine",
        "and one socket and process per client, all on one machine of two cores. `local` is our",
        "relay without an engine. A masked round has four exchanges, or five against an active",
        "server; with keys made ahead (`docs/adr/0022-one-execution-per-attempt.md`) one less.",
    ),
    "benchmarks/relay_speed.py --engine ENGINE",
)
ROUNDS = Table(
    RESULTS / "federation-rounds.csv",
    ("engine", "clients", "part", "median", "slowest", "rounds"),
    (
        "# What a private round costs on each engine",
        "",
        "A whole round except training: 65,536 values under noise and masks, against an active",
        "adversary. Each client is a process with its own store and key; engines use mutual TLS.",
        "Each part but the last two is a wait from the first message of that stage to the last",
        "answer, and includes clients' work. `coordinator` is the rest: ledger, commits, the sum.",
        "`flower` is our loop on Flower's Fleet interface; `nvflare` is FLARE with its scheme",
        "`tcp` under mutual TLS. Medians over the rounds from the second one on, in seconds.",
    ),
    "benchmarks/round_over_engines.py --engine ENGINE",
)
OWN = Table(
    RESULTS / "federation-own.csv",
    ("engine", "what", "clients", "values", "median", "slowest", "rounds"),
    (
        "# What a round of the engines' own aggregation costs",
        "",
        "As many clients and values, but aggregated by the engines' own code, as they ship it.",
        "No client trains; each returns fixed values. The engines sum without noise, ledger or",
        "limits that clients set, and FedAvg sums without masks too. So the rounds above do more:",
        "these are timings and nothing else. `flower`: SuperLink and SuperNodes with TLS and node",
        "keys, one process per message, a poll for answers every 3 s; SecAgg+ with one share per",
        "client, of which seven tenths are needed. `nvflare`: as above; clients poll for tasks at",
        "intervals. Medians over all rounds but the first, in seconds. Other work kept both",
        "processors busy meanwhile (a load of ten to twenty-five), so the engines' times are",
        "upper bounds.",
    ),
    "benchmarks/engines_own.py --engine ENGINE",
)
TABLES = (EXCHANGES, ROUNDS, OWN)


def kept_but(table: Table, engine: str) -> list[dict[str, str]]:
    """Rows of all other engines, from earlier measurements."""
    if not table.path.exists():
        return []
    with table.path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["engine"] != engine]


def write_rows(table: Table, rows: list[dict[str, str]]) -> None:
    """Write a table's rows."""
    with table.path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_page() -> None:
    """Write the page from all measurements so far."""
    lines: list[str] = []
    for table in TABLES:
        rows = kept_but(table, "")
        if rows:
            lines += [*table.text, "", *markdown(table, rows), ""]
            lines += [f"Written by `python {table.command}`.", ""]
    lines += provenance()
    EXCHANGES.path.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


def markdown(table: Table, rows: list[dict[str, str]]) -> list[str]:
    """The rows as a table."""
    units = {"median": "median, s", "slowest": "slowest, s"}
    head = " | ".join(units.get(name, name) for name in table.fields)
    cells = [" | ".join(shown(name, row[name]) for name in table.fields) for row in rows]
    return [f"| {head} |", "|---" * len(table.fields) + "|", *(f"| {each} |" for each in cells)]


def shown(name: str, value: str) -> str:
    """A cell in the form for people."""
    return f"{int(value):,}" if name in ("bytes", "values") else value
