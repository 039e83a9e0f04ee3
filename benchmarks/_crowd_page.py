"""Writes `docs/results/federation-scale.md` and `.csv`; keeps the rows of other settings."""

from __future__ import annotations

import csv
import datetime
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._sizes import RESULTS
from platform.experiment.environment import environment

OUTPUT = RESULTS / "federation-scale.csv"
COLUMNS = {
    "engine": "between hub and holders",
    "clients": "clients",
    "adversary": "server",
    "rounds": "rounds",
    "lost": "lost in each",
    "minutes": "minutes in all",
    "joining": "joining, s",
    "median": "a round, s",
    "slowest": "slowest, s",
    "deadlines": "of which waiting for the lost, s",
    "up": "up, bytes",
    "down": "down, bytes",
    "coordinator": "coordinator, GiB",
    "holders": "holders, GiB",
    "relays": "relays, GiB",
    "processor": "processor, s",
    "epsilon": "epsilon",
}
HIDDEN = ("command", "date", "versions")
INTRODUCTION = """\
Each holder runs the client's own code in its own thread, with its own folder of images, key,
limits, store on disk and Unix socket. Holders of one process share the frozen model, because a
process for each would take 490 MB. The coordinator and the relays are processes, as people start
them. The method is PromptFL under `distributed_noise`, epsilon 8, with secure aggregation. Every
holder joins, trains for all rounds, and leaves.

Each round loses other holders, a third of them in each way: the answer comes after the deadline;
the thread dies with the message and the connection; or the host closes, and a new host that knows
only the store opens later. Half of them are lost when they are invited, half when they are asked
to train. So a round mostly waits for two deadlines. Any further lost holders answered too late.

A column stands here only if these checks passed afterwards: every page and row of all databases is
sound; the audit chain holds; each holder's own ledger lists the same releases as the coordinator's;
each round was applied once, and its sum holds no client that was to be lost; no holder has spent
more than the epsilon that the run states, and one holder has spent exactly that.

Bytes are means per invited client and round. Memory is the sum of all processes' peaks. Other work
kept both processors busy, at ten to a hundred times their load.
"""


def row_of(setting: Mapping[str, Any], found: Mapping[str, Any], command: str) -> dict[str, str]:
    """The measurements of a federation, as text."""
    rounds: Sequence[Mapping[str, Any]] = found["rounds"]
    seconds = [event["seconds"] for event in rounds]
    facts = environment("cpu")
    return {
        "engine": "own relays" if setting["engine"] == "local" else setting["engine"],
        "clients": str(setting["clients"]),
        "adversary": setting["adversary"].replace("_", "-"),
        "rounds": str(len(rounds)),
        "lost": _range([event["dropped"] for event in rounds]),
        "minutes": f"{found['seconds'] / 60:.1f}",
        "joining": f"{found['first']:.0f}",
        "median": f"{statistics.median(seconds):.0f}",
        "slowest": f"{max(seconds):.0f}",
        "deadlines": f"{setting['deadline'] + setting['training']:.0f}",
        "up": f"{statistics.mean(event['bytes_up'] for event in rounds):,.0f}",
        "down": f"{statistics.mean(event['bytes_down'] for event in rounds):,.0f}",
        "coordinator": f"{found['coordinator']:.2f}",
        "holders": f"{sum(memory for memory, _ in found['holders']):.2f}",
        "relays": f"{sum(found['relays']):.2f}",
        "processor": f"{found['cpu']:,.0f}",
        "epsilon": f"{found['epsilon']:.3f}",
        "command": command,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "versions": f"commit {facts['commit']}, Python {facts['python']}, torch {facts['torch']}",
    }


def publish(new: Mapping[str, str]) -> None:
    """Replace the row of the same setting, and write the page."""
    fields, rows = (*COLUMNS, *HIDDEN), []
    if OUTPUT.exists():
        with OUTPUT.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    same = ("engine", "clients", "adversary", "rounds")
    rows = [row for row in rows if any(row[name] != new[name] for name in same)] + [dict(new)]
    with OUTPUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    OUTPUT.with_suffix(".md").write_text(_page(rows), encoding="utf-8")


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(most) if least == most else f"{least} to {most}"


def _page(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [
        "# Hundreds of data holders, a tenth of them lost in every round",
        "",
        *INTRODUCTION.splitlines(),
        "",
        *_table(rows),
        "",
        *(f"- `{r['command']}`: {r['date']}, {r['versions']}" for r in rows),
        "",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Make each row a column, because there are more fields than settings."""
    lines = [f"| | {' | '.join(str(at) for at in range(1, len(rows) + 1))} |"]
    lines.append(f"|---{'|---' * len(rows)}|")
    return lines + [
        f"| {title} | {' | '.join(row[name] for row in rows)} |" for name, title in COLUMNS.items()
    ]
