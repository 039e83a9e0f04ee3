"""A federation whose processes die at any time: what is left goes on, and nothing happens twice."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from platform.disk.opening import open_existing
from platform.errors import CoordinatorBehind, RunBusy, RunStopped
from platform.wire.codec import Envelope, decode_arrays, peek
from platform.wire.messages import Stage
from platform.wire.outside_rounds import Facts, Offer, decode_acceptance, decode_offer, encode_offer
from platform.wire.receipt_messages import bare
from platform.wire.transport import Dropout, InProcessTransport, answer
from storage import open_client_store
from tests.trunk._federations import (
    NAMES,
    Holders,
    federation,
    go_on,
    hold,
    over_sockets,
    within,
)
from tests.trunk._runs import Crash

MASKED = (
    "privacy.mechanism=distributed_noise",
    "privacy.clipping_norm=0.1",
    "privacy.target_epsilon=8.0",
    "secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",
)
PLAIN: tuple[str, ...] = ()
Handlers = Mapping[str, Callable[[bytes], bytes]]


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults")


class Dying(InProcessTransport):
    """Ends the coordinator before or after its n-th exchange."""

    def __init__(self, handlers: Handlers, at: int, *, after: bool) -> None:
        super().__init__(handlers=handlers, losses=lambda *_: frozenset())
        object.__setattr__(self, "left", at)
        object.__setattr__(self, "after", after)

    def exchange(self, stage: Stage, messages, deadline):
        object.__setattr__(self, "left", self.left - 1)
        if self.left == 0 and not self.after:
            raise Crash
        found = super().exchange(stage, messages, deadline)
        if self.left == 0:
            raise Crash
        return found


def dying(handlers: Handlers, at: int, *, after: bool):
    def reaching(section):
        return nullcontext(Dying(handlers, at, after=after))

    return reaching


def run_names(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        return [name for (name,) in db.execute("SELECT run_id FROM runs")]


def state_of(folder: Path, run_id: str) -> dict:
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        with database.unit_of_work(read_only=True) as uow:
            return decode_arrays(uow.states.latest(run_id).blob)


def ledgers(folder: Path, names: Sequence[str] = NAMES) -> dict[str, list[tuple]]:
    """What each holder's own store says that it released."""
    found = {}
    for name in names:
        store = open_client_store(folder / name / "store" / "client.db", read_only=True)
        found[name] = sorted((row.round_number, row.attempt, row.channel) for row in store.rows())
    return found


def test_a_process_a_message_is_the_same_client(folder):
    """Every message finds a holder that was started for it, and is asked twice."""
    one, other = folder / "one", folder / "other"
    steady = hold(federation(one), within(Holders.written(one).handlers()))
    holders = Holders.written(other)

    def fresh(name: str) -> Callable[[bytes], bytes]:
        def handle(message: bytes) -> bytes:
            first = holders.handler(name)(message)
            again = holders.handler(name)(message)
            # But for whether there was anything to do, which the parting's answer says.
            assert again == first or peek(bare(message))[0] == "parting"
            return first

        return handle

    summary = hold(federation(other), within({name: fresh(name) for name in NAMES}))
    expected, found = state_of(one, steady["run_id"]), state_of(other, summary["run_id"])
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_coordinator_that_dies_at_any_exchange_goes_on(folder, at, after):
    """Offer, roll call, a round of four exchanges under masks, one of three, and the parting."""
    holders = Holders.written(folder)
    config = federation(folder, *MASKED)
    died = True
    try:
        summary = hold(config, dying(holders.handlers(), at, after=after))
        died = False
    except Crash:
        (run_id,) = run_names(folder)
        url = f"sqlite:///{folder}/sotto.db"
        summary = go_on(run_id, url, within(holders.handlers()))
    assert died == (at <= 10)
    assert [r["round"] for r in summary["rounds"]] == [1, 2]
    assert summary["final"]["epsilon"]["server"] <= 8.0
    own = ledgers(folder)
    # One release a round and client, whatever was interrupted: an attempt is executed once.
    assert {name: len(rows) for name, rows in own.items()} == dict.fromkeys(NAMES, 2)


@pytest.mark.parametrize("stage", ["advertise", "share", "train", "unmask"])
def test_a_holder_that_dies_in_a_round_is_lost_and_comes_back(folder, stage):
    holders = Holders.written(folder)
    handlers = holders.handlers()

    class Losing(InProcessTransport):
        def exchange(self, asked, messages, deadline):
            found = dict(super().exchange(asked, messages, deadline))
            if asked == stage and "north" in found and "north" not in gone:
                gone.append("north")
                found["north"] = Dropout("killed")
                handlers["north"] = holders.handler("north")
            return found

    gone: list[str] = []
    transport = Losing(handlers=handlers, losses=lambda *_: frozenset())
    summary = hold(federation(folder, *MASKED), lambda section: nullcontext(transport))
    assert gone == ["north"]
    first, second = summary["rounds"]
    assert first["dropped"] == (0 if stage == "unmask" else 1)
    assert second["dropped"] == 0
    # What it may have sent is charged, also where it did not arrive.
    assert len(ledgers(folder)["north"]) == (2 if stage in ("train", "unmask") else 1)


def test_two_coordinators_on_one_run(folder):
    holders = Holders.written(folder)
    with pytest.raises(Crash):
        hold(federation(folder), dying(holders.handlers(), 4, after=True))
    (run_id,), url = run_names(folder), f"sqlite:///{folder}/sotto.db"
    handlers, tried = holders.handlers(), []

    class Second(InProcessTransport):
        def exchange(self, stage, messages, deadline):
            if stage == "train" and not tried:
                tried.append(stage)
                with pytest.raises(RunBusy):
                    go_on(run_id, url, within(handlers))
            return super().exchange(stage, messages, deadline)

    transport = Second(handlers=handlers, losses=lambda *_: frozenset())
    summary = go_on(run_id, url, lambda section: nullcontext(transport))
    assert tried == ["train"]
    assert len(summary["rounds"]) == 2


def test_a_coordinator_with_an_old_database_is_stopped_by_name(folder):
    holders = Holders.written(folder)
    database = folder / "sotto.db"
    with pytest.raises(Crash):
        # Died in the second round, after clients had uploaded.
        hold(federation(folder, "rounds=3"), dying(holders.handlers(), 6, after=True))
    (run_id,), url = run_names(folder), f"sqlite:///{database}"
    kept = {p.name: p.read_bytes() for p in folder.glob("sotto.db*")}
    before = ledgers(folder)
    go_on(run_id, url, within(holders.handlers()))
    for path in folder.glob("sotto.db*"):
        path.unlink()
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    charged = ledgers(folder)
    with pytest.raises(CoordinatorBehind, match="database is older than the client's"):
        go_on(run_id, url, over_sockets(holders.handlers(), folder))
    # Nothing was released to it, and nothing is taken back.
    assert ledgers(folder) == charged
    assert all(set(before[name]) <= set(charged[name]) for name in NAMES)


def test_another_run_under_a_known_name_is_declined(folder):
    """A coordinator that lost its database, or lies, cannot offer the same run otherwise."""
    holders = Holders.written(folder)
    seen: list[bytes] = []
    handlers = holders.handlers()

    def listening(name):
        def handle(message):
            seen.append(message)
            return handlers[name](message)

        return handle

    hold(federation(folder), within({name: listening(name) for name in NAMES}))
    offer = decode_offer(seen[0])
    config = offer.config.replace(b'"rounds":2', b'"rounds":9')
    assert config != offer.config
    changed = Offer(Envelope(offer.envelope.run_id, 0, 0), config, Facts(**vars(offer.facts)))
    answer = decode_acceptance(holders.handler("east")(encode_offer(changed)))
    assert answer.reasons
    assert "otherwise" in answer.reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_spoilt_messages_are_answered_or_refused_and_take_nothing_back(folder, seed):
    """Real messages with bytes flipped or cut: what is valid then counts, all else is refused."""
    holders = Holders.written(folder, names=("east", "north"))
    overrides = ("federation.clients=[east, north]", "task.clients=2", "rounds=1")
    draws, handlers, kinds = random.Random(seed), holders.handlers(), []

    def spoilt(name):
        def handle(message):
            data = bytearray(message)
            for _ in range(draws.randint(1, 3)):
                data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
            if draws.random() < 0.3:
                data = data[: draws.randrange(len(data))]
            # What every transport delivers by knows all that a client may raise.
            reply = answer(handlers[name], bytes(data))
            kinds.append(isinstance(reply, Dropout))
            before = ledgers(folder, (name,))[name]
            try:
                return handlers[name](message)
            finally:
                rows = ledgers(folder, (name,))[name]
                # Nothing is taken back, and nothing is charged for twice under one name.
                assert set(before) <= set(rows)
                assert len(rows) == len(set(rows))

        return handle

    # A valid message of the same attempt may have taken the true one's place: a client is lost.
    with suppress(RunStopped):
        hold(federation(folder, *overrides), within({n: spoilt(n) for n in handlers}))
    assert True in kinds
