"""The page and the picture of `model_split.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from _grid import Row
from _scores import spread
from matplotlib.figure import Figure

COLUMNS = (("digits", "0.0"), ("digits", "0.2"), ("shapes", "0.0"), ("shapes", "0.2"))
NOISES = {
    "none": "Without privacy",
    "0.0507": "Noise of 0.0507 C on uploads",
    "epsilon 8": "Epsilon 8 for each client",
}


def page(rows: Sequence[Row], general: Sequence[str], bases: Sequence[str]) -> list[str]:
    """The page of results, without its last lines."""
    lines = [
        "# Methods on small networks, and PM-MoE over nine of them",
        "",
        "Twenty clients, all in every round, twenty rounds of one epoch of batches of ten at a",
        "learning rate of 0.05. DBE and SCAFFOLD have 0.01, because they diverge at 0.05; they",
        "have not converged after twenty rounds at 0.01 (`configs/model-split.yaml`). A share S of",
        "each class is dealt out evenly, the rest by Dirichlet(0.1). `digits` is on the 4-layer",
        "CNN with 8 and 16 channels and 64 features, `shapes` (20 classes) on a layer of 64 on",
        "CLIP's frozen features. A tenth of each client's training images is for validation, of",
        "`shapes` a fifth, because twenty classes leave few of each. Other options are",
        "the presets'. PM-MoE's gate takes the best k = 10 modules at S = 0 and all 20 at S = 20,",
        "as its paper recommends, drops gamma = 0.2 of them by energy, and is trained for twenty",
        "epochs at 0.1. A row of a base method is phase one of the same run: the clients' models",
        "before the gate. Percent on the",
        "clients' own test images, mean ± standard deviation over seeds 0, 1 and 2 (on digits at",
        "S = 20 % seed 3 replaces seed 2, which deals a client too few images to validate).",
        "*Last* is the last round, never chosen by test images. A dash means that GPFL diverges",
        "under noise.",
        "",
        "![what a second phase changes](model-split.svg)",
        "",
        *reading(rows, bases),
        "",
    ]
    for noise, title in NOISES.items():
        of = [row for row in rows if row["noise"] == noise]
        if of:
            lines += [f"## {title}", "", *_section(of, general, bases), ""]
    return lines


def reading(rows: Sequence[Row], bases: Sequence[str]) -> list[str]:
    """The results in sentences, with the numbers of the rows."""
    lines = ["## What came out", ""]
    for noise in [n for n in NOISES if any(row["noise"] == n for row in rows)]:
        of = [row for row in rows if row["noise"] == noise]
        others = [base for base in bases if base != "dbe"]
        lines.append(
            f"- {NOISES[noise]}: with heads or extractors as modules the second phase is "
            f"{_gains(of, others)}. With DBE's vectors it is {_gains(of, ['dbe'])}."
        )
    lines += [
        "- DBE trained its network around each client's own vector. A mixture of other clients'",
        "  vectors is an input that the network never saw.",
        "- At epsilon 8 the modules in the pool are mostly noise: mixtures of them are worse than",
        "  a client's own module alone, and averaged parts learn next to nothing. Methods that",
        "  keep most of the network at home lose least, and a local network beside the shared one",
        "  loses least of all. Noise was measured on `shapes` at S = 20 % only.",
    ]
    shares = [float(row["cost_share"]) for row in rows if row["cost_share"]]
    lines.append(
        f"- The second phase costs {statistics.median(shares):.0f} % of phase one's time in the "
        f"median ({min(shares):.0f} to {max(shares):.0f} %): collection and gates, compared "
        "with twenty rounds; the paper has 0.39 %, compared with two thousand rounds."
    )
    return lines


def _gains(rows: Sequence[Row], bases: Sequence[str]) -> str:
    gains = [
        statistics.mean(_values(rows, f"pm_moe over {base}", *where, "mean"))
        - statistics.mean(_values(rows, base, *where, "mean"))
        for base in bases
        for where in _columns(rows)
        if _values(rows, base, *where, "mean")
    ]
    better = sum(gain > 0 for gain in gains)
    return (
        f"better than its base in {better} of {len(gains)} settings, by "
        f"{statistics.mean(gains):+.1f} points in the mean ({min(gains):+.1f} to {max(gains):+.1f})"
    )


def _section(rows: Sequence[Row], general: Sequence[str], bases: Sequence[str]) -> list[str]:
    methods = [*general[:-1], *bases, *(f"pm_moe over {base}" for base in bases), general[-1]]
    epsilons = sorted({row["epsilon"] for row in rows}, key=float)
    told = " to ".join(dict.fromkeys(_number(e) for e in (epsilons[0], epsilons[-1])))
    lines = [f"Epsilon against the server at delta 1e-5, a client replaced: {told}.", ""]
    lines += ["Client mean, last round:", "", *_table(rows, methods, "mean"), ""]
    lines += ["Weighted by test images, last round:", "", *_table(rows, methods, "weighted"), ""]
    # FedBABU tunes its heads after all the rounds from which validation chooses.
    chosen = [m for m in methods if not m.startswith("pm_moe") and m != "fedbabu"]
    if any(row["best_on_validation"] for row in rows):
        lines += ["Client mean, round chosen by validation images:", ""]
        lines += [*_table(rows, chosen, "best_on_validation"), ""]
    lines += ["Before and after phase two, client mean, and its cost beside phase one:", ""]
    return [*lines, *_phases(rows, bases)]


def _table(rows: Sequence[Row], methods: Sequence[str], name: str) -> list[str]:
    columns = _columns(rows)
    lines = [_line(("method", *map(_title, columns))), _line(["---"] * (len(columns) + 1))]
    for method in methods:
        cells = [spread(_values(rows, method, *where, name)) for where in columns]
        lines.append(_line((method, *cells)))
    return lines


def _phases(rows: Sequence[Row], bases: Sequence[str]) -> list[str]:
    columns = _columns(rows)
    lines = [
        _line(("base", *map(_title, columns), "cost")),
        _line(["---"] * (len(columns) + 2)),
    ]
    for base in bases:
        after = f"pm_moe over {base}"
        cells = [f"{_mean(rows, base, where)} → {_mean(rows, after, where)}" for where in columns]
        shares = [float(r["cost_share"]) for r in rows if r["method"] == after]
        lines.append(_line((base, *cells, f"{statistics.mean(shares):.0f} %" if shares else "-")))
    return lines


def _columns(rows: Sequence[Row]) -> list[tuple[str, str]]:
    measured = {(row["dataset"], row["shared"]) for row in rows}
    return [where for where in COLUMNS if where in measured]


def _mean(rows: Sequence[Row], method: str, where: tuple[str, str]) -> str:
    values = _values(rows, method, *where, "mean")
    return f"{statistics.mean(values):.1f}" if values else "-"


def _values(rows: Sequence[Row], method: str, dataset: str, shared: str, name: str) -> list[float]:
    return [
        float(row[name])
        for row in rows
        if (row["method"], row["dataset"], row["shared"]) == (method, dataset, shared) and row[name]
    ]


def _number(epsilon: str) -> str:
    return "infinite" if epsilon in ("inf", "Infinity") else f"{float(epsilon):.1f}"


def _title(where: tuple[str, str]) -> str:
    return f"{where[0]}, S = {float(where[1]):.0%}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plot(rows: Sequence[Row], bases: Sequence[str], path: Path) -> None:
    """One plot: each base before and after phase two, without noise."""
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row").ravel()
    for where, axis in zip(COLUMNS, axes, strict=True):
        for position, base in enumerate(bases):
            before, after = (
                [v for v in _values(_plain(rows), method, *where, "mean")]
                for method in (base, f"pm_moe over {base}")
            )
            for values, marker, shift in ((before, "o", -0.12), (after, "^", 0.12)):
                if values:
                    axis.errorbar(
                        position + shift,
                        statistics.mean(values),
                        statistics.stdev(values) if len(values) > 1 else 0.0,
                        marker=marker,
                        color="tab:blue" if marker == "o" else "tab:orange",
                        capsize=2,
                    )
        axis.set_title(_title(where), fontsize=10)
        axis.set_xticks(range(len(bases)), bases, rotation=45, ha="right", fontsize=8)
    axes[0].set_ylabel("accuracy, %")
    axes[2].set_ylabel("accuracy, %")
    figure.legend(
        handles=[
            *axes[0].plot([], [], "o", color="tab:blue", label="before phase two"),
            *axes[0].plot([], [], "^", color="tab:orange", label="after phase two"),
        ],
        loc="outside lower center",
        ncols=2,
    )
    figure.savefig(path, metadata={"Date": None})


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["noise"] == "none"]
