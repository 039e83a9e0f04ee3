"""The tables of the four papers in small: the same methods, partitions, protocols and ablations.

Runs each row of a paper's table on `homonyms` from the paper's own configuration, scaled down as
`paper_tables.yaml` says, and compares ranks with the paper's by Kendall's tau. First each row tries
its learning rates on the tuning seeds; the best one is used. Tables that need the same run share
it; the first seed of all tables runs before the second, main tables before others. Writes
`docs/results/paper-tables.{csv,md}`, each table with the seeds that all its rows have. Runs in the
CSV that are still a row's are kept, so a second call continues an interrupted benchmark.

    python benchmarks/paper_tables.py [TABLE ...] [--seeds N] [--jobs 2]
    python benchmarks/paper_tables.py --page
    python benchmarks/paper_tables.py --again 10
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import alone
import numpy as np
import yaml
from _grid import (
    Key,
    Row,
    among,
    key_of,
    one_of_each,
    read_rows,
    run_missing,
    shared_folder,
    summarise_run,
    workers,
    write_rows,
)
from _paper_tables_page import Remark, Result, page
from _scores import provenance
from _sizes import FEWER, RESULTS, sized

OUTPUT = RESULTS / "paper-tables.csv"
NUMBERS = Path(__file__).resolve().parents[1] / "docs" / "papers" / "numbers"
KEY = ("config", "settings", "seed")
BETWEEN = " | "
"""Separates settings in the CSV."""
ALONE = 'method={"name": "alone"}'
"""Stands for a client alone, with whatever it trains best of its own images."""
Known = Mapping[Key, Row]
"""Finished runs by their keys."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a paper's table, and the way to run it here.

    Attributes:
        table: The name of the table.
        group: The name of the table that it is shown with, which may be itself.
        label: The row's name there.
        paper: The paper's number; None for a row of ours.
        config: The configuration that is scaled down.
        settings: Changes in the configuration, except `over`, `turns`, the rate and the seed.
        over: Settings whose mean is the row's number, seed by seed.
        turns: Settings that seeds take in turn: the n-th seed holds out the n-th style.
        rates: The learning rates that are tried; one for a row that learns nothing.
        score: `after`, or `before` a second phase.
        seeds: How many seeds the table has.
    """

    table: str
    group: str
    label: str
    paper: float | None
    config: str
    settings: tuple[str, ...]
    over: tuple[str, ...]
    turns: tuple[str, ...]
    rates: tuple[float, ...]
    score: str
    seeds: int

    def runs(self, rate: float, seed: int) -> list[Row]:
        """A rate's runs with a seed, with the keys of the CSV."""
        turn = (self.turns[seed % len(self.turns)],) if self.turns else ()
        common = (*self.settings, f"training.learning_rate={rate}", *turn)
        varied = [(*common, *one) for one in (zip(self.over) if self.over else [()])]
        return [
            dict(zip(KEY, (self.config, BETWEEN.join(settings), str(seed)), strict=True))
            for settings in varied
        ]

    def number(self, known: Known, rate: float, seed: int) -> float | None:
        """The mean of a rate's runs with a seed; None if one is missing."""
        found = [known.get(key_of(run, KEY)) for run in self.runs(rate, seed)]
        rows = [row for row in found if row is not None]
        if len(rows) < len(found):
            return None
        return statistics.mean(float(row[self.score]) for row in rows)

    def chosen(self, known: Known, tuning_seeds: Sequence[int]) -> float | None:
        """The rate that is best on the tuning seeds, the lowest of equals; None while untuned."""
        if len(self.rates) == 1:
            return self.rates[0]
        means = {}
        for rate in self.rates:
            found = [self.number(known, rate, seed) for seed in tuning_seeds]
            numbers = [number for number in found if number is not None]
            if len(numbers) < len(found):
                return None
            means[rate] = statistics.mean(numbers)
        return max(sorted(means), key=means.__getitem__)


def read_lines(names: Sequence[str]) -> list[Line]:
    """All rows of the named tables; without names, of all tables."""
    document = _document()
    unknown = [name for name in names if name not in document["tables"]]
    if unknown:
        valid = ", ".join(document["tables"])
        raise SystemExit(f"{unknown[0]!r} is not a table; valid: {valid}")
    return [
        line
        for name in names or document["tables"]
        for line in _lines(name, document["tables"][name], document)
    ]


@cache
def _document() -> Any:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def tuning_seeds() -> list[int]:
    """Seeds on which rows try their rates."""
    return list(_document()["tuning_seeds"])


def remarks() -> Mapping[str, Remark]:
    """The page's remarks below each table."""
    document = _document()
    return {
        name: Remark(table.get("omitted", {}), table.get("note", ""), _seeds(table, document))
        for name, table in document["tables"].items()
    }


def _seeds(table: Mapping[str, Any], document: Mapping[str, Any]) -> int:
    return int(document["seeds"]["main" if table.get("main") else "other"])


def left_out() -> Mapping[str, str]:
    """Tables that do not run, each with a reason."""
    return {name: " ".join(why.split()) for name, why in _document()["left_out"].items()}


def _lines(name: str, table: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Line]:
    suite = document["suites"][table["suite"]]
    listed = _paper(table["numbers"], table.get("column")) if "numbers" in table else {}
    rows, beside = table.get("rows", {}), table.get("beside", {})
    if unknown := set(rows) - set(listed):
        raise SystemExit(f"{name}: {sorted(unknown)[0]!r} is not a row of {table['numbers']}.csv")
    for label in (*beside, *listed):
        if _is_omitted(label, table):
            continue
        row = beside.get(label) or rows.get(label) or _usual(label, table.get("mixture"))
        rates = row.get("rates", suite["rates"])
        yield Line(
            table=name,
            group=table.get("shown_with", name),
            label=label,
            paper=listed.get(label),
            config=suite["config"],
            settings=(
                *document["common"],
                *_flat(suite["settings"]),
                *table.get("settings", ()),
                _method(row, suite, document),
                *_flat(row.get("settings", ())),
            ),
            over=tuple(table.get("over", ())),
            turns=tuple(suite.get("turns", ())),
            rates=tuple(rates[:1] if row["method"] in document["untrained"] else rates),
            score=row.get("score", "after"),
            seeds=_seeds(table, document),
        )


def _usual(label: str, mixture: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A row that is only a method's name; with a mixture, the method before or with it."""
    names = label.split("`")[1::2]
    if mixture is None:
        return {"method": names[0]}
    score = "after" if len(names) > 1 else "before"
    return {"method": "pm_moe", "base": names[-1], "options": mixture, "score": score}


def _is_omitted(label: str, table: Mapping[str, Any]) -> bool:
    return any(fnmatch.fnmatchcase(label, pattern) for pattern in table.get("omitted", {}))


def _method(row: Mapping[str, Any], suite: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """The method's whole section: another configuration's section does not carry over."""
    options: dict[str, Any] = {}
    if "network" in suite or "network" in row:
        options = dict(row.get("network", suite.get("network")))
    elif row["method"] not in document["without_prompt"]:
        options = dict(document["prompt"])
    if "base" in row:
        options = {"base": row["base"], "base_options": options}
    return "method=" + json.dumps({"name": row["method"], **options, **row.get("options", {})})


def _flat(settings: Sequence[Any]) -> Iterator[str]:
    for setting in settings:
        yield from [setting] if isinstance(setting, str) else _flat(setting)


def _paper(numbers: str, column: str | None) -> dict[str, float]:
    """The paper's number of each row: a column's number, or the mean over all columns."""
    with (NUMBERS / f"{numbers}.csv").open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    places = range(1, len(head)) if column is None else [head.index(column)]
    return {
        row[0]: sum(float(row[place].split("±")[0]) for place in places) / len(places)
        for row in rows
    }


def tuning(lines: Sequence[Line]) -> list[Row]:
    """Every run at a rate that is tried, once; rows without a choice have none."""
    tried = (line for line in lines if len(line.rates) > 1)
    return _once(
        run
        for line in tried
        for rate in line.rates
        for s in tuning_seeds()
        for run in line.runs(rate, s)
    )


def wanted(lines: Sequence[Line], known: Known, seeds: int | None = None) -> list[Row]:
    """Every run of every tuned row once, ordered by seed; `seeds` may limit how many."""
    rates = [(line, line.chosen(known, tuning_seeds())) for line in lines]
    return _once(
        run
        for seed in range(max(line.seeds for line in lines) if seeds is None else seeds)
        for line, rate in rates
        if rate is not None and seed < line.seeds
        for run in line.runs(rate, seed)
    )


def _once(runs: Iterable[Row]) -> list[Row]:
    return list({key_of(run, KEY): run for run in runs}.values())


def _known(rows: Sequence[Row]) -> Known:
    return {key_of(row, KEY): row for row in rows}


def measure(row: Row, folder: str) -> Row:
    """One run's number in percent, the number before a second phase, and processor seconds.

    The seconds are this process' own, so other work on the machine hardly counts.
    """
    started = time.process_time()
    settings = [*row["settings"].split(BETWEEN), f"seed={row['seed']}"]
    if ALONE in settings:
        settings.remove(ALONE)
        result = {"after": f"{_alone(row['config'], settings, folder):.3f}", "before": ""}
    else:
        summary, _ = summarise_run(row["config"], settings, folder)
        before = (summary.get("phases") or {}).get("before")
        result = {
            "after": _percent(summary["final"]),
            "before": "" if before is None else f"{100 * before['mean']:.3f}",
        }
    return {**row, **result, "seconds": f"{time.process_time() - started:.1f}"}


def _alone(config: str, settings: Sequence[str], folder: str) -> float:
    """The best arm's accuracy on the clients' own images; test images choose the arm."""
    setting = {
        **{"config": config, "kind": "", "seed": 0, "words": [], "coop": False},
        "overrides": [*settings, *FEWER, "evaluation.protocol=all_classes"],
    }
    rows = alone.rows_of(setting, folder)
    return max(float(row["own"]) for row in rows if not row["arm"].startswith("pooled"))


def check_again(count: int, seed: int, jobs: int) -> None:
    """Run some of the file's rows, drawn at random, again; exit with 1 if any digit differs.

    The run's seed draws the noise of tables that have noise, so only a machine's arithmetic can
    make a difference.
    """
    rows = read_rows(OUTPUT)
    places = np.random.default_rng(seed).permutation(len(rows))[:count]
    drawn = [rows[place] for place in places]
    differ = 0
    with shared_folder() as folder, workers(jobs) as pool:
        again = [{name: row[name] for name in KEY} for row in drawn]
        for row, now in zip(drawn, pool.map(measure, again, [folder] * len(again)), strict=True):
            same = all(now[name] == row[name] for name in ("after", "before"))
            differ += not same
            said = "the same" if same else f"now {now['after']} {now['before']}"
            print(row["config"], row["seed"], row["after"], row["before"], said, flush=True)
    if differ:
        raise SystemExit(f"{differ} of {len(drawn)} rows differ now")


def _percent(final: Mapping[str, Any]) -> str:
    """The protocol's one number."""
    protocol = final["protocol"]
    target = protocol.get("target", final["accuracy"])
    return f"{100 * protocol.get('harmonic_mean', target['mean']):.3f}"


def results(lines: Sequence[Line], rows: Sequence[Row], seeds: Sequence[int]) -> list[Result]:
    """Each row's numbers at its rate, for the seeds that its whole table has."""
    known, found = _known(rows), []
    for group in dict.fromkeys(line.group for line in lines):
        together = [line for line in lines if line.group == group]
        tuned = [(line, line.chosen(known, tuning_seeds())) for line in together]
        numbers: list[list[float]] = []
        for seed in seeds:
            each = [r and line.number(known, r, seed) for line, r in tuned]
            numbers += [[n for n in each if n is not None]] if None not in each else []
        for (line, rate), scores in zip(tuned, zip(*numbers, strict=True), strict=False):
            found.append(
                Result(
                    table=line.table,
                    group=group,
                    label=line.label,
                    paper=line.paper,
                    rate=rate or 0.0,
                    rates=line.rates,
                    scores=scores,
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most the first N seeds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=int, metavar="N", help="check N rows drawn at random")
    parser.add_argument("--page", action="store_true", help="write the page from finished runs")
    options = parser.parse_args()
    if options.again:
        check_again(options.again, options.seeds or 0, options.jobs)
        return
    lines = read_lines([])
    if not options.page:
        some = sorted(read_lines(options.tables), key=lambda line: -line.seeds)
        for made in (
            lambda: tuning(some),
            lambda: wanted(some, _known(read_rows(OUTPUT)), options.seeds),
        ):
            runs = made()
            run_missing(
                OUTPUT,
                sized(runs, one_of_each(runs, "config")[::4]),
                measure,
                key=KEY,
                jobs=options.jobs,
            )
    rows = read_rows(OUTPUT)
    every = _once([*tuning(lines), *wanted(lines, _known(rows))])
    rows = among(rows, every, KEY)
    write_rows(OUTPUT, rows, KEY)
    seeds = range(max(line.seeds for line in lines))
    text = "\n".join(
        [
            *page(results(lines, rows, seeds), remarks(), left_out()),
            cost(rows),
            "",
            *provenance(),
        ]
    )
    OUTPUT.with_suffix(".md").write_text(text, encoding="utf-8")


def cost(rows: Sequence[Row]) -> str:
    """A sentence on the total time of the runs, and the longest run."""
    seconds = [float(row["seconds"]) for row in rows] or [0.0]
    return (
        f"{len(rows)} runs, those for tuning among them, took {sum(seconds) / 60:.0f} processor "
        f"minutes in total, {statistics.median(seconds):.1f} s in the median and "
        f"{max(seconds):.1f} s at most. The first run of a seed also encodes images, and other "
        "work on a machine's cores makes these seconds up to twice as many."
    )


if __name__ == "__main__":
    main()
