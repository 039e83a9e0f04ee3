"""The cost and gain of training CLIP's image tower, against a prompt: bytes and accuracy.

Runs FedAvg and FedProx on the whole tower, and on low-rank additions to it, against one shared
prompt, on `homonyms` under the terms of `configs/comparison.yaml`: ten clients with images of any
class, ten rounds of four steps. Each side is tuned with three rates on another seed. Under noise
(`central_noise`, epsilon 8) all sides have the same clipping norm, fixed in advance. Writes
`docs/results/whole-clip.{csv,md}`; keeps the rows of the CSV.

    python benchmarks/whole_clip.py [--seeds 0 1 2] [--jobs 2]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from _grid import Row, among, one_of_each, read_rows, run_missing, summarise_run
from _scores import provenance, spread
from _sizes import RESULTS, sized

OUTPUT = RESULTS / "whole-clip.csv"
KEY = ("stage", "system", "noise", "rate", "seed")
TUNING_SEED = 100
COMMON = (
    *("task.partition.kind=iid", "evaluation.local_twins=false"),
    *("evaluation.worth_of_sharing=false", "secure_aggregation.enabled=false"),
)
NOISE: Mapping[str, Sequence[str]] = {
    "none": (),
    "epsilon 8": (
        *("privacy.mechanism=central_noise", "privacy.clipping_norm=0.3"),
        *("privacy.target_epsilon=8.0", "secure_aggregation.corrupt=0"),
    ),
}
SYSTEMS: Mapping[str, Sequence[str]] = {
    "promptfl, 4 tokens": (),
    "fedavg, the whole image tower": ("method={name: fedavg, network: clip}",),
    "fedavg, rank 4": ("method={name: fedavg, network: clip, lora_rank: 4}",),
    "fedprox, the whole image tower": ("method={name: fedprox, network: clip}",),
    "fedprox, rank 4": ("method={name: fedprox, network: clip, lora_rank: 4}",),
}
RATES: Mapping[str, Sequence[str]] = {
    "tokens": ("0.005", "0.02", "0.1"),
    "tower": ("0.003", "0.01", "0.03"),
    "rank 4": ("0.03", "0.1", "0.3"),
}
"""Three rates for each kind of system, by the end of its name."""


def tuning(noises: Sequence[str]) -> Iterator[Row]:
    """Each rate of each system, on a separate seed."""
    for noise in noises:
        for system in SYSTEMS:
            for rate in next(own for end, own in RATES.items() if system.endswith(end)):
                yield _row("tuning", system, noise, rate, TUNING_SEED)


def finals(rows: Sequence[Row], noises: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """The best rate of each system, on fresh seeds."""
    for noise in noises:
        for system in SYSTEMS:
            tried = among(rows, [r for r in tuning([noise]) if r["system"] == system], KEY)
            best = max(tried, key=lambda row: float(row["accuracy"]))
            for seed in seeds:
                yield _row("final", system, noise, best["rate"], seed)


def _row(*values: Any) -> Row:
    return dict(zip(KEY, map(str, values), strict=True))


def measure(row: Row, folder: str) -> Row:
    """One run's accuracy in percent, and the bytes that a client sends and receives per round."""
    chosen = (*SYSTEMS[row["system"]], f"training.learning_rate={row['rate']}")
    settings = [*COMMON, *NOISE[row["noise"]], *chosen, f"seed={row['seed']}"]
    summary, seconds = summarise_run("comparison", settings, folder)
    last = summary["rounds"][-1]
    return {
        **row,
        "accuracy": f"{100 * summary['final']['accuracy']['mean']:.2f}",
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "seconds": f"{seconds:.1f}",
    }


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The results as Markdown."""
    yield from ("# Training CLIP's image tower, beside a prompt of it", "")
    yield from (
        "`homonyms`, ten clients with images of any class, ten rounds of four steps of",
        "eight images; accuracy on all classes after the last round, mean and sample standard",
        "deviation over the seeds. The rate is the best of three on seed 100. `network: clip`",
        "starts at zero-shot CLIP. The tiny model's image tower has 824,576 numbers; that of",
        "ViT-B/16 has 86.2 million, 345 MB in each direction in every round. If the best of three",
        "rates is the highest or the lowest, a rate beyond it might be better.",
        "",
    )
    final = [row for row in rows if row["stage"] == "final"]
    for noise in dict.fromkeys(row["noise"] for row in final):
        yield from (f"## Noise: {noise}", "")
        yield "| system | rate | accuracy | a client sends a round | receives | seconds a run |"
        yield "|---|---:|---:|---:|---:|---:|"
        for system in SYSTEMS:
            own = [r for r in final if (r["noise"], r["system"]) == (noise, system)]
            if own:
                yield _line(system, own)
        yield from ("", _against_a_prompt(final, noise), "")
    yield from provenance()


def _against_a_prompt(final: Sequence[Row], noise: str) -> str:
    """The gain of the whole tower over a prompt, and the factor in bytes."""

    def mean(system: str, name: str) -> float:
        own = [r for r in final if (r["noise"], r["system"]) == (noise, system)]
        return statistics.mean(float(row[name]) for row in own)

    prompt, tower, *_ = SYSTEMS
    gain = mean(tower, "accuracy") - mean(prompt, "accuracy")
    times = mean(tower, "bytes_up") / mean(prompt, "bytes_up")
    return (
        f"The whole tower is {gain:+.1f} points from a prompt, for {times:,.0f} times the bytes. "
        "By chance, one in twenty names of `homonyms` is right. At one epsilon, the norm of the "
        "noise grows with the root of the number of sent values."
    )


def _line(system: str, rows: Sequence[Row]) -> str:
    shown = spread([float(row["accuracy"]) for row in rows])
    up, down = (
        statistics.mean(float(r[name]) for r in rows) for name in ("bytes_up", "bytes_down")
    )
    seconds = statistics.median(float(row["seconds"]) for row in rows)
    sizes = f"{up / 1e3:,.1f} kB | {down / 1e3:,.1f} kB"
    return f"| {system} | {rows[0]['rate']} | {shown} (n={len(rows)}) | {sizes} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=sized([0, 1, 2], [0]))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--noise", nargs="*", choices=tuple(NOISE), default=list(NOISE))
    options = parser.parse_args()
    tries = list(tuning(options.noise))
    tries = sized(tries, one_of_each(tries, "system")[:3])
    found = run_missing(OUTPUT, tries, measure, key=KEY, jobs=options.jobs)
    wanted = list(finals(found, options.noise, options.seeds))
    wanted = sized(wanted, one_of_each(wanted, "noise"))
    run_missing(OUTPUT, wanted, measure, key=KEY, jobs=options.jobs)
    text = "\n".join(page(read_rows(OUTPUT)))
    OUTPUT.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
