"""The cost of a round of the engines' own aggregation, without training.

Measures Flower's SecAgg+ and federated averaging over SuperNodes, as Flower ships them, and NVIDIA
FLARE's federated averaging under mutual TLS. Each client is an engine's processes and returns fixed
values. The averages are compared with the expected values (Flower: the last average; FLARE: all but
the last). The first round does not count.

Writes `docs/results/federation-own.csv` and the page; keeps the rows of other engines.

    python benchmarks/engines_own.py --engine flower | nvflare [--clients 10]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from _federation_page import OWN, kept_but, write_page, write_rows
from _own_engines import flower, flower_rounds, nvflare_rounds
from _sizes import SMALLEST

VALUES = 65_536
ENGINES = {"flower": 4, "nvflare": 31}
"""Number of rounds, including the first: SuperNodes take long for each."""
APPS = {"FedAvg": "flower_fedavg", "SecAgg+": "flower_secaggplus"}


def measured(engine: str, folder: Path, sizes: dict[str, int]) -> dict[str, list[float]]:
    """Seconds of each round, by the aggregation."""
    if engine == "nvflare":
        return {"FedAvg": nvflare_rounds(folder, sizes)}
    # Seven of ten shares, and the same part of another number of clients.
    sizes["threshold"] = 7 * sizes["clients"] // 10
    with flower(folder, sizes["clients"]) as (running, address):
        return {what: flower_rounds(running, address, app, sizes) for what, app in APPS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=list(ENGINES), default="flower")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="number of rounds; the first does not count")
    options = parser.parse_args()
    if SMALLEST:
        # Engines take minutes at any size, and `make test-engines` tests them. Write only the page.
        print(f"{', '.join(ENGINES)}: not started at the smallest size")
        write_rows(OWN, kept_but(OWN, ""))
        write_page()
        return
    rounds = ENGINES[options.engine] if options.rounds is None else options.rounds
    if rounds < 2 or options.clients < 3:
        raise SystemExit("valid are --rounds of 2 or more, --clients of 3 or more")
    sizes = {"clients": options.clients, "values": VALUES, "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="sotto") as folder:
        found = measured(options.engine, Path(folder).resolve(), sizes)
    rows = [
        {
            "engine": options.engine,
            "what": what,
            "clients": str(options.clients),
            "values": str(VALUES),
            "median": f"{statistics.median(seconds[1:]):.4f}",
            "slowest": f"{max(seconds[1:]):.4f}",
            "rounds": str(rounds - 1),
        }
        for what, seconds in found.items()
    ]
    for each in rows:
        print(each, flush=True)
    write_rows(OWN, [*kept_but(OWN, options.engine), *rows])
    write_page()


if __name__ == "__main__":
    main()
