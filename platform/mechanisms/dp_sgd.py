"""`dp_sgd`: noise in every local step, for single records; uploads are only carried."""

from __future__ import annotations

from platform.mechanisms.mechanism import Mechanism, Settings, no_caveats
from privacy import DP_SGD as FACTS
from privacy import DpSgd, NoProtection


def _carried(settings: Settings) -> NoProtection:
    # Noised values may be cut: an error that depends on them tells no more than the values do.
    return NoProtection(settings.value_bound, settings.relation, cuts=True)


def _training(settings: Settings) -> DpSgd:
    steps = settings.steps
    if steps is None:
        raise ValueError("steps are missing; dp_sgd cannot be built without")
    return DpSgd(
        noise_multiplier=settings.multiplier,
        clipping_norm=steps.clipping_norm,
        sampling_probability=steps.sampling_probability,
        steps=steps.count,
        expected_batch_size=float(steps.batch_size),
        relation=settings.relation,
    )


DP_SGD = Mechanism(
    facts=FACTS,
    # A client's record may be there or not; no message tells the number of its records.
    relations=("add_or_remove_one", "replace_one"),
    distributions=("gaussian",),
    upload=_carried,
    entry=None,
    training=_training,
    caveats=no_caveats,
)
