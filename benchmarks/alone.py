"""A client alone, at its best: every validation-free few-shot method on its own images.

Evaluates the arms of `_alone.py` and CoOp on the clients of a configuration, and heads on all
clients' images together as the ceiling. Which arm counts is decided afterwards, by its mean over
clients and seeds, which favours a client alone. A row a kind, seed and arm, in percent: on `all`
test images, on those of the classes that the client holds (`held`), and on the client's `own`, all
among all classes. The means are printed, and with `--csv` the rows are written.

    python benchmarks/alone.py [CONFIG] [--seeds 0 1 2] [--clients 20] [--kinds iid ..]
        [--arms NAME ..] [--set KEY=VALUE ..] [--words FILE] [--no-coop] [--csv PATH] [--jobs 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _alone import Candidates, Head, Shots, accuracy, arms, pooled
from _alone_texts import candidates, coop
from _grid import Row, key_of, read_rows, shared_folder, workers, write_rows
from _sizes import FEWER, sized
from worth_of_sharing import FEWER_CLIENTS, KINDS

from methods import Examples, zero_shot
from methods.clip.adapter import Backbone
from methods.interface.method import Task
from platform.config import RunConfig, load_config
from platform.config.randomness import stream
from platform.data.cache import CacheFolder
from platform.data.loading import load_task_data
from platform.data.preparing import cached_encoders, frozen_model
from platform.experiment.dealing import deal_examples
from platform.experiment.environment import resolve_device, use_threads

KEY = ("config", "kind", "seed", "arm")
CHOICES = ("as configured", *(kind for kind in KINDS if kind not in ("one mean", "subspace")))


@dataclass(frozen=True)
class Clients:
    """The measured clients of a configuration.

    Attributes:
        shots: Each client's training images.
        all_tests: Its test images of all classes.
        own_tests: Its own test images.
        everybody: The training images of all clients together that see its test images: of its
            sense, where clients differ in that.
    """

    backbone: Backbone
    classes: tuple[str, ...]
    shots: list[Shots] = field(default_factory=list)
    all_tests: list[Shots] = field(default_factory=list)
    own_tests: list[Shots] = field(default_factory=list)
    everybody: list[Shots] = field(default_factory=list)


def load(config: RunConfig, cache: Path) -> Clients:
    """Deal out the images as a run of the configuration does, and encode them."""
    device = resolve_device(config.device)
    use_threads(config.threads)
    backbone = frozen_model(config.task.model, device, config.plugins)
    if backbone is None:
        raise SystemExit("task.model: null has no texts; valid: a CLIP model")
    data = load_task_data(config)
    task = Task(data.classes, data.domain_names, config.task.clients, backbone, device=device)
    method = zero_shot.build(zero_shot.Config(), task)
    folder = CacheFolder(cache, int(config.storage.cache_gib * 2**30))
    encoders = cached_encoders(backbone, folder, lambda what, done, total: None)
    wanted = config.evaluation.measured_clients
    measuring = None if wanted is None else (wanted, stream(config.seed, "measured clients"))
    train, plan = deal_examples(
        data, method, encoders, config.evaluation.protocol, measuring=measuring
    )

    def shots(parts: Sequence[Examples]) -> Shots:
        arrays = [part.arrays for part in parts]
        features = np.concatenate([each["features"] for each in arrays]).astype(np.float64)
        labels = np.concatenate([each["labels"] for each in arrays])
        return Shots(features, labels, len(data.classes))

    by_tests = defaultdict(list)
    for name, examples in train.items():
        by_tests[id(plan.everything[name])].append(examples)
    together = {key: shots(parts) for key, parts in by_tests.items()}
    tests = {id(each): shots([each.examples]) for each in plan.everything.values()}
    found = Clients(backbone, data.classes)
    for name in plan.measured:
        key = id(plan.everything[name])
        found.shots.append(shots([train[name]]))
        found.all_tests.append(tests[key])
        found.own_tests.append(shots([plan.own[name]]))
        found.everybody.append(together[key])
    return found


SETS = ("all", "held", "own")
Measured = tuple[float, ...]
"""A client's accuracy on each of `SETS`, and seconds."""


def evaluate(
    clients: Clients,
    texts: Candidates,
    rng: np.random.Generator,
    *,
    trains_prompts: bool = True,
    only: Sequence[str] = (),
) -> Mapping[str, list[Measured]]:
    """The numbers of every arm, or only of some, for each client, in the clients' order."""
    found: dict[str, list[Measured]] = defaultdict(list)

    def measure(name: str, position: int, head: Head, seconds: float) -> None:
        tests, own = clients.all_tests[position], clients.own_tests[position]
        scores = head(tests.features)
        held = clients.shots[position].counts[tests.labels] > 0
        found[name].append(
            (
                accuracy(scores, tests.labels),
                accuracy(scores[held], tests.labels[held]),
                accuracy(head(own.features), own.labels),
                seconds,
            )
        )

    for position, shots in enumerate(clients.shots):
        for name, make in arms(shots, texts).items():
            if only and name not in only:
                continue
            started = time.perf_counter()
            head = make()
            measure(name, position, head, time.perf_counter() - started)
    started = time.perf_counter()
    learners = clients.shots if trains_prompts else []
    for name, heads in coop(clients.backbone, clients.classes, learners, rng):
        seconds = (time.perf_counter() - started) / len(heads)
        for position, head in enumerate(heads):
            measure(name, position, head, seconds)
        started = time.perf_counter()
    made: dict[int, Mapping[str, Head]] = {}
    for position, together in enumerate(clients.everybody):
        if id(together) not in made:
            made[id(together)] = pooled(together, texts)
        for name, head in made[id(together)].items():
            measure(name, position, head, 0.0)
    return found


def rows_of(setting: Row, folder: str) -> list[Row]:
    """The rows of a kind and a seed."""
    config = load_config(Path(setting["config"]), setting["overrides"])
    clients = load(config, Path(folder) / "cache")
    texts = candidates(clients.backbone, clients.classes, tuple(setting["words"]))
    rng = np.random.default_rng(config.seed)
    found = evaluate(
        clients, texts, rng, trains_prompts=setting["coop"], only=setting.get("arms", ())
    )
    rows = []
    for arm, each in found.items():
        *means, seconds = np.nanmean(np.array(each), axis=0)
        percents = {name: f"{100 * mean:.2f}" for name, mean in zip(SETS, means, strict=True)}
        key = {**{name: setting[name] for name in KEY[:-1]}, "arm": arm, "clients": len(each)}
        rows.append({**key, **percents, "seconds": f"{seconds:.3f}"})
    return rows


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A table of all arms and kinds, the mean and standard deviation over seeds."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    means: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        for name in SETS:
            means[row["arm"], row["kind"], name].append(float(row[name]))
    columns = [(kind, name) for kind in kinds for name in SETS]
    yield f"| arm | {' | '.join(f'{kind}, {name}' for kind, name in columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    names = list(dict.fromkeys(row["arm"] for row in rows))
    for arm in names:
        cells = [means[arm, *column] for column in columns]
        yield f"| {arm} | {' | '.join(map(_spread, cells))} |"
    alone = [arm for arm in names if not arm.startswith("pooled")]
    for kind, name in columns:
        best = max(alone, key=lambda arm: statistics.fmean(means[arm, kind, name]))
        yield f"best alone, {kind}, {name}: {best}, {_spread(means[best, kind, name])}"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="sharing")
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2], [0]))
    parser.add_argument("--clients", type=int, default=sized(20, 2), help="measured clients")
    parser.add_argument("--kinds", choices=CHOICES, nargs="+", default=list(CHOICES[:1]))
    parser.add_argument("--arms", nargs="*", default=(), help="only these, and the ceilings")
    parser.add_argument("--set", dest="overrides", nargs="*", default=sized([], FEWER_CLIENTS))
    parser.add_argument("--words", type=Path, help="public words for the word search, one a line")
    parser.add_argument("--no-coop", action="store_true", help="it takes most of the time")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    words = given.words.read_text(encoding="utf-8").split() if given.words else []
    common = (
        *("evaluation.protocol=all_classes", f"evaluation.measured_clients={given.clients}"),
        *(*given.overrides, *FEWER),
    )
    settings: list[dict[str, Any]] = [
        {
            **{"config": given.config, "kind": kind, "seed": seed},
            **{"words": words, "coop": not given.no_coop, "arms": given.arms},
            "overrides": [f"seed={seed}", *common, *KINDS.get(kind, ())],
        }
        for seed in given.seeds
        for kind in given.kinds
    ]
    rows = read_rows(given.csv) if given.csv else []
    with shared_folder() as folder, workers(given.jobs) as pool:
        for part in pool.map(partial(rows_of, folder=folder), settings):
            rows = list({key_of(row, KEY): row for row in (*rows, *part)}.values())
            if given.csv is not None:
                write_rows(given.csv, rows, KEY)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
