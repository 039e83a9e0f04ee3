"""Ledger rows for tests, most of whose fields do not matter."""

from __future__ import annotations

import dataclasses
from typing import Any

from privacy import (
    CENTRAL_NOISE,
    DISTRIBUTED_NOISE,
    DP_SGD,
    NONE,
    UPLOAD_NOISE,
    ClientMechanism,
    CohortSampling,
    DpSgd,
    Release,
    ReleaseKey,
    Status,
    release_of_upload,
    reserved,
)
from privacy.events import gaussian_of

FACTS = {
    facts.name: facts for facts in (NONE, UPLOAD_NOISE, DISTRIBUTED_NOISE, CENTRAL_NOISE, DP_SGD)
}
KEY: dict[str, Any] = {"run_id": "r", "round_number": 1, "attempt": 1, "pseudonym": "a"}


def released(noise: float = 4.0, **changes: Any) -> Release:
    """A row with so much Gaussian noise over its clipping norm, which is 0.3."""
    fields: dict[str, Any] = {
        "mechanism": UPLOAD_NOISE,
        "standard_deviation": noise * 0.3,
        "law": gaussian_of(noise),
        "clipping_norm": 0.3,
        "relation": "replace_one",
        "channel": "sum",
        "status": "released",
    }
    return Release(**KEY | fields | changes)


def release_of(
    mechanism: ClientMechanism,
    dimension: int = 64,
    *,
    status: Status = "reserved",
    cohort: CohortSampling | None = None,
    **key: Any,
) -> Release:
    """The row of one upload, which has come as far as is said."""
    row = release_of_upload(mechanism, dimension, ReleaseKey(**KEY | key), cohort)
    return dataclasses.replace(row, status=status)


def release_of_fits(mechanism: DpSgd, *, status: Status = "reserved", **key: Any) -> Release:
    """The row of one client's training in one round."""
    row = reserved(ReleaseKey(**KEY | key), mechanism.facts, mechanism.protected())
    return dataclasses.replace(row, status=status)
