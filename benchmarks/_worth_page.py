"""The page and the plot of `worth_of_sharing.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _grid import Row
from _scores import half_width, interval, provenance, spread
from matplotlib.figure import Figure
from scipy import stats

KINDS = {
    "iid": "iid: sixteen images, whatever their class",
    "pathological": "pathological: eight images of each of two classes",
    "senses": "groups: clients in four senses, private experts",
    "subspace": "iid, in 64 public directions of 512",
}
ONE_MEAN = "one mean"
KEPT = "6 experts, C = 0.2"
"""Private experts of which those that nobody picks stay as they are: the best of three settings."""
OVER_ONE_MEAN = 5.0
"""Points that private experts should be worth over one mean prompt."""
AIMS = {(1000, 8.0): 20.0, (1000, 2.0): 12.0, (1000, 1.0): 8.0, (100, 8.0): 5.0, (100, 4.0): 0.0}
"""Points over the best that a client does alone, by clients and epsilon."""


@dataclass(frozen=True)
class Claim:
    """One federation against clients alone, paired by seed.

    Attributes:
        kind: How images are dealt out.
        clients: Number of clients.
        epsilon: For peers, of the whole run.
        together: Accuracy on all classes, in percent, one a seed.
        alone: That of clients alone, on the same seeds.
        own: Points gained on a client's own test images, one a seed.
        p_value: Of the paired t test of the aim: gains no larger than it, one-sided.
    """

    kind: str
    clients: int
    epsilon: float
    together: tuple[float, ...]
    alone: tuple[float, ...]
    own: tuple[float, ...]
    p_value: float

    @property
    def gains(self) -> list[float]:
        """Points, one a seed."""
        return [a - b for a, b in zip(self.together, self.alone, strict=True)]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All federations of the final stage that have two seeds or more."""
    final = [row for row in finals_of(rows) if row["kind"] in KINDS]
    alone = {(r["kind"], r["seed"]): r for r in final if r["side"] == "alone"}
    alone |= {("subspace", seed): row for (kind, seed), row in alone.items() if kind == "iid"}
    cells: dict[tuple[str, int, float], list[Row]] = {}
    for row in final:
        if row["side"] == "together" and (row["kind"], row["seed"]) in alone:
            place = (row["kind"], int(row["clients"]), float(row["epsilon"]))
            cells.setdefault(place, []).append(row)
    found = []
    for (kind, clients, epsilon), of in cells.items():
        if len(of) > 1:
            twins = [alone[kind, row["seed"]] for row in of]
            gains, own = _differences(of, twins, "all"), _differences(of, twins, "own")
            aim = AIMS[clients, epsilon]
            test = stats.ttest_1samp(gains, aim, alternative="greater")
            found.append(
                Claim(
                    *(kind, clients, epsilon, _numbers(of, "all"), _numbers(twins, "all")),
                    *(own, float(test.pvalue)),
                )
            )
    order = list(KINDS)
    return sorted(found, key=lambda c: (order.index(c.kind), c.clients, -c.epsilon))


def finals_of(rows: Sequence[Row]) -> list[Row]:
    """The final runs of what is compared: in the settings that tuning chose."""
    chosen = choose(rows)
    alone, experts = (chosen.get(place) for place in (("alone", "iid"), ("together", "senses")))

    def is_compared(row: Row) -> bool:
        if row["side"] == "alone":
            return row["setting"] == alone
        return row["kind"] != "senses" or row["setting"] == experts

    return [row for row in rows if row["stage"] == "final" and is_compared(row)]


def over_one_mean(rows: Sequence[Row]) -> Mapping[int, tuple[list[float], list[float]]]:
    """What one mean prompt and private experts reach at epsilon 8, by clients, paired by seed."""
    final = [row for row in finals_of(rows) if row["epsilon"] == "8.0"]
    place = {(row["kind"], row["clients"], row["seed"]): float(row["all"]) for row in final}
    found: dict[int, tuple[list[float], list[float]]] = {}
    for (kind, clients, seed), accuracy in sorted(place.items()):
        if kind == ONE_MEAN and ("senses", clients, seed) in place:
            means, experts = found.setdefault(int(clients), ([], []))
            means.append(accuracy)
            experts.append(place["senses", clients, seed])
    return {clients: pair for clients, pair in found.items() if len(pair[0]) > 1}


def _numbers(rows: Sequence[Row], name: str) -> tuple[float, ...]:
    return tuple(float(row[name]) for row in rows)


def _differences(rows: Sequence[Row], others: Sequence[Row], name: str) -> tuple[float, ...]:
    pairs = zip(_numbers(rows, name), _numbers(others, name), strict=True)
    return tuple(a - b for a, b in pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """P values that hold for all claims at once (Holm 1979, "A simple sequentially rejective ...").

    The i-th smallest of m is multiplied by m - i + 1, and none is below one before it.
    """
    number, adjusted, largest = len(p_values), [1.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (number - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


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
    "- **Among 1,000 clients** noise costs nothing that could be measured at epsilon 8, and",
    "  little at 2 and 1. Private experts that are split reach 96.7% and more on every seed at any",
    "  of the three, in mean 21 to 23 points above a client alone; where two senses end in one, as",
    "  they may if none is split, half of the clients are worse off than alone (below). One mean",
    "  prompt for all senses is of no use to anybody: 26.1 ± 1.5 at epsilon 8 (five seeds).",
)


def _gains(
    found: Sequence[Claim], pairs: Mapping[int, tuple[list[float], list[float]]]
) -> list[str]:
    differences = {
        clients: [b - a for a, b in zip(*pair, strict=True)] for clients, pair in pairs.items()
    }
    tests = [
        float(stats.ttest_1samp(of, OVER_ONE_MEAN, alternative="greater").pvalue)
        for of in differences.values()
    ]
    adjusted = holm([*(claim.p_value for claim in found), *tests])
    head = ("federation", "clients", "epsilon", "seeds", "alone", "together", "gain", "aim", "P")
    lines = [f"| {' | '.join((*head, 'gain, own'))} |", "|" + "---|" * (len(head) + 1)]
    for claim, p_value in zip(found, adjusted[: len(found)], strict=True):
        aim = AIMS[claim.clients, claim.epsilon]
        cells = (
            *(KINDS[claim.kind], f"{claim.clients:,}", f"{claim.epsilon:g}"),
            *(str(len(claim.gains)), spread(claim.alone), spread(claim.together)),
            *(interval(claim.gains), f"{aim:+.0f}" if aim else "above 0", f"{p_value:.1g}"),
            interval(claim.own),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines + _against_mean(pairs, differences, adjusted[len(found) :]) if pairs else lines


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


def tried(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """The tuning runs' accuracies, by side and federation and then by setting."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["stage"] == "tuning":
            of = found.setdefault((row["side"], row["kind"]), {})
            of.setdefault(row["setting"], []).append(float(row["all"]))
    return found


def choose(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """For each side and kind the setting with the best mean over the tuning seeds."""
    return {
        place: max(settings, key=lambda name: statistics.mean(settings[name]))
        for place, settings in tried(rows).items()
    }


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
