"""Federated methods: only the steps of each paper on a client and on the server.

The life of one round, as the platform drives it: `Method.broadcast` returns what a client receives,
`Method.client_update` trains on the client, the platform protects and sums the uploads, and
`Method.server_update` makes the next server state. `Method.predict` classifies at any time, and
`Method.personalise` runs once after the last release.
"""

from __future__ import annotations

from methods.errors import (
    BackboneError,
    BrokenPlugin,
    MethodError,
    UnknownMethod,
    UpdateSpecMismatch,
)
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    CountsUpTo,
    CountsWith,
    Examples,
    Groups,
    LocalResult,
    Method,
    Need,
    Objective,
    OptionsOf,
    ParameterGroup,
    PoolPolicy,
    Source,
    Task,
    TensorSpec,
    Trainer,
    Unit,
    Visibility,
    Weighting,
)
from methods.interface.registry import BUILT_IN_METHODS, MethodInfo, Registry
from methods.plugins import Origin

__all__ = [
    "BUILT_IN_METHODS",
    "Aggregate",
    "Arrays",
    "BackboneError",
    "BrokenPlugin",
    "ClientView",
    "CountsUpTo",
    "CountsWith",
    "Examples",
    "Groups",
    "LocalResult",
    "Method",
    "MethodError",
    "MethodInfo",
    "Need",
    "Objective",
    "OptionsOf",
    "Origin",
    "ParameterGroup",
    "PoolPolicy",
    "Registry",
    "Source",
    "Task",
    "TensorSpec",
    "Trainer",
    "Unit",
    "UnknownMethod",
    "UpdateSpecMismatch",
    "Visibility",
    "Weighting",
]
