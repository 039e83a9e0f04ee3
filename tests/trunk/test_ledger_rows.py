"""Releases and stored rows: the same facts, and what the audit log says of them."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.mechanisms import BUILT_IN
from platform.protection.charging import as_releases, as_row
from platform.rounds.audit_trail import AuditTrail
from privacy import (
    CENTRAL_NOISE,
    DISTRIBUTED_NOISE,
    DP_SGD,
    GAUSSIAN,
    NO_NOISE,
    NOISE_KINDS,
    CohortSampling,
    IntegerNoise,
    NoiseLaw,
    Release,
    ReleaseKey,
    UploadNoise,
    release_of_upload,
)
from privacy.events import CHANNELS, COHORT_KINDS, RELATIONS, SAMPLINGS

FACTS = {"run_id": "run", "round_number": 2, "attempt": 1, "pseudonym": "ada", "channel": "sum"}

COUNT = st.integers(1, 2**63 - 1)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
PROBABILITY = st.floats(min_value=0.0, max_value=1.0, exclude_min=True)
INTEGER_NOISE = st.builds(
    IntegerNoise,
    name=st.sampled_from(NOISE_KINDS),
    share_deviation=POSITIVE,
    shares=COUNT,
    dimension=COUNT,
    corrupt=st.integers(0, 2**63 - 1),
)
COHORT = st.tuples(COUNT, COUNT).flatmap(
    lambda sizes: st.builds(
        CohortSampling,
        kind=st.sampled_from(COHORT_KINDS),
        size=st.just(min(sizes)),
        population=st.just(max(sizes)),
        is_drawn=st.booleans(),
    )
)


@st.composite
def reserved_releases(draw: st.DrawFn) -> Release:
    """Any release that the accounting's types allow, of status `reserved`."""
    facts = draw(st.sampled_from([one.facts for one in BUILT_IN]))
    mechanism = facts.name
    only_sums = mechanism in ("distributed_noise", "central_noise")
    channels = ("sum",) if only_sums else CHANNELS
    channel = draw(st.sampled_from(channels))
    own = {"none": st.just(NO_NOISE), "distributed_noise": INTEGER_NOISE}
    laws = own.get(mechanism, st.just(GAUSSIAN) | st.just(NoiseLaw("laplace")) | INTEGER_NOISE)
    can_be_drawn = (mechanism, channel) == ("central_noise", "sum")
    cohort = draw(st.none() | COHORT) if can_be_drawn else None
    sampling = draw(st.sampled_from(SAMPLINGS)) if cohort is None else "none"
    return Release(
        mechanism=facts,
        standard_deviation=0.0 if mechanism == "none" else draw(POSITIVE),
        clipping_norm=draw(st.just(0.0) | POSITIVE if mechanism == "none" else POSITIVE),
        relation=draw(st.sampled_from(RELATIONS)),
        channel=channel,
        run_id="run",
        round_number=draw(st.integers(0, 2**63 - 1)),
        attempt=draw(st.integers(0, 2**63 - 1)),
        pseudonym="ada",
        status="reserved",
        sampling=sampling,
        sampling_probability=1.0 if sampling == "none" else draw(PROBABILITY),
        count=draw(COUNT),
        law=draw(laws),
        cohort=cohort,
    )


PRICED: dict[str, Any] = {
    **FACTS,
    **{"standard_deviation": 0.8, "clipping_norm": 1.0, "status": "reserved"},
}
SKELLAM = IntegerNoise(name="skellam", share_deviation=40.0, shares=6, dimension=512, corrupt=2)
EXAMPLES: dict[str, Release] = {
    "upload": release_of_upload(UploadNoise(0.5, 1.5), 8, ReleaseKey(**FACTS)),
    "record-level": Release(
        mechanism=DP_SGD,
        law=GAUSSIAN,
        relation="add_or_remove_one",
        sampling="poisson",
        sampling_probability=0.0625,
        count=160,
        **PRICED,
    ),
    "distributed": Release(
        mechanism=DISTRIBUTED_NOISE, relation="replace_one", law=SKELLAM, **PRICED
    ),
    "central": Release(
        mechanism=CENTRAL_NOISE,
        law=GAUSSIAN,
        relation="replace_one",
        cohort=CohortSampling(kind="fixed_size", size=5, population=40, is_drawn=False),
        **PRICED,
    ),
}


@given(made=reserved_releases())
def test_a_row_holds_every_fact_of_a_release(made):
    row = as_row(made)
    assert as_releases([row], BUILT_IN) == [made]
    # The norm zero stands for one that nothing bounds.
    assert (row.clipping_norm == math.inf) == (made.clipping_norm == 0.0)


def test_the_columns_of_a_row_are_worked_by_hand():
    """A round trip alone would not see two columns that are swapped both ways."""
    made = dataclasses.replace(EXAMPLES["central"], law=SKELLAM, count=3)
    expected = {
        **PRICED,
        "mechanism": "central_noise",
        "relation": "replace_one",
        "sampling": "none",
        "sampling_probability": 1.0,
        "count": 3,
        "noise_kind": "skellam",
        "share_deviation": 40.0,
        "shares": 6,
        "dimension": 512,
        "corrupt": 2,
        "cohort_kind": "fixed_size",
        "cohort_size": 5,
        "cohort_population": 40,
        "cohort_drawn": False,
    }
    assert dataclasses.asdict(as_row(made)) == expected
    trained = as_row(EXAMPLES["record-level"])
    assert (trained.sampling, trained.sampling_probability) == ("poisson", 0.0625)
    assert trained.count == 160


def test_an_aborted_row_is_free_and_a_reserved_one_is_not():
    row = as_row(EXAMPLES["distributed"])
    reserved, aborted = as_releases([row, dataclasses.replace(row, status="aborted")], BUILT_IN)
    assert reserved.charged and not aborted.charged
    assert aborted == dataclasses.replace(reserved, status="aborted", left_client=False)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("upload", {}),
        ("record-level", {"count": 160, "sampling": "poisson", "probability": 0.0625}),
        ("distributed", {"noise": "skellam", "shares": 6}),
        ("central", {"cohorts": "fixed_size", "size": 5}),
    ],
)
def test_the_audit_log_says_what_a_price_depends_on_and_names_nobody(name, more):
    entries: list[dict[str, Any]] = []
    log = SimpleNamespace(append=lambda run_id, **fields: entries.append(fields))
    AuditTrail(log, "run").reserved([EXAMPLES[name]])
    (entry,) = entries
    assert (entry["action"], entry["channel"], entry["round"]) == ("release.reserved", "sum", 2)
    plain = {"attempt", "clients", "rows_sha256", "clipping_norm", "mechanism", "relation"}
    assert set(entry["detail"]) == plain | {"standard_deviation"} | set(more)
    assert entry["detail"].items() >= more.items()
    assert "ada" not in str(entry)
