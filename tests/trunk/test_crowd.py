"""Many holders' threads over local sockets, a tenth of them lost in every round."""

from __future__ import annotations

import pytest

from benchmarks.federation_scale import Setting, hold, write_holders


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["semi_honest", "active"])
def test_a_crowd_of_which_a_tenth_is_lost_in_every_round(tmp_path_factory, adversary):
    folder = tmp_path_factory.mktemp("c")
    # Three of twenty, one in each way.
    times = {"rounds": 2, "rate": 0.15, "deadline": 20.0, "training": 20.0}
    places = {"processes": 1, "relays": 2, "engine": "local"}
    chosen = Setting(clients=20, adversary=adversary, **times, **places)
    write_holders(folder, chosen)
    found = hold(folder, chosen)
    assert [event["dropped"] for event in found["rounds"]] == [3, 3]
    assert found["epsilon"] <= 8.0
