"""Whose an entry is cannot be learned from the files of a coordinator that holds a whole run."""

from __future__ import annotations

import pytest

from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from platform.wire.layout import handle
from tests._linking import SIGNIFICANCE, Watcher, chance
from tests.trunk._runs import FIXED, OS, Finished, opened

ROUNDS = 300


@pytest.mark.slow
def test_a_trained_linker_does_no_better_than_chance_over_a_whole_run(storage, monkeypatch):
    """Ledger, audit log, log, states, open attempts and who was lost are in the files."""
    watcher = Watcher(storage.file, [])
    length = (f"rounds={ROUNDS}", "pool.generations=2", "evaluation.local_twins=false")
    simulation = storage.create(OS, *FIXED, *length, "secure_aggregation.enabled=false")
    with opened(simulation) as held, monkeypatch.context() as patch:
        watcher.on(patch)
        run = Finished(storage, held.run_id, execute(held, SilentObserver()))
    identities, survivors = run.identities(), run.survivors()
    assert [files.generation for files in watcher.seen] == list(range(1, ROUNDS + 1))
    assert all(files.log and len(files.rows) == 4 for files in watcher.seen)
    seen = []
    for files in watcher.seen:
        there = survivors[files.generation]
        owners = {
            handle(identities[name][1], run.run_id, files.generation): identities[name][0]
            for name in there
        }
        seen.append(files.shown([identities[name][0] for name in there], owners))
    assert chance(seen) > SIGNIFICANCE
