"""Garbage collections during rounds look at what rounds have made, and at all again afterwards."""

from __future__ import annotations

import gc

import pytest

from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, Crash, opened

PLAIN = (NONE, *NO_POOL, "secure_aggregation.enabled=false", "rounds=1")


def test_what_set_up_made_is_left_out_until_rounds_end_by_a_crash_too(storage, monkeypatch):
    seen = []

    def ended(*_: object) -> None:
        seen.append(gc.get_freeze_count())
        raise Crash

    with opened(storage.create(*PLAIN)) as simulation, pytest.raises(Crash):
        monkeypatch.setattr(type(simulation.run.terms.method), "server_update", ended)
        Federation(simulation.run, SilentObserver()).run_rounds()
    assert len(seen) == 1 and seen[0] > 10_000
    assert gc.get_freeze_count() == 0
