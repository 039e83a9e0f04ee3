"""The tables of the four papers in small: the same methods, partitions, protocols and ablations.

Runs each row of a paper's table on `homonyms` from the paper's own configuration, scaled down as
`paper_tables.yaml` says, and compares ranks with the paper's by Kendall's tau. Tables that need the
same run share it; the first seed of all tables runs before the second. Writes
`docs/results/paper-tables.{csv,md}`, each table with the seeds that all its rows have. Runs in the
CSV are kept, so a second call continues an interrupted benchmark.

    python benchmarks/paper_tables.py [TABLE ...] [--seeds 0 1 2] [--jobs 2]
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _grid import (
    Row,
    among,
    key_of,
    one_of_each,
    read_rows,
    run_missing,
    shared_folder,
    summarise_run,
    workers,
)
from _paper_tables_page import Remark, Result, page
from _scores import provenance
from _sizes import RESULTS, sized

OUTPUT = RESULTS / "paper-tables.csv"
NUMBERS = Path(__file__).resolve().parents[1] / "docs" / "papers" / "numbers"
KEY = ("config", "settings", "seed")
BETWEEN = " | "
"""Separates settings in the CSV."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a paper's table, and the way to run it here.

    Attributes:
        table: The name of the table.
        label: The row's name there.
        paper: The paper's number.
        config: The configuration that is scaled down.
        settings: Changes in the configuration, except those in `over` and `turns` and the seed.
        over: Settings whose mean is the row's number, seed by seed.
        turns: Settings that seeds take in turn: the n-th seed holds out the n-th style.
        rate: The learning rate, which `settings` also hold.
        score: `after`, or `before` a second phase.
    """

    table: str
    label: str
    paper: float
    config: str
    settings: tuple[str, ...]
    over: tuple[str, ...]
    turns: tuple[str, ...]
    rate: float
    score: str

    def runs(self, seed: int) -> list[Row]:
        """A seed's runs, with the keys of the CSV."""
        turn = (self.turns[seed % len(self.turns)],) if self.turns else ()
        varied = [(*self.settings, *turn, *one) for one in (zip(self.over) if self.over else [()])]
        return [
            dict(zip(KEY, (self.config, BETWEEN.join(settings), str(seed)), strict=True))
            for settings in varied
        ]


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


def _document() -> Any:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def remarks() -> Mapping[str, Remark]:
    """The page's remarks below each table."""
    tables = _document()["tables"]
    return {name: Remark(table.get("omitted", {})) for name, table in tables.items()}


def left_out() -> Mapping[str, str]:
    """Tables that do not run, each with a reason."""
    return {name: " ".join(why.split()) for name, why in _document()["left_out"].items()}


def _lines(name: str, table: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Line]:
    suite = document["suites"][table["suite"]]
    rows, listed = table.get("rows", {}), _paper(table["numbers"], table.get("column"))
    omitted = [each for each in listed if _is_omitted(each, table)]
    if unknown := set(rows) - set(listed):
        raise SystemExit(f"{name}: {sorted(unknown)[0]!r} is not a row of {table['numbers']}.csv")
    for label, number in listed.items():
        if label in omitted:
            continue
        # A row that is only a method's name needs no entry.
        row = rows.get(label, {"method": label.strip("`")})
        rate = row.get("rate", suite["rate"])
        yield Line(
            table=name,
            label=label,
            paper=number,
            config=suite["config"],
            settings=(
                *document["common"],
                *_flat(suite["settings"]),
                *table.get("settings", ()),
                _method(row, suite, document),
                *_flat(row.get("settings", ())),
                f"training.learning_rate={rate}",
            ),
            over=tuple(table.get("over", ())),
            turns=tuple(suite.get("turns", ())),
            rate=rate,
            score=row.get("score", "after"),
        )


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


def wanted(lines: Sequence[Line], seeds: Sequence[int]) -> list[Row]:
    """Every run of every row once, ordered by seed."""
    runs = (run for seed in seeds for line in lines for run in line.runs(seed))
    return list({key_of(run, KEY): run for run in runs}.values())


def measure(row: Row, folder: str) -> Row:
    """One run's number in percent, the number before a second phase, and processor seconds.

    The seconds are this process' own, so other work on the machine hardly counts.
    """
    started = time.process_time()
    settings = [*row["settings"].split(BETWEEN), f"seed={row['seed']}"]
    summary, _ = summarise_run(row["config"], settings, folder)
    before = (summary.get("phases") or {}).get("before")
    return {
        **row,
        "after": _percent(summary["final"]),
        "before": "" if before is None else f"{100 * before['mean']:.3f}",
        "seconds": f"{time.process_time() - started:.1f}",
    }


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
    """Each row's numbers, for the seeds that its whole table has."""
    known = {key_of(row, KEY): row for row in rows}

    def has(line: Line, seed: int) -> bool:
        return all(key_of(run, KEY) in known for run in line.runs(seed))

    def number(line: Line, seed: int) -> float:
        found = [float(known[key_of(run, KEY)][line.score]) for run in line.runs(seed)]
        return statistics.mean(found)

    whole = {
        name: [
            seed for seed in seeds if all(has(line, seed) for line in lines if line.table == name)
        ]
        for name in dict.fromkeys(line.table for line in lines)
    }
    return [
        Result(
            line.table,
            line.label,
            line.paper,
            line.rate,
            tuple(number(line, seed) for seed in whole[line.table]),
        )
        for line in lines
        if whole[line.table]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=int, metavar="N", help="check N rows drawn at random")
    parser.add_argument("--page", action="store_true", help="write the page from finished runs")
    options = parser.parse_args()
    if options.again:
        check_again(options.again, options.seeds[0], options.jobs)
        return
    lines = read_lines([])
    if not options.page:
        runs = wanted(read_lines(options.tables), options.seeds)
        runs = sized(runs, one_of_each(runs, "config")[::4])
        run_missing(OUTPUT, runs, measure, key=KEY, jobs=options.jobs)
    rows, every = read_rows(OUTPUT), wanted(lines, options.seeds)
    text = "\n".join(
        [
            *page(results(lines, rows, options.seeds), remarks(), left_out()),
            cost(among(rows, every, KEY), len(every)),
            "",
            *provenance(),
        ]
    )
    OUTPUT.with_suffix(".md").write_text(text, encoding="utf-8")


def cost(rows: Sequence[Row], wanted: int) -> str:
    """A sentence on the total time of the runs, the longest run, and how many runs are missing."""
    seconds = [float(row["seconds"]) for row in rows] or [0.0]
    some = (
        f"{len(rows)} of {wanted} runs are finished, the first seed of all tables before the "
        "others; the same command makes the missing runs. They"
    )
    return (
        f"{f'All {wanted} runs' if len(rows) == wanted else some} took "
        f"{sum(seconds) / 60:.0f} processor minutes in total, {statistics.median(seconds):.1f} s "
        f"in the median and {max(seconds):.1f} s at most. The first run of a seed also encodes "
        "images, and other work on a machine's cores makes these seconds up to twice as many."
    )


if __name__ == "__main__":
    main()
