"""Writes `docs/results/federation-scale.md` and `.csv`; rows of other settings are kept."""

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
    "deadlines": "of that waited for the lost, s",
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
Each holder is the client's own code in a thread of its own: its own folder of images, key, limits,
store on the disk and Unix socket. Holders of one process share the frozen model, as a process for
each would take 490 MB. Coordinator and relays are processes as people start them. The method is
PromptFL under `distributed_noise`, epsilon 8, with secure aggregation; everybody joins, trains for
the rounds, and parts.

In each round others are lost, a third of them in each way: answers come after the deadline; the
thread dies with the message and the connection with it; or the host is closed, and a new one that
knows only the store is opened later. Half of them go when they are invited, half when they are to
train. So most of a round is waiting for two deadlines. Who is lost beside them was too late.

Afterwards, and else there is no column here: every page and row of all databases is sound; the
audit chain holds; each holder's own ledger tells of the same releases as the coordinator's; each
round was applied once, and nobody who was to be lost is in its sum; no holder has spent more than
the epsilon that the run states, and one has spent just that.

Bytes are means of an invited client and round. Memory is the peak of each process, added up. Other
work kept both processors busy, at ten to a hundred times their load.
"""


def row_of(setting: Mapping[str, Any], found: Mapping[str, Any], command: str) -> dict[str, str]:
    """What a federation took, as text."""
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
    """Put a row in place of the one of the same setting, and write the page."""
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
    """Turn the rows on their side: there are more columns than settings."""
    lines = [f"| | {' | '.join(str(at) for at in range(1, len(rows) + 1))} |"]
    lines.append(f"|---{'|---' * len(rows)}|")
    return lines + [
        f"| {title} | {' | '.join(row[name] for row in rows)} |" for name, title in COLUMNS.items()
    ]
