"""The cost of a step of each method over its floor, and the savings of TRIP's batching and routing.

All ratios are of one run, in turns, on one thread. The floor of a method is one forward and one
backward pass of the bare text encoder over the sequences that must be differentiated: all classes
behind each prompt that the method trains through (FedMaPLe: both towers).

Writes `docs/results/methods-speed.md`.

    python benchmarks/method_speed.py [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from _scores import provenance
from _sizes import RESULTS, sized
from _speed_subjects import Subject, floor_of, subjects
from _trip_loops import TripTimes, trip_times

STEPS = sized(20, 1)
REPEATS = sized(9, 1)
CLIENTS = sized((50, 250), (20, 22))
ALLOWED_FACTOR, ALLOWED_MILLISECONDS = 1.25, 5.0
ALLOWED_KIB = 64.0


def least(rows: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least milliseconds of each call; the calls take turns, so that other load affects all."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(repeats):
        for name, run in rows.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def step_times(subject: Subject, repeats: int) -> tuple[float, float]:
    """Milliseconds of one step and of its floor."""
    best = least(
        {
            "many": lambda: subject.train(1 + STEPS),
            "one": lambda: subject.train(1),
            "floor": lambda: floor_of(subject),
        },
        repeats,
    )
    return (best["many"] - best["one"]) / STEPS, best["floor"]


def step_table(repeats: int) -> list[str]:
    """The table with one row per method."""
    columns = (
        "method",
        "sequences",
        "step, ms",
        "floor, ms",
        "step / floor",
        "within 1.25x + 5 ms",
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for subject in subjects():
        step, floor = step_times(subject, repeats)
        within = step <= ALLOWED_FACTOR * floor + ALLOWED_MILLISECONDS
        ratio = f"{step / floor:.2f}" if subject.floor else "-"
        verdict = "yes" if within else "**no**"
        cells = (f"`{subject.name}`", subject.sequences, f"{step:.1f}", f"{floor:.1f}")
        lines.append(f"| {' | '.join((*cells, ratio, verdict))} |")
        print(lines[-1], flush=True)
    return lines


def trip_table(times: TripTimes) -> list[str]:
    """The table of batched against looped."""
    return [
        "| what | batched, ms | one image at a time, ms | ratio | aim |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {batched:.1f} | {looped:.1f} | {looped / batched:.1f} | {aim} |"
            for name, batched, looped, aim in times
        ),
    ]


def memory_of(clients: int) -> tuple[float, float]:
    """Resident KiB of a process after a round with this number of clients, and KiB of tensors."""
    script = Path(__file__).with_name("_client_memory.py")
    output = subprocess.run(
        [sys.executable, str(script), str(clients)], check=True, capture_output=True, text=True
    ).stdout.split()
    return float(output[-2]), float(output[-1])


def memory_line() -> str:
    """The cost of one more simulated client."""
    (small, own_small), (large, own_large) = (memory_of(count) for count in CLIENTS)
    added = CLIENTS[1] - CLIENTS[0]
    each, own = (large - small) / added, (own_large - own_small) / added
    return (
        f"One more simulated client ({CLIENTS[0]} against {CLIENTS[1]} clients of pFedMoAP, one "
        f"round, resident memory): {each:.0f} KiB, of which {own:.0f} KiB are its own tensors (its "
        "personal part lies in its store between messages); "
        f"{each - own:.0f} KiB beside them (aim: at most {ALLOWED_KIB:.0f})."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, and no files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 3 if options.quick else REPEATS
    steps = step_table(repeats)
    trip = trip_table(trip_times(np.random.default_rng(0), repeats))
    memory = memory_line()
    print("\n".join([*trip, memory]))
    if options.quick:
        return
    lines = [
        "# What a step of each method costs",
        "",
        "The shipped tiny CLIP, 20 classes, batches of 16, presets of `configs/methods/`, one",
        f"thread of a shared machine, least of {repeats} in turns. A step is a {STEPS}th of what",
        f"{1 + STEPS} steps of `client_update` take longer than one. The floor is one forward",
        "and backward pass of the bare text encoder (prefixes shared, cut after the last end of",
        "text) over the sequences that must be differentiated; without such sequences, it is zero.",
        "",
        *steps,
        "",
        "## TRIP",
        "",
        *trip,
        "",
        "The loop routes one token after another, as the published code does, with the same seats",
        "and the same result. With the tokens of a ViT-B/16 most of the time is arithmetic on wide",
        "vectors (the product of an image's tokens with each other, 0.6 ms). Batching does not",
        "reduce this, so the ratio stays below the aim there. In a batch of the embedded data",
        "hardly two images have equal shares, so encoding equal prompts once saves little; the",
        "saved time is that of the loop and the prefixes.",
        "",
        "## Memory",
        "",
        memory,
        "",
        *provenance(),
    ]
    (RESULTS / "methods-speed.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
