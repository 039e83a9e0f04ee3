"""An attempt is carried out once: whoever dies between two messages, no second sum is opened."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.errors import CoordinatorBehind, ProtocolError, RunStopped
from platform.parties.client import Client
from platform.parties.identities import read_enrolment, write_enrolment
from platform.protection.sums import SecureTerms
from platform.wire.messages import (
    Stage,
    decode_invitation,
    decode_relay,
    encode_invitation,
    encode_relay,
)
from storage import InvalidRecordError
from tests.trunk._ahead import Overheard
from tests.trunk._runs import Crash, Storage, crashed, losing, opened
from tests.trunk._seams import (
    ADVERSARIES,
    CLIENTS,
    MECHANISMS,
    SMALLEST,
    Seams,
    live_through,
    overrides,
    seam_storage,
    seams_of,
)
from tests.trunk._secure import RUN, Cohort, cohort, enrolled, identity

PAIRS = [(mechanism, adversary) for mechanism in MECHANISMS for adversary in ADVERSARIES]
TERMS = SecureTerms(clients=5, active=True, threshold=4, smallest_sum=4, corrupt=1)


def require_one_sum(storage: Storage, run_id: str, mechanism: str, seams: Seams) -> None:
    """No two sums of a round tell what one client, or fewer than the smallest sum, sent."""
    for number, sums in seams.by_round().items():
        distinct = set(sums)
        assert all(len(each.survivors) >= SMALLEST for each in distinct)
        # Opened again by the next life, an attempt's sum is the very same.
        assert len({each.place for each in distinct}) == len(distinct)
        if mechanism in ("none", "central_noise"):
            assert len(distinct) == 1, number
        query = "SELECT count(*) FROM ledger WHERE run_id = ? AND round_number = ? AND attempt = ?"
        for each in distinct:
            charged = storage.rows(f"{query} AND status != 'aborted'", run_id, *each.place)
            assert charged == [(CLIENTS,)]


STAGES = ("train", "advertise", "share", "unmask")


@pytest.mark.parametrize(
    ("mechanism", "adversary", "stages"),
    [
        # Without noise of the clients a second sum tells all.
        ("central_noise", "active", STAGES[:1]),
        *(pytest.param(*pair, STAGES, marks=pytest.mark.slow) for pair in PAIRS),
    ],
)
def test_killed_after_the_sum_was_opened_and_another_client_lost_in_the_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, adversary: str, stages
) -> None:
    """The two sums would differ by exactly what the lost client sent."""
    storage = seam_storage(tmp_path)
    with seams_of(monkeypatch) as seams:
        seams.most = 1
        simulation = storage.create(*overrides(mechanism, adversary, tmp_path))
        with pytest.raises(Crash):
            storage.finish(simulation)
        first = frozenset(sorted(simulation.population.clients)[:1])
        for lost_at in stages:
            seams.most = len(seams.sums) + 1
            again = losing(storage.reopen(simulation.run_id), lambda *_: first, lost_at)
            with pytest.raises(Crash):
                storage.finish(again)
        seams.most = None
        summary = storage.resume(simulation.run_id).summary
    assert len(seams.by_round()[1]) == 2 + len(stages)
    assert len(set(seams.by_round()[1])) == 1
    assert len(summary["rounds"]) == 2
    require_one_sum(storage, simulation.run_id, mechanism, seams)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", range(220))
def test_no_schedule_of_deaths_and_losses_opens_two_sums(tmp_path, monkeypatch, schedule):
    mechanism, adversary = PAIRS[schedule % len(PAIRS)]
    storage = seam_storage(tmp_path)
    with seams_of(monkeypatch) as seams:
        chosen = overrides(mechanism, adversary, tmp_path)
        run_id, summary = live_through(storage, chosen, seams, np.random.default_rng(schedule))
    require_one_sum(storage, run_id, mechanism, seams)
    with_result = [r["round"] for r in summary["rounds"] if r["dropped"] != r["cohort"]]
    assert set(with_result) <= set(seams.by_round())
    assert storage.rows("SELECT count(*) FROM stages") == [(0,)]


@pytest.mark.slow
def test_a_run_whose_enrolment_has_changed_does_not_go_on(tmp_path, monkeypatch):
    storage = seam_storage(tmp_path)
    simulation = storage.create(*overrides("none", "active", tmp_path))
    run_id = crashed(monkeypatch, simulation, Client, "_train", 3)
    path = tmp_path / "keys" / "enrolment.json"
    before = path.read_bytes()
    write_enrolment(path, read_enrolment(path).enrol("somebody-else", identity(99).public))
    with pytest.raises(RunStopped, match="put that file"):
        storage.reopen(run_id)
    path.write_bytes(before)
    with opened(storage.reopen(run_id)) as again:
        assert again.run_id == run_id


@pytest.fixture
def five(tmp_path: Path) -> Cohort:
    return cohort(tmp_path, TERMS)


def overheard(found: Cohort) -> dict[tuple[Stage, str], tuple[bytes, bytes]]:
    ear = Overheard(found.transport())
    found.run(ear)
    return ear.seen


def test_another_request_under_the_same_header_and_an_invented_commit_are_refused(five):
    """An invented commit would make a client forget what it has trained."""
    seen = overheard(five)
    name, client = next(iter(five.clients.items()))
    store = store_rows(client)
    invitation = decode_invitation(seen["advertise", name][0])
    other = encode_invitation(dataclasses.replace(invitation, clipping_norm=0.5))
    seat = dataclasses.replace(invitation.secure, index=2)
    relay = decode_relay(seen["unmask", name][0])
    seated = encode_invitation(dataclasses.replace(invitation, secure=seat))
    longer = seen["train", name][0] + b"\0"
    empty = encode_relay(dataclasses.replace(relay, payload=b""))
    invented = [
        dataclasses.replace(invitation.envelope, round_number=4, committed=committed)
        for committed in ((1, 2), (2, 1))
    ]
    later = [encode_invitation(dataclasses.replace(invitation, envelope=e)) for e in invented]
    for message in (other, seated, longer, empty, *later):
        with pytest.raises(ProtocolError):
            client.handle(message)
    for stage in ("advertise", "share", "train", "confirm", "unmask"):
        message, answer = seen[stage, name]
        assert client.handle(message) == five.remade(name).handle(message) == answer
    assert store_rows(client) == store
    # The session's secrets are gone once its round is committed.
    file = Path(client._store._file.path)
    assert all(seen[stage, name][1][-64:] in file.read_bytes() for stage in ("share", "unmask"))
    client._states.roll((1, 1))
    emptied = client._store.sessions.newest(RUN)
    assert emptied is not None and emptied.state == b""
    assert not any(
        reply[-64:] in file.read_bytes() for (_, of), (_, reply) in seen.items() if of == name
    )


def test_a_further_attempt_without_noise_and_an_older_round_are_refused(five: Cohort) -> None:
    """Two sums of the same vectors differ by what one client sent."""
    seen = overheard(five)
    for name, client in five.clients.items():
        invitation = decode_invitation(seen["advertise", name][0])
        envelope = dataclasses.replace(invitation.envelope, attempt=2)
        invented = encode_invitation(dataclasses.replace(invitation, envelope=envelope))
        with pytest.raises(ProtocolError, match="without noise"):
            client.handle(invented)
    later = dataclasses.replace(invitation.envelope, round_number=3, committed=(1, 1))
    client.handle(encode_invitation(dataclasses.replace(invitation, envelope=later)))
    with pytest.raises(CoordinatorBehind, match="round 3, attempt 1"):
        client.handle(seen["advertise", name][0])


def store_rows(client: Client) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(client._store._file.path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {n: connection.execute(f"SELECT * FROM {n}").fetchall() for (n,) in names}  # noqa: S608


@pytest.mark.parametrize(
    "stage", [*(pytest.param(s, marks=pytest.mark.slow) for s in STAGES[1:3]), "unmask"]
)
def test_two_processes_of_a_client_give_one_answer(five, monkeypatch, stage):
    """Both read the store before either has written: the second has nothing to send."""
    name = next(iter(five.clients))
    other, replies = five.remade(name), []
    inner = five.transport()

    @dataclasses.dataclass(frozen=True)
    class Doubling:
        def exchange(self, at: Any, messages: Any, deadline: Any) -> Any:
            if at != stage:
                return inner.exchange(at, messages, deadline)
            message = messages[name]
            known = other._store.sessions.newest(RUN)
            answers = inner.exchange(at, messages, deadline)
            with monkeypatch.context() as patch:
                patch.setattr(other._store.sessions, "newest", lambda run_id: known)
                patch.setattr(other._store.sessions, "reply", lambda run_id, digest: None)
                with pytest.raises(ProtocolError, match="something else"):
                    other.handle(message)
            replies.append(other.handle(message) == answers[name])
            return answers

    five.run(Doubling())
    assert replies == [True]


def test_a_client_may_be_another_process_at_every_message(five: Cohort) -> None:
    usual = five.transport(lost=["client-00004"], lost_at="unmask")
    anew = {name: lambda message, n=name: five.remade(n).handle(message) for name in five.clients}
    outcome = five.run(dataclasses.replace(usual, handlers=anew))
    np.testing.assert_allclose(outcome.summed.vector, [15.0, 15.0], atol=1e-2)
    assert outcome.survivors == tuple(five.clients)


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param((), marks=pytest.mark.slow, id="masked"),
        pytest.param(("secure_aggregation={enabled: false}",), id="in the clear"),
    ],
)
def test_a_dead_coordinators_database_ties_no_entry_to_a_client(storage, monkeypatch, chosen):
    """Killed while the second round trains: handles would say whose entries lie in the pool."""
    crashed(monkeypatch, storage.create(*chosen), Client, "_disclose", 6, after=True)
    handles = [handle for (handle,) in storage.rows("SELECT handle FROM pool")]
    stages = b"".join(blob for (blob,) in storage.rows("SELECT blob FROM stages"))
    assert len(handles) == 4 and stages
    assert not any(handle in stages for handle in handles)


def test_a_client_that_has_used_a_newer_enrolment_refuses_an_older(five: Cohort) -> None:
    """An older file has keys that were revoked since, and lacks those that took their place."""
    names = tuple(five.clients)
    credentials = five.clients[names[0]].profile.safeguards.credentials
    assert credentials is not None and credentials.enrolment.serial == len(names)
    older = dataclasses.replace(credentials, enrolment=enrolled(names[:-1]))
    with pytest.raises(InvalidRecordError, match="has serial 4"):
        five.remade(names[0], credentials=older)
