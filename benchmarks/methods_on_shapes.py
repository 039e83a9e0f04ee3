"""Accuracy without privacy on pathological shapes: mean and standard deviation over seeds.

Runs zero-shot CLIP, CoOp, PromptFL at three learning rates and pFedMoAP from
`configs/pathological.yaml` and writes `docs/results/methods-on-shapes.md`.

    python benchmarks/methods_on_shapes.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from _scores import HEADER, Score, provenance, run, score

PROMPTFL_RATES = (0.0005, 0.002, 0.02)


def measure(seeds: Sequence[int], folder: Path) -> list[Score]:
    """All methods, pFedMoAP last."""
    settings = [
        ("zero-shot CLIP", ["method.name=zero_shot"]),
        ("CoOp (local)", ["method.name=coop"]),
        *(
            (
                f"PromptFL, learning rate {r}",
                ["method.name=promptfl", f"training.learning_rate={r}"],
            )
            for r in PROMPTFL_RATES
        ),
        ("pFedMoAP", []),
    ]
    return [score(n, "pathological", o, seeds=seeds, folder=folder) for n, o in settings]


def report(scores: Sequence[Score], seeds: Sequence[int]) -> str:
    """The page of results."""
    best = max((s for s in scores if s.label.startswith("PromptFL")), key=lambda s: s.mean)
    moap, zero = scores[-1], scores[0]
    lines = [
        "# Methods on pathological shapes, without privacy",
        "",
        "Final accuracy in percent (mean over ten clients, each on its own test images, over all",
        "twenty classes) and gain over local training in points; mean ± standard deviation over",
        f"seeds {', '.join(map(str, seeds))}. Configuration: `configs/pathological.yaml`.",
        "",
        *HEADER,
        *(s.row() for s in scores),
        "",
        f"pFedMoAP against PromptFL at its best rate: {moap.mean - best.mean:+.1f} points,",
        f"against zero-shot: {moap.mean - zero.mean:+.1f} points. PromptFL at its best against",
        f"zero-shot: {best.mean - zero.mean:+.1f} points.",
        "",
        *provenance(),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run("methods-on-shapes", measure, report)
