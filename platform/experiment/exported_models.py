"""A trained model: it predicts, is measured anew for an export, and is described by a card.

A run's report states the accuracy of clients' final models, each with its own part. An export holds
the shared part alone, or one client's model. So it is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import ClientView, Method
from methods.errors import BrokenPlugin, MethodError
from platform.experiment.caveats import caveats_of, escaped
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
    """The tensors of an export, by name.

    Attributes:
        part: A description in words.
        client: The client whose own part is in the export; None without.
        arrays: All tensors, by name.
        accuracy: Of exactly these tensors; None where they predict nothing by themselves.
    """

    part: str
    client: int | None
    arrays: Mapping[str, NDArray[Any]]
    accuracy: Accuracy | None


def model_card(simulation: Simulation, summary: Mapping[str, Any], exported: Exported) -> str:
    """Return markdown that describes the tensors and their cost in privacy."""
    config, part = simulation.run.terms.config, exported.part
    model, backbone = config.task.model, "none; the tensors are of a network of the method's own"
    if model is not None:
        name = escaped(" ".join(filter(None, (model.name, model.pretrained))))
        backbone = f"{name}; the prompts work with this frozen model only"
    spent, unit, scope = summary["final"]["epsilon"], summary["unit"], ""
    if unit:
        scope = f" (unit {unit}, {summary['relation']}, accountant {summary['accountant']})"
    claim = (
        f"Epsilon at delta {summary['delta']:g}{scope}: server {spent['server']}, "
        f"peers {spent['peers']}, observer of the shared prompts {spent['observer']}."
    )
    if "personal" in part:
        claim += " The personal part was never released and is covered by none of these."
    return CARD.format(
        what="Parameters" if model is None else "Prompts",
        run_id=summary["run_id"],
        method=summary["method"],
        dataset=escaped(summary["dataset"]),
        clients=config.task.clients,
        rounds=len(in_rounds(summary["rounds"])),
        backbone=backbone,
        part=part,
        accuracy=_accuracy(exported, is_personal=simulation.run.terms.method.has_personal_state),
        classes=", ".join(map(escaped, simulation.learning.classes)),
        privacy=claim,
        warnings="\n".join(f"- {escaped(one.text)}" for one in caveats_of(summary)),
        tensors="\n".join(
            f"| {escaped(name)} | {'x'.join(map(str, array.shape))} | {array.dtype} |"
            for name, array in sorted(exported.arrays.items())
        ),
    )


def _accuracy(exported: Exported, *, is_personal: bool) -> str:
    """Return the tensors' accuracy in whole percents, or the reason for its lack."""
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


def exported_accuracy(
    method: Method, view: ClientView, plan: EvaluationPlan, client: ClientId | None
) -> Accuracy | None:
    """Return accuracy of one model on clients' test examples.

    The examples are those of the model's owner, or of all measured clients for the shared part.
    None where a method predicts nothing without a client's own part, or no client has test
    examples.
    """
    measured = plan.measured if client is None else (client,)
    # The sets live as long as the scores, which know a set by its identity.
    tests = [
        plan.everything.get(each) or EvaluationSet(plan.own[each], plan.classes)
        for each in measured
    ]
    scores = CommonScores()
    try:
        tallies = [(scores.count(method, view, test), test.examples.num_examples) for test in tests]
    except BrokenPlugin:
        raise
    except MethodError:
        return None
    return over_clients(tallies) if any(count for _, count in tallies) else None


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model of a finished run.

    Attributes:
        view: The shared parameters after the last round, with the own part of a chosen client.
        classes: The classes among which it chooses.
        batch_of: Makes the method's arrays of images (n, H, W, 3) or texts.
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
        """Return all tensors that predict, by name; empty without training."""
        view = self.view
        found = {f"shared.{name}": np.ascontiguousarray(a) for name, a in view.broadcast.items()}
        for name, array in view.personal.items():
            found[f"personal.{name}"] = np.ascontiguousarray(array)
        for position, expert in enumerate(view.experts):
            for name, array in expert.items():
                found[f"expert.{position}.{name}"] = np.ascontiguousarray(array)
        return found
