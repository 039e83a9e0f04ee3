"""The page of what engines cost, from all of its tables; each benchmark writes one of them anew."""

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
        path: Where its rows are.
        fields: Its columns.
        text: What stands above it.
        command: What writes it.
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
        "One exchange is a message to every client and all answers back: hub, relay or engine, and",
        "a socket and process a client, all on one machine of two cores. `local` is no engine: our",
        "relay alone. A masked round has four exchanges, or five against an active server; where",
        "keys were made ahead (`docs/adr/0022-one-execution-per-attempt.md`) three, or four.",
    ),
    "benchmarks/relay_speed.py --engine ENGINE",
)
ROUNDS = Table(
    RESULTS / "federation-rounds.csv",
    ("engine", "clients", "part", "median", "slowest", "rounds"),
    (
        "# What a private round costs on each engine",
        "",
        "A whole round beside training: 65,536 values under noise and masks, against an active",
        "adversary, each client a process with its own store and key, mutual TLS on the engines.",
        "Each part but the last two is a wait: from the first message of that stage to the last",
        "answer, clients' work included. `coordinator` is the rest: ledger, commits, the sum.",
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
        "As many clients and values, with what the engines bring themselves and as they ship it;",
        "nothing is trained, clients give back fixed values. Theirs are sums without noise, ledger",
        "or limits that clients set, and FedAvg's without masks too, so the rounds above do more:",
        "these are timings and nothing else. `flower`: SuperLink and SuperNodes with TLS and keys",
        "of nodes, a process for each message, answers looked for every 3 s; SecAgg+ with a share",
        "for each client, seven tenths of them needed. `nvflare`: as above, clients",
        "look for tasks at intervals. Medians over all rounds but the first, in seconds;",
        "other work kept both processors busy meanwhile (a load of ten to twenty-five), so theirs",
        "are upper bounds.",
    ),
    "benchmarks/engines_own.py --engine ENGINE",
)
TABLES = (EXCHANGES, ROUNDS, OWN)


def kept_but(table: Table, engine: str) -> list[dict[str, str]]:
    """Rows of all other engines, as they were measured before."""
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
    """Write the page from what has been measured so far."""
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
    """A cell as a person reads it."""
    return f"{int(value):,}" if name in ("bytes", "values") else value
