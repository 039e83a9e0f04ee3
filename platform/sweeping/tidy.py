"""The numbers of runs, as values, and as tidy tables with one row a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from platform.experiment.caveats import BESIDE, caveats_of, optimizer_document
from platform.results.numbers import HEADLINES, Axes
from platform.rounds.documents import ADVERSARIES, in_rounds
from platform.sweeping.running import Outcome

LAST: Final = "last"
BEST: Final = "best_on_validation"
NEW_CLIENTS: Final = "new_clients"
SELECTIONS: Final = (LAST, BEST, NEW_CLIENTS)
"""Accuracies: after the last round, at the round that validation chose, and of new clients."""

PRIVACY: Final = (
    *("unit", "mechanism", "relation", "delta"),
    *("sampling", "accountant", "noise_distribution", "noise_source"),
)
"""The facts that belong to an epsilon, as `summary.json` names them."""
_SPREAD: Final = ("weighted", "std", "worst")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run.

    Attributes:
        config: The name of its configuration in tables.
        dataset: The data set's name.
        method: The method's name.
        seed: The run's seed.
        axes: Its values on the axes of the sweep.
        protocol: The protocol's name.
        rounds: Number of committed rounds.
        scores: By selection, then by measure; shares in [0, 1], and differences of shares.
        privacy: The facts of `PRIVACY`, as `summary.json` states them.
        epsilon: The epsilon by adversary.
        run_id: The run.
        chosen_round: The round that validation chose, if any.
        chosen_how: The rule of that choice in words, else empty.
        warnings: The sentences of the warnings in the run's report.
        ended_early: Whether the run ended before its last round.
        training: The optimiser that it trained with, as `optimizer_document` states it.
    """

    config: str
    dataset: str
    method: str
    seed: int
    axes: Axes
    protocol: str
    rounds: int
    scores: Mapping[str, Mapping[str, float]]
    privacy: Mapping[str, Any] = field(default_factory=dict)
    epsilon: Mapping[str, float] = field(default_factory=dict)
    run_id: str = ""
    chosen_round: int | None = None
    chosen_how: str = ""
    warnings: tuple[str, ...] = ()
    ended_early: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    def headline(self, selection: str = LAST) -> float | None:
        """Return the protocol's one number, None where it was not measured."""
        return self.scores.get(selection, {}).get(HEADLINES[self.protocol])


def record_of(outcome: Outcome) -> Record:
    """Return the numbers of a cell.

    Raises:
        ValueError: If the cell has not finished.
    """
    cell, summary = outcome.cell, outcome.summary
    if summary is None or outcome.run_id is None:
        raise ValueError(f"cell ({cell}) has not finished")
    final, best = summary["final"], summary.get(BEST) or {}
    caveats = caveats_of(summary)
    return Record(
        config=cell.config,
        dataset=summary["dataset"],
        method=cell.method,
        seed=cell.seed,
        axes=cell.axes,
        protocol=final["protocol"]["name"],
        rounds=len(in_rounds(summary["rounds"])),
        scores={name: values for name, values in _scores(summary).items() if values},
        privacy={name: summary.get(name) for name in PRIVACY},
        epsilon={name: float(final["epsilon"][name]) for name in ADVERSARIES},
        run_id=outcome.run_id,
        chosen_round=best.get("round"),
        chosen_how=summary.get("evaluation", {}).get("selection", "").partition(BESIDE)[2],
        warnings=tuple(one.text for one in caveats),
        ended_early=any(one.code == "ended-early" for one in caveats),
        training=optimizer_document(cell.run),
    )


def _scores(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    final, twins = summary["final"], summary.get("local", {})
    last = _measured(final)
    last |= _known({"local_twin": (twins.get("accuracy") or {}).get("mean")})
    last |= _known({name: summary[name] for name in ("gain_over_local", "worth_of_sharing")})
    last |= _known({"validation": (final.get("validation") or {}).get("mean")})
    best, new = summary.get(BEST), final.get(NEW_CLIENTS)
    chosen: dict[str, float] = {}
    if best is not None:
        chosen = _measured(best) | _known({"validation": best["validation"]})
    return {LAST: last, BEST: chosen, NEW_CLIENTS: _of_new_clients(new)}


def _measured(document: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy and the protocol's numbers from a document with both."""
    accuracy, protocol = document["accuracy"], document["protocol"]
    found = {"local": accuracy["mean"], **{name: accuracy[name] for name in _SPREAD}}
    found |= {name: protocol.get(name) for name in ("base", "novel", "harmonic_mean")}
    target = protocol.get("target") or {}
    found |= {"target": target.get("mean")}
    found |= {f"target_{name}": target.get(name) for name in ("std", "worst")}
    found |= {"own": (protocol.get("own") or {}).get("mean")}
    return _known(found)


def _of_new_clients(found: Mapping[str, Any] | None) -> dict[str, float]:
    scores: dict[str, Any] = {}
    for when in ("before", "after") if found is not None else ():
        accuracy = (found or {})[when]
        scores |= {when: accuracy["mean"]}
        scores |= {f"{when}_{name}": accuracy.get(name) for name in _SPREAD}
    return _known(scores)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def score(selection: str, measure: str) -> Callable[[Record], float | None]:
    """Return a function that takes a measure from a run."""
    return lambda record: record.scores.get(selection, {}).get(measure)


def results_csv(records: Sequence[Record], axes: Sequence[str]) -> str:
    """Return one line a run and measure.

    Args:
        records: The runs.
        axes: Keys of the axes, a column each.
    """
    columns = (
        *("config", "dataset", "method", "seed", *axes),
        *("protocol", "selection", "measure", "value", *PRIVACY),
        *(f"epsilon_{name}" for name in ADVERSARIES),
        *("committed_rounds", "chosen_round", "run"),
    )
    rows = []
    for record in records:
        values = dict(record.axes)
        who = (record.config, record.dataset, record.method, record.seed)
        for selection, scores in record.scores.items():
            for measure, value in scores.items():
                rows.append(
                    (
                        *(*who, *(values[key] for key in axes)),
                        *(record.protocol, selection, measure, value),
                        *(record.privacy.get(name) for name in PRIVACY),
                        *(record.epsilon.get(name) for name in ADVERSARIES),
                        *(record.rounds, record.chosen_round if selection == BEST else None),
                        record.run_id,
                    )
                )
    return _csv(columns, rows)


def rounds_csv(outcomes: Sequence[Outcome], axes: Sequence[str]) -> str:
    """Return one line a run and committed round."""
    scores = ("mean", "weighted", "std", "worst")
    columns = (
        *("config", "dataset", "method", "seed", *axes, "round"),
        *(f"accuracy_{name}" for name in scores),
        "validation_mean",
        *(f"epsilon_{name}" for name in ADVERSARIES),
        "run",
    )
    rows = []
    for outcome in outcomes:
        cell, values = outcome.cell, dict(outcome.cell.axes)
        summary = outcome.summary or {"rounds": []}
        for document in summary["rounds"]:
            rows.append(
                (
                    *(cell.config, summary["dataset"], cell.method, cell.seed),
                    *(values[key] for key in axes),
                    document["round"],
                    *(document["accuracy"][name] for name in scores),
                    (document.get("validation") or {}).get("mean"),
                    *(document["epsilon"][name] for name in ADVERSARIES),
                    outcome.run_id,
                )
            )
    return _csv(columns, rows)


def _csv(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
