"""Privacy: clipping, noise, quantisation, and what it all costs.

This package knows vectors, integers and ledgers; it does not know methods, rows of a database or
sockets. `privacy.secure_aggregation` and `privacy.training` are imported by their own names, so
that accounting needs neither cryptography nor torch.
"""

from __future__ import annotations

from privacy.accounting import (
    ACCOUNTANTS,
    Accountant,
    EpsilonResult,
    Epsilons,
    calibrate_noise_multiplier,
    epsilon,
    epsilons,
    require_affordable,
)
from privacy.clipping import ClippedUpdate, clip
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
    MECHANISMS,
    RELATIONS,
    SAMPLINGS,
    STATUSES,
    Channel,
    Mechanism,
    Relation,
    Release,
    Sampling,
    Status,
)
from privacy.mechanisms import (
    AVAILABLE,
    ClientMechanism,
    NoProtection,
    ProtectedUpload,
    UploadNoise,
    protect,
    release,
    require_available,
    value_bound,
)
from privacy.quantisation import Quantised, Quantiser
from privacy.randomness import NoiseSource, SeededNoise, SystemNoise

__all__ = [
    "ACCOUNTANTS",
    "AVAILABLE",
    "CHANNELS",
    "MECHANISMS",
    "RELATIONS",
    "SAMPLINGS",
    "STATUSES",
    "Accountant",
    "Authentication",
    "BudgetExhausted",
    "CalibrationError",
    "Channel",
    "ClientMechanism",
    "ClippedUpdate",
    "EpsilonResult",
    "Epsilons",
    "InvalidShare",
    "Mechanism",
    "NoProtection",
    "NoiseSource",
    "NonFiniteUpdate",
    "PrivacyError",
    "ProtectedUpload",
    "ProtocolViolation",
    "Quantised",
    "Quantiser",
    "Relation",
    "Release",
    "Sampling",
    "SeededNoise",
    "SensitivityViolation",
    "Status",
    "SystemNoise",
    "ThresholdNotMet",
    "UnknownMechanism",
    "UnsupportedEvent",
    "UploadNoise",
    "UploadSaturated",
    "calibrate_noise_multiplier",
    "clip",
    "epsilon",
    "epsilons",
    "protect",
    "release",
    "require_affordable",
    "require_available",
    "value_bound",
]
