"""Resident memory of a process that simulates a number of clients, after one round.

    python benchmarks/_client_memory.py CLIENTS

Prints two numbers: the resident KiB after free memory went back to the system, and the KiB of the
examples, which clients hold in memory. Stores hold the personal state between messages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.config import load_config
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver


def size_of(arrays: Mapping[str, Any]) -> int:
    """Bytes of all arrays."""
    return sum(value.nbytes for value in arrays.values())


def main() -> None:
    clients = int(sys.argv[1])
    changes = [
        *("method.name=pfedmoap", "rounds=1", "training.local_steps=1", "evaluation.every=1"),
        *(f"task.clients={clients}", "task.shots=1", "task.partition.kind=iid"),
        # Each client gets the same number of test images, however many clients there are.
        f"task.test_per_class={clients}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        url = f"storage.url=sqlite:///{folder}/sotto.db"
        loaded = load_config(Path("comparison"), [*changes, url])
        simulation = create_run(loaded, SilentObserver(), Surroundings())
        Federation(simulation.run, SilentObserver()).run_rounds()
        own = 0
        for name, client in simulation.population.clients.items():
            own += size_of(client.profile.data.arrays)
            own += size_of(simulation.learning.evaluation.own[name].arrays)
        gc.collect()
        # The memory that the allocator keeps for reuse is not a cost of the clients.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") / 1024, own / 1024)
        simulation.database.close()


if __name__ == "__main__":
    main()
