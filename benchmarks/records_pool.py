"""How fast a large expert pool answers: to one client, and to a hundred in one pass.

The pool is a database file of the given size. Reading the pool checks each entry's digest. This,
and laying out the matrix, happens once per attempt, for all clients of its cohort. *Comparing each*
is the way that the search replaces: it decodes every entry and measures it in float64, for one
client. The benchmark first checks that both ways serve the same experts.

Prints the table.

    python benchmarks/records_pool.py [--entries N] [--size D] [--clients M]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from _sizes import SMALLEST, sized

import storage
from methods import PoolPolicy, TensorSpec
from platform.protection.building import PoolRules
from platform.rounds.pool import ResidentPool
from platform.wire.codec import decode_arrays, encode_arrays

ENTRIES, SIZE, CLIENTS, K = sized((10_000, 8192, 100, 9), (50, 64, 10, 9))
AIM_MS = 50.0
REPEATS = sized(20, 2)
RUN = "pool"


@dataclass(frozen=True)
class PoolSpeed:
    """The measurements.

    Attributes:
        entries: Number of entries in the pool.
        size: Values of an entry.
        clients: Number of clients in the pass for many.
        seconds: By name, the seconds of reading the pool, of the matrix, of one client (median),
            of the pass, and of comparing each entry for one client.
    """

    entries: int
    size: int
    clients: int
    seconds: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether one client gets its answer in time."""
        return 1000 * self.seconds["one client"] < AIM_MS

    def lines(self) -> list[str]:
        """The table."""
        titles = {
            "read": "Read from the database, every digest checked",
            "matrix": "Laid out, and the first client answered",
            "one client": f"One client, K = {K} (median of {REPEATS})",
            "busy": "The same, processor time",
            "pass": f"{self.clients} clients in one pass",
            "each": "One client, by comparing each entry in float64",
        }
        return [
            f"Pool of {self.entries:,} entries of {self.size:,} float32 values, one thread; "
            f"aim: one client under {AIM_MS:.0f} ms.",
            "",
            "| step | ms |",
            "|---|---|",
            *(f"| {titles[name]} | {1000 * took:,.1f} |" for name, took in self.seconds.items()),
        ]


def measure(
    folder: Path, entries: int = ENTRIES, size: int = SIZE, clients: int = CLIENTS
) -> PoolSpeed:
    """Fill a pool, serve from it, and compare with the plain way.

    Args:
        folder: For the database.
        entries: Number of entries.
        size: Values of each entry.
        clients: Number of clients in one pass.
    """
    rules = PoolRules(PoolPolicy({"context": TensorSpec((size,))}, K), 2 * (K + 1), 1)
    handles = [number.to_bytes(32, "big") for number in range(entries)]
    seconds: dict[str, float] = {}
    with storage.open_database(f"sqlite:///{folder}/pool.db") as database:
        _fill(database, handles, size)
        started = time.perf_counter()
        with database.unit_of_work(read_only=True) as unit:
            found = unit.pool.entries(RUN)
        seconds["read"] = time.perf_counter() - started
    rng = np.random.default_rng(0)
    started = time.perf_counter()
    pool = ResidentPool(found, rules)
    pool.serve([[handles[0]]], rng)
    seconds["matrix"] = time.perf_counter() - started
    times, busy = [], []
    for number in range(REPEATS):
        started, worked = time.perf_counter(), time.process_time()
        pool.serve([[handles[number]]], rng)
        times.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
    seconds["one client"] = statistics.median(times)
    seconds["busy"] = statistics.median(busy)
    started = time.perf_counter()
    together = pool.serve([[name] for name in handles[:clients]], rng)
    seconds["pass"] = time.perf_counter() - started
    started = time.perf_counter()
    expected = _each(found, handles[0])
    seconds["each"] = time.perf_counter() - started
    if [encode_arrays(expert) for expert in together[0]] != expected:
        raise SystemExit("the pool served other experts than the comparison of each entry finds")
    return PoolSpeed(entries, size, clients, seconds)


def _fill(database: storage.Database, handles: Sequence[bytes], size: int) -> None:
    rng = np.random.default_rng(1)
    base = rng.standard_normal(size, np.float32)
    with database.unit_of_work() as unit:
        unit.runs.create(
            RUN,
            name=RUN,
            config_json="{}",
            config_digest="d",
            versions_json="{}",
            created=datetime.now(UTC),
        )
        # Like prompts: all about one start, each at some distance, with its own noise.
        drawn = (base + rng.standard_normal(size, np.float32) for _ in handles)
        entries = [
            (name, encode_arrays({"context": entry}))
            for name, entry in zip(handles, drawn, strict=True)
        ]
        unit.pool.add_generation(RUN, 1, entries)
        unit.commit()


def _each(entries: Sequence[storage.PoolEntry], handle: bytes) -> list[bytes]:
    """The K nearest other entries, in the order of their bytes."""
    vectors = {e: decode_arrays(e.entry)["context"].astype(np.float64) for e in entries}
    query = next(vector for entry, vector in vectors.items() if entry.handle == handle)
    others = [
        (np.linalg.norm(v - query), e.entry) for e, v in vectors.items() if e.handle != handle
    ]
    return sorted(entry for _, entry in sorted(others)[:K])


def main() -> int:
    """Print the table; return 1 if the answer takes too long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options.entries, options.size, options.clients)
    sys.stdout.write("\n".join(measured.lines()) + "\n")
    return 0 if measured.holds or SMALLEST else 1


if __name__ == "__main__":
    sys.exit(main())
