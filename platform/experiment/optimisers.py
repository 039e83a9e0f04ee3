"""The optimiser that local training comes to, as a run's report and a sweep's tables state it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platform.config import RunConfig


def optimizer_document(config: RunConfig) -> dict[str, Any]:
    """Return optimiser, amount and schedule with the values in force, defaults included.

    Rates that a method names in its own section are its options; the schedule is of these, too.
    """
    section = config.training
    amount = "local_steps" if section.local_epochs is None else "local_epochs"
    names = ("momentum",) if section.optimizer == "sgd" else ("betas", "eps")
    values = {
        "momentum": section.momentum,
        "betas": list(section.effective_betas),
        "eps": section.effective_eps,
    }
    return {
        "optimizer": section.optimizer,
        "learning_rate": section.learning_rate,
        **{name: values[name] for name in names},
        "weight_decay": section.weight_decay,
        "batch_size": section.batch_size,
        amount: getattr(section, amount),
        "schedule": _schedule(config),
    }


def _schedule(config: RunConfig) -> dict[str, Any]:
    section = config.training.schedule
    if section is None:
        return {"kind": "constant", "first_factor": 1.0, "last_factor": 1.0}
    return {
        **section.model_dump(mode="json", exclude_none=True),
        "first_factor": section.factor(1, config.rounds),
        "last_factor": section.factor(config.rounds, config.rounds),
    }


def optimizer_words(document: Mapping[str, Any]) -> str:
    """Return what `optimizer_document` says in one line."""
    parts = [str(document["optimizer"]), f"learning rate {document['learning_rate']:g}"]
    if "betas" in document:
        first, second = document["betas"]
        parts += [f"betas {first:g} and {second:g}", f"eps {document['eps']:g}"]
    else:
        parts.append(f"momentum {document['momentum']:g}")
    parts.append(f"weight decay {document['weight_decay']:g}")
    steps = document.get("local_steps")
    amount = f"{steps} steps" if steps else f"{document['local_epochs']} epochs"
    parts.append(f"{amount} a round in batches of {document['batch_size']}")
    return f"{', '.join(parts)}; {_schedule_words(document['schedule'])}"


def _schedule_words(schedule: Mapping[str, Any]) -> str:
    ends = f"factor {schedule['first_factor']:.3g} in round 1, {schedule['last_factor']:.3g} in"
    parts = [f"{schedule['kind']} rates"]
    if "gamma" in schedule:
        parts.append(f"times {schedule['gamma']:g} a round")
    if schedule.get("warm_up_rounds"):
        parts.append(f"after {schedule['warm_up_rounds']} rounds of warm-up")
    if len(parts) > 1 or schedule["kind"] != "constant":
        parts.append(f"{ends} the last")
    return ", ".join(parts)
