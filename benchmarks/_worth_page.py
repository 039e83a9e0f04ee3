"""The page and the plot of `worth_of_sharing.py`, from its rows."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from _grid import Row
from _scores import half_width, interval, provenance, spread
from _worth_claims import (
    AIMS,
    KEPT,
    KINDS,
    ONE_MEAN,
    OVER_ONE_MEAN,
    SURE,
    Claim,
    adjusted_p_values,
    claims,
    finals_of,
    over_one_mean,
    points_over_one_mean,
    tried,
)
from matplotlib.figure import Figure


def page(rows: Sequence[Row]) -> list[str]:
    """The page of results."""
    found = claims(rows)
    return [
        "# What sharing is worth under privacy",
        "",
        *INTRODUCTION,
        "",
        "![gain over the best that a client does alone](worth-of-sharing.svg)",
        "",
        "## Gains",
        "",
        *_gains(found, over_one_mean(rows)),
        "",
        *READING,
        *_among_many(rows, found),
        "",
        "## Experts that nobody picks",
        "",
        "Where two senses meet in one expert they stay, and half of the clients end worse off than",
        "alone. `pool.empty: split` makes an expert that nobody picks, as noised counts tell, a",
        "copy of one with more than twice an even share of the clients, moved aside; one sense",
        "follows the copy. Percent on all classes; *kept*: six experts, without splitting.",
        "",
        *_splitting(rows),
        "",
        "## Beside it, at 100 clients and epsilon 8",
        "",
        "*Gain over the twin*: over the same architecture, rate and steps, alone. *Worth of",
        "sharing*: over the better of two runs in which all uploads are zeros, with the noise and",
        "without (three seeds). *Signal to noise* of the rounds' sums: 95% intervals of seed 0.",
        "",
        *_beside(rows),
        "",
        "## How both sides were tuned",
        "",
        "Percent on all classes over five other seeds, which no other number here is of. A client",
        "alone had five settings, one prompt together three, private experts five; federations",
        "were tuned at 100 clients and epsilon 8 alone, with a threshold of 67 clients and hence",
        "1.2 times the noise of the final runs, whose threshold is 95. What won under iid was",
        "taken for pathological data as well, on both sides. That crowded experts should be split",
        "was found on 200 clients of seeds 0 to 5, with the signal to noise of 1,000 at epsilon 8.",
        "",
        *_tuned(rows),
        "",
        *provenance(),
    ]


INTRODUCTION = (
    "Clients of `homonyms` hold sixteen images each (`configs/sharing.yaml`) and learn a prompt",
    "from random tokens. *Alone* is the best that a client was found to do by itself, with any",
    "number of tokens and a hundred steps. *Together* is one prompt (in groups: six private",
    "experts) learned in five or six rounds with client-level privacy: replace one client, delta",
    "1e-5. At 100 clients the noise is the clients' own, under masks (`distributed_noise`); at",
    "1,000 the coordinator adds as much (`central_noise`: the epsilon is the peers' and the",
    "observer's), which takes a tenth of the time. All numbers are percent of right answers among",
    "all twenty names on all test images, by twenty clients drawn at random; *own* counts a",
    "client's own classes only. Tuning is uncharged: it was done on data of other seeds, and a",
    "consortium that tunes on its own data spends what that costs.",
)
READING = (
    "Intervals are 95% t intervals of the gain over seeds, paired by seed. *P* is that of a",
    "gain no larger than the aim, one-sided, after Holm over all claims of the table.",
    "",
    "- **One prompt, iid or pathological**: what a client has not seen others have, so the",
    "  gain on all classes is large. On a client's *own* classes it is a loss where it holds",
    "  two: alone it tells its own two apart nearly always, and noise costs it that.",
    "- **Private experts among 100 clients** gain eight points where crowded experts are split,",
    "  which is above their aim on average and not beyond doubt: twenty-five clients a sense are",
    "  few, signal to noise of the sum is below one in every round, seeds differ by ten points,",
    "  and on two of ten a client is better off alone. At epsilon 4 it is on all ten, whether",
    "  experts are split or kept: **that aim is missed, by twenty points**. Signal to noise is",
    "  at most 0.35 in every round there, and counts are noised by seven clients of the",
    "  twenty-five that a sense has, so experts are split for no reason",
    "  ([boundary](private-experts.md)).",
    "- **The subspace** keeps signal to noise near one or above until learning is over, at",
    "  epsilon 4 too. The whole prompt does as well with less: what noise moves in the other",
    "  448 directions seems to change predictions little.",
)


def _among_many(rows: Sequence[Row], found: Sequence[Claim]) -> list[str]:
    """What the rows of 1,000 clients in senses say, and how many seeds say it."""
    p_values, _ = adjusted_p_values(found, points_over_one_mean(over_one_mean(rows)))
    here = [
        (claim, p_value)
        for claim, p_value in zip(found, p_values, strict=True)
        if (claim.kind, claim.clients) == ("senses", max(AIMS)[0])
    ]
    means = [statistics.mean(claim.gains) for claim, _ in here]
    alone = [value for claim, _ in here for value in claim.alone]
    lowest = min(value for claim, _ in here for value in claim.together)
    met = [
        f"{claim.epsilon:g}"
        for (claim, _), mean in zip(here, means, strict=True)
        if mean > AIMS[claim.clients, claim.epsilon]
    ]
    sure = [f"{claim.epsilon:g}" for claim, p_value in here if p_value < SURE]
    seeds = ", ".join(f"{len(claim.gains)} at epsilon {claim.epsilon:g}" for claim, _ in here)
    one = [
        float(row["all"])
        for row in finals_of(rows)
        if (row["kind"], row["clients"]) == (ONE_MEAN, "1000")
    ]
    text = (
        "- **Among 1,000 clients** noise costs nothing that could be measured at epsilon 8, and "
        "little at 2 and 1. Private experts that are split reach "
        f"{lowest:.1f}% and more on every seed ({seeds}), in mean {min(means):.0f} to "
        f"{max(means):.0f} points above a client alone. In mean the aim is met at epsilon "
        f"{_listed(met)}; P is below {SURE:g} after Holm at {_listed(sure)}. A client alone has "
        f"{min(alone):.0f} to {max(alone):.0f}%, by seed. Where two senses end in one, as they may "
        "if none is split, half of the clients are worse off than alone (below). One mean prompt "
        f"for all senses is of no use to anybody: {spread(one)} at epsilon 8 ({len(one)} seeds)."
    )
    return textwrap.wrap(text, 88, subsequent_indent="  ", break_on_hyphens=False)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _gains(
    found: Sequence[Claim], pairs: Mapping[int, tuple[list[float], list[float]]]
) -> list[str]:
    differences = points_over_one_mean(pairs)
    adjusted, over = adjusted_p_values(found, differences)
    head = ("federation", "clients", "epsilon", "seeds", "alone", "together", "gain", "aim", "P")
    lines = [f"| {' | '.join((*head, 'gain, own'))} |", "|" + "---|" * (len(head) + 1)]
    for claim, p_value in zip(found, adjusted, strict=True):
        aim = AIMS[claim.clients, claim.epsilon]
        cells = (
            *(KINDS[claim.kind], f"{claim.clients:,}", f"{claim.epsilon:g}"),
            *(str(len(claim.gains)), spread(claim.alone), spread(claim.together)),
            *(interval(claim.gains), f"{aim:+.0f}" if aim else "above 0", f"{p_value:.1g}"),
            interval(claim.own),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines + _against_mean(pairs, differences, over) if pairs else lines


def _against_mean(
    pairs: Mapping[int, tuple[list[float], list[float]]],
    differences: Mapping[int, list[float]],
    p_values: Sequence[float],
) -> list[str]:
    head = ("clients", "seeds", "one mean", "private experts", "difference", "aim", "P")
    lines = [
        "",
        "Private experts against *one* mean prompt, clients in four senses, epsilon 8:",
        "",
    ]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for (clients, (mean, experts)), p_value in zip(pairs.items(), p_values, strict=True):
        cells = (
            *(f"{clients:,}", str(len(mean)), spread(mean), spread(experts)),
            *(interval(differences[clients]), f"{OVER_ONE_MEAN:+.0f}", f"{p_value:.1g}"),
        )
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
    lines = ["| federation | gain over the twin | worth of sharing | signal to noise |"]
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
    """Gain over local against epsilon, a panel a kind, a line a number of clients."""
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
    axes[0].set_ylabel("points over a client alone")
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def _line(axis: object, of: Sequence[Claim], label: str) -> None:
    of = sorted(of, key=lambda claim: claim.epsilon)
    middle = [statistics.mean(claim.gains) for claim in of]
    width = [half_width(claim.gains) for claim in of]
    axis.errorbar([c.epsilon for c in of], middle, yerr=width, marker="o", capsize=3, label=label)  # type: ignore[attr-defined]
