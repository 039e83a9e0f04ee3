"""The small federation that is tormented: three clients, three rounds, one of three setups."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import yaml

from platform.config import load_config
from platform.disk.opening import open_existing
from platform.errors import RunStopped
from platform.parties.identities import create_enrolment, key_path
from platform.wire.codec import decode_arrays, peek
from platform.wire.transport import InProcessTransport
from tests.faults._processes import rows_of
from tests.trunk._federations import BASE, Holders, go_on, hold, write_holder

NAMES = ("east", "north", "west")
SETUPS = ("noised", "active", "noiseless")
ROUNDS = 3
NOISED = {
    "mechanism": "distributed_noise",
    "clipping_norm": 0.1,
    "target_epsilon": 8.0,
    "spare_attempts": 40,
}
SUMS = {
    "noised": {"enabled": True, "threshold": 2, "corrupt": 1},
    "active": {"enabled": True, "threshold": 3, "adversary": "active"},
    "noiseless": {"enabled": True, "threshold": 2, "corrupt": 1, "largest_weight": 64},
}


def write_federation(folder: Path, setup: str, hub: Path, **times: float) -> None:
    """Writes all that its processes read."""
    own: dict[str, dict] = {name: {} for name in NAMES}
    if setup == "active":
        create_enrolment(folder / "keys", NAMES)
        enrolment = folder / "keys" / "enrolment.json"
        for name in NAMES:
            key = key_path(enrolment, name)
            own[name] = {"identity": str(key), "enrolment": str(enrolment)}
    for name in NAMES:
        write_holder(folder, name, **own[name])
    tree = yaml.safe_load(BASE)
    tree["rounds"], tree["task"]["clients"] = ROUNDS, len(NAMES)
    tree["federation"] = {
        **tree["federation"],
        "clients": list(NAMES),
        "socket": str(hub),
        **{"phase_seconds": 3.0, "training_seconds": 6.0, "joining_seconds": 20.0},
        **times,
    }
    tree["secure_aggregation"] = dict(SUMS[setup])
    tree["cohort"] = {"retries": 3}
    if setup == "active":
        tree["secure_aggregation"]["enrolment"] = str(folder / "keys" / "enrolment.json")
    if setup != "noiseless":
        tree["privacy"] = NOISED
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))


def state_of(folder: Path, run_id: str) -> dict:
    """The newest state of a run."""
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        with database.unit_of_work(read_only=True) as uow:
            return decode_arrays(uow.states.latest(run_id).blob)


def require_every_round_once(folder: Path, again: Path, survivors: dict[int, list[str]]) -> None:
    """Without noise a run's state is that of a run in one process with the same survivors.

    A round that was applied twice, or left out, or an upload that counted twice, would show.
    """
    (run_id,) = (name for (name,) in rows_of(folder / "sotto.db", "SELECT run_id FROM runs"))
    holders = Holders.written(again, NAMES)
    url = f"storage.url=sqlite:///{again}/sotto.db"
    config = load_config(folder / "run.yaml", [url])

    class Losing(InProcessTransport):
        def exchange(self, stage, messages, deadline):
            number = peek(next(iter(messages.values())))[1].round_number if messages else 0
            if stage == "train":
                lost = frozenset(NAMES) - frozenset(survivors[number])
                object.__setattr__(self, "losses", lambda *_: lost)
            return super().exchange(stage, messages, deadline)

    transport = Losing(handlers=holders.handlers(), losses=lambda *_: frozenset())
    summary = None
    with suppress(RunStopped):
        summary = hold(config, lambda section: nullcontext(transport))
    (second,) = (name for (name,) in rows_of(again / "sotto.db", "SELECT run_id FROM runs"))
    for _ in range(ROUNDS):
        if summary is None:
            with suppress(RunStopped):
                summary = go_on(
                    second, f"sqlite:///{again}/sotto.db", lambda section: nullcontext(transport)
                )
    assert summary is not None
    expected, found = state_of(again, second), state_of(folder, run_id)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
