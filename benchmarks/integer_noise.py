"""Integer noise: exact draws per second on one core, and the cost of making a table.

    python benchmarks/integer_noise.py [--draws 4000000] [--repeats 5]

Noise comes from the operating system's entropy. Times are processor times (least of the repeats),
which another process on the machine disturbs little. A column shows the entropy's share of the
time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from _sizes import sized

from privacy.integer_noise import discrete_gaussian_from, skellam_from, table_of
from privacy.randomness import Entropy

DEVIATIONS = (1.5, 10.0, 63.0, 100.0, 1e3, 1e4, 1e5, 1e6)
DRAWERS = {"discrete_gaussian": discrete_gaussian_from, "skellam": skellam_from}


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def counting(counts: list[int]) -> Entropy:
    def entropy(count: int) -> bytes:
        counts.append(count)
        return os.urandom(count)

    return entropy


def measure(kind: str, deviation: float, draws: int, repeats: int) -> None:
    draw = DRAWERS[kind]
    table_of.cache_clear()
    first = timed(lambda: draw(os.urandom, deviation, 1))
    best = min(timed(lambda: draw(os.urandom, deviation, draws)) for _ in range(repeats))
    counts: list[int] = []
    draw(counting(counts), deviation, draws)
    entropy = timed(lambda: [os.urandom(count) for count in counts])
    print(
        f"{kind:<19}{deviation:>11g}{draws / best / 1e6:>12.1f}{100 * entropy / best:>12.0f}"
        f"{sum(counts) / draws:>10.1f}{1e3 * first:>10.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=sized(4_000_000, 1_000))
    parser.add_argument("--repeats", type=int, default=sized(5, 1))
    arguments = parser.parse_args()
    print(f"{'law':<19}{'deviation':>11}{'million/s':>12}{'entropy, %':>12}", end="")
    print(f"{'bytes':>10}{'table, ms':>10}")
    for kind in DRAWERS:
        for deviation in DEVIATIONS:
            measure(kind, deviation, arguments.draws, arguments.repeats)


if __name__ == "__main__":
    main()
