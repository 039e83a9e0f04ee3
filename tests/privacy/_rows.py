"""Ledger rows of tests: the built-in mechanisms' facts by name, and a mechanism's own row."""

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

FACTS = {
    facts.name: facts for facts in (NONE, UPLOAD_NOISE, DISTRIBUTED_NOISE, CENTRAL_NOISE, DP_SGD)
}


def release_of(
    mechanism: ClientMechanism,
    dimension: int = 64,
    *,
    status: Status = "reserved",
    cohort: CohortSampling | None = None,
    **key: Any,
) -> Release:
    """The row of one upload, which has come as far as is said."""
    row = release_of_upload(mechanism, dimension, ReleaseKey(**key), cohort)
    return dataclasses.replace(row, status=status)


def release_of_fits(mechanism: DpSgd, *, status: Status = "reserved", **key: Any) -> Release:
    """The row of one client's training in one round."""
    row = reserved(ReleaseKey(**key), mechanism.facts, mechanism.protected())
    return dataclasses.replace(row, status=status)
