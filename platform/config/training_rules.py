"""Checks of local training: what an optimiser or a schedule gives no meaning to.

Each rule yields one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from platform.config.schema import RunSections

KINDS_WITH = {"gamma": "exponential", "final": "cosine", "rounds": "cosine"}
"""Under which kind of schedule a key means something."""
LEAST_FACTOR = 1e-30
"""Times any rate, it is still a number of single precision."""


def training_problems(config: RunSections) -> Iterator[str]:
    """Yield what contradicts itself in the section on local training."""
    section = config.training
    if section.optimizer != "sgd" and section.momentum:
        yield (
            f"training.momentum: {section.momentum} has no meaning with training.optimizer = "
            f"{section.optimizer}; valid: 0"
        )
    for name in ("betas", "eps"):
        value = getattr(section, name)
        if section.optimizer == "sgd" and value is not None:
            yield (
                f"training.{name}: {value} has no meaning with training.optimizer = sgd; valid: "
                "null, or the optimizer adam or adamw"
            )
    yield from _schedule(config)


def _schedule(config: RunSections) -> Iterator[str]:
    section, where = config.training.schedule, "training.schedule"
    if section is None:
        return
    for name, kind in KINDS_WITH.items():
        value = getattr(section, name)
        if value is not None and section.kind != kind:
            yield (
                f"{where}.{name}: {value} has no meaning with {where}.kind = {section.kind}; "
                f"valid: null, or the kind {kind}"
            )
    if section.kind == "exponential" and section.gamma is None:
        yield (
            f"{where}.gamma: null does not say how rates change; valid with {where}.kind = "
            "exponential: above 0 and at most 1, such as 0.8"
        )
    if section.warm_up_factor is not None and not section.warm_up_rounds:
        yield (
            f"{where}.warm_up_factor: {section.warm_up_factor} has no meaning with "
            f"{where}.warm_up_rounds = 0; valid: null"
        )
    if section.warm_up_rounds >= config.rounds:
        yield (
            f"{where}.warm_up_rounds: {section.warm_up_rounds} leave no round after them; valid: "
            f"less than rounds = {config.rounds}"
        )
    elif section.rounds is not None and section.rounds < config.rounds:
        yield (
            f"{where}.rounds: {section.rounds} end before the run does, and its last rounds would "
            f"have a rate of {section.final or 0:g} times theirs; valid: null, or at least rounds "
            f"= {config.rounds}"
        )
    elif section.least(config.rounds) < LEAST_FACTOR:
        yield (
            f"{where}.gamma: {section.gamma} leaves nothing of the rates in round "
            f"{config.rounds}; valid: a factor that leaves {LEAST_FACTOR:g} of them or more"
        )
