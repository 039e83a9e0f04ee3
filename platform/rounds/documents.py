"""The document of a round, as the records hold it, with the phase of the run that it was in."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from platform.rounds.plan import RoundOutcome, RoundPlan
from privacy import Epsilons

ROUNDS: Final = "rounds"
COLLECTION: Final = "collection"


def in_rounds(documents: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rounds that trained, without the collection."""
    # Rounds of earlier versions do not state their phase.
    return [d for d in documents if d.get("phase", ROUNDS) == ROUNDS]


SCHEMA_VERSION = 1


ADVERSARIES = ("server", "peers", "observer")


MEASURES = (
    "bytes_up",
    "bytes_down",
    "seconds",
    "clipping_norm",
    "clipped_fraction",
    "signal_to_noise",
)
"""Numbers, or ends of an interval."""


ROUND_KEYS = (
    "round",
    "phase",
    "cohort",
    "dropped",
    "accuracy",
    "validation",
    "released_validation",
    "epsilon",
    *MEASURES,
    "groups",
)


NO_ACCURACY: Mapping[str, Any] = dict.fromkeys(("mean", "weighted", "std", "worst", "per_client"))
"""The accuracy where it was not measured."""


DEFAULTS = {"phase": ROUNDS, "validation": NO_ACCURACY, "released_validation": None, "groups": None}
"""Values of keys that rounds of earlier versions do not have."""


def round_document(
    plan: RoundPlan,
    outcome: RoundOutcome,
    measures: Mapping[str, Any],
    epsilon: Epsilons,
    *,
    seconds: float,
    withholds_cohort: bool,
) -> dict[str, Any]:
    """Return one round, as `summary.json` states it.

    The document withholds the size of a cohort that was drawn in secret: the size would undo the
    amplification. It also withholds values that depend on the size: mean bytes, which fall with
    each lost client, and the time.
    """
    readings = outcome.readings
    released, interval, groups = readings.validation, readings.signal_to_noise, readings.groups
    cohort = None if withholds_cohort else len(plan.cohort)
    found = {
        "round": plan.round_number,
        "phase": COLLECTION if plan.collects else ROUNDS,
        "cohort": cohort,
        "dropped": None if cohort is None else cohort - len(outcome.survivors),
        "accuracy": measures["accuracy"],
        "validation": measures["validation"],
        # Uploads tell of the model from which clients trained, the model of the round before. `std`
        # is the deviation of the noise over the clients in the mean.
        "released_validation": None
        if released is None
        else {"round": plan.round_number - 1, "mean": released.mean, "std": released.deviation},
        "epsilon": epsilon_document(epsilon),
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "seconds": round(seconds, 3),
        "clipping_norm": plan.protection.clipping_norm,
        "clipped_fraction": readings.clipped_fraction,
        # The lower end is 0 below detection.
        "signal_to_noise": None
        if interval is None
        else {"low": interval.low, "high": interval.high},
        "groups": None
        if groups is None
        else {
            "kept": list(groups.kept),
            "copied": [list(pair) for pair in groups.copied],
            # Counts are stated only if they have noise.
            "counts": groups.counts.tolist() if groups.deviation else None,
            "std": groups.deviation or None,
            "floor": groups.floor,
        },
    }
    hidden = ("bytes_up", "bytes_down", "seconds") if withholds_cohort else ()
    return {**found, **dict.fromkeys(hidden)}


def epsilon_document(epsilon: Epsilons) -> dict[str, float | str]:
    """Return epsilon against each adversary."""
    return {name: json_number(getattr(epsilon, name)) for name in ADVERSARIES}


def json_number(value: float) -> float | str:
    """Return a number that strict JSON can hold: infinity becomes "inf"."""
    return "inf" if math.isinf(value) else value


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def shown_round(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a round's stored document that a summary shows."""
    known = {**DEFAULTS, **document}
    return {key: known.get(key) for key in ROUND_KEYS}


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the text of `summary.json`."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"
