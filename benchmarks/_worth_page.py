"""The page and the plot of `worth_of_sharing.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from _grid import Row
from _scores import OPPONENT, half_width, interval, provenance, spread
from _worth_claims import (
    KEPT,
    KINDS,
    Claim,
    claims,
    finals_of,
    over_one_mean,
    tried,
)
from matplotlib.figure import Figure


def page(rows: Sequence[Row]) -> list[str]:
    """The page of results."""
    found = claims(rows)
    return [
        "# One prompt for all beside a prompt trained alone, under privacy",
        "",
        *INTRODUCTION,
        "",
        "![points above a prompt trained alone](worth-of-sharing.svg)",
        "",
        "## Differences",
        "",
        *_differences(found, over_one_mean(rows)),
        "",
        *READING,
        "",
        "## Experts that no client picks",
        "",
        "If two senses meet in one expert, they stay, and half of the clients end worse off than",
        "alone. With `pool.empty: split`, an expert that no client picks by the noised counts",
        "becomes a moved copy of an expert with more than twice an even share of the clients; one",
        "sense follows the copy. Percent on all classes; *kept*: six experts, without splitting.",
        "",
        *_splitting(rows),
        "",
        "## Other comparisons at 100 clients and epsilon 8",
        "",
        "*Over the twin*: points over the same architecture, rate and steps, alone. *Worth of",
        "sharing*: points over the better of two runs in which all uploads are zeros, with noise",
        "and without (three seeds). *Signal to noise* of rounds' sums: 95% intervals of seed 0.",
        "",
        *_beside(rows),
        "",
        "## How both sides were tuned",
        "",
        "Percent on all classes over five seeds that no other number here uses. A client alone had",
        "five settings, one prompt together three, private experts five. We tuned federations only",
        "at 100 clients and epsilon 8, with a threshold of 67 clients, hence 1.2 times the noise",
        "of the final runs, whose threshold is 95. Both sides use the winners under iid also for",
        "pathological data. That splitting crowded experts helps was found on 200 clients of seeds",
        "0 to 5, with the signal to noise of 1,000 clients at epsilon 8.",
        "",
        *_tuned(rows),
        "",
        *provenance(),
    ]


INTRODUCTION = (
    "Clients of `homonyms` hold sixteen images each (`configs/sharing.yaml`) and learn a prompt",
    "from random tokens. *Alone* is the best of the prompts that a client trained by itself, with",
    "one, four or sixteen tokens. *Together* is one prompt (in groups: six private experts)",
    "learned in five or six rounds with client-level privacy: replace one client, delta 1e-5. At",
    "100 clients the clients add the noise, under masks (`distributed_noise`). At 1,000 clients",
    "the coordinator adds as much, which takes a tenth of the time (`central_noise`: the epsilon",
    "is the peers' and the observer's). All numbers are percent of right answers among all twenty",
    "names on all test images, by twenty clients drawn at random. *Own* counts a client's own",
    "classes only. Tuning is uncharged, because it used data of other seeds. A consortium that",
    "tunes on its own data spends budget on that.",
    "",
    *OPPONENT,
)
READING = ("Intervals are 95% t intervals of the difference over seeds, paired by seed.",)


def _differences(
    found: Sequence[Claim], pairs: Mapping[int, tuple[list[float], list[float]]]
) -> list[str]:
    head = ("federation", "clients", "epsilon", "seeds", "alone", "together", "difference")
    lines = [f"| {' | '.join((*head, 'difference, own'))} |", "|" + "---|" * (len(head) + 1)]
    for claim in found:
        cells = (
            *(KINDS[claim.kind], f"{claim.clients:,}", f"{claim.epsilon:g}"),
            *(str(len(claim.gains)), spread(claim.alone), spread(claim.together)),
            *(interval(claim.gains), interval(claim.own)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines + _beside_mean(pairs) if pairs else lines


def _beside_mean(pairs: Mapping[int, tuple[list[float], list[float]]]) -> list[str]:
    head = ("clients", "seeds", "one mean", "private experts", "difference")
    lines = [
        "",
        "Private experts beside *one* mean prompt, clients in four senses, epsilon 8:",
        "",
    ]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for clients, (mean, experts) in pairs.items():
        apart = [b - a for a, b in zip(mean, experts, strict=True)]
        cells = (f"{clients:,}", str(len(mean)), spread(mean), spread(experts), interval(apart))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _splitting(rows: Sequence[Row]) -> list[str]:
    """Private experts with and without splitting, on the seeds that have both."""
    place: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    compared = finals_of(rows)
    for row in rows:
        if (row["stage"], row["side"], row["kind"]) == ("final", "together", "senses"):
            kept = row["setting"] == KEPT
            if kept or row in compared:
                of = place.setdefault((row["clients"], row["epsilon"]), {"kept": {}, "split": {}})
                of["kept" if kept else "split"][row["seed"]] = float(row["all"])
    lines = ["| clients | epsilon | kept, by seed | split, by seed |", "|---|---|---|---|"]
    for (clients, epsilon), of in sorted(
        place.items(), key=lambda p: (int(p[0][0]), -float(p[0][1]))
    ):
        shown = [
            ", ".join(f"{seed}: {of[how][seed]:.1f}" for seed in sorted(of[how], key=int)) or "-"
            for how in ("kept", "split")
        ]
        lines.append(f"| {int(clients):,} | {float(epsilon):g} | {' | '.join(shown)} |")
    return lines


def _beside(rows: Sequence[Row]) -> list[str]:
    lines = ["| federation | over the twin | worth of sharing | signal to noise |"]
    lines.append("|---|---|---|---|")
    for kind, title in KINDS.items():
        of = [
            row
            for row in finals_of(rows)
            if (row["side"], row["kind"]) == ("together", kind)
            and (row["clients"], row["epsilon"]) == ("100", "8.0")
        ]
        if of:
            twins = spread([float(r["gain_over_twin"]) for r in of if r["gain_over_twin"]])
            worth = spread([float(row["worth"]) for row in of if row["worth"]])
            told = ", ".join(of[0]["signal_to_noise"].split())
            lines.append(f"| {title.split(':')[0]} | {twins} | {worth} | {told} |")
    return lines


def _tuned(rows: Sequence[Row]) -> list[str]:
    lines = ["| side | federation | settings |", "|---|---|---|"]
    for (side, kind), settings in tried(rows).items():
        shown = "; ".join(f"{name}: {spread(values)}" for name, values in settings.items())
        lines.append(f"| {side} | {kind} | {shown} |")
    return lines


def plot(rows: Sequence[Row], path: Path) -> None:
    """Points above a prompt alone against epsilon: a panel per kind, a line per client count."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "sotto"
    found = claims(rows)
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    axes = figure.subplots(1, len(KINDS), sharey=True)
    for axis, (kind, title) in zip(axes, KINDS.items(), strict=True):
        for clients in sorted({claim.clients for claim in found}):
            of = [c for c in found if (c.kind, c.clients) == (kind, clients)]
            _line(axis, of, f"{clients:,} clients")
        axis.axhline(0.0, color="grey", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axis.set_title(title.split(":")[0], fontsize=10)
        axis.set_xlabel("epsilon")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("points above a prompt alone")
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def _line(axis: object, of: Sequence[Claim], label: str) -> None:
    of = sorted(of, key=lambda claim: claim.epsilon)
    middle = [statistics.mean(claim.gains) for claim in of]
    width = [half_width(claim.gains) for claim in of]
    axis.errorbar([c.epsilon for c in of], middle, yerr=width, marker="o", capsize=3, label=label)  # type: ignore[attr-defined]
