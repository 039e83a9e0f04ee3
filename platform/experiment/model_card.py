"""The model card that goes with exported prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from platform.config.sections import ModelConfig
from platform.experiment.markdown_text import escaped
from platform.experiment.simulation import Simulation
from platform.rounds.phases import in_rounds

CARD = """# {what} of run {run_id}

- **Method**: {method} on {dataset} ({clients} clients, {rounds} rounds)
- **Backbone**: {backbone}
- **Contents**: {part}
- **Accuracy** (exact, simulation): {accuracy}
- **Classes**: {classes}

## Privacy

{privacy}

{warnings}

## Tensors

| name | shape | dtype |
|---|---|---|
{tensors}
"""


def model_card(
    simulation: Simulation,
    summary: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    part: str,
) -> str:
    """Return markdown that says what the tensors are and what they cost in privacy."""
    config, accuracy = simulation.run.terms.config, summary["final"]["accuracy"]
    return CARD.format(
        what="Parameters" if config.task.model is None else "Prompts",
        run_id=summary["run_id"],
        method=summary["method"],
        dataset=escaped(summary["dataset"]),
        clients=config.task.clients,
        rounds=len(in_rounds(summary["rounds"])),
        backbone=_backbone(config.task.model),
        part=part,
        accuracy=f"{100 * accuracy['mean']:.1f}% mean over clients, {100 * accuracy['worst']:.1f}% "
        f"worst client{_measured(summary)}",
        classes=", ".join(map(escaped, simulation.learning.classes)),
        privacy=_privacy(summary, part),
        warnings="\n".join(f"- {escaped(text)}" for text in summary["warnings"]),
        tensors="\n".join(
            f"| {escaped(name)} | {'x'.join(map(str, array.shape))} | {array.dtype} |"
            for name, array in sorted(arrays.items())
        ),
    )


def _backbone(model: ModelConfig | None) -> str:
    if model is None:
        return "none; the tensors are of a network of the method's own"
    name = " ".join(filter(None, (model.name, model.pretrained)))
    return f"{escaped(name)}; the prompts work with this frozen model only"


def _measured(summary: Mapping[str, Any]) -> str:
    """Return how, in words; runs of earlier versions do not say."""
    return "".join(f"; {name}: {text}" for name, text in summary.get("evaluation", {}).items())


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
