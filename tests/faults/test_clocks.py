"""Clocks that jump: nothing but what people read depends on them, and no deadline does."""

from __future__ import annotations

import ast
import itertools
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from platform.agreement.checking import faults_of
from platform.disk.opening import open_existing
from platform.experiment.federating import new_federation
from platform.experiment.finishing import conduct
from platform.experiment.planning import Surroundings
from platform.relay.hub import Hub
from platform.relay.links import deliver
from platform.relay.packets import Request, encode_packet
from platform.rounds.observing import SilentObserver
from platform.wire.transport import Dropout
from tests.repository._source import module_name, parse, python_files
from tests.trunk._federations import MASKED, NAMES, Holders, federation, within

WALL = {
    "platform.experiment.planning": "a run's name",
    "platform.cli.holder": "a backup's manifest",
    "platform.cli.keeping": "a manifest, a run's age, and whether one of before is over",
    "platform.cli.serving": "a log line",
    "platform.data.cache": "which rows were used longest ago",
    "platform.parties.client": "a cosignature",
    "platform.relay.flower.development": "a certificate for development",
    "platform.results.report.document": "a report's date",
    "storage.database": "an audit entry",
}
"""Where the wall clock is read, and what for."""
CALLS = ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today")


def wall_clocks(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if any(name == call or name.endswith(f".{call}") for call in CALLS):
                found.add(name)
    return found


@pytest.mark.slow
def test_the_wall_clock_is_read_for_people_only():
    """A decision about privacy, or a deadline, that rested on it would be somewhere else."""
    places = {module_name(path) for path in python_files() if wall_clocks(path)}
    assert places == set(WALL)


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("clock")


@pytest.mark.slow
@pytest.mark.parametrize("jumps", [(400, -400, 0), (-0.1,)], ids=["forth", "ever earlier"])
def test_a_run_whose_clock_jumps_is_sound_and_costs_the_same(folder, jumps, monkeypatch):
    """Days; audit entries have the times that the clock told, and their order is their number's."""
    days, at = itertools.accumulate(itertools.cycle(jumps)), datetime(2026, 1, 1, tzinfo=UTC)

    def now() -> datetime:
        return at + timedelta(days=next(days))

    monkeypatch.setattr("storage.database._utc_now", now)
    holders = Holders.written(folder)
    config, watching = federation(folder, *MASKED), SilentObserver()
    surroundings = Surroundings(now=now)
    reaching = within(holders.handlers())
    with new_federation(config, watching, surroundings, reaching=reaching) as conducted:
        summary = conduct(conducted, watching)
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(8.0, rel=1e-3)
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        assert faults_of(database, summary["run_id"])[1] == []
        with database.unit_of_work(read_only=True) as uow:
            trail = uow.audit.query(run=summary["run_id"])
    assert [entry.sequence for entry in trail] == list(range(1, len(trail) + 1))
    times = [entry.time for entry in trail]
    assert times != sorted(times)


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_deadlines_do_not_follow_the_wall_clock(folder, jump, monkeypatch):
    """Neither is a client given up on at once, nor waited for for ever."""
    started, true = time.monotonic(), time.time
    monkeypatch.setattr(time, "time", lambda: true() + jump * (time.monotonic() - started > 0.1))
    with Hub(path=folder / "hub", clients=NAMES) as hub:
        found = hub.exchange("train", {"north": b"m"}, 0.4)
    assert isinstance(found["north"], Dropout)
    assert 0.4 <= time.monotonic() - started < 60.0
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        deliver(folder / "nobody", encode_packet(Request(1, "north", 0.4, b"m")), 0.4)
    assert 0.4 <= time.monotonic() - started < 60.0
