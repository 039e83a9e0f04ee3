"""A federation of data holders with folders of their own, over sockets and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from platform.disk.opening import open_existing
from platform.errors import ConfigError, RunStopped
from platform.parties.enrolment import create_key, write_enrolment
from platform.wire.codec import decode_arrays
from privacy.secure_aggregation import Enrolment
from tests.trunk._federations import NAMES, Holders, federation, hold, over_sockets, within

MASKED = (
    "privacy.mechanism=distributed_noise",
    "privacy.clipping_norm=0.1",
    "privacy.target_epsilon=8.0",
    "secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",
)


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """A path that is short enough for sockets."""
    return tmp_path_factory.mktemp("fed")


def last_state(folder: Path, run_id: str) -> dict:
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        with database.unit_of_work(read_only=True) as uow:
            latest = uow.states.latest(run_id)
    return decode_arrays(latest.blob)


def test_the_same_numbers_come_over_sockets_and_within_one_process(folder):
    found = []
    for place in ("sockets", "within"):
        here = folder / place
        handlers = Holders.written(here).handlers()
        reaching = over_sockets(handlers, here) if place == "sockets" else within(handlers)
        summary = hold(federation(here), reaching)
        found.append((summary, last_state(here, summary["run_id"])))
    (one, first), (other, second) = found
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert [r["cohort"] for r in one["rounds"]] == [r["cohort"] for r in other["rounds"]] == [4, 4]


def test_masked_and_noised_sums_of_data_holders(folder):
    holders = Holders.written(folder)
    summary = hold(federation(folder, *MASKED), over_sockets(holders.handlers(), folder))
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(8.0, rel=1e-3)
    assert summary["final"]["accuracy"]["mean"] is None
    assert all(lines == [f"run {summary['run_id']}: accepted"] for lines in holders.lines.values())
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"mechanisms": ["distributed_noise"]}, "privacy.mechanism: none"),
        ({"methods": ["fedpgp"], "mechanisms": ["none"]}, "method.name: promptfl"),
        ({"smallest_cohort": 5}, "cohort.size"),
    ],
)
def test_a_run_that_passes_one_holders_limits_is_not_begun(folder, limits, said):
    base = {"epsilon_total": None, "epsilon_per_run": None, "smallest_sum": 1, "delta": 0.1}
    strict = {**base, "mechanisms": ["none"], **limits}
    holders = Holders.written(folder, of={"south": {"limits": strict}})
    with pytest.raises(RunStopped, match=said) as stopped:
        hold(federation(folder), within(holders.handlers()))
    assert "south" in str(stopped.value)
    assert all(name not in str(stopped.value) for name in set(NAMES) - {"south"})
    assert "declined" in holders.lines["south"][0]


def test_a_class_that_the_federation_does_not_know_is_named_to_its_holder_only(folder):
    """Which images a holder has is what the coordinator must not learn, from a refusal either."""
    holders = Holders.written(folder)
    extra = folder / "west" / "images" / "train" / "dog"
    extra.mkdir()
    (extra / "0.png").write_bytes(
        (folder / "west" / "images" / "train" / "star" / "0.png").read_bytes()
    )
    handlers, sent = holders.handlers(), []

    def heard(message: bytes) -> bytes:
        sent.append(handlers["west"](message))
        return sent[-1]

    with pytest.raises(RunStopped, match=r"federation\.classes: this client's images") as stopped:
        hold(federation(folder), within({**handlers, "west": heard}))
    assert "'dog'" in " ".join(holders.lines["west"])
    assert "dog" not in str(stopped.value) and str(folder) not in str(stopped.value)
    assert sent and not [m for m in sent if b"dog" in m or str(folder).encode() in m]


def test_a_key_that_others_may_use_keeps_a_client_from_starting(folder):
    keys = {"identity": "north.key", "enrolment": "enrolment.json"}
    holders = Holders.written(folder, of={"north": keys})
    own = create_key(folder / "north" / "north.key")
    known = Enrolment().enrol("north", own.public)
    write_enrolment(folder / "north" / "enrolment.json", known)
    holders.handler("north")
    (folder / "north" / "north.key").chmod(0o640)
    with pytest.raises(ConfigError, match=r"identity: .* has the permissions 640"):
        holders.handler("north")


def test_the_coordinators_paths_reach_nobody(folder):
    holders = Holders.written(folder)
    handlers, seen = holders.handlers(), []

    def listening(name):
        def handle(message: bytes) -> bytes:
            seen.append(message)
            return handlers[name](message)

        return handle

    hold(federation(folder), within({name: listening(name) for name in handlers}))
    assert seen
    assert not [m for m in seen if str(folder).encode() in m or b"hub.sock" in m]
