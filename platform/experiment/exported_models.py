"""A model that a run trained: at work, measured anew for an export, and described by a card.

A run's report states the accuracy of clients' final models, each with its own part. An export holds
something else: the shared part alone, or one client's model. So it is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import ClientView, Method
from methods.errors import MethodError
from platform.config.sections import ModelConfig
from platform.experiment.caveats import escaped
from platform.experiment.dealing import BatchMaking
from platform.experiment.evaluation import Accuracy, EvaluationPlan, over_clients
from platform.experiment.simulation import Simulation
from platform.parties.scoring import CommonScores, EvaluationSet
from platform.rounds.documents import in_rounds
from platform.wire.transport import ClientId

CAUTION = (
    "Measured in a simulation when this file was written, and rounded to whole percents; it is in "
    "no ledger, and rounding does not make it private."
)
CARD = """# {what} of run {run_id}

- **Method**: {method} on {dataset} ({clients} clients, {rounds} rounds)
- **Backbone**: {backbone}
- **Contents**: {part}
- **Accuracy**: {accuracy}
- **Classes**: {classes}

## Privacy

{privacy}

{warnings}

## Tensors

| name | shape | dtype |
|---|---|---|
{tensors}
"""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What is written beside the card.

    Attributes:
        part: What it is, in words.
        client: The client whose own part is in it; None without.
        arrays: All of it, by name.
        accuracy: Of exactly these arrays; None where they predict nothing by themselves.
    """

    part: str
    client: int | None
    arrays: Mapping[str, NDArray[Any]]
    accuracy: Accuracy | None


def model_card(
    simulation: Simulation,
    summary: Mapping[str, Any],
    exported: Exported,
) -> str:
    """Return markdown that says what the tensors are and what they cost in privacy."""
    config, part = simulation.run.terms.config, exported.part
    return CARD.format(
        what="Parameters" if config.task.model is None else "Prompts",
        run_id=summary["run_id"],
        method=summary["method"],
        dataset=escaped(summary["dataset"]),
        clients=config.task.clients,
        rounds=len(in_rounds(summary["rounds"])),
        backbone=_backbone(config.task.model),
        part=part,
        accuracy=_accuracy(exported, is_personal=simulation.run.terms.method.has_personal_state),
        classes=", ".join(map(escaped, simulation.learning.classes)),
        privacy=_privacy(summary, part),
        warnings="\n".join(f"- {escaped(text)}" for text in summary["warnings"]),
        tensors="\n".join(
            f"| {escaped(name)} | {'x'.join(map(str, array.shape))} | {array.dtype} |"
            for name, array in sorted(exported.arrays.items())
        ),
    )


def _backbone(model: ModelConfig | None) -> str:
    if model is None:
        return "none; the tensors are of a network of the method's own"
    name = " ".join(filter(None, (model.name, model.pretrained)))
    return f"{escaped(name)}; the prompts work with this frozen model only"


def _accuracy(exported: Exported, *, is_personal: bool) -> str:
    """Return how good these tensors are, in whole percents, or why nobody can say."""
    found = exported.accuracy
    others = ""
    if exported.client is None and is_personal:
        others = (
            " The run's report states another number, that of the clients' own models: their "
            "personal parts are not in this file."
        )
    if found is None:
        return f"not measured, as these tensors predict nothing without a client's part.{others}"
    if exported.client is not None:
        return f"{_percent(found.mean)} on this client's test examples. {CAUTION}"
    told = f"{_percent(found.mean)} mean over clients, {_percent(found.worst)} worst client"
    return f"{told}, of these tensors alone on each client's test examples. {CAUTION}{others}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _privacy(summary: Mapping[str, Any], part: str) -> str:
    spent = summary["final"]["epsilon"]
    unit, relation = summary["unit"], summary["relation"]
    scope = f" (unit {unit}, {relation}, accountant {summary['accountant']})" if unit else ""
    claim = (
        f"Epsilon at delta {summary['delta']:g}{scope}: server {spent['server']}, "
        f"peers {spent['peers']}, observer of the shared prompts {spent['observer']}."
    )
    if "personal" in part:
        return claim + " The personal part was never released and is covered by none of these."
    return claim


def exported_accuracy(
    method: Method, view: ClientView, plan: EvaluationPlan, client: ClientId | None
) -> Accuracy | None:
    """Return accuracy of one model on clients' test examples.

    Args:
        method: Predicts.
        view: All that is exported.
        plan: Who is measured, and on what.
        client: Whose model it is, measured on this client's examples alone; None for what all
            share.

    Returns:
        The accuracy; None where a method predicts nothing without a client's own part, or nobody
        has test examples.
    """
    measured = plan.measured if client is None else (client,)
    # All of them live as long as the scores, which know a set by its identity.
    tests, scores = [_test_of(plan, each) for each in measured], CommonScores()
    try:
        tallies = [(scores.count(method, view, test), test.examples.num_examples) for test in tests]
    except MethodError:
        return None
    return over_clients(tallies) if any(count for _, count in tallies) else None


def _test_of(plan: EvaluationPlan, client: ClientId) -> EvaluationSet:
    """Return what a client's accuracy is on in the report."""
    if client in plan.everything:
        return plan.everything[client]
    return EvaluationSet(plan.own[client], plan.classes)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What a finished run can predict with.

    Attributes:
        method: Its method.
        view: The shared parameters after the last round, and a client's own part where one is
            chosen.
        classes: The classes that are told apart.
        batch_of: Images (n, H, W, 3) or texts to what the method predicts from.
    """

    method: Method
    view: ClientView
    classes: Sequence[str]
    batch_of: BatchMaking

    def classify(self, example: NDArray[np.uint8] | str) -> dict[str, Any]:
        """Return class and probability of one image (H, W, 3) or text."""
        batch = self.batch_of((example,) if isinstance(example, str) else example[None])
        logits = self.method.predict(self.view, batch, self.classes)[0]
        odds = np.exp(logits - logits.max())
        best = int(logits.argmax())
        return {"class": self.classes[best], "probability": float(odds[best] / odds.sum())}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that predicts, by name; empty where nothing was trained."""
        view = self.view
        found = {f"shared.{name}": np.ascontiguousarray(a) for name, a in view.broadcast.items()}
        for name, array in view.personal.items():
            found[f"personal.{name}"] = np.ascontiguousarray(array)
        for position, expert in enumerate(view.experts):
            for name, array in expert.items():
                found[f"expert.{position}.{name}"] = np.ascontiguousarray(array)
        return found
