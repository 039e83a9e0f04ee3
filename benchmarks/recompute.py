"""Recomputes random cells of three pages without our trainer, methods or accountant.

    python benchmarks/recompute.py [--cells 3] [--seed N] [--pages handwriting ..]

Only the images' features and the text's are ours: both are exported through the data layer and the
frozen model. The rest is numpy, scipy and scikit-learn, written from the page and the papers: class
sums, a head refined by their residuals, Gaussian noise at the closed form of epsilon (Balle and
Wang 2018, Theorem 8), and zero-shot, a client's own nearest mean and pooled ridge regression. So it
draws among the cells made of features: no prompt is learned here. A cell agrees if its mean
over seeds lies within three standard errors of the recomputed one, and within 1.5 points.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import alone
import numpy as np
from _grid import Row, read_rows, shared_folder
from _scores import mu_of
from _sizes import RESULTS, sized
from handwriting import ALONE, CHEAP, CONFIG, OUTPUT, overrides
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import Ridge

from platform.config import load_config

Vector = NDArray[np.float64]
PAGES = ("handwriting", "personalised", "worth-of-sharing")


def unit(rows: Vector) -> Vector:
    """Rows of length one."""
    found: Vector = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def clipped(rows: Vector) -> Vector:
    """A matrix of norm at most 1."""
    return rows / max(1.0, float(np.linalg.norm(rows)))


def federated(row: Row, clients: alone.Clients, text: Vector, rng: np.random.Generator) -> Vector:
    """The head of a federation: sums of classes, perhaps refined by sums of residuals."""
    setting = row["setting"].split(";")[0]
    refined = row["way"] == "refined head"
    start, rounds, rate = ("statistics", "1 rounds", "0")
    if refined:
        start, rounds, rate = setting.split(", ")
    weight = 0.25 if refined else float(setting.removeprefix("text "))
    number = int(rounds.split()[0])
    deviation = 2.0 * np.sqrt(number) / mu_of(float(row["epsilon"]))
    ones = [np.eye(len(text))[shots.labels] for shots in clients.shots]
    head = text
    for index in range(number):
        sums = np.zeros_like(text)
        is_first = index == 0 and start == "statistics"
        for shots, one in zip(clients.shots, ones, strict=True):
            told = one if is_first else one - softmax(10.0 * shots.features @ head.T, axis=1)
            sums += clipped(told.T @ shots.features)
        sums += deviation * rng.standard_normal(sums.shape)
        if is_first:
            head = unit(sums) + weight * text
        else:
            head = head + float(rate) * sums / len(clients.shots)
    return head


def nearest_mean(shots: alone.Shots, text: Vector) -> Vector:
    """Means of a client's own classes, of length one; NaN for the others, which it never names."""
    sums = np.eye(len(text))[shots.labels].T @ shots.features
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), np.nan)


def zero_shot(shots: alone.Shots, text: Vector) -> Vector:
    """The text itself."""
    return text


def pooled_ridge(shots: alone.Shots, text: Vector) -> Vector:
    """Ridge regression on one-hot labels of all clients' images, by scikit-learn."""
    penalty = 0.01 * float((shots.features**2).sum()) / shots.features.shape[1]
    model = Ridge(alpha=penalty, fit_intercept=False)
    return np.asarray(model.fit(shots.features, np.eye(len(text))[shots.labels]).coef_)


ARMS: dict[str, Callable[[alone.Shots, Vector], Vector]] = {
    "zero-shot": zero_shot,
    "class means": nearest_mean,
    "pooled ridge": pooled_ridge,
}


def accuracy(head: Vector, tests: alone.Shots) -> float:
    """Percent of right answers."""
    scores = np.nan_to_num(tests.features @ head.T, nan=-np.inf)
    return 100.0 * float((scores.argmax(axis=1) == tests.labels).mean())


def recomputed(cell: Cell, row: Row, folder: Path) -> float:
    """A cell's number for one seed."""
    # A federation sums over all clients; a client alone is one of the page's twenty.
    everybody = ["evaluation.measured_clients=null"] if "way" in row else []
    settings = [*cell.overrides(row), *everybody, *sized([], alone.FEWER_CLIENTS)]
    clients = alone.load(load_config(Path(cell.config), settings), folder)
    text = clients.backbone.encode_texts([f"a photo of a {name}." for name in clients.classes])
    rows = text.double().numpy()
    if "way" in row:
        heads = [federated(row, clients, rows, np.random.default_rng())] * len(clients.all_tests)
    else:
        of = clients.everybody if row["arm"].startswith("pooled") else clients.shots
        heads = [ARMS[row["arm"]](shots, rows) for shots in of]
    return statistics.fmean(map(accuracy, heads, clients.all_tests))


@dataclass(frozen=True)
class Cell:
    """A cell of a page: a row for each seed, and what a row's run sets in a configuration."""

    page: str
    config: str
    overrides: Callable[[Row], list[str]]
    rows: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its place on the page."""
        names = ("domain", "kind", "way", "arm", "epsilon")
        return " ".join(self.rows[0][each] for each in names if each in self.rows[0])


def handwritten(row: Row) -> list[str]:
    """What a run on handwriting sets."""
    return overrides({"stage": "final", "epsilon": "8.0", **row})


def of_sharing(row: Row) -> list[str]:
    """What `alone.py` sets for `sharing-alone.csv`."""
    return [
        *(f"seed={row['seed']}", "evaluation.protocol=all_classes"),
        *(f"evaluation.measured_clients={row['clients']}", *alone.KINDS[row["kind"]]),
    ]


def every_row() -> Iterator[tuple[str, str, Callable[[Row], list[str]], Row]]:
    """The rows that can be recomputed, each with its page, configuration and overrides."""
    for row in read_rows(OUTPUT):
        is_shared = row["stage"] == "final" and row["setting"].endswith("; shared")
        if is_shared and row["way"] in CHEAP:
            yield "handwriting", CONFIG, handwritten, row
    for row in read_rows(ALONE):
        if row["arm"] in ARMS:
            yield "handwriting", CONFIG, handwritten, row
    for row in read_rows(RESULTS / "personalised.csv"):
        if row["way"] == "class statistics":
            yield "personalised", CONFIG, handwritten, {**row, "setting": "text 0.1"}
    for row in read_rows(RESULTS / "sharing-alone.csv"):
        if row["arm"] in ARMS:
            yield "worth-of-sharing", "sharing", of_sharing, row


def drawn(number: int, pages: Sequence[str], rng: random.Random) -> list[Cell]:
    """Random cells of each page."""
    found: dict[tuple[str, ...], Cell] = {}
    for page, config, sets, row in every_row():
        names = ("domain", "kind", "way", "arm", "epsilon")
        place = (page, *(row.get(name, "") for name in names))
        found.setdefault(place, Cell(page, config, sets)).rows.append(row)
    cells = [[found[place] for place in sorted(found) if place[0] == page] for page in pages]
    return [cell for each in cells for cell in rng.sample(each, min(number, len(each)))]


def agrees(page: Sequence[float], own: Sequence[float]) -> bool:
    """Whether two means differ by at most 1.5 points, and by three standard errors."""
    differences = [a - b for a, b in zip(page, own, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(page) > 1 else 0.0
    return abs(statistics.fmean(differences)) <= min(1.5, 3.0 * error + 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=sized(3, 1))
    parser.add_argument("--seed", type=int, help="of the choice of cells; none for a fresh one")
    parser.add_argument("--pages", choices=PAGES, nargs="+", default=list(PAGES))
    options = parser.parse_args()
    wrong = 0
    rng = random.Random(options.seed)  # noqa: S311
    with shared_folder() as folder:
        for cell in drawn(options.cells, options.pages, rng):
            rows = sized(cell.rows, cell.rows[:1])
            own = [recomputed(cell, row, Path(folder) / "cache") for row in rows]
            page = [float(row["all"]) for row in rows]
            is_right = agrees(page, own)
            wrong += not is_right
            means = f"page {statistics.fmean(page):.1f}, recomputed {statistics.fmean(own):.1f}"
            verdict = "agrees" if is_right else "DIFFERS"
            print(f"{verdict}: {cell.page}: {cell.name}: {means}, {len(rows)} seeds", flush=True)
    sys.exit(int(wrong > 0 and sized(1, 0) > 0))


if __name__ == "__main__":
    main()
