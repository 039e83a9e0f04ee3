"""`client leave` and `federation remove`, as the people who type them meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from platform.cli.app import main as coordinator_main
from platform.cli.client_app import main as client_main
from platform.disk.files import only_process_of
from platform.disk.opening import open_existing
from platform.holder.store import Keeping
from platform.relay.hub import Hub
from platform.rounds.leaving import Standing
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold
from tests.trunk._leaving import MASKED, Doing, agrees, audit, doing, pseudonym_of, runs_of
from tests.trunk._runs import Command, Crash, command_line


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("leaving")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, client_main)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, coordinator_main)


def crash() -> None:
    raise Crash


@pytest.fixture
def broken_off(folder: Path) -> tuple[Holders, str]:
    """A run of three rounds whose coordinator died in the second."""
    holders = Holders.written(folder)
    transport = Doing(holders.handlers(), ("train", 2), crash, after=True)
    with pytest.raises(Crash):
        hold(federation(folder, *MASKED), doing(transport))
    (run_id,) = runs_of(folder)
    return holders, run_id


def test_a_client_whose_machine_is_lost_is_removed(folder, broken_off, coordinator):
    holders, run_id = broken_off
    storage = ("--storage", f"sqlite:///{folder}/sotto.db")
    told = coordinator("federation", "remove", "latest", "west", *storage, "--json")
    assert told.code == 0, told.err
    gone = json.loads(told.out)
    assert (gone["run_id"], gone["client"], gone["after_round"]) == (run_id, "west", 1)
    assert gone["pseudonym"] == pseudonym_of(folder, "west")
    agrees(folder, run_id)
    again = coordinator("federation", "remove", run_id, "west", *storage)
    assert again.code == 2
    assert "'west' takes part in run" in again.err
    stranger = coordinator("federation", "remove", run_id, "nobody", *storage)
    assert stranger.code == 2
    assert (
        f"CLIENT: 'nobody' is not in run {run_id}; valid: east, north, south, west" in stranger.err
    )
    # Its machine is still here, and answers nothing as it is not asked.
    transport = Doing(holders.handlers(), ("advertise", 99), lambda: None, after=False)
    summary = go_on(run_id, storage[1], doing(transport))
    assert transport.asked
    assert all("west" not in asked for _, asked in transport.asked)
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1, 1]
    assert [w for w in summary["warnings"] if "client 4 of 4" in w and "was removed" in w]
    (entry,) = audit(folder, run_id, "client.removed")
    assert entry["client"] == 4
    agrees(folder, run_id)


def test_a_statement_that_was_carried_by_hand(folder, broken_off, client, coordinator):
    _, run_id = broken_off
    settings, file = str(folder / "north" / "client.yaml"), folder / "north.left"
    told = client("leave", settings, run_id, "--statement", str(file))
    assert told.code == 0, told.err
    assert f"{run_id}: left; 2 charges stay, all else is erased" in told.out
    twice = client("leave", settings, run_id)
    assert "had been left" in twice.out
    storage = ("--storage", f"sqlite:///{folder}/sotto.db")

    for name, said in (("east", "another's"), ("north", "")):
        found = coordinator(
            "federation", "remove", run_id, name, "--statement", str(file), *storage
        )
        assert found.code == (2 if said else 0), found.err
        assert said in found.err
    assert audit(folder, run_id, "client.removed") == []
    assert [entry["client"] for entry in audit(folder, run_id, "client.left")] == [2]
    broken = folder / "broken.left"
    broken.write_bytes(b"no statement")
    found = coordinator(
        "federation", "remove", run_id, "west", "--statement", str(broken), *storage
    )
    assert found.code == 2
    assert (
        "is not a statement; valid is a file that a client's command `leave` has written"
        in found.err
    )
    assert len(audit(folder, run_id, "client.left")) == 1


def test_a_run_that_goes_on_is_not_changed_beside_it(folder, broken_off, coordinator):
    _, run_id = broken_off
    before = (folder / "sotto.db").read_bytes()
    with only_process_of(folder / run_id):
        told = coordinator(
            *("federation", "remove", run_id, "west", "--storage", f"sqlite:///{folder}/sotto.db")
        )
    assert told.code == 1
    assert "is being run by another process" in told.err
    assert (folder / "sotto.db").read_bytes() == before
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        database.verify_integrity()


def test_all_runs_are_left_at_once_and_nothing_without_a_name(folder, broken_off, client):
    _, run_id = broken_off
    settings = str(folder / "east" / "client.yaml")
    for wrong in ((), ("--all", "--statement", "x")):
        told = client("leave", settings, *wrong)
        assert told.code == 2
        assert told.err.startswith("error: RUN: none is named" if not wrong else "error: --stat")
    assert Keeping(folder / "east" / "store").runs("left") == []
    told = client("leave", settings, "--all", "--json")
    assert [(one["run_id"], one["charges"]) for one in json.loads(told.out)] == [(run_id, 2)]
    assert Keeping(folder / "east" / "store").runs("left") == [run_id]
    assert set(NAMES) > {"east"}


def test_status_says_who_is_behind_and_who_has_left(folder, broken_off, coordinator):
    """Who is connected the hub knows; who stands where, the records."""
    _, run_id = broken_off
    storage = f"sqlite:///{folder}/sotto.db"
    assert coordinator("federation", "remove", run_id, "west", "--storage", storage).code == 0
    sock = folder / "hub.sock"
    with Hub(path=sock, clients=NAMES):
        told = coordinator(
            *("federation", "status", str(sock), "--storage", storage, "--json")
        ).document
        bare = coordinator("federation", "status", str(sock))
    assert [client["name"] for client in told] == list(NAMES)
    assert {client["reachable"] for client in told} == {False}
    standing = {client["name"]: client["standing"] for client in told}
    assert standing.pop("west").startswith("removed on 20")
    assert set(standing.values()) == {"in round 1"}
    assert "standing" not in bare.out
    assert "a relay is connected for it" in bare.out


def test_words_for_who_is_behind():
    assert Standing(2, 5, None).words == "behind: last in round 2 of 5"
    assert Standing(None, 5, None).words == "behind: last in round none of 5"
    assert Standing(None, 0, None).words == "no round is over yet"
    assert Standing(5, 5, None).words == "in round 5"
    assert Standing(5, 5, "left on 2026-11-23").words == "left on 2026-11-23"
