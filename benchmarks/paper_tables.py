"""The tables of the four papers in small: the same methods, partitions, protocols and ablations.

Each row of a paper's table is run on `homonyms` from that paper's own configuration, scaled down as
`paper_tables.yaml` says, with three seeds; ranks here are held against the paper's by Kendall's
tau. A method's learning rate is the best of three on another seed, chosen once for all tables with
the same partition. Runs are shared between tables that ask for the same. Writes
`docs/results/paper-tables.{csv,md}`; runs that the CSV has are kept, so an interrupted benchmark
goes on where it was.

    python benchmarks/paper_tables.py [TABLE ...] [--seeds 0 1 2] [--jobs 2]
    python benchmarks/paper_tables.py --again 10
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _grid import Row, key_of, read_rows, run_missing, summarise_run
from _paper_tables_page import Result, page
from _scores import RESULTS, provenance

OUTPUT = RESULTS / "paper-tables.csv"
NUMBERS = Path(__file__).resolve().parents[1] / "docs" / "papers" / "numbers"
KEY = ("config", "settings", "seed")
TUNING_SEED = 100
BETWEEN = " | "
"""Between settings in the CSV."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a paper's table, and how it is run here.

    Attributes:
        table: Which table.
        label: The row's name there.
        paper: The paper's number.
        config: The configuration that is scaled down.
        settings: What is changed in it, but for rate and seed.
        over: Settings whose mean is the row's number: one that is held out after another.
        rates: What is tried.
        tuned_as: Rows that share this share the rate.
        score: `after`, or `before` a second phase.
    """

    table: str
    label: str
    paper: float
    config: str
    settings: tuple[str, ...]
    over: tuple[str, ...]
    rates: tuple[float, ...]
    tuned_as: tuple[str, str]
    score: str

    def run(self, rate: float, over: str, seed: int) -> Row:
        """One run, as the CSV keys it."""
        varied = (over,) if over else ()
        chosen = (*self.settings, *varied, f"training.learning_rate={rate}")
        return dict(zip(KEY, (self.config, BETWEEN.join(chosen), str(seed)), strict=True))


def read_lines(names: Sequence[str]) -> list[Line]:
    """All rows of the named tables, of all tables without names."""
    document = _document()
    unknown = [name for name in names if name not in document["tables"]]
    if unknown:
        valid = ", ".join(document["tables"])
        raise SystemExit(f"{unknown[0]!r} is none of the tables; valid: {valid}")
    return [
        line
        for name in names or document["tables"]
        for line in _lines(name, document["tables"][name], document)
    ]


def _document() -> Any:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def reasons() -> dict[str, str]:
    """Why ranks differ, table by table, where that has been found out."""
    tables = _document()["tables"]
    return {n: " ".join(table["why"].split()) for n, table in tables.items() if "why" in table}


def _lines(name: str, table: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Line]:
    suite = document["suites"][table["suite"]]
    over = table.get("over", suite.get("over", [""]))
    rows, listed = table.get("rows", {}), _paper(table["numbers"], table.get("column"))
    partial = any(not label.startswith("`") for label in rows)
    for label, number in listed.items():
        bare = label.strip("`")
        plain = label == f"`{bare}`" and not partial
        if label in table.get("omitted", ()) or (label not in rows and not plain):
            continue
        row = rows.get(label, {"method": bare})
        settings = (*document["common"], *suite["settings"], *table.get("settings", ()))
        yield Line(
            table=name,
            label=label,
            paper=number,
            config=suite["config"],
            settings=(*settings, _method(row, suite, document), *_flat(row.get("settings", ()))),
            over=tuple(over),
            rates=tuple(suite["rates"]),
            tuned_as=(table["suite"], f"{row['method']} {row.get('base', '')}"),
            score=row.get("score", "after"),
        )


def _method(row: Mapping[str, Any], suite: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """The method's whole section: what a configuration says of another is not its own."""
    options: dict[str, Any] = {}
    if "network" in suite:
        options = dict(suite["network"])
    elif row["method"] not in document["without_prompt"]:
        options = dict(document["prompt"])
    if "base" in row:
        options = {"base": row["base"], "base_options": options}
    return "method=" + json.dumps({"name": row["method"], **options, **row.get("options", {})})


def _flat(settings: Sequence[Any]) -> Iterator[str]:
    for setting in settings:
        yield from [setting] if isinstance(setting, str) else setting


def _paper(numbers: str, column: str | None) -> dict[str, float]:
    """The paper's number of each row: a column's, or the mean over all."""
    with (NUMBERS / f"{numbers}.csv").open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    places = range(1, len(head)) if column is None else [head.index(column)]
    return {
        row[0]: sum(float(row[place].split("±")[0]) for place in places) / len(places)
        for row in rows
    }


def plainest(lines: Sequence[Line]) -> dict[tuple[str, str], Line]:
    """Of the rows that share a rate the one with the fewest settings, which it is tuned on."""
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        known = found.get(line.tuned_as)
        if known is None or len(" ".join(line.settings)) < len(" ".join(known.settings)):
            found[line.tuned_as] = line
    return found


def tuning(lines: Sequence[Line]) -> list[Row]:
    """What is run to choose rates; `zero_shot` has none."""
    return [
        line.run(rate, line.over[0], TUNING_SEED)
        for line in plainest(lines).values()
        for rate in _tried(line)
    ]


def _tried(line: Line) -> Sequence[float]:
    return line.rates[:1] if line.label == "`zero_shot`" else line.rates


def chosen_rates(lines: Sequence[Line], rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """The rate of each kind of row: that of the highest accuracy, the lower one of two alike."""
    scores = {key_of(row, KEY): float(row["after"]) for row in rows}

    def score(line: Line, rate: float) -> float:
        return scores[key_of(line.run(rate, line.over[0], TUNING_SEED), KEY)]

    return {
        kind: max(_tried(line), key=lambda rate: (score(line, rate), -rate))
        for kind, line in plainest(lines).items()
    }


def finals(
    lines: Sequence[Line], rates: Mapping[tuple[str, str], float], seeds: Sequence[int]
) -> list[Row]:
    """Every run of every row, once."""
    runs = (
        line.run(rates[line.tuned_as], over, seed)
        for line in lines
        for over in line.over
        for seed in seeds
    )
    return list({key_of(run, KEY): run for run in runs}.values())


def measure(row: Row, folder: str) -> Row:
    """One run's number in percent, that before a second phase, and its processor seconds.

    Those are this process' own, so that whatever else a machine does hardly counts.
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


def check_again(count: int, seed: int) -> None:
    """Run some of the file's rows, drawn at random, once more; the same digits, or it ends with 1.

    Noise is drawn by the run's seed where a table has any, so nothing but a machine's arithmetic
    can differ.
    """
    rows = read_rows(OUTPUT)
    places = np.random.default_rng(seed).permutation(len(rows))[:count]
    drawn = [rows[place] for place in places]
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for row in drawn:
            now = measure({name: row[name] for name in KEY}, folder)
            same = all(now[name] == row[name] for name in ("after", "before"))
            differ += not same
            said = "the same" if same else f"now {now['after']} {now['before']}"
            print(row["config"], row["seed"], row["after"], row["before"], said, flush=True)
    if differ:
        raise SystemExit(f"{differ} of {len(drawn)} rows are others now")


def _percent(final: Mapping[str, Any]) -> str:
    """The protocol's one number."""
    protocol = final["protocol"]
    target = protocol.get("target", final["accuracy"])
    return f"{100 * protocol.get('harmonic_mean', target['mean']):.3f}"


def results(
    lines: Sequence[Line],
    rates: Mapping[tuple[str, str], float],
    rows: Sequence[Row],
    seeds: Sequence[int],
) -> list[Result]:
    """Each row's numbers, seed by seed: the mean over what is held out in turn."""
    known = {key_of(row, KEY): row for row in rows}

    def number(line: Line, seed: int) -> float:
        runs = (line.run(rates[line.tuned_as], over, seed) for over in line.over)
        return sum(float(known[key_of(run, KEY)][line.score]) for run in runs) / len(line.over)

    return [
        Result(
            line.table,
            line.label,
            line.paper,
            rates[line.tuned_as],
            tuple(number(line, seed) for seed in seeds),
        )
        for line in lines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=int, metavar="N", help="check N rows drawn at random")
    options = parser.parse_args()
    if options.again:
        check_again(options.again, options.seeds[0])
        return
    # Rates are chosen over all tables, whichever are run.
    lines, every = read_lines(options.tables), read_lines([])
    alike = _tuned_with(lines, every)
    found = run_missing(OUTPUT, tuning(alike), measure, key=KEY, jobs=options.jobs)
    rates = chosen_rates(alike, found)
    wanted = finals(lines, rates, options.seeds)
    found = run_missing(OUTPUT, wanted, measure, key=KEY, jobs=options.jobs)
    complete = _complete(every, found, options.seeds)
    rates = chosen_rates(_tuned_with(complete, every), found)
    text = "\n".join(
        [
            *page(results(complete, rates, found, options.seeds), reasons()),
            cost(found),
            "",
            *provenance(),
        ]
    )
    OUTPUT.with_suffix(".md").write_text(text, encoding="utf-8")


def cost(rows: Sequence[Row]) -> str:
    """What the runs took together, and the longest of them."""
    seconds = [float(row["seconds"]) for row in rows]
    return (
        f"{len(rows)} runs took {sum(seconds) / 60:.0f} processor minutes together, "
        f"{statistics.median(seconds):.1f} s in the middle and {max(seconds):.1f} s at most."
    )


def _tuned_with(some: Sequence[Line], every: Sequence[Line]) -> list[Line]:
    """All rows that share a rate with one of these: which of them it is tuned on, all decide."""
    kinds = {line.tuned_as for line in some}
    return [line for line in every if line.tuned_as in kinds]


def _complete(lines: Sequence[Line], rows: Sequence[Row], seeds: Sequence[int]) -> list[Line]:
    """The rows of those tables that have been run, whole."""
    known = {key_of(row, KEY) for row in rows}
    found: list[Line] = []
    for table in dict.fromkeys(line.table for line in lines):
        own = [line for line in lines if line.table == table]
        alike = _tuned_with(own, lines)
        if {key_of(run, KEY) for run in tuning(alike)} <= known:
            wanted = finals(own, chosen_rates(alike, rows), seeds)
            if {key_of(run, KEY) for run in wanted} <= known:
                found += own
    return found


if __name__ == "__main__":
    main()
