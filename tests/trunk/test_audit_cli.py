"""`audit query` on every field, and `audit verify` against a forged or shortened log."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from storage import open_database
from tests.trunk._runs import Answer, Command, Finished
from tests.trunk._tampering import execute

FIELDS = ["sequence", "run", "actor", "action", "round", "channel", "time", "detail", "hash"]


def query(sotto: Command, run: Finished, *filters: str) -> list[dict[str, Any]]:
    answer = sotto("audit", "query", *filters, "--storage", run.storage.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    entries: list[dict[str, Any]] = answer.document
    return entries


def test_query_gives_every_entry_with_every_field(sotto: Command, noised_run: Finished) -> None:
    entries = query(sotto, noised_run)
    assert [list(entry) for entry in entries] == [FIELDS] * len(entries)
    assert [e["sequence"] for e in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == noised_run.summary["audit_head"]["count"]
    actions = [entry["action"] for entry in entries]
    round_ = ["release.reserved", "round.opened", "round.committed", "pool.committed"]
    assert actions == ["run.created", "run.started", *(round_ * 3), "run.finished"]


def test_conditions_are_joined(sotto: Command, noised_run: Finished) -> None:
    asked = ("--round", "2", "--channel", "sum", "--detail", '"clients":5')
    (entry,) = query(sotto, noised_run, *asked)
    assert (entry["action"], entry["detail"]["clipping_norm"]) == ("release.reserved", 1.0)
    assert query(sotto, noised_run, "--round", "1", "--action", "run.finished") == []
    assert query(sotto, noised_run, "--since", "2000-01-01", "--until", "2100-01-01")
    assert query(sotto, noised_run, "--until", "2000-01-01T00:00:00+02:00") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("query", "--actor", "nobody"), "--actor: 'nobody'"),
        (("query", "--status", "released", "--actor", "coordinator"), "never charged"),
        (("query", "--status", "released", "--since", "2026-01-01"), "have no time"),
        (("query", "--since", "yesterday"), "--since: 'yesterday'"),
        (("verify", "--head", "3:" + "0" * 64), "--run"),
        (("verify", "--run", "latest", "--head", "3"), "COUNT:HASH"),
    ],
)
def test_what_nothing_could_meet_is_refused(sotto, noised_run, arguments, said):
    answer = sotto("audit", *arguments, "--storage", noised_run.storage.url)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and said in answer.err
    assert answer.err.count("\n") == 1


def test_charges_are_found_by_client_status_round_and_channel(sotto, noised_run):
    charges = query(sotto, noised_run, "--status", "released")
    with open_database(noised_run.storage.url) as database:
        with database.unit_of_work(read_only=True) as unit:
            rows = unit.ledger.rows(noised_run.run_id)
    assert len(charges) == sum(row.status == "released" for row in rows) > 10
    assert {c["action"] for c in charges} == {"charge.released"}
    pseudonym = next(r.pseudonym for r in rows if (r.round_number, r.status) == (2, "released"))
    of_one = query(sotto, noised_run, "--actor", pseudonym, "--round", "2", "--channel", "sum")
    assert [c["action"] for c in of_one] == ["charge.reserved", "charge.released"]
    (row,) = (r for r in rows if (r.pseudonym, r.round_number, r.channel) == (pseudonym, 2, "sum"))
    said = of_one[0]["detail"]
    assert said["standard_deviation"] == row.standard_deviation
    assert (said["clipping_norm"], said["mechanism"]) == (row.clipping_norm, row.mechanism)
    few = query(sotto, noised_run, "--action", "charge.reserved", "--limit", "3")
    assert [c["action"] for c in few] == ["charge.reserved"] * 3


def test_what_a_row_says_is_shown_and_never_obeyed(sotto: Command, own_copy: Finished) -> None:
    hostile = "=cmd|' /C calc'!A0\x1b[2J\u202e<script>'; DROP TABLE audit; --[red]"
    with open_database(own_copy.storage.url) as database, database.unit_of_work() as unit:
        unit.audit.append(
            own_copy.run_id, actor=hostile, action=hostile, channel=hostile, detail={"a": hostile}
        )
        unit.commit()
    place = ("--actor", hostile, "--storage", own_copy.storage.url)
    shown = sotto("audit", "query", *place)
    assert shown.code == 0 and "\x1b" not in shown.out
    (row,) = csv.DictReader(io.StringIO(sotto("audit", "query", *place, "--format", "csv").out))
    assert row["actor"].startswith("'=cmd") and "\x1b" not in "".join(row.values())
    (entry,) = query(sotto, own_copy, "--actor", hostile)
    assert entry["actor"] == hostile and int(row["sequence"]) == entry["sequence"]
    assert query(sotto, own_copy, "--round", "1")
    for command in (("audit", "verify"), ("report", "latest"), ("budget",), ("runs",)):
        answer = sotto(*command, "--storage", own_copy.storage.url)
        assert answer.out or answer.err
        assert not {"\x1b", "\u202e"} & set(answer.out + answer.err), command


def verify(sotto: Command, run: Finished, *arguments: str) -> Answer:
    return sotto("audit", "verify", *arguments, "--storage", run.storage.url)


def test_sound_log_verifies(sotto: Command, noised_run: Finished) -> None:
    count, _, digest = noised_run.head.partition(":")
    chosen = ("--run", noised_run.run_id, "--head", noised_run.head)
    for arguments in ((), ("--run", "latest"), chosen):
        shown = verify(sotto, noised_run, *arguments)
        assert (shown.code, shown.err) == (0, "")
        assert f"{count} entries hold, head {digest}" in shown.out.replace("\n", " ")
        assert ("all records agree" in shown.out) == (arguments == ())
    document = verify(sotto, noised_run, *chosen, "--json").document
    run = {"run": noised_run.run_id, "count": int(count), "hash": digest, "problems": []}
    assert document == {"runs": [run], "log": None, "problems": []}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET time = '2020-01-01T00:00:00.000000Z' WHERE sequence = 5",
        "DELETE FROM audit WHERE sequence = 5",
    ],
)
def test_tampered_row_is_found_and_named(sotto, own_copy, statement):
    """Every other column is changed in `tests/storage/test_audit.py`."""
    execute(own_copy.storage.file, statement)
    answer = verify(sotto, own_copy, "--run", own_copy.run_id)
    assert (answer.code, answer.out) == (3, "")
    assert own_copy.run_id in answer.err and "broken at entry 5" in answer.err
    answer = verify(sotto, own_copy)
    assert (answer.code, answer.out) == (3, "")
    assert "broken at leaf" in answer.err and "event 5 of" in answer.err
    (run,) = verify(sotto, own_copy, "--json").document["runs"]
    assert (run["count"], run["hash"]) == (None, None)


def test_cut_tail_is_found_by_what_it_told_of_and_by_the_head(sotto, own_copy):
    count = own_copy.summary["audit_head"]["count"]
    execute(own_copy.storage.file, f"DELETE FROM audit WHERE sequence > {count - 2}")  # noqa: S608
    # A shorter chain is sound in itself, but not beside the rows that it told of.
    answer = verify(sotto, own_copy)
    assert answer.code == 3 and "no audit entry" in answer.err
    assert "0 entries of round 3" not in answer.err and "pool" in answer.err
    answer = verify(sotto, own_copy, "--run", own_copy.run_id, "--head", own_copy.head)
    assert answer.code == 3 and f"there are {count} entries" in answer.err


def test_rewritten_tail_is_found_by_the_head(sotto: Command, own_copy: Finished) -> None:
    count = own_copy.summary["audit_head"]["count"]
    execute(own_copy.storage.file, f"DELETE FROM audit WHERE sequence = {count}")  # noqa: S608
    with open_database(own_copy.storage.url) as database:
        with database.unit_of_work() as unit:
            unit.audit.append(own_copy.run_id, actor="coordinator", action="run.finished")
            unit.commit()
    answer = verify(sotto, own_copy)
    assert answer.code == 3 and "ledger is not" in answer.err
    answer = verify(sotto, own_copy, "--run", own_copy.run_id, "--head", own_copy.head)
    assert answer.code == 3 and f"broken at entry {count}" in answer.err
