"""The cost of the log and of receipts: a million events, and the receipts of a hundred clients.

    python benchmarks/records.py [--events 1000000] [--rounds 30]

Events are written, queried, proven and verified through the storage, as usual. Receipts are those
of a run of 100 clients in this process, with a method that does not train. The benchmark measures
a whole round on the clock, and the processor time of the log's leaves and heads, and of both parts
of the receipts, the coordinator's and the clients'. Prints the tables of `docs/results/records.md`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _scores import provenance
from _sizes import sized

import storage
from methods import Registry
from platform.config import parse_config
from platform.disk import opening
from platform.experiment.planning import Surroundings, create_run
from platform.parties import receipt_checks as client_module
from platform.parties.receipt_checks import Receipts
from platform.rounds import receipts as courier_module
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.receipts import Courier
from storage.leaves import NewLeaves

BATCH = 1000
PROOFS = sized(200, 10)
CLIENTS, SHOWN = sized((100, 100), (10, 10))
"""Clients of a run, and rows that a query of the log shows."""


@contextmanager
def timed(spent: dict[str, list[float]], name: str) -> Iterator[None]:
    """Note how long a block takes."""
    started = time.perf_counter()
    try:
        yield
    finally:
        spent[name].append(time.perf_counter() - started)


def many_events(events: int) -> None:
    """Print how fast a log of this number of events is written, read and checked."""
    spent: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with storage.open_database(f"sqlite:///{folder}/sotto.db", busy_timeout=60.0) as database:
            _fill(database, events, spent)
            with database.unit_of_work(read_only=True) as unit:
                for name, chosen in QUERIES.items():
                    with timed(spent, name):
                        found = unit.audit.query(**chosen, limit=SHOWN)
                    if len(found) != SHOWN:
                        raise SystemExit(f"{name}: {len(found)} rows")
                tree, size = unit.log.tree(), unit.log.size()
                with timed(spent, "root"):
                    tree.root()
                for at in range(PROOFS):
                    fresh = unit.log.tree()
                    with timed(spent, "proof"):
                        fresh.inclusion_proof(at * size // PROOFS)
            note_readings(spent, database)
            with timed(spent, "verify"):
                database.verify_log()
            stored = Path(folder, "sotto.db").stat().st_size / events
    print(f"| {events:,} events | |\n|---|---|")
    print(f"| written, in transactions of {BATCH:,} | {events / sum(spent['append']):,.0f} /s |")
    for name in QUERIES:
        print(f"| first {SHOWN} rows by {name} | {1000 * spent[name][0]:.1f} ms |")
    proofs = sorted(spent["proof"])
    print(f"| a proof, median and longest of {PROOFS} | {1000 * statistics.median(proofs):.1f} ms,"
          f" {1000 * proofs[-1]:.1f} ms |")  # fmt: skip
    print(f"| the root | {1000 * spent['root'][0]:.1f} ms |")
    print(f"| verified: chains, leaves, tiles | {events / spent['verify'][0]:,.0f} /s |")
    print(f"| its longest transaction | {1000 * max(spent['reading']):.0f} ms |")
    print(f"| bytes per event, in all | {stored:.0f} |")
    print()


def note_readings(spent: dict[str, list[float]], database: storage.Database) -> None:
    """Note how long each transaction of a verification lasts."""
    reading = database._reading

    @contextmanager
    def noted() -> Iterator[Any]:
        with timed(spent, "reading"), reading() as rows:
            yield rows

    database._reading = noted  # type: ignore[method-assign]


QUERIES: dict[str, dict[str, Any]] = {
    "run": {"run": "run-7"},
    "action": {"action": "round.lost"},
    "run and action": {"run": "run-3", "action": "round.committed"},
    "time": {"since": datetime(2026, 1, 1, tzinfo=UTC)},
}


def _fill(database: storage.Database, events: int, spent: dict[str, list[float]]) -> None:
    with database.unit_of_work() as unit:
        for number in range(10):
            facts = {"config_json": "{}", "config_digest": "d", "versions_json": "{}"}
            unit.runs.create(f"run-{number}", name="many", **facts)
        unit.commit()
    for start in range(0, events, BATCH):
        with timed(spent, "append"), database.unit_of_work() as unit:
            for at in range(start, start + BATCH):
                unit.audit.append(
                    f"run-{at % 10}",
                    actor="coordinator",
                    action="round.lost" if at % 97 == 0 else "round.committed",
                    round=at // 10,
                    channel="sum",
                    detail={"attempt": 1, "survivors": 97, "state_sha256": "0" * 64},
                )
            unit.commit()


class Watch(SilentObserver):
    """Notes when rounds end, and the time spent on each part until then."""

    def __init__(self, spent: dict[str, list[float]]) -> None:
        self.ends: list[float] = []
        self._spent, self._sums = spent, list[dict[str, float]]()

    def round_finished(self, document: Any) -> None:
        """Note the end of a round."""
        self.ends.append(time.perf_counter())
        self._sums.append({label: sum(seconds) for label, seconds in self._spent.items()})

    def of(self, label: str) -> list[float]:
        """Seconds per round of one part, or of both parts of the receipts."""
        parts = ("coordinator", "clients") if label == "receipts" else (label,)
        sums = [sum(one.get(part, 0.0) for part in parts) for one in self._sums]
        return [b - a for a, b in itertools.pairwise([0.0, *sums])]


def spy(spent: dict[str, list[float]], owner: Any, name: str, label: str) -> None:
    """Note the processor time of each call of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        # A simulation is one thread, so this time leaves out other work on the machine.
        started = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            spent[label].append(time.thread_time() - started)

    setattr(owner, name, called)


def receipts(rounds: int) -> None:
    """Print the share of the log and of the receipts of 100 clients in a round."""
    spent: dict[str, list[float]] = defaultdict(list)
    spy(spent, NewLeaves, "place", "log")
    spy(spent, opening, "keep_head", "log")
    for name in ("add_charges", "add_settled", "add_event"):
        spy(spent, NewLeaves, name, "log")
    for name in ("_with_receipts", "_note"):
        spy(spent, Courier, name, "coordinator")
    spy(spent, Courier, "_remember", "coordinator")
    for name in ("unclose_answer", "add_note"):
        spy(spent, courier_module, name, "coordinator")
    # All of a client's work on receipts, without its answer to the message inside.
    spy(spent, Receipts, "take", "clients")
    for name in ("unclose", "enclose_answer"):
        spy(spent, client_module, name, "clients")
    with tempfile.TemporaryDirectory() as folder:
        tree = {
            "name": "receipts",
            "device": "cpu",
            "rounds": rounds,
            "task": {
                "dataset": "shapes",
                "domains": ["real"],
                "clients": CLIENTS,
                "shots": 1,
                "test_per_class": CLIENTS,
                "partition": {"kind": "iid"},
                "model": None,
            },
            "method": {"name": "vector"},
            "training": {"local_steps": 1},
            "privacy": {
                "mechanism": "upload_noise",
                "clipping_norm": 1.0,
                "noise_multiplier": 100.0,
            },
            "evaluation": {"every": 10**5, "local_twins": False},
            "storage": {"url": f"sqlite:///{folder}/sotto.db"},
        }
        watch = Watch(spent)
        surroundings = Surroundings(registry=Registry("_overhead_methods"))
        simulation = create_run(parse_config(tree, ()), watch, surroundings)
        started = time.perf_counter()
        run = simulation.run
        courier = Courier(
            transport=run.transport,
            run_id=run.run_id,
            roll=run.roll,
            budget=run.terms.budget,
            records=run.records,
        )
        Federation(replace(run, transport=courier), watch).run_rounds()
        simulation.database.close()
    whole = [b - a for a, b in itertools.pairwise([started, *watch.ends])]
    found = {"whole": whole, **{label: watch.of(label) for label in LABELS if label != "whole"}}
    print(
        f"| a round of {CLIENTS} clients, {rounds} rounds | median s | fastest s |\n|---|---|---|"
    )
    for label, seconds in found.items():
        # The first two rounds have less to report, and fill the caches.
        steady = seconds[2:]
        print(f"| {LABELS[label]} | {statistics.median(steady):.4f} | {min(steady):.4f} |")


LABELS = {
    "whole": "all of it",
    "log": "leaves, tiles, heads",
    "coordinator": "receipts at the coordinator, cosignatures checked",
    "clients": "receipts at the clients: checked, kept, cosigned",
    "receipts": "receipts in all",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=sized(1_000_000, 2_000))
    parser.add_argument("--rounds", type=int, default=sized(30, 3))
    chosen = parser.parse_args()
    receipts(chosen.rounds)
    print()
    many_events(chosen.events)
    print("\n".join(provenance()))


if __name__ == "__main__":
    main()
