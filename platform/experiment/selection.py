"""Which round's numbers a run reports beside the last, and how it says so; never chosen by test.

Without a mechanism the measured round with the best mean validation accuracy is chosen. Under a
mechanism exact accuracies would be a release that nothing covers, so only the noised means choose
that came with the uploads; choosing among them is post-processing. An upload of round t carries the
accuracy of the model after round t - 1: the last round's model is followed by no upload, so it is
not among those to choose from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform.config import RunConfig
from platform.rounds.documents import in_rounds

PROTOCOLS: Final = {
    "client_mean": "client mean: every client on its own test examples",
    "all_classes": (
        "all classes: every client on all test examples of all clients, beside it on its own"
    ),
    "base_to_novel": (
        "base to novel: own test examples, all base classes, all novel classes, harmonic mean"
    ),
    "leave_one_domain_out": "leave one domain out: every client on the held-out domain",
}
_LAST: Final = "last round, after personalising"
BESIDE: Final = "; beside it "
"""What stands before the chosen round's part of the sentence."""
_WHEN: Final = "measured after the update, before personalising; never chosen by test examples"


def evaluation_document(config: RunConfig) -> dict[str, str]:
    """Return protocol and selection in words, as every report names them."""
    section, protocol = config.evaluation, PROTOCOLS[config.evaluation.protocol]
    if section.measured_clients is not None:
        whom = f"{section.measured_clients} of {config.task.clients} clients, drawn at random,"
        protocol = protocol.replace("every client", whom)
    if config.task.held_out_domain is not None:
        protocol = f"{protocol} {config.task.held_out_domain!r}"
    return {"protocol": protocol, "selection": _selection(section.selection, section.release)}


def best_on_validation(
    config: RunConfig, documents: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the chosen round's numbers.

    Args:
        config: The run's.
        documents: The committed rounds in order, as stored.

    Returns:
        Round, the validation accuracy that it was chosen by, accuracy and protocol; None where
        nothing is to be chosen, or no round could be.
    """
    if config.evaluation.selection != "best_on_validation":
        return None
    rounds = in_rounds(documents)
    scores = _noised(rounds) if config.evaluation.release == "noised" else _exact(rounds)
    measured = {d["round"]: d for d in rounds if d["accuracy"]["mean"] is not None}
    candidates = {number: score for number, score in scores.items() if number in measured}
    if not candidates:
        return None
    # Of equal ones the earlier: it cost fewer rounds.
    best = min(candidates, key=lambda number: (-candidates[number], number))
    return {
        "round": best,
        "validation": candidates[best],
        "accuracy": measured[best]["accuracy"],
        "protocol": measured[best]["protocol"],
    }


def _exact(documents: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    means = {d["round"]: d["validation"]["mean"] for d in documents}
    return {number: mean for number, mean in means.items() if mean is not None}


def _noised(documents: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    released = [d["released_validation"] for d in documents]
    return {r["round"]: r["mean"] for r in released if r is not None}


def _selection(selection: str, release: str) -> str:
    if selection == "last":
        return _LAST
    if release == "noised":
        return (
            f"{_LAST}{BESIDE}the round with the best noised mean validation accuracy but the "
            f"last, whose model no upload measured, {_WHEN}"
        )
    return f"{_LAST}{BESIDE}the round with the best mean validation accuracy, {_WHEN}"
