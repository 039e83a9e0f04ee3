"""Garbage collections during rounds look at what rounds have made, and at all again afterwards."""

from __future__ import annotations

import gc

import pytest

from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, Crash, crash_at, opened

PLAIN = (NONE, *NO_POOL, "secure_aggregation.enabled=false", "rounds=1")


def test_what_set_up_made_is_left_out_while_rounds_are_held(storage, monkeypatch):
    seen = []
    with opened(storage.create(*PLAIN)) as simulation:
        method = type(simulation.run.terms.method)
        original = method.server_update

        def watching(self, *given):
            seen.append(gc.get_freeze_count())
            return original(self, *given)

        monkeypatch.setattr(method, "server_update", watching)
        Federation(simulation.run, SilentObserver()).run_rounds()
    assert len(seen) == 1 and seen[0] > 10_000
    assert gc.get_freeze_count() == 0


def test_after_a_crash_nothing_is_left_out(storage, monkeypatch):
    with opened(storage.create(*PLAIN)) as simulation:
        crash_at(monkeypatch, type(simulation.run.terms.method), "server_update", 1)
        with pytest.raises(Crash):
            Federation(simulation.run, SilentObserver()).run_rounds()
    assert gc.get_freeze_count() == 0
