"""Rows, files and filters of another form: one sentence each, and no raw escape."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from platform.agreement.statements import read_summary
from platform.errors import ConfigError, RecordsDisagree
from platform.experiment.finishing import execute as run_through
from platform.experiment.resuming import require_same_classes
from platform.results.sweeping.running import known_runs, mark_cells_interrupted
from platform.rounds.observing import SilentObserver
from storage import DatabaseDamaged
from tests.trunk._runs import NO_POOL, NONE, Storage, opened
from tests.trunk._tampering import execute, execute_and_rehash

SELF = "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', run_id)"
NO_OBJECT = "no JSON object"
DEEP = "replace(hex(zeroblob(50000)), '00', '[')"
EDITS = {
    "document-nested": (f"UPDATE rounds SET document = {DEEP}", "document of round 1"),  # noqa: S608
    "survivors-number": (
        "UPDATE rounds SET document = json_set(document, '$.survivors', 5)",
        "list of survivors",
    ),
    "plan-bare": ("UPDATE attempts SET plan = '{}'", "a cohort"),
    "its-own-first": (SELF, "second phase itself"),
    "config-cut": ("UPDATE runs SET config_json = '['", NO_OBJECT),
    "config-nested": (f"UPDATE runs SET config_json = {DEEP}", NO_OBJECT),  # noqa: S608
    "config-bare": ("UPDATE runs SET config_json = '{}'", "configuration is not"),
    "first-unknown": (
        "UPDATE runs SET config_json = json_set(config_json, '$.phase_two_of', 'x')",
        "'x'",
    ),
}
QUICK = ("document-nested", "survivors-number", "plan-bare", "config-bare")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in EDITS if n not in QUICK)]
)
def test_rows_of_another_form_are_a_sentence(sotto, own_copy, name):
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
        assert answer.err.startswith("error: ")
        assert all(": " in line for line in answer.err.splitlines())
    listed = sotto("runs", *place)
    if listed.code:
        assert listed.err.startswith("error: ") and listed.err.count("\n") == 1


@pytest.mark.parametrize("name", ["config-cut", "config-nested"])
def test_a_row_without_a_configuration_is_named_by_whatever_lists_runs(sotto, own_copy, name):
    execute(own_copy.storage.file, EDITS[name][0])
    place = ("--storage", own_copy.storage.url)
    for command in (("runs",), ("runs", "--json"), ("report", "latest")):
        answer = sotto(*command, *place)
        assert (answer.code, answer.out) == (1, "")
        said = json.loads(answer.err)["error"] if "--json" in command else answer.err[7:-1]
        assert said.startswith(f"run {own_copy.run_id}: ") and NO_OBJECT in said
    with pytest.raises(RecordsDisagree, match=NO_OBJECT):
        known_runs(own_copy.storage.url)
    # That a sweep was interrupted is said all the same.
    mark_cells_interrupted(own_copy.storage.url, ["a" * 64])


def test_two_runs_that_name_each_other_are_followed_no_further(sotto, own_copy):
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
    assert answer.code == 3 and "run other: " in answer.err


def test_an_audit_entry_of_brackets_agrees_with_nothing(sotto, own_copy):
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


def test_no_run_finishes_in_a_database_with_a_spoilt_row(storage):
    plain = (NONE, *NO_POOL, "rounds=1")
    earlier = storage.run(*plain)
    with opened(storage.create(*plain)) as simulation:
        with pytest.raises(DatabaseDamaged):
            run_through(simulation, Spoils(storage, earlier.run_id))
        assert not (simulation.folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "missing"),
        (b"", "empty"),
        (b'{"schema_version": 1, "run_id": "a", "roun', "empty, cut"),
        (b"[" * 100_000, "no JSON|empty"),
        (b"1" * 5_000, "no JSON|empty"),
        (b"\xff\xfe{}", "empty, cut"),
    ],
    ids=range(6),
)
def test_a_spoilt_summary_is_named(tmp_path, content, said):
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^summary\.json is ({said})") as refused:
        read_summary(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "[" * 2_000, "\x00", "- 1"])
def test_a_second_phase_names_spoilt_facts_of_the_first(tmp_path, text):
    (tmp_path / "effective.yaml").write_text(text)
    with pytest.raises(ConfigError, match="run first") as refused:
        require_same_classes(tmp_path, "first", ["a"])
    assert "\n" not in str(refused.value)


def test_an_absurd_filter_is_one_sentence(plain_run, sotto):
    for option, value in (
        ("--round", "99999999999999999999"),
        ("--since", "2026-02-30"),
        ("--since", "0001-01-01T00:00:00+23:59"),
    ):
        answer = sotto("audit", "query", f"{option}={value}", "--storage", plain_run.storage.url)
        assert answer.code == 2 and value in answer.err
        assert answer.err.startswith(f"error: {option}: ") and answer.err.count("\n") == 1


def test_an_absurd_head_is_one_sentence(plain_run, sotto):
    run = ("--run", plain_run.run_id, "--storage", plain_run.storage.url)
    for count, digit in (("9" * 5_000, "a"), ("\N{SUPERSCRIPT TWO}", "a"), ("1", "\x1b")):
        answer = sotto("audit", "verify", f"--head={count}:{digit * 64}", *run)
        assert answer.code == 2 and answer.err.startswith("error: --head: ")
        assert "\x1b" not in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize("command", [("runs",), ("audit", "query")], ids=" ".join)
def test_names_in_a_store_cannot_drive_the_terminal(own_copy, sotto, command):
    evil = "char(27) || ']0;owned' || char(7) || char(13) || char(10) || char(8238) || 'txt'"
    execute_and_rehash(
        own_copy.storage.file,
        f"UPDATE runs SET name = {evil}",  # noqa: S608
        f"UPDATE audit SET actor = {evil}",  # noqa: S608
    )
    answer = sotto(*command, "--storage", own_copy.storage.url, "--json")
    assert answer.code == 0 and "]0;owned" in answer.out
    answer = sotto(*command, "--storage", own_copy.storage.url)
    assert (answer.code, answer.err) == (0, "")
    # The list of runs shows no name of people's.
    shows_names = command != ("runs",)
    assert ("\\x1b]0;owned\\x07" in "".join(answer.out.split())) == shows_names
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(answer.out)
