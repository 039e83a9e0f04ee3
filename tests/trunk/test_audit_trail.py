"""The audit log says what a reserved spend's price depends on, and nothing of anybody's data."""

from __future__ import annotations

import pytest

from platform.rounds.audit_trail import AuditTrail
from privacy import (
    CentralNoise,
    CohortSampling,
    DistributedNoise,
    DpSgd,
    ReleaseKey,
    UploadNoise,
    release_of_upload,
    reserved,
)

KEY = ReleaseKey(run_id="run", round_number=2, attempt=1, pseudonym="ada")
STEPS = DpSgd(
    noise_multiplier=1.0,
    clipping_norm=1.0,
    sampling_probability=0.1,
    steps=3,
    expected_batch_size=4.0,
)
SHARES = DistributedNoise(
    clipping_norm=1.0, noise_multiplier=1.0, minimum_survivors=8, corrupt=2, scale=2.0**16
)
CENTRAL = CentralNoise(clipping_norm=1.0, noise_multiplier=1.0, scale=2.0**16)
DRAWN = CohortSampling(kind="poisson", size=5, population=10, is_drawn=True)
PLAIN = {
    "attempt",
    "clients",
    "rows_sha256",
    "clipping_norm",
    "mechanism",
    "relation",
    "standard_deviation",
}


class Log:
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.entries: list[dict] = []

    def append(self, run_id, **fields) -> None:
        self.entries.append(fields)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        (release_of_upload(UploadNoise(0.5, 1.5), 8, KEY), {}),
        (
            reserved(KEY, STEPS.facts, STEPS.protected()),
            {"count": 3, "sampling": "poisson", "probability": 0.1},
        ),
        (
            release_of_upload(SHARES, 8, KEY),
            {"noise": "discrete_gaussian", "shares": 6},
        ),
        (
            release_of_upload(CENTRAL, 8, KEY, DRAWN),
            {"cohorts": "poisson", "size": 5},
        ),
    ],
    ids=["upload_noise", "dp_sgd", "distributed_noise", "central_noise"],
)
def test_a_reserved_spend_names_what_its_price_depends_on(row, more):
    log = Log()
    AuditTrail(log, "run").reserved([row])
    (entry,) = log.entries
    assert (entry["action"], entry["channel"], entry["round"]) == ("release.reserved", "sum", 2)
    assert set(entry["detail"]) == PLAIN | set(more)
    assert entry["detail"].items() >= more.items()
    assert "ada" not in str(entry)
