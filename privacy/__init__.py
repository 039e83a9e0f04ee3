"""Privacy: clipping, noise, quantisation, and what it all costs.

This package knows vectors, integers and ledgers; it does not know methods, rows of a database or
sockets. `privacy.secure_aggregation` and `privacy.training` are imported by their own names, so
that accounting needs neither cryptography nor torch.
"""

from __future__ import annotations

from privacy.accounting import (
    ACCOUNTANTS,
    MOST_ROUNDS,
    Accountant,
    EpsilonResult,
    Epsilons,
    RunningLedger,
    Support,
    accountant_table,
    affordable_rounds,
    calibrate,
    calibrate_noise_multiplier,
    claimed_epsilon,
    epsilon,
    epsilons,
    require_affordable,
    support_table,
)
from privacy.adaptive_clipping import AdaptiveClipping
from privacy.central import CENTRAL_NOISE, CentralNoise, noise_for_sum
from privacy.clipping import ClippedUpdate, clip
from privacy.colluding import WithoutShare
from privacy.distributed import (
    DISTRIBUTED_NOISE,
    SMALLEST_SCALED_NORM,
    SMALLEST_SHARE_DEVIATION,
    DistributedNoise,
    default_scale,
    protect_share,
    required_ring_bits,
    smallest_multiplier,
)
from privacy.errors import (
    Authentication,
    BudgetExhausted,
    CalibrationError,
    InvalidShare,
    NonFiniteUpdate,
    PrivacyError,
    ProtocolViolation,
    SensitivityViolation,
    ThresholdNotMet,
    UnknownMechanism,
    UnsupportedEvent,
    UploadSaturated,
)
from privacy.events import (
    CHANNELS,
    COHORT_KINDS,
    NOISE_KINDS,
    RELATIONS,
    SAMPLINGS,
    STATUSES,
    Channel,
    CohortKind,
    CohortSampling,
    IntegerNoise,
    NoiseKind,
    Protected,
    Relation,
    Release,
    ReleaseKey,
    Sampling,
    Status,
    reserved,
)
from privacy.facts import MechanismFacts, Unit
from privacy.grids import Grid, SignedGrid
from privacy.group_counts import GroupCounts
from privacy.integer_upload import IntegerUploadNoise
from privacy.mechanisms import (
    NONE,
    UPLOAD_NOISE,
    NoProtection,
    ProtectedUpload,
    UploadNoise,
)
from privacy.noised_metric import NoisedMetric
from privacy.odds import largest_share_of_right_guesses
from privacy.quantisation import Quantised, Quantiser
from privacy.randomness import NoiseSource, SeededNoise, SystemNoise
from privacy.record_level import DP_SGD, DpSgd
from privacy.signal_to_noise import SignalToNoise, signal_to_noise
from privacy.uploads import (
    ClientMechanism,
    grid_of,
    noise_in_sum,
    protect_upload,
    release_of_upload,
    require_mechanism,
    with_clipping_norm,
)

__all__ = [
    "ACCOUNTANTS",
    "CENTRAL_NOISE",
    "CHANNELS",
    "COHORT_KINDS",
    "DISTRIBUTED_NOISE",
    "DP_SGD",
    "MOST_ROUNDS",
    "NOISE_KINDS",
    "NONE",
    "RELATIONS",
    "SAMPLINGS",
    "SMALLEST_SCALED_NORM",
    "SMALLEST_SHARE_DEVIATION",
    "STATUSES",
    "UPLOAD_NOISE",
    "Accountant",
    "AdaptiveClipping",
    "Authentication",
    "BudgetExhausted",
    "CalibrationError",
    "CentralNoise",
    "Channel",
    "ClientMechanism",
    "ClippedUpdate",
    "CohortKind",
    "CohortSampling",
    "DistributedNoise",
    "DpSgd",
    "EpsilonResult",
    "Epsilons",
    "Grid",
    "GroupCounts",
    "IntegerNoise",
    "IntegerUploadNoise",
    "InvalidShare",
    "MechanismFacts",
    "NoProtection",
    "NoiseKind",
    "NoiseSource",
    "NoisedMetric",
    "NonFiniteUpdate",
    "PrivacyError",
    "Protected",
    "ProtectedUpload",
    "ProtocolViolation",
    "Quantised",
    "Quantiser",
    "Relation",
    "Release",
    "ReleaseKey",
    "RunningLedger",
    "Sampling",
    "SeededNoise",
    "SensitivityViolation",
    "SignalToNoise",
    "SignedGrid",
    "Status",
    "Support",
    "SystemNoise",
    "ThresholdNotMet",
    "Unit",
    "UnknownMechanism",
    "UnsupportedEvent",
    "UploadNoise",
    "UploadSaturated",
    "WithoutShare",
    "accountant_table",
    "affordable_rounds",
    "calibrate",
    "calibrate_noise_multiplier",
    "claimed_epsilon",
    "clip",
    "default_scale",
    "epsilon",
    "epsilons",
    "grid_of",
    "largest_share_of_right_guesses",
    "noise_for_sum",
    "noise_in_sum",
    "protect_share",
    "protect_upload",
    "release_of_upload",
    "require_affordable",
    "require_mechanism",
    "required_ring_bits",
    "reserved",
    "signal_to_noise",
    "smallest_multiplier",
    "support_table",
    "with_clipping_norm",
]
