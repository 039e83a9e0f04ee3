"""Fill the tables of `docs/results/scale.md` from measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks._scale_formulas import (
    Round,
    byte_counts,
    held,
    round_of,
    server_uses,
)
from benchmarks._scale_primitives import THRESHOLD
from benchmarks._scores import provenance
from benchmarks._sizes import RESULTS

PAGE = RESULTS / "scale.md"
LENGTH = 8_192
SIZES = tuple(10**power for power in range(2, 6))
Costs = Mapping[str, float]
Rows = Sequence[Mapping[str, str]]


def client_seconds(r: Round, costs: Costs) -> float:
    """Processor time of a survivor in one round, without training."""
    messages = {"plain": 2, "active": 5}.get(r.kind, 4)
    found = messages * (costs["commits"] + costs["messages"])
    if r.kind == "plain":
        return found
    k, share = r.degree, costs["share values"] * r.threshold / THRESHOLD
    found += 4 * costs["keys loaded"] + 2 * k * costs["agreements"]
    found += k * (costs["boxes sealed"] + costs["boxes opened"]) + 2 * (k + 1) * share
    found += (k + 1) * r.length * costs["mask values"]
    if r.is_active:
        # The keys of all, the dealings of all by their commitments, and t confirmations.
        found += 4 * costs["signatures"] + (k + r.threshold) * costs["verifications"]
    return found


def server_seconds(r: Round, costs: Costs) -> float:
    """Processor time of the coordinator in one round."""
    used = server_uses(r)
    found = used["requests"] * (costs["requests"] + costs["messages"])
    found += used["ledger rows"] * costs["ledger rows"]
    if r.kind == "plain":
        return found + sum(byte_counts(r).values()) * costs["message bytes"]
    found += used["bytes"] * costs["message bytes"]
    found += r.clients * r.degree * costs["neighbours"]
    found += used["agreements"] * costs["agreements"] + used["mask values"] * costs["mask values"]
    found += r.lost * costs["keys loaded"]
    if r.kind == "regular":
        # Holders differ from client to client, and so do coefficients: t^2 for each client.
        found += r.clients * costs["secrets rebuilt"] * (r.threshold / THRESHOLD) ** 2
    else:
        found += r.clients * r.threshold * costs["shares combined"]
    if r.is_active:
        found += (2 * r.clients + 3 * r.survivors) * costs["verifications"]
    return found


def fill(rows: Rows) -> None:
    """Write all tables into the page, between their marks."""
    costs = {r["quantity"]: float(r["measured"]) for r in rows if r["part"] == "primitive"}
    page = PAGE.read_text("utf-8")
    copies = _copies(rows)
    for name, lines in (
        ("primitives", _primitives(rows)),
        ("clients", _clients(costs)),
        ("coordinator", _coordinator(costs, copies)),
        ("simulation", _simulation(rows, costs)),
        ("shards", _shards(costs, copies)),
        ("provenance", provenance()),
    ):
        begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->\n"
        before, _, rest = page.partition(begin)
        table = "\n".join(lines).strip()
        page = f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, encoding="utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return [line.replace("| --- ", "|---").replace("---|", "---|") for line in shown]


def _primitives(rows: Rows) -> list[str]:
    found = [
        (r["quantity"], r["setting"], _seconds(float(r["measured"])))
        for r in rows
        if r["part"] == "primitive"
    ]
    return _table(("name", "what", "processor time"), found)


def _clients(costs: Costs) -> list[str]:
    cells = []
    for kind, sizes in (
        ("regular", SIZES),
        ("complete", SIZES[:3]),
        ("active", SIZES[:3]),
        ("plain", SIZES),
    ):
        for clients in sizes:
            r = round_of(kind, clients, LENGTH)
            counts = byte_counts(r)
            up, down = (
                sum(v for name, v in counts.items() if name.startswith(way))
                for way in ("up", "down")
            )
            cells.append(
                (
                    kind,
                    f"{clients:,}",
                    str(r.degree),
                    str(r.threshold),
                    str(r.bits),
                    _bytes(up / r.survivors),
                    _bytes(down / r.survivors),
                    _seconds(client_seconds(r, costs)),
                )
            )
    return _table(("round", "n", "k", "t", "b", "up", "down", "processor"), cells)


def _coordinator(costs: Costs, copies: float) -> list[str]:
    cells = []
    for kind, sizes in (
        ("regular", SIZES),
        ("complete", SIZES[:3]),
        ("active", SIZES[:3]),
        ("plain", SIZES),
    ):
        for clients in sizes:
            r = round_of(kind, clients, LENGTH)
            cells.append(
                (
                    kind,
                    f"{clients:,}",
                    _bytes(sum(byte_counts(r).values())),
                    _seconds(server_seconds(r, costs)),
                    _bytes(held(r)),
                    _bytes(copies * held(r)),
                )
            )
    return _table(("round", "n", "bytes in and out", "processor", "largest stage", "memory"), cells)


def _shards(costs: Costs, copies: float) -> list[str]:
    cells = []
    for clients in (10**4, 10**5):
        for size in (1_000, 10_000):
            shards, r = math.ceil(clients / size), round_of("regular", size, LENGTH)
            if shards == 1:
                continue
            cells.append(
                (
                    f"{clients:,}",
                    f"{shards:,} of {size:,}",
                    _seconds(server_seconds(r, costs)),
                    _bytes(copies * held(r)),
                    _bytes(shards * r.length * 8),
                    f"{math.sqrt(shards):.1f}",
                )
            )
    return _table(
        (
            "n",
            "shards",
            "processor of a shard",
            "memory of a shard",
            "sums to add",
            "noise, over one sum's",
        ),
        cells,
    )


def _settings(rows: Rows) -> dict[str, dict[str, Mapping[str, str]]]:
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    for r in rows:
        if r["part"] == "simulation":
            found.setdefault(r["setting"], {})[r["quantity"]] = r
    return found


def _round(setting: str, found: Mapping[str, Mapping[str, str]]) -> Round:
    kind, clients = setting.split(", ")[:2]
    facts = {n: int(found[n]["measured"]) for n in ("length", "bits", "degree", "threshold")}
    lost = round(0.1 * int(clients))
    return Round(kind=kind, clients=int(clients), lost=lost, **facts)


def _copies(rows: Rows) -> float:
    """Bytes of memory per byte of the largest stage, from the largest measured masked round."""
    found = [
        (float(of["largest stage"]["measured"]), float(of["coordinator's memory"]["measured"]))
        for setting, of in _settings(rows).items()
        if setting.startswith("regular")
    ]
    largest, memory = max(found)
    return memory / largest


def _simulation(rows: Rows, costs: Costs) -> list[str]:
    cells = []
    for setting, shards in sorted(_sharded(rows).items(), key=_by_size):
        pairs = [
            (float(row["predicted"]), float(row["measured"]))
            for of in shards
            for row in of.values()
            if row["unit"] == "bytes" and row["predicted"]
        ]
        uses = [row for of in shards for row in of.values() if row["unit"] == "uses"]
        off = max(abs(said - found) / found for said, found in pairs)
        equal = sum(row["predicted"] == row["measured"] for row in uses)
        said = sum(server_seconds(_round(setting, of), costs) for of in shards)
        cpu = [float(of["coordinator's processor"]["measured"]) for of in shards]
        memory = [float(of["coordinator's memory"]["measured"]) for of in shards]
        stage = [float(of["largest stage"]["measured"]) for of in shards]
        cells.append(
            (
                setting,
                _bytes(sum(found for _, found in pairs)),
                f"{100 * off:.1f}%",
                f"{equal} of {len(uses)}" if uses else "-",
                _seconds(said),
                _seconds(sum(cpu)),
                _bytes(max(memory)),
                _bytes(max(stage)),
            )
        )
    return _table(
        (
            "round, n",
            "bytes counted",
            "formula off by at most",
            "uses that agree",
            "processor, formula",
            "measured",
            "memory grown",
            "largest stage",
        ),
        cells,
    )


def _sharded(rows: Rows) -> dict[str, list[Mapping[str, Mapping[str, str]]]]:
    """The simulated rounds by setting; all shards of one round share a name."""
    found: dict[str, list[Mapping[str, Mapping[str, str]]]] = {}
    for setting, of in _settings(rows).items():
        whole, _, shard = setting.partition(", shard ")
        name = f"{whole}, {shard.split()[-1]} shards" if shard else whole
        found.setdefault(name, []).append(of)
    return found


def _by_size(named: tuple[str, Sequence[object]]) -> tuple[bool, int]:
    setting, shards = named
    return not setting.startswith("regular"), int(setting.split(", ")[1]) * len(shards)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value)} B"


def _three(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{round(value, digits):,.{min(digits, 2)}f}" if value < 1000 else f"{value:,.0f}"
