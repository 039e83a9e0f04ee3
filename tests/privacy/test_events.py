"""Ledger rows mean something, know their sensitivity, and say whether they are charged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privacy.errors import UnknownMechanism
from privacy.events import NO_NOISE, CohortSampling
from tests.privacy._rows import FACTS, released

ROW = released(2.0, status="reserved")


def test_sensitivity_follows_the_relation():
    assert ROW.sensitivity == 0.6
    assert replace(ROW, relation="add_or_remove_one").sensitivity == 0.3


@pytest.mark.parametrize(
    ("status", "left_client", "charged"),
    [
        ("reserved", True, True),
        ("released", True, True),
        ("aborted", True, True),
        ("aborted", False, False),
    ],
)
def test_only_an_abort_that_nothing_left_is_free(status, left_client, charged):
    assert replace(ROW, status=status, left_client=left_client).charged is charged


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "replace"},
        {"channel": "pools"},
        {"status": "done"},
        {"sampling": "fixed"},
        {"standard_deviation": -1.0},
        {"standard_deviation": float("nan")},
        {"standard_deviation": float("inf")},
        {"clipping_norm": 0.0},
        {"round_number": -1},
        {"attempt": -1},
        {"mechanism": FACTS["none"]},  # with noise
        {"sampling_probability": 0.5},  # without sampling
        {"sampling": "poisson", "sampling_probability": 0.0},
        {"sampling": "poisson", "sampling_probability": 1.5},
        {"left_client": False},  # while reserved
        {"left_client": False, "status": "released"},
        {"count": 0},
        {
            "mechanism": FACTS["none"],
            "standard_deviation": 0.0,
            "law": NO_NOISE,
            "clipping_norm": -1.0,
        },
    ],
    ids=str,
)
def test_rows_that_mean_nothing_are_refused(change):
    with pytest.raises(ValueError, match=r"\w+ (is|must|can)"):
        replace(ROW, **change)


COHORT = CohortSampling(kind="poisson", size=3, population=12, is_drawn=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "binomial"}, "kind is 'binomial'; valid are poisson, fixed_size"),
        ({"size": 0}, "size is 0; it must be from 1 to the population, 12"),
        ({"size": 13}, "size is 13"),
    ],
)
def test_cohorts_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(COHORT, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "cohort must be None on channel 'sum' under 'upload_noise'"),
        ({"mechanism": FACTS["central_noise"], "channel": "pool"}, "cohort must be None"),
        ({"mechanism": FACTS["central_noise"], "channel": "metrics"}, "cohort must be None"),
        (
            {
                "mechanism": FACTS["central_noise"],
                "sampling": "poisson",
                "sampling_probability": 0.5,
            },
            "sampling must be 'none' beside a cohort",
        ),
    ],
)
def test_rows_that_no_draw_amplifies_have_no_cohort(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(ROW, **{"cohort": COHORT} | changes)


def test_unknown_mechanisms_are_refused():
    with pytest.raises(UnknownMechanism, match="'magic'"):
        replace(ROW, mechanism="magic")
