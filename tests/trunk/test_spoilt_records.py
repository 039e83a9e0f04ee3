"""Rows of another form, their digests computed anew: one sentence each from whatever reads them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from platform.errors import RecordsDisagree
from platform.experiment.finishing import execute as run_through
from platform.rounds.observing import SilentObserver
from platform.sweeping.running import known_runs, mark_cells_interrupted
from storage import DatabaseDamaged
from tests.trunk._runs import NONE, Command, Finished, Storage, opened
from tests.trunk._tampering import execute, execute_and_rehash

SELF = "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', run_id)"
NO_OBJECT = "the configuration in its row is no JSON object"
EDITS = {
    "document-list": ("UPDATE rounds SET document = '[]'", "document of round 1 is no JSON object"),
    "document-cut": ("UPDATE rounds SET document = '{'", "document of round 1 is no JSON object"),
    "document-nested": (
        "UPDATE rounds SET document = replace(hex(zeroblob(50000)), '00', '[')",
        "document of round 1 is no JSON object",
    ),
    "document-bare": ("UPDATE rounds SET document = '{}'", "round 1 has no list of survivors"),
    "survivors-number": (
        "UPDATE rounds SET document = json_set(document, '$.survivors', 5)",
        "round 1 has no list of survivors",
    ),
    "plan-list": ("UPDATE attempts SET plan = '[]'", "the plan of attempt 1 is no JSON object"),
    "plan-bare": ("UPDATE attempts SET plan = '{}'", "attempt 1 has no list of a cohort"),
    "its-own-first": (SELF, "it is a second phase itself"),
    "config-cut": ("UPDATE runs SET config_json = '['", NO_OBJECT),
    "config-list": ("UPDATE runs SET config_json = '[]'", NO_OBJECT),
    "config-nested": (
        "UPDATE runs SET config_json = replace(hex(zeroblob(50000)), '00', '[')",
        NO_OBJECT,
    ),
    "config-bare": ("UPDATE runs SET config_json = '{}'", "configuration is not valid"),
    "first-number": (
        "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', 5)",
        "configuration is not valid",
    ),
    "first-unknown": (
        "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', 'x')",
        "'x'",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_rows_of_another_form_are_a_sentence(sotto: Command, own_copy: Finished, name: str) -> None:
    statement, said = EDITS[name]
    # A finished run is not gone on with, whatever its other rows hold.
    execute(own_copy.storage.file, statement, "UPDATE runs SET status = 'interrupted'")
    place = ("--storage", own_copy.storage.url)
    for command in (("audit", "verify"), ("audit", "verify", "--run", own_copy.run_id)):
        answer = sotto(*command, *place)
        assert answer.code == 3 and said in answer.err
    for command in (("report", "latest"), ("run", "--resume", own_copy.run_id)):
        answer = sotto(*command, *place)
        assert answer.code in (1, 2) and answer.out == ""
        assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
    listed = sotto("runs", *place)
    if listed.code:
        assert listed.err.startswith("error: ") and listed.err.count("\n") == 1


@pytest.mark.parametrize("name", ["config-cut", "config-list", "config-nested"])
def test_a_row_without_a_configuration_is_named_by_whatever_lists_runs(
    sotto: Command, own_copy: Finished, name: str
) -> None:
    execute(own_copy.storage.file, EDITS[name][0])
    place = ("--storage", own_copy.storage.url)
    for command in (("runs",), ("runs", "--json"), ("report", "latest")):
        answer = sotto(*command, *place)
        assert (answer.code, answer.out) == (1, "")
        said = json.loads(answer.err)["error"] if "--json" in command else answer.err[7:-1]
        assert said == f"run {own_copy.run_id}: {NO_OBJECT}"
    with pytest.raises(RecordsDisagree, match=NO_OBJECT):
        known_runs(own_copy.storage.url)
    # That a sweep was interrupted is said all the same.
    mark_cells_interrupted(own_copy.storage.url, ["a" * 64])


def test_two_runs_that_name_each_other_are_followed_no_further(
    sotto: Command, own_copy: Finished
) -> None:
    """The row of the other one is a copy."""
    execute(
        own_copy.storage.file,
        "INSERT INTO runs (run_id, name, config_json, config_digest, versions_json, status, "
        "created, digest) SELECT 'other', name, json_set(config_json, '$.phase_two_of', run_id), "
        "config_digest, versions_json, status, created, zeroblob(32) FROM runs",
        "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', 'other') "
        "WHERE run_id != 'other'",
    )
    answer = sotto("audit", "verify", "--run", own_copy.run_id, "--storage", own_copy.storage.url)
    assert answer.code == 3 and "run other: it is a second phase itself" in answer.err


def test_an_audit_entry_of_brackets_agrees_with_nothing(sotto: Command, own_copy: Finished) -> None:
    edit = "UPDATE audit SET detail = replace(hex(zeroblob(50000)), '00', '[') WHERE sequence = 1"
    execute_and_rehash(own_copy.storage.file, edit)
    place = ("--storage", own_copy.storage.url)
    assert sotto("audit", "verify", *place).code == 3
    assert sotto("audit", "query", "--json", *place).document[0]["detail"] == "[" * 50_000


class Spoils(SilentObserver):
    """Edits a row of an earlier run, its digest left alone, once a round of this one is over."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage, self.run_id = storage, run_id

    def round_finished(self, document: Mapping[str, Any]) -> None:
        with closing(sqlite3.connect(self.storage.file)) as connection:
            edit = "UPDATE states SET blob = zeroblob(4) WHERE run_id = ?"
            assert connection.execute(edit, (self.run_id,)).rowcount > 0
            connection.commit()


def test_no_run_finishes_in_a_database_with_a_spoilt_row(storage: Storage) -> None:
    plain = (NONE, "rounds=1", "evaluation.local_twins=false")
    earlier = storage.run(*plain)
    with opened(storage.create(*plain)) as simulation:
        with pytest.raises(DatabaseDamaged):
            run_through(simulation, Spoils(storage, earlier.run_id))
        assert not (simulation.folder / "summary.json").exists()
