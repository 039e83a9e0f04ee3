"""Releases and stored rows: the same facts, or a refusal."""

from __future__ import annotations

import dataclasses

import pytest

from platform.errors import RunStopped
from platform.ledger import as_releases, as_row
from privacy import NoProtection, Release, UploadNoise, release

FACTS = {"run_id": "run", "round_number": 2, "attempt": 1, "pseudonym": "ada", "channel": "sum"}


@pytest.mark.parametrize("mechanism", [UploadNoise(0.5, 1.5), NoProtection(8.0)], ids=str)
def test_a_release_survives_the_ledger(mechanism):
    made = release(mechanism, **FACTS)
    assert as_releases([as_row(made)]) == [made]


def test_an_aborted_row_is_free_and_a_reserved_one_is_not():
    row = as_row(release(UploadNoise(0.5, 1.5), **FACTS))
    (reserved,) = as_releases([row])
    (aborted,) = as_releases([dataclasses.replace(row, status="aborted")])
    assert reserved.charged
    assert not aborted.charged


@pytest.mark.parametrize(
    "lost", [{"count": 3}, {"sampling": "poisson", "sampling_probability": 0.1}], ids=str
)
def test_what_a_row_cannot_hold_is_refused(lost):
    """A row without these facts would be priced as if they were not there."""
    made = release(UploadNoise(0.5, 1.5), **FACTS)
    sampled: Release = dataclasses.replace(made, **lost)
    with pytest.raises(RunStopped, match="cannot be kept yet"):
        as_row(sampled)
