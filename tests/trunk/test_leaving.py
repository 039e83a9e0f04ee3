"""Leaving a run for good: who may say so, what goes and what stays, at any moment of a round."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from platform.errors import UnknownRun
from platform.holder.own_limits import own_account
from platform.holder.settings import load_holder, private_key
from platform.holder.store import Keeping
from platform.parties.client import Client
from platform.parties.identities import create_key, write_enrolment
from platform.wire.codec import Envelope, peek
from platform.wire.outside_rounds import Left, decode_left, encode_left, encode_roll_call
from platform.wire.receipt_messages import bare
from privacy.secure_aggregation import Enrolment
from privacy.secure_aggregation.identities import verify_signature
from storage import SessionRecord, open_client_store
from tests.trunk._federations import NAMES, OPEN, Holders, federation, go_on, hold, within
from tests.trunk._leaving import (
    MASKED,
    NOISED,
    Doing,
    agrees,
    audit,
    doing,
    leave,
    ledger,
    pseudonym_of,
    runs_of,
)
from tests.trunk._runs import Crash


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("leaving")


def test_a_client_leaves_between_rounds_and_the_others_go_on(folder):
    holders = Holders.written(folder)
    transport = Doing(holders.handlers(), ("unmask", 1), lambda: leave(folder, "north"), after=True)
    summary = hold(federation(folder, *MASKED), doing(transport))
    run_id = summary["run_id"]
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1, 1]
    first, later = transport.asked[:6], transport.asked[7:]
    assert first[2] == ("advertise", list(NAMES))
    assert all("north" not in asked for _, asked in later)
    assert later[-1] == ("personalise", ["east", "south", "west"])
    (gone,) = audit(folder, run_id, "client.left")
    pseudonym = open_client_store(folder / "north" / "store" / "client.db").identity.pseudonym
    assert gone == {"client": 2, "pseudonym": pseudonym, "generations": []}
    said = [w for w in summary["warnings"] if "left for good" in w]
    assert len(said) == 1
    assert f"client 2 of 4 ({pseudonym})" in said[0]
    assert "after round 1;" in said[0]
    agrees(folder, run_id)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", ["advertise", "share", "train", "unmask"])
def test_a_client_leaves_at_any_stage_of_a_masked_round(folder, stage, after):
    """It is lost in that round at most; no sum is opened twice and nobody is charged twice."""
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


def enrolled(folder: Path) -> tuple[Holders, Any]:
    """A federation against an active coordinator, each holder with a key of its own."""
    shared = {"identity": "own.key", "enrolment": "../enrolment.json"}
    holders = Holders.written(folder, of=dict.fromkeys(NAMES, shared))
    known = Enrolment()
    for name in NAMES:
        known = known.enrol(name, create_key(folder / name / "own.key").public)
    write_enrolment(folder / "enrolment.json", known)
    more = (
        "secure_aggregation.adversary=active",
        f"secure_aggregation.enrolment={folder}/enrolment.json",
    )
    return holders, federation(folder, *MASKED, "rounds=2", *more)


def forged(folder: Path, how: str, run_id: str) -> bytes:
    """A statement that north has left, which north never made."""
    own = private_key(folder / "north" / "own.key")
    other = private_key(folder / "east" / "own.key")
    true = Left(run_id, "north", pseudonym_of(folder, "north"))
    elsewhere = dataclasses.replace(true, run_id="another-run")
    of_east = Left(run_id, "east", pseudonym_of(folder, "east"))
    made = {
        "unsigned": true,
        "signed by another": dataclasses.replace(true, signature=other.sign(true.digest)),
        "replayed from another run": dataclasses.replace(
            elsewhere, signature=own.sign(elsewhere.digest)
        ),
        "its signature moved to this run": dataclasses.replace(
            true, signature=own.sign(elsewhere.digest)
        ),
        "another's own statement": dataclasses.replace(
            of_east, signature=other.sign(of_east.digest)
        ),
        "a pseudonym that is not its": dataclasses.replace(
            true, pseudonym="p", signature=own.sign(true.digest)
        ),
    }
    return encode_left(made[how])


FORGERIES = (
    "unsigned",
    "signed by another",
    "replayed from another run",
    "its signature moved to this run",
    "another's own statement",
    "a pseudonym that is not its",
)


@pytest.mark.parametrize("how", FORGERIES)
def test_nobody_is_expelled_by_a_forgery(folder, how):
    holders, config = enrolled(folder)
    handlers, put = holders.handlers(), []

    def spoken_for(message: bytes) -> bytes:
        kind, envelope = peek(bare(message))
        if kind == "invitation" and envelope.round_number == 1:
            put.append(how)
            return forged(folder, how, envelope.run_id)
        return handlers["north"](message)

    summary = hold(config, within({**handlers, "north": spoken_for}))
    assert put == [how]
    # It is lost in that one round, as with any answer that is none.
    assert [r["dropped"] for r in summary["rounds"]] == [1, 0]
    assert audit(folder, summary["run_id"], "client.left", "client.removed") == []


def test_a_signed_statement_is_kept_with_its_signature(folder):
    holders, config = enrolled(folder)
    transport = Doing(holders.handlers(), ("unmask", 1), lambda: leave(folder, "north"), after=True)
    summary = hold(config, doing(transport))
    run_id = summary["run_id"]
    (gone,) = audit(folder, run_id, "client.left")
    said = Left(run_id, "north", pseudonym_of(folder, "north"))
    key = private_key(folder / "north" / "own.key")
    verify_signature(key.public, said.digest, bytes.fromhex(gone["signature"]))
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1]
    agrees(folder, run_id)


def test_what_was_spent_survives_and_all_else_goes(folder):
    personal = ("method={name: fedpgp, context_tokens: 2}", *NOISED, "rounds=2")
    holders = Holders.written(folder)
    run_id = hold(federation(folder, *personal), within(holders.handlers()))["run_id"]
    place, settings = folder / "west" / "store", load_holder(folder / "west" / "client.yaml")
    store = open_client_store(place / "client.db")
    before, spent = store.rows(), own_account(store, settings.limits)
    kept = store.committed(run_id)
    assert kept is not None
    marks = [kept.personal[-200:], kept.personal[200:400]]
    parting = (place / "offers" / f"{run_id}.parting").read_bytes()
    marks.append(parting[len(parting) // 2 :][:200])
    everything = lambda: b"".join(p.read_bytes() for p in place.rglob("*") if p.is_file())  # noqa: E731
    assert all(mark in everything() for mark in marks)
    leave(folder, "west")
    assert not [mark for mark in marks if mark in everything()]
    after = open_client_store(place / "client.db")
    after.verify_integrity()
    assert after.rows() == before
    assert own_account(after, settings.limits) == spent
    assert spent.total.epsilon is not None and spent.total.epsilon > 0.0
    assert after.committed(run_id) is None
    assert after.sessions.newest(run_id) is not None
    assert sorted(p.name for p in (place / "offers").iterdir()) == [f"{run_id}.left"]


def test_a_lifetime_limit_counts_a_run_that_was_left(folder):
    """A holder that leaves has no more to spend than one that stays."""
    limits = {**OPEN, "epsilon_total": 8.5, "mechanisms": ["distributed_noise"]}
    holders = Holders.written(folder, of={"west": {"limits": limits}})
    first = hold(federation(folder, *MASKED), within(holders.handlers()))
    leave(folder, "west", first["run_id"])
    second = hold(federation(folder, *MASKED, "seed=6"), within(holders.handlers()))
    assert [r["dropped"] for r in second["rounds"]] == [1, 1, 1]
    rows = open_client_store(folder / "west" / "store" / "client.db").rows()
    assert {row.run_id for row in rows} == {first["run_id"]}
    assert len(rows) == 3


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
                raise Crash
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
    assert again.asked
    assert all("north" not in asked for _, asked in again.asked)
    assert [r["dropped"] for r in summary["rounds"]] == [0, 1, 1]


def test_a_holder_that_leaves_while_it_answers_has_written_nothing(folder, monkeypatch):
    """By another process, between what its client wrote and what it would have said."""
    holders = Holders.written(folder)
    real = Client.handle

    def slow(self: Client, message: bytes) -> bytes:
        reply = real(self, message)
        if peek(bare(message))[0] == "invitation" and self.profile.name == "west":
            leave(folder, "west")
            # As if that had been faster than this client's own transaction.
            real_reply = self._store.sessions
            record = SessionRecord(self.profile.run.run_id, 1, 1, noiseless_round=0, state=b"x")
            known = real_reply.newest(record.run_id)
            real_reply.keep(record, after=known, request_digest=b"d" * 32, reply=b"secret reply")
        return reply

    monkeypatch.setattr(Client, "handle", slow)
    summary = hold(federation(folder, *MASKED), within(holders.handlers()))
    assert [r["dropped"] for r in summary["rounds"]] == [1, 1, 1]
    assert b"secret reply" not in (folder / "west" / "store" / "client.db").read_bytes()
    assert ledger(folder, "west") == []
    agrees(folder, summary["run_id"])


def test_a_run_ends_where_too_few_are_left(folder):
    holders = Holders.written(folder)

    def away() -> None:
        leave(folder, "west")
        leave(folder, "east")

    transport = Doing(holders.handlers(), ("unmask", 1), away, after=True)
    config = federation(folder, *MASKED)
    summary = hold(config, doing(transport))
    run_id = summary["run_id"]
    assert [r["round"] for r in summary["rounds"]] == [1]
    assert summary["warnings"][0] == (
        "the run ended before round 2: 2 of 4 clients are left (2 have left for good), and a round "
        "needs 3"
    )
    agrees(folder, run_id)


def test_nobody_waits_for_who_left_when_the_others_personalise(folder):
    holders = Holders.written(folder)
    transport = Doing(
        holders.handlers(), ("personalise", 1), lambda: leave(folder, "north"), after=False
    )
    summary = hold(federation(folder, "rounds=1"), doing(transport))
    assert transport.asked[-1] == ("personalise", list(NAMES))
    assert [w for w in summary["warnings"] if "client 2 of 4" in w and "after round 1" in w]
    agrees(folder, summary["run_id"])


def test_a_run_that_was_never_accepted_cannot_be_left(folder):
    holders = Holders.written(folder)
    holders.handlers()
    with pytest.raises(UnknownRun, match="'other' was accepted here"):
        leave(folder, "east", "other")
    assert Keeping(folder / "east" / "store").runs("left") == []
