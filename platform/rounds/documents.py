"""What a round came to, as the records hold it, and in which phase of the run it was."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from platform.protection.extras import GroupReading
from platform.rounds.plan import RoundOutcome, RoundPlan
from privacy import Epsilons, SignalToNoise

ROUNDS: Final = "rounds"
COLLECTION: Final = "collection"


def in_rounds(documents: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rounds that trained, without the collection."""
    # Rounds of earlier versions do not state their phase.
    return [d for d in documents if d.get("phase", ROUNDS) == ROUNDS]


def has_collection(documents: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether clients were asked for the entries of a pool that is made once."""
    return any(d.get("phase") == COLLECTION for d in documents)


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
"""Of what nobody measured."""


DEFAULTS = {
    "phase": ROUNDS,
    "validation": NO_ACCURACY,
    "released_validation": None,
    "groups": None,
}
"""Of keys that rounds of earlier versions do not have."""


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

    The size of a cohort that was drawn in secret is withheld, as it would undo the amplification,
    and so is what goes with it: mean bytes, which fall with each lost client, and the time taken.
    """
    cohort = None if withholds_cohort else len(plan.cohort)
    found = {
        "round": plan.round_number,
        "phase": COLLECTION if plan.facts.collects else ROUNDS,
        "cohort": cohort,
        "dropped": None if cohort is None else cohort - len(outcome.survivors),
        "accuracy": measures["accuracy"],
        "validation": measures["validation"],
        "released_validation": _released(plan, outcome),
        "epsilon": epsilon_document(epsilon),
        "bytes_up": outcome.traffic.up,
        "bytes_down": outcome.traffic.down,
        "seconds": round(seconds, 3),
        "clipping_norm": plan.facts.clipping_norm,
        "clipped_fraction": outcome.readings.clipped_fraction,
        "signal_to_noise": _interval(outcome.readings.signal_to_noise),
        "groups": _groups(outcome.readings.groups),
    }
    hidden = ("bytes_up", "bytes_down", "seconds") if withholds_cohort else ()
    return {**found, **dict.fromkeys(hidden)}


def _groups(found: GroupReading | None) -> dict[str, Any] | None:
    """Return which experts stayed as they were or are copies, and counts where these have noise."""
    if found is None:
        return None
    return {
        "kept": list(found.kept),
        "copied": [list(pair) for pair in found.copied],
        "counts": found.counts.tolist() if found.deviation else None,
        "std": found.deviation or None,
        "floor": found.floor,
    }


def _released(plan: RoundPlan, outcome: RoundOutcome) -> dict[str, float] | None:
    """Return what the uploads told of the model that they were trained from: the round's before.

    Beside the mean the standard deviation of its noise, by the clients whose uploads are in it.
    """
    released = outcome.readings.validation
    if released is None:
        return None
    return {"round": plan.round_number - 1, "mean": released.mean, "std": released.deviation}


def _interval(found: SignalToNoise | None) -> dict[str, float] | None:
    """Return both ends, 0 the lower one below detection.

    None where no noise of known size is in a sum.
    """
    return None if found is None else {"low": found.low, "high": found.high}


def epsilon_document(epsilon: Epsilons) -> dict[str, float | str]:
    """Return epsilon against each adversary."""
    return {name: json_number(getattr(epsilon, name)) for name in ADVERSARIES}


def json_number(value: float) -> float | str:
    """Return a number that strict JSON can hold: infinity becomes "inf"."""
    return "inf" if math.isinf(value) else value


def shown_round(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a summary shows of a round's stored document."""
    known = {**DEFAULTS, **document}
    return {key: known.get(key) for key in ROUND_KEYS}


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return what `summary.json` holds."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"
