"""Real processes over local sockets under schedules of faults: the run goes on and stays sound.

Killed, stopped, ended and stuck processes, errors where nobody expects any, cut, slow and stalled
networks, packets doubled, held back and sent again, full disks, clocks that jump, second processes
on one database or store. A schedule that fails prints its seed and what it did.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults._federation import (
    NAMES,
    SETUPS,
    require_every_round_once,
    write_federation,
)
from tests.faults._invariants import Watch, require_sound
from tests.faults._processes import Processes
from tests.faults._proxy import Proxy
from tests.faults._schedules import HUB, Storm, require_well_ended, schedule
from tests.faults._wire import Wire

SECONDS = 240.0
BLOWS = 8
SCHEDULES = 200
QUICK = 3


def torment(folder: Path, seed: int) -> None:
    setup, wire = SETUPS[seed % len(SETUPS)], Wire()
    write_federation(folder, setup, folder / "hub.sock")
    with ExitStack() as stack:
        proxies = {HUB: Proxy(folder / "hub.way", folder / "hub.sock")}
        for name in NAMES:
            own = folder / name / "store" / "client.sock"
            proxies[name] = Proxy(folder / f"{name}.way", own, saw=wire.of(name))
        for proxy in proxies.values():
            stack.enter_context(proxy)
        sockets = {name: folder / f"{name}.way" for name in NAMES}
        processes = Processes(folder, NAMES, folder / "hub.way", sockets)
        storm = Storm(processes, proxies, wire, Watch(folder, NAMES))
        try:
            processes.start_all()
            storm.run(schedule(seed, NAMES, blows=BLOWS), SECONDS)
            processes.end()
            require_well_ended(processes)
            wire.require_once()
            survivors = require_sound(folder, NAMES)
            if setup == "noiseless":
                wire.require_noiseless_once()
                require_every_round_once(folder, folder / "again", survivors)
        except BaseException:
            processes.end()
            print(f"seed {seed}, {setup}")
            print("\n".join(storm.trace))
            for who, lines in processes.said.items():
                print(f"-- {who}: {processes.ends.get(who, [])}\n{''.join(lines[-60:])}")
            raise


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_run_survives_a_schedule(tmp_path_factory, seed):
    torment(tmp_path_factory.mktemp("s"), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, SCHEDULES))
def test_a_run_survives_every_schedule(tmp_path_factory, seed):
    torment(tmp_path_factory.mktemp("s"), seed)
