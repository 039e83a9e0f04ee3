"""A centralised method: one party that holds all data runs, and says that it is no federation."""

from __future__ import annotations

import pytest

from platform.errors import ConfigError
from tests.trunk._runs import NONE, Storage

RUN = (
    "method={name: swad, network: features, feature_width: 8}",
    NONE,
    "secure_aggregation.enabled=false",
    "cohort={minimum: 1}",
)


def test_a_run_of_one_party_says_that_there_is_no_federation(storage: Storage):
    """And one of two clients is refused, in one sentence."""
    summary = storage.run(*RUN, "task.clients=1").summary
    assert summary["warnings"][0].startswith("centralised: one party holds all data, no federation")
    assert summary["final"]["epsilon"]["server"] == 0.0
    assert summary["gain_over_local"] == 0.0
    with pytest.raises(ConfigError) as refused:
        storage.run(*RUN, "task.clients=2")
    assert str(refused.value) == (
        "task.clients: 2 parties share the data out, while swad is centralised: one party holds "
        "all of it; valid: 1"
    )
