"""Local training with a bound on what one example can do to it.

The only part of `privacy` that knows torch and Opacus. `privacy` itself does not import it, so
that accounting and secure aggregation start without them.
"""

from __future__ import annotations

from privacy.mechanisms import DpSgd
from privacy.training.fits import ParameterGroup
from privacy.training.per_sample import Objective, PerSampleGradients, per_sample_gradients
from privacy.training.plan import Clipping, TrainingPlan
from privacy.training.provenance import ReleasedArrays, require_released, seal
from privacy.training.together import side_by_side
from privacy.training.trainer import LocalTrainer

__all__ = [
    "Clipping",
    "DpSgd",
    "LocalTrainer",
    "Objective",
    "ParameterGroup",
    "PerSampleGradients",
    "ReleasedArrays",
    "TrainingPlan",
    "per_sample_gradients",
    "require_released",
    "seal",
    "side_by_side",
]
