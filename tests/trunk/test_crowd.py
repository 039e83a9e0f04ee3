"""Many holders' threads over local sockets, a tenth of them lost in every round."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks._crowd import MOMENTS, WAYS, Losses
from benchmarks.federation_scale import Setting, hold, write_holders


def setting(clients: int, **more) -> Setting:
    usual = {"rounds": 2, "rate": 0.15, "deadline": 20.0, "training": 20.0}
    return Setting(clients=clients, **(usual | more), processes=1, relays=2, engine="local")


def test_losses_are_the_same_for_all_and_others_in_every_round():
    names = tuple(f"h{number}" for number in range(100))
    losses = Losses(names=names, rate=0.1, rounds=10, seconds=1.0)
    drawn = [losses.of(number) for number in range(1, 11)]
    assert [len(each) for each in drawn] == [10] * 10
    assert drawn[0] == Losses(names=names, rate=0.1, rounds=10, seconds=2.0).of(1)
    assert drawn[0].keys() != drawn[1].keys()
    ways = Counter(found for each in drawn for found in each.values())
    assert {way for way, _ in ways} == set(WAYS)
    assert {moment for _, moment in ways} == set(MOMENTS)
    assert not losses.of(0)
    assert not losses.of(11)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["semi_honest", "active"])
def test_a_crowd_of_which_a_tenth_is_lost_in_every_round(tmp_path_factory, adversary):
    folder = tmp_path_factory.mktemp("c")
    # Three of twenty, one in each way.
    chosen = setting(20, adversary=adversary)
    write_holders(folder, chosen)
    found = hold(folder, chosen)
    assert [event["dropped"] for event in found["rounds"]] == [3, 3]
    assert found["epsilon"] <= 8.0
