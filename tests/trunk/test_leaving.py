"""Leaving a run for good, and coming late: who may, what goes and what stays, at any moment."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from platform.disk.files import only_process_of
from platform.errors import ProtocolError, RunStopped, UnknownRun
from platform.experiment.planning import Surroundings
from platform.holder.settings import load_holder, own_account, private_key
from platform.holder.store import Keeping
from platform.parties.client import Client
from platform.parties.identities import create_key, write_enrolment
from platform.relay.hub import Hub
from platform.rounds.leaving import verify_statement
from platform.wire.codec import Envelope, peek
from platform.wire.outside_rounds import Left, decode_left, encode_left, encode_roll_call
from platform.wire.receipt_messages import bare
from platform.wire.transport import Dropout, InProcessTransport
from privacy.secure_aggregation import Enrolment, Identity
from privacy.secure_aggregation.identities import verify_signature
from storage import SessionRecord, open_client_store
from tests.trunk._federations import NAMES, OPEN, Holders, federation, go_on, hold, within
from tests.trunk._leaving import (
    MASKED,
    NOISED,
    Doing,
    agrees,
    audit,
    crash,
    doing,
    leave,
    ledger,
    pseudonym_of,
    runs_of,
)
from tests.trunk._runs import Crash, warnings_of


@pytest.mark.slow
def test_clients_leave_between_rounds_and_the_run_ends_where_too_few_are_left(folder):
    holders = Holders.written(folder)

    def away() -> None:
        leave(folder, "west")
        leave(folder, "north")

    transport = Doing(holders.handlers(), ("unmask", 1), away, after=True)
    summary = hold(federation(folder, *MASKED), doing(transport))
    assert [r["round"] for r in summary["rounds"]] == [1]
    said = " ".join(warnings_of(summary))
    assert f"client 2 of 4 ({pseudonym_of(folder, 'north')})" in said and "after round 1;" in said
    assert "before round 2: 2 of 4" in said
    assert [one["client"] for one in audit(folder, summary["run_id"], "client.left")] == [2, 4]
    agrees(folder, summary["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", ["advertise", "share", "train", "unmask"])
def test_a_client_leaves_at_any_stage_of_a_masked_round(folder, stage, after):
    holders = Holders.written(folder)
    handlers = holders.handlers()
    # The second round's keys were made ahead, so the stage that asks for keys is the first round's.
    number = 1 if stage == "advertise" else 2
    transport = Doing(handlers, (stage, number), lambda: leave(folder, "south"), after=after)
    summary = hold(federation(folder, *MASKED), doing(transport))
    run_id = summary["run_id"]
    arrived = stage == "unmask" or (stage == "train" and after)
    before = [] if number == 1 else [0]
    lost = [*before, 0 if arrived else 1, 1, 1][:3]
    assert [r["dropped"] for r in summary["rounds"]] == lost
    opened = audit(folder, run_id, "round.opened")
    assert [(detail["attempt"], detail["cohort"]) for detail in opened] == [(1, 4)] * 3
    assert len(audit(folder, run_id, "client.left")) == 1
    # What it released stays charged, also what did not arrive, and nothing is charged after it.
    uploaded = arrived or (stage == "train" and after)
    assert len(ledger(folder, "south")) == number - 1 + uploaded
    assert {len(ledger(folder, name)) for name in ("east", "north", "west")} == {3}
    assert summary["final"]["epsilon"]["server"] <= 8.0
    agrees(folder, run_id)


TRUE = Left("this-run", "north", "p")
OWN, OTHER = Identity(b"\x05" * 32), Identity(b"\x06" * 32)
KNOWN = Enrolment().enrol("north", OWN.public).enrol("east", OTHER.public)


def signed(by: Identity, statement: Left = TRUE) -> Left:
    return dataclasses.replace(statement, signature=by.sign(statement.digest))


FORGERIES = {
    "unsigned": TRUE,
    "signed by another": signed(OTHER),
    "replayed from another run": signed(OWN, dataclasses.replace(TRUE, run_id="another-run")),
    "a signature moved": dataclasses.replace(
        TRUE, signature=OWN.sign(dataclasses.replace(TRUE, run_id="another-run").digest)
    ),
    "another's own statement": signed(OTHER, dataclasses.replace(TRUE, client="east")),
    "another pseudonym": signed(OWN, dataclasses.replace(TRUE, pseudonym="q")),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_nobody_is_expelled_by_a_forgery(how):
    def verify(statement: Left) -> None:
        verify_statement(statement, "this-run", "north", pseudonym="p", known=KNOWN)

    verify(signed(OWN))
    with pytest.raises(ProtocolError, match="statement of leaving"):
        verify(FORGERIES[how])


def enrolled(folder: Path) -> tuple[Holders, Any]:
    shared = {"identity": "own.key", "enrolment": "../enrolment.json"}
    holders = Holders.written(folder, of=dict.fromkeys(NAMES, shared))
    known = Enrolment()
    for name in NAMES:
        known = known.enrol(name, create_key(folder / name / "own.key").public)
    write_enrolment(folder / "enrolment.json", known)
    active = "secure_aggregation.adversary=active"
    file = f"secure_aggregation.enrolment={folder}/enrolment.json"
    return holders, federation(folder, *MASKED, "rounds=2", active, file)


@pytest.mark.slow
def test_a_signed_statement_is_kept_with_its_signature_and_no_other_counts(folder):
    holders, config = enrolled(folder)
    handlers, put = holders.handlers(), []
    south = handlers["south"]

    def spoken_for(message: bytes) -> bytes:
        kind, envelope = peek(bare(message))
        if kind == "invitation" and envelope.round_number == 1:
            put.append(encode_left(Left(envelope.run_id, "south", pseudonym_of(folder, "south"))))
            return put[-1]
        return south(message)

    handlers = {**handlers, "south": spoken_for}
    transport = Doing(handlers, ("unmask", 1), lambda: leave(folder, "north"), after=True)
    summary = hold(config, doing(transport))
    run_id = summary["run_id"]
    # South is lost in one round, as with any answer that is none.
    assert put and [r["dropped"] for r in summary["rounds"]] == [1, 1]
    (gone,) = audit(folder, run_id, "client.left", "client.removed")
    said = Left(run_id, "north", pseudonym_of(folder, "north"))
    key = private_key(folder / "north" / "own.key")
    verify_signature(key.public, said.digest, bytes.fromhex(gone["signature"]))
    agrees(folder, run_id)


def test_what_was_spent_survives_and_all_else_goes(folder):
    config = federation(folder, "method={name: fedpgp, context_tokens: 2}", *NOISED, "rounds=1")
    run_id = hold(config, within(Holders.written(folder).handlers()))["run_id"]
    place, settings = folder / "west" / "store", load_holder(folder / "west" / "client.yaml")
    store = open_client_store(place / "client.db")
    before, spent = store.rows(), own_account(store, settings.limits)
    personal = store.slots(run_id)[0].personal
    parting = (place / "offers" / f"{run_id}.parting").read_bytes()
    marks = [personal[-200:], personal[200:400], parting[len(parting) // 2 :][:200]]

    def everything() -> bytes:
        return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())

    assert all(mark in everything() for mark in marks)
    with pytest.raises(UnknownRun, match="'other' was accepted"):
        leave(folder, "west", "other")
    leave(folder, "west")
    assert not [mark for mark in marks if mark in everything()]
    after = open_client_store(place / "client.db")
    after.verify_integrity()
    assert after.rows() == before
    assert own_account(after, settings.limits) == spent
    assert spent.total.epsilon is not None and spent.total.epsilon > 0.0
    assert after.slots(run_id)[0] is None
    assert after.sessions.newest(run_id) is not None
    assert sorted(p.name for p in (place / "offers").iterdir()) == [f"{run_id}.left"]


@pytest.mark.slow
def test_a_holder_that_leaves_while_it_answers_has_written_nothing(folder, monkeypatch):
    """By another process, between what its client wrote and what it would have said."""
    holders = Holders.written(folder)
    real = Client.handle

    def slow(self: Client, message: bytes) -> bytes:
        reply = real(self, message)
        if peek(bare(message))[0] == "invitation" and self.profile.name == "west":
            leave(folder, "west")
            # As if that had been faster than this client's own transaction.
            record = SessionRecord(self.profile.run.run_id, 1, 1, noiseless_round=0, state=b"x")
            sessions = self._store.sessions
            after = sessions.newest(record.run_id)
            sessions.keep(record, after=after, request_digest=b"d" * 32, reply=b"secret reply")
        return reply

    monkeypatch.setattr(Client, "handle", slow)
    summary = hold(federation(folder, *MASKED, "rounds=1"), within(holders.handlers()))
    assert [r["dropped"] for r in summary["rounds"]] == [1]
    assert b"secret reply" not in (folder / "west" / "store" / "client.db").read_bytes()
    assert ledger(folder, "west") == []
    agrees(folder, summary["run_id"])


@pytest.mark.slow
def test_whoever_has_left_is_not_asked_again_and_answers_nothing_else(folder):
    holders = Holders.written(folder)
    place = folder / "north" / "store" / "offers"
    kept: dict[str, bytes] = {}

    def away() -> None:
        (run_id,) = runs_of(folder)
        kept[run_id] = (place / f"{run_id}.offer").read_bytes()
        leave(folder, "north")

    class Ends(Doing):
        def exchange(self, stage, messages, deadline):
            found = super().exchange(stage, messages, deadline)
            if stage == "train" and self.seen == 2:
                crash()
            return found

    transport = Ends(holders.handlers(), ("share", 2), away, after=False)
    with pytest.raises(Crash):
        hold(federation(folder, *MASKED), doing(transport))
    ((run_id, offer),) = kept.items()
    host = holders.handler("north")
    for message in (offer, encode_roll_call(Envelope(run_id, 0, 0))):
        assert decode_left(host(message)).client == "north"
    assert not (place / f"{run_id}.offer").exists()
    # Even with its files put back: the coordinator does not ask it.
    (place / f"{run_id}.left").unlink()
    (place / f"{run_id}.offer").write_bytes(offer)
    again = Doing(holders.handlers(), ("advertise", 99), lambda: None, after=False)
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", doing(again))
    assert again.asked and all("north" not in asked for _, asked in again.asked)
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1, 1]


@pytest.fixture(scope="module")
def torn_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose coordinator died in the second of three rounds; for copying only."""
    folder = tmp_path_factory.mktemp("torn")
    transport = Doing(Holders.written(folder).handlers(), ("train", 2), crash, after=True)
    with pytest.raises(Crash):
        hold(federation(folder, *MASKED), doing(transport))
    return folder


@pytest.fixture
def broken_off(folder: Path, torn_off: Path) -> tuple[Holders, str]:
    shutil.copytree(torn_off, folder, dirs_exist_ok=True)
    (run_id,) = runs_of(folder)
    return Holders(folder, Surroundings(), {name: [] for name in NAMES}), run_id


@pytest.mark.slow
def test_a_client_whose_machine_is_lost_is_removed(folder, broken_off, sotto):
    holders, run_id = broken_off
    storage = ("--storage", f"sqlite:///{folder}/sotto.db")
    with only_process_of(folder / run_id):
        told = sotto("federation", "remove", run_id, "west", *storage)
    assert told.code == 1 and "by another process" in told.err
    agrees(folder, run_id)
    gone = sotto("federation", "remove", "latest", "west", *storage, "--json").document
    assert (gone["run_id"], gone["client"], gone["after_round"]) == (run_id, "west", 1)
    assert gone["pseudonym"] == pseudonym_of(folder, "west")
    for name in ("west", "nobody"):
        refused = sotto("federation", "remove", run_id, name, *storage)
        assert refused.code == 2 and f"'{name}'" in refused.err
    sock = folder / "hub.sock"
    with Hub(path=sock, clients=NAMES):
        told = sotto("federation", "status", str(sock), *storage, "--json").document
    assert [(client["name"], client["reachable"]) for client in told] == [(n, False) for n in NAMES]
    standing = {client["name"]: client["standing"] for client in told}
    assert standing.pop("west").startswith("removed on 20")
    assert set(standing.values()) == {"in round 1"}
    transport = Doing(holders.handlers(), ("advertise", 99), lambda: None, after=False)
    summary = go_on(run_id, storage[1], doing(transport))
    assert transport.asked
    assert all("west" not in asked for _, asked in transport.asked)
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1, 1]
    assert [w for w in warnings_of(summary) if "client 4 of 4" in w and "was removed" in w]
    assert [one["client"] for one in audit(folder, run_id, "client.removed")] == [4]
    agrees(folder, run_id)


@pytest.mark.slow
def test_a_statement_that_was_carried_by_hand(folder, broken_off, client, sotto):
    holders, run_id = broken_off
    east, north = (str(folder / name / "client.yaml") for name in ("east", "north"))
    file, offer = folder / "north.left", folder / "east" / "store" / "offers" / f"{run_id}.offer"
    offered = offer.read_bytes()
    for wrong, said in (((), "error: RUN: no"), (("--all", "--statement", "x"), "error: --stat")):
        told = client("leave", east, *wrong)
        assert told.code == 2 and told.err.startswith(said)
    assert Keeping(folder / "east" / "store").runs("left") == []
    (one,) = client("leave", east, "--all", "--json").document
    assert (one["run_id"], one["charges"]) == (run_id, 2)
    for message in (offered, encode_roll_call(Envelope(run_id, 0, 0))):
        assert decode_left(holders.handler("east")(message)).client == "east"
    assert not offer.exists()
    told = client("leave", north, run_id, "--statement", str(file))
    assert told.code == 0 and "2 charges stay" in told.out
    assert "had been left" in client("leave", north, run_id).out
    broken = folder / "broken.left"
    broken.write_bytes(b"no statement")
    storage = ("--storage", f"sqlite:///{folder}/sotto.db")
    for name, said, code, error in (
        ("east", file, 2, "of another client"),
        ("north", file, 0, ""),
        ("west", broken, 2, "not a statement"),
    ):
        remove = ("federation", "remove", run_id, name, "--statement", str(said), *storage)
        found = sotto(*remove)
        assert found.code == code and error in found.err
    assert audit(folder, run_id, "client.removed") == []
    assert [entry["client"] for entry in audit(folder, run_id, "client.left")] == [2]


THREE = (*MASKED, "federation.start_with=3")


class Away(InProcessTransport):
    """One client is not there before its n-th question; what is asked of whom is remembered."""

    def __init__(self, handlers, name: str, comes_at: int) -> None:
        super().__init__(handlers=handlers, losses=lambda *_: frozenset())
        self.__dict__.update(name=name, comes_at=comes_at, asked=[])

    def exchange(self, stage, messages, deadline):
        answered = dict(messages)
        if self.name in messages:
            self.asked.append((stage, deadline, peek(messages[self.name])[0]))
            if len(self.asked) < self.comes_at:
                del answered[self.name]
        found = dict(super().exchange(stage, answered, deadline))
        lost = dict.fromkeys(messages.keys() - answered.keys(), Dropout("nobody is there"))
        return {**found, **lost}


@pytest.mark.slow
def test_a_client_joins_between_rounds_and_is_charged_for_those_only(folder):
    holders = Holders.written(folder)
    # Not there for the first offer, nor the one before round 1.
    transport = Away(holders.handlers(), "south", 3)
    summary = hold(federation(folder, *THREE, "rounds=2"), doing(transport))
    assert [(r["cohort"], r["dropped"]) for r in summary["rounds"]] == [(4, 1), (4, 0)]
    offers = [entry for entry in transport.asked if entry[2] == "offer"]
    assert [deadline for _, deadline, _ in offers] == [None, 60.0, 60.0]
    assert len(ledger(folder, "south")) == 1
    assert len(ledger(folder, "east")) == 2
    run_id = summary["run_id"]
    joined = audit(folder, run_id, "client.joined")
    assert [detail["client"] for detail in joined] == [1, 2, 4, 3]
    agrees(folder, run_id)


@pytest.mark.slow
def test_a_client_that_comes_while_a_round_is_open_is_asked_from_the_next_one_on(folder):
    """It was not charged for the open one, so nothing of it may leave it there."""
    holders = Holders.written(folder)

    class Dies(Away):
        def exchange(self, stage, messages, deadline):
            return crash() if stage == "train" else super().exchange(stage, messages, deadline)

    config = federation(folder, *NOISED, "federation.start_with=3", "rounds=2")
    with pytest.raises(Crash):
        hold(config, doing(Dies(holders.handlers(), "north", 99)))
    (run_id,) = runs_of(folder)
    transport = Doing(holders.handlers(), ("join", 99), lambda: None, after=False)
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", doing(transport))
    rounds = [who for stage, who in transport.asked if stage == "train"]
    assert ["north" in who for who in rounds] == [False, True]
    assert [r["dropped"] for r in summary["rounds"]] == [1, 0]
    assert len(ledger(folder, "north")) == 1
    agrees(folder, run_id)


def test_with_too_few_at_the_start_nothing_is_asked(folder):
    strict = {**OPEN, "mechanisms": ["upload_noise"]}
    holders = Holders.written(folder, of={"east": {"limits": strict}})
    transport = Away(holders.handlers(), "west", 99)
    with pytest.raises(RunStopped, match="2 of 4 clients"):
        hold(federation(folder, *THREE), doing(transport))
    assert all(ledger(folder, name) == [] for name in NAMES)
    assert audit(folder, runs_of(folder)[0], "client.joined") == []
    with pytest.raises(RunStopped, match="west cannot be"):
        hold(federation(folder, *NOISED), doing(transport))
