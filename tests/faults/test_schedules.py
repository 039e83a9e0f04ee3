"""Real processes over local sockets under schedules of faults: the run goes on and stays sound.

Killed, stopped, ended and stuck processes, errors where nobody expects any, cut, slow and stalled
networks, packets doubled, held back and sent again, full disks, clocks that jump, second processes
on one database or store. A schedule that fails prints its seed and what it did.
"""

from __future__ import annotations

import pytest

from tests.faults._federation import NAMES
from tests.faults._schedules import schedule
from tests.faults._tormenting import proxies_in, torment

SECONDS = 240.0
BLOWS = 8
SCHEDULES = 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_run_survives_every_schedule(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("s")
    with proxies_in(folder) as proxies:
        torment(folder, seed, proxies, blows=BLOWS, seconds=SECONDS)


def test_a_schedule_is_its_seeds_and_all_kinds_of_faults_are_drawn():
    drawn = [schedule(seed, NAMES, blows=BLOWS) for seed in range(SCHEDULES)]
    assert drawn[3] == schedule(3, NAMES, blows=BLOWS) != drawn[4]
    found = {(blow.what, blow.who) for blows in drawn for blow in blows}
    assert {what for what, _ in found} == {
        *("kill", "stop", "end", "cut", "refuse", "stall", "slow", "duplicate", "delay", "replay"),
        *("full", "clock", "mischief", "second"),
    }
    assert {(what, who) for what in ("kill", "stop") for who in ("relay", "coordinator")} <= found
