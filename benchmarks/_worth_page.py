"""The page of `worth_of_sharing.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from _grid import Row
from _handwriting_page import Best, Cell, best_alone
from _scores import half_width, interval, provenance, spread

KINDS = {
    "iid": "iid: sixteen images, whatever their class",
    "pathological": "pathological: eight images of each of two classes",
    "senses": "groups: clients in four senses, private experts",
    "subspace": "iid, in 64 public directions of 512",
}
Place = tuple[str, str, str, str]


def tried(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """The tuning runs' accuracies, by side and federation and then by setting."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["stage"] == "tuning":
            of = found.setdefault((row["side"], row["kind"]), {})
            of.setdefault(row["setting"], []).append(float(row["all"]))
    return found


def choose(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The setting with the best mean over the tuning seeds, for each side and kind."""
    return {
        place: max(settings, key=lambda name: statistics.mean(settings[name]))
        for place, settings in tried(rows).items()
    }


def by_place(rows: Sequence[Row], column: str) -> dict[Place, dict[str, float]]:
    """Numbers of the final runs by seed, for each side, kind, number of clients and epsilon."""
    found: dict[Place, dict[str, float]] = {}
    for row in rows:
        if row["stage"] == "final" and row[column]:
            place = (row["side"], row["kind"], row["clients"], row["epsilon"])
            found.setdefault(place, {})[row["seed"]] = float(row[column])
    return found


def alone_at(alones: Sequence[Row], kind: str, column: str) -> Best:
    """The best arm of a client alone among the rows of `alone.py`."""
    return best_alone([{**row, "domain": ""} for row in alones], "", kind, column)


def cells(rows: Sequence[Row], alones: Sequence[Row]) -> list[Cell]:
    """All federations beside a client alone at its best; the domain is the number of clients."""
    everywhere, own = by_place(rows, "all"), by_place(rows, "own")
    found = []
    for place in everywhere:
        side, kind, clients, epsilon = place
        if side == "together" and kind in KINDS:
            of = "iid" if kind == "subspace" else kind
            alone, at_home = (alone_at(alones, of, column) for column in ("all", "own"))
            numbers = everywhere[place], own[place]
            found.append(Cell(clients, kind, epsilon, side, *numbers, alone, at_home))
    order = list(KINDS)
    return sorted(found, key=lambda c: (order.index(c.kind), int(c.domain), -float(c.epsilon)))


def page(rows: Sequence[Row], alones: Sequence[Row]) -> Iterator[str]:
    """The page of results."""
    found = cells(rows, alones)
    gains = [statistics.fmean(cell.gains) for cell in found]
    yield "# One prompt for all on homonyms, beside a client alone at its best"
    yield ""
    low = [statistics.fmean(cell.gains) - half_width(cell.gains) for cell in found]
    yield f"**Together is {min(gains):+.1f} to {max(gains):+.1f} points from a client alone, and"
    yield f"above it beyond chance in {sum(end > 0 for end in low)} of {len(low)} rows.**"
    yield from INTRODUCTION
    yield ""
    yield from _differences(rows, found)
    yield ""
    yield from READING
    yield ""
    yield from _one_mean(rows)
    yield ""
    yield "## Worth of sharing at 100 clients and epsilon 8"
    yield ""
    yield from WORTH
    yield ""
    yield from _worth(rows)
    yield ""
    yield "## How the sides were tuned"
    yield ""
    yield from TUNING
    yield ""
    yield "| side | federation | settings |"
    yield "|---|---|---|"
    for (side, kind), settings in tried(rows).items():
        told = "; ".join(f"{name}: {spread(values)}" for name, values in settings.items())
        yield f"| {side} | {kind} | {told} |"
    yield ""
    yield from provenance()


INTRODUCTION = (
    "A client alone solves `homonyms` by searching for one word, without a federation, so this",
    "page cannot show a gain of sharing. It shows how little noise costs where the difference is",
    "close to zero. [Handwriting](handwriting.md) shows gains.",
    "",
    "**Tuning.** *Alone* is the best that a client alone can do, as far as we found: of some forty",
    "arms of [alone.py](../../benchmarks/alone.py), none of them tuned, the one with the best mean",
    "over seeds, chosen afterwards on the test images, in its favour. All arms had seeds 0 to 2,",
    "the three best with iid images more; rows count seeds in common. All others (*together*,",
    "private experts, *release*, *prompt alone*) had three settings each. Tuning is uncharged,",
    "because it used data of other seeds; a consortium that tunes on its own data spends budget.",
    "",
    "Clients hold sixteen images each (`configs/sharing.yaml`). *Together* is one prompt (in",
    "groups: six private experts) learned from random tokens in five or six rounds with",
    "client-level privacy: replace one client, delta 1e-5. At 100 clients the clients add the",
    "noise, under masks (`distributed_noise`); at 1,000 the coordinator adds as much",
    "(`central_noise`: the epsilon is the peers' and the observer's). *Release* is one private",
    "release without training, of class sums or of the words that CLIP reads in images. *Prompt",
    "alone* is one prompt that a client trains from random tokens, a weak opponent that earlier",
    "versions of this page called alone. A dash was not measured. Percent of right answers among",
    "all twenty names on all test images, by twenty clients drawn at random.",
)
WORTH = (
    "Points over the better of two runs in which all uploads are zeros, with noise and without",
    "(three seeds): a prompt from random tokens learns from the uploads, which is no gain over a",
    "client alone. *Signal to noise* of rounds' sums: 95% intervals of seed 0.",
)
TUNING = (
    "Percent on all classes over five seeds that no other number here uses, at 100 clients and",
    "epsilon 8. Here the threshold of masked sums is 67 clients, hence 1.2 times the noise of the",
    "final runs, whose threshold is 95. Winners under iid also serve pathological data. That",
    "splitting crowded experts helps was found on 200 clients of seeds 0 to 5, with the signal to",
    "noise of 1,000 clients at epsilon 8: one idea more than the other sides had.",
)
READING = (
    "*Difference* and *own* (a client's own test images, against the arm that is best there) are",
    "in points, together less alone: 95% t intervals over seeds, paired by seed.",
)


def _differences(rows: Sequence[Row], found: Sequence[Cell]) -> Iterator[str]:
    numbers = by_place(rows, "all")
    yield (
        "| federation | clients | epsilon | seeds | alone | together | difference | own | release "
        "| prompt alone |"
    )
    yield "|---" * 10 + "|"
    for cell in found:
        of = "iid" if cell.kind == "subspace" else cell.kind
        prompt = spread(list(numbers["prompt alone", of, "20", "inf"].values()))
        once = list(numbers.get(("statistics", of, cell.domain, cell.epsilon), {}).values())
        told = f"{spread(once)} ({len(once)} seeds)" if once else "-"
        columns = (
            *(KINDS[cell.kind], f"{int(cell.domain):,}", f"{float(cell.epsilon):g}"),
            *(str(len(cell.gains)), _arm(cell), spread(list(cell.all.values()))),
            *(interval(cell.gains, "+"), interval(cell.own_gains, "+"), told, prompt),
        )
        yield f"| {' | '.join(columns)} |"


def _arm(cell: Cell) -> str:
    return f"{spread(list(cell.alone.by_seed.values()))} ({cell.alone.arm})"


def _one_mean(rows: Sequence[Row]) -> Iterator[str]:
    numbers = by_place(rows, "all")
    for place, means in numbers.items():
        if place[1] == "one mean":
            experts = numbers["together", "senses", *place[2:]]
            apart = [experts[seed] - means[seed] for seed in means]
            told = f"{spread(list(means.values()))} ({len(means)} seeds)"
            yield f"*One* prompt for {int(place[2]):,} clients in four senses has {told} at epsilon"
            yield f"8; private experts are {interval(apart, '+')} points above it."


def _worth(rows: Sequence[Row]) -> Iterator[str]:
    worth = by_place(rows, "worth")
    yield "| federation | worth of sharing | signal to noise |"
    yield "|---|---|---|"
    for kind, title in KINDS.items():
        place = ("together", kind, "100", "8.0")
        if place in worth:
            told = next(
                row["signal_to_noise"]
                for row in rows
                if (row["side"], row["kind"], row["clients"], row["epsilon"]) == place
            )
            values = spread(list(worth[place].values()))
            yield f"| {title.split(':')[0]} | {values} | {', '.join(told.split())} |"
