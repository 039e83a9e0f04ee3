"""The cost of a round with 10^2 to 10^5 clients: measured primitives, formulas, and a simulation.

    python -m benchmarks.scale primitives                       measures the formulas' primitives
    python -m benchmarks.scale simulate KIND CLIENTS [--shards] holds a round of synthetic clients
    python -m benchmarks.scale page                             fills docs/results/scale.md

All results go to `docs/results/scale.csv`, which fills the page; a new row replaces the old row. In
a simulation the coordinator is a process, as people start it. The counts for the comparison come
from the wire and from the clients' own code (`_scale_clients.py`).
"""

from __future__ import annotations

import argparse
import csv
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks._scale_formulas import Round, byte_counts, held, uses
from benchmarks._scale_page import fill
from benchmarks._scale_primitives import primitives
from benchmarks._scale_simulation import KINDS, simulate
from benchmarks._sizes import RESULTS, SMALLEST

OUTPUT = RESULTS / "scale.csv"
FIELDS = ("part", "setting", "quantity", "predicted", "measured", "unit", "date")
Row = dict[str, str]


def kept() -> list[Row]:
    """The rows of earlier measurements."""
    if not OUTPUT.exists():
        return []
    with OUTPUT.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keep(rows: Iterable[Row]) -> None:
    """Add rows; each replaces the old row of the same name."""
    new = list(rows)
    names = {(row["part"], row["setting"], row["quantity"]) for row in new}
    old = [r for r in kept() if (r["part"], r["setting"], r["quantity"]) not in names]
    with OUTPUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*old, *new])


def row(
    part: str, setting: str, quantity: str, measured: float, unit: str, predicted: object = ""
) -> Row:
    """One row, with today's date."""
    shown = f"{measured:.6g}" if isinstance(measured, float) else str(measured)
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    values = (part, setting, quantity, str(predicted), shown, unit, today)
    return dict(zip(FIELDS, values, strict=True))


def simulated(found: Mapping[str, Any], setting: str) -> list[Row]:
    """The measurements of one round, beside the numbers of the formulas."""
    r = Round(
        kind=found["kind"],
        clients=found["clients"],
        lost=found["lost"],
        length=found["length"],
        bits=found["bits"],
        degree=found["degree"],
        threshold=found["threshold"],
    )
    said = byte_counts(r)
    rows = [
        row("simulation", setting, name, found[name], "bytes", number)
        for name, number in said.items()
    ]
    rows += [
        row("simulation", setting, name, found[f"used {name}"], "uses", number)
        for name, number in uses(r).items()
    ]
    facts = {"degree": r.degree, "threshold": r.threshold, "length": r.length, "bits": r.bits}
    rows += [row("simulation", setting, name, value, "") for name, value in facts.items()]
    cpu = sum(value for name, value in found.items() if name.startswith("cpu "))
    clock = sum(value for name, value in found.items() if name.startswith("s "))
    peak = max(value for name, value in found.items() if name.startswith("peak "))
    rows.append(row("simulation", setting, "coordinator's processor", cpu, "s"))
    rows.append(row("simulation", setting, "round, on the clock", clock, "s"))
    grown = (peak - found["base memory"]) * 2**30
    rows.append(row("simulation", setting, "coordinator's memory", grown, "bytes"))
    rows.append(row("simulation", setting, "largest stage", held(r), "bytes"))
    rows.append(row("simulation", setting, "joining, down", found["joining down"], "bytes"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("primitives")
    commands.add_parser("page")
    simulation = commands.add_parser("simulate")
    simulation.add_argument("kind", choices=KINDS)
    simulation.add_argument("clients", type=int)
    simulation.add_argument("--shards", type=int, default=1, help="number of rounds of CLIENTS")
    simulation.add_argument("--tokens", type=int, default=4)
    simulation.add_argument("--rate", type=float, default=0.1)
    given = parser.parse_args(arguments)
    if given.command == "primitives":
        found = primitives()
        keep(row("primitive", what, name, cost, "s") for name, (cost, what) in found.items())
    elif given.command == "simulate":
        for shard in range(given.shards):
            of = "" if given.shards == 1 else f", shard {shard + 1} of {given.shards}"
            one = simulate(given.kind, given.clients, tokens=given.tokens, rate=given.rate)
            setting = f"{given.kind}, {given.clients}{of}"
            keep(simulated(one, setting))
            print(setting, one, flush=True)
    else:
        fill(kept())


if __name__ == "__main__":
    if SMALLEST:
        for command in (["primitives"], ["simulate", "regular", "30"], ["page"]):
            main(command)
    else:
        main()
