"""Keys for the next round ride on this round's last message; an attempt has keys of one age only.

Cohorts of `Numbered` clients: client i gives the number i, so five of them sum to 15.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.errors import ProtocolError, RoundAborted
from platform.parties.client import Client
from platform.parties.client_state import decode_session
from platform.protection.charging import Limits
from platform.protection.secure_terms import SecureTerms
from platform.rounds.exchange import MemoryJournal, StageResult
from platform.rounds.plan import RoundOutcome
from platform.rounds.runner import seat_of
from platform.wire.codec import peek
from platform.wire.messages import (
    Disclosure,
    Invitation,
    Relay,
    SecureRound,
    decode_disclosure,
    decode_invitation,
    decode_relay,
    encode_invitation,
    encode_relay,
)
from platform.wire.transport import Dropout, InProcessTransport
from privacy import BudgetExhausted, UploadNoise
from privacy.secure_aggregation import Advertised, Credentials
from storage import open_client_store
from tests.trunk._ahead import Overheard, first_plan, first_round, hold, opened_with, second_plan
from tests.trunk._runs import gaussian_epsilon
from tests.trunk._secure import RUN, Cohort, Lying, cohort, enrolled, identity

ACTIVE = SecureTerms(clients=5, active=True, threshold=4, smallest_sum=4, corrupt=1)
HONEST = dataclasses.replace(ACTIVE, active=False, threshold=3, smallest_sum=3)
CLASSICAL = {True: ["share", "train", "confirm", "unmask"], False: ["share", "train", "unmask"]}


@pytest.fixture(params=[True, False], ids=["active", "semi_honest"])
def five(request: pytest.FixtureRequest, tmp_path: Path) -> Cohort:
    return cohort(tmp_path, ACTIVE if request.param else HONEST)


def deaf(found: Cohort, lost: str | None = None, lost_at: Any = "train") -> InProcessTransport:
    """To the cohort, a refusal being silence."""
    handlers = {name: client.handle for name, client in found.clients.items()}
    gone = frozenset() if lost is None else frozenset({lost})
    return InProcessTransport(handlers=handlers, losses=lambda *_: gone, lost_at=lost_at)


def remade(found: Cohort, name: str) -> Client:
    """The client as a new process would find itself."""
    old = found.clients[name]
    return Client(old.profile, open_client_store(old._store._file.path), old._make_trainer)


def seat_in(ear: Overheard, name: str) -> SecureRound:
    """The place in an opening that a client was sent."""
    seat = decode_invitation(ear.seen["share", name][0]).secure
    assert seat is not None
    return seat


def name_of(found: Cohort, number: int = 1) -> str:
    return list(found.clients)[number - 1]


def keys_kept(client: Client) -> Advertised | None:
    """The keys that lie in a client's store for the round after its newest attempt."""
    record = client._store.sessions.newest(RUN)
    session = None if record is None else decode_session(record)
    kept = None if session is None else session.ahead
    assert kept is None or isinstance(kept, Advertised)
    return kept


# --- a round that begins with the shares ----------------------------------------------------------


def test_a_round_with_keys_has_one_wait_less_and_the_same_sum(five: Cohort) -> None:
    outcome, first = first_round(five)
    second = Overheard(five.transport())
    following = hold(five, second_plan(five, outcome), second, opened_with(outcome.ahead))
    waits = CLASSICAL[five.terms.active]
    assert first.stages == ["advertise", *waits]
    assert second.stages == waits
    for each in (outcome, following):
        assert each.survivors == tuple(five.clients)
        np.testing.assert_allclose(each.summed.vector, [15.0, 15.0], atol=1e-2)
    assert following.ahead == {}


def test_keys_are_in_the_store_before_they_leave_and_gone_when_they_are_used(five: Cohort) -> None:
    """The private halves, looked for in the file of the store past our own code."""
    outcome, _ = first_round(five)
    kept = {name: keys_kept(client) for name, client in five.clients.items()}
    paths = {name: Path(client._store._file.path) for name, client in five.clients.items()}
    for name, keys in kept.items():
        assert keys is not None and keys.channel_private in paths[name].read_bytes()
    assert len({keys.mask_private for keys in kept.values() if keys is not None}) == 5
    hold(five, second_plan(five, outcome), five.transport(), opened_with(outcome.ahead))
    for name, keys in kept.items():
        assert keys is not None
        assert keys_kept(five.clients[name]) is None
        lies = paths[name].read_bytes()
        assert keys.channel_private not in lies and keys.mask_private not in lies


def test_a_client_may_be_another_process_at_every_message(five: Cohort) -> None:
    @dataclasses.dataclass(frozen=True)
    class Forgetful(InProcessTransport):
        def _deliver(self, stage: Any, client: str, message: bytes) -> bytes | Dropout:
            return remade(five, client).handle(message)

    forgetful = Forgetful(handlers=deaf(five).handlers, losses=lambda *_: frozenset())
    outcome = hold(five, first_plan(five), forgetful)
    following = hold(five, second_plan(five, outcome), forgetful, opened_with(outcome.ahead))
    np.testing.assert_allclose(following.summed.vector, [15.0, 15.0], atol=1e-2)


@pytest.mark.parametrize("stage", ["share", "train", "unmask"])
def test_a_client_lost_in_a_round_with_keys_is_one_client_less(five: Cohort, stage: str) -> None:
    outcome, _ = first_round(five)
    lossy = deaf(five, name_of(five), stage)
    following = hold(five, second_plan(five, outcome), lossy, opened_with(outcome.ahead))
    expected = 15.0 if stage == "unmask" else 14.0
    np.testing.assert_allclose(following.summed.vector, [expected] * 2, atol=1e-2)


# --- all or none ----------------------------------------------------------------------------------


def test_who_is_lost_before_the_last_message_leaves_nobody_asked_for_keys(five: Cohort) -> None:
    outcome, heard = first_round(five, lost=[name_of(five)], lost_at="train")
    assert outcome.ahead == {} and outcome.keys_ahead(first_plan(five)) is None
    asked = [decode_relay(heard.seen["unmask", name][0]) for name in outcome.survivors]
    assert len(asked) == 4 and all(relay.ahead is None for relay in asked)


def test_who_is_lost_at_the_last_message_is_in_the_next_round_again(five: Cohort) -> None:
    """Four have keys ahead: nobody's are used, and everybody is asked."""
    outcome, _ = first_round(five, lost=[name_of(five)], lost_at="unmask")
    assert outcome.survivors == tuple(five.clients) and len(outcome.ahead) == 4
    assert outcome.keys_ahead(first_plan(five)) is None
    before = {name: keys_kept(client) for name, client in five.clients.items()}
    second = Overheard(five.transport())
    journal = opened_with(outcome.ahead)
    following = hold(five, second_plan(five, outcome), second, journal)
    assert second.stages == ["advertise", *CLASSICAL[five.terms.active]]
    assert following.survivors == tuple(five.clients)
    for name, client in five.clients.items():
        assert keys_kept(client) is None
        assert (before[name] is None) == (name == name_of(five))
        if name in outcome.ahead:
            assert outcome.ahead[name] not in second.seen["advertise", name][1]


def flip(keys: Mapping[str, bytes], name: str, at: int) -> dict[str, bytes]:
    spoilt = bytearray(keys[name])
    spoilt[at] ^= 1
    return {**keys, name: bytes(spoilt)}


def swapped(keys: Mapping[str, bytes]) -> dict[str, bytes]:
    one, other, *_ = sorted(keys)
    return {**keys, one: keys[other], other: keys[one]}


SPOILT: Mapping[str, Callable[[Mapping[str, bytes]], Mapping[str, bytes]]] = {
    "a key": lambda keys: flip(keys, min(keys), 60),
    "the header": lambda keys: flip(keys, min(keys), 5),
    "the end": lambda keys: flip(keys, min(keys), -1),
    "two swapped": swapped,
    "one twice": lambda keys: {**keys, min(keys): keys[max(keys)]},
    "one missing": lambda keys: {name: keys[name] for name in sorted(keys)[1:]},
    "nobody's": lambda keys: {**keys, "client-99999": keys[min(keys)]},
    "empty": lambda keys: {**keys, min(keys): b""},
    "none": lambda keys: {},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", list(SPOILT))
def test_spoilt_keys_cost_a_wait_and_nothing_else(five: Cohort, how: str) -> None:
    outcome, _ = first_round(five)
    second, journal = Overheard(five.transport()), opened_with(SPOILT[how](outcome.ahead))
    following = hold(five, second_plan(five, outcome), second, journal)
    assert second.stages == ["advertise", *CLASSICAL[five.terms.active]]
    np.testing.assert_allclose(following.summed.vector, [15.0, 15.0], atol=1e-2)


def test_keys_of_another_round_are_no_keys(five: Cohort) -> None:
    """Those that opened the second round, replayed for the third."""
    outcome, _ = first_round(five)
    journal = opened_with(outcome.ahead)
    following = hold(five, second_plan(five, outcome), five.transport(), journal)
    third = dataclasses.replace(
        second_plan(five, following),
        round_number=3,
        committed=dict.fromkeys(following.survivors, (2, 1)),
    )
    ear = Overheard(five.transport())
    hold(five, third, ear, opened_with(outcome.ahead))
    assert ear.stages == ["advertise", *CLASSICAL[five.terms.active]]


def test_a_further_attempt_has_fresh_keys(tmp_path: Path) -> None:
    """The first attempt at the second round is given up after its shares; keys are used once."""
    found = cohort(tmp_path, HONEST, mechanism=UploadNoise(1.0, 0.01))
    outcome, _ = first_round(found)
    names = list(found.clients)
    gone = deaf(found)
    gone = dataclasses.replace(gone, losses=lambda *_: frozenset(names[:3]), lost_at="train")
    first = Overheard(gone)
    with pytest.raises(RoundAborted):
        hold(found, second_plan(found, outcome), first, opened_with(outcome.ahead))
    assert first.stages == ["share", "train"]
    second = Overheard(found.transport())
    # Whoever hands the next attempt the same keys is noticed: they are of another attempt.
    hold(found, second_plan(found, outcome, attempt=2), second, opened_with(outcome.ahead))
    assert second.stages == ["advertise", "share", "train", "unmask"]
    rosters = {name: seat_in(first, name).roster for name in names}
    for name in names:
        announced = decode_relay(second.seen["share", name][0]).payload
        assert announced and announced != rosters[name]


# --- a coordinator that was killed ----------------------------------------------------------------


def test_whoever_goes_on_with_an_attempt_opens_it_in_the_same_way(five: Cohort) -> None:
    """Killed after the openings were answered and before that was kept: the same bytes again."""
    outcome, _ = first_round(five)
    plan, journal = second_plan(five, outcome), opened_with(outcome.ahead)

    class Killed(BaseException):
        pass

    class Dying(MemoryJournal):
        def keep(self, stage: Any, blob: bytes) -> None:
            raise Killed

    first, second = Overheard(five.transport()), Overheard(five.transport())
    with pytest.raises(Killed):
        hold(five, plan, first, Dying(dict(journal.kept)))
    following = hold(five, plan, second, journal)
    assert first.stages == ["share"] and second.stages == CLASSICAL[five.terms.active]
    for name in five.clients:
        assert first.seen["share", name] == second.seen["share", name]
    np.testing.assert_allclose(following.summed.vector, [15.0, 15.0], atol=1e-2)


def test_a_coordinator_that_lost_the_keys_after_it_sent_them_gets_no_others(five: Cohort) -> None:
    """Its database is not as it was left: the attempt is over, and no key is in two rosters."""
    outcome, _ = first_round(five)
    plan = second_plan(five, outcome)
    hold(five, plan, five.transport(), opened_with(outcome.ahead))
    with pytest.raises(RoundAborted, match="advertise"):
        hold(five, plan, deaf(five), MemoryJournal())


# --- a coordinator that lies ----------------------------------------------------------------------


def opening(found: Cohort, outcome: RoundOutcome, name: str, **changes: Any) -> Invitation:
    """The invitation with everybody's keys, as an honest coordinator sends it."""
    ear, kept = Overheard(deaf(found)), dict(opened_with(outcome.ahead).kept)

    class Ended(BaseException):
        pass

    class Silent:
        def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: Any) -> Any:
            ear.seen[stage, name] = messages[name], b""
            raise Ended

    with pytest.raises(Ended):
        hold(found, second_plan(found, outcome), Silent(), MemoryJournal(kept))
    honest = decode_invitation(ear.seen["share", name][0])
    return dataclasses.replace(honest, **changes)


def test_the_same_last_message_gets_the_same_keys_and_another_one_none(five: Cohort) -> None:
    """Asked twice with other neighbours, a client would have two sets of keys for one attempt."""
    outcome, heard = first_round(five)
    name = name_of(five)
    sent, said = heard.seen["unmask", name]
    assert remade(five, name).handle(sent) == said
    assert decode_disclosure(said).ahead == outcome.ahead[name]
    relay, before = decode_relay(sent), keys_kept(five.clients[name])
    assert relay.ahead is not None
    reseeded = dataclasses.replace(relay.ahead.graph, seed=bytes(32))
    others = [
        dataclasses.replace(relay, ahead=None),
        dataclasses.replace(relay, ahead=dataclasses.replace(relay.ahead, index=2)),
        dataclasses.replace(relay, ahead=dataclasses.replace(relay.ahead, graph=reseeded)),
    ]
    for other in others:
        with pytest.raises(ProtocolError):
            five.clients[name].handle(encode_relay(other))
    assert keys_kept(five.clients[name]) == before


@pytest.mark.parametrize("stage", ["share", "confirm"])
def test_keys_are_asked_for_with_the_last_message_only(tmp_path: Path, stage: Any) -> None:
    """Of four messages each could bring a set, with other neighbours."""
    five = cohort(tmp_path, ACTIVE)
    plan, name = first_plan(five), name_of(five)
    following = plan.next_plan
    assert following is not None
    seat = seat_of(following, 1)

    def early(client: str, message: bytes) -> bytes:
        return encode_relay(dataclasses.replace(decode_relay(message), ahead=seat))

    lying = Lying(deaf(five), stage, early)
    with pytest.raises(RoundAborted):
        hold(five, plan, lying)
    assert (stage, name) not in lying.answers
    assert keys_kept(five.clients[name]) is None


def asked_for(five: Cohort, change: Callable[[Relay], Relay]) -> tuple[dict[Any, bytes], str]:
    """What one client answers to a last message that asks for other keys than it should."""
    name = name_of(five)

    def lie(client: str, message: bytes) -> bytes:
        relay = decode_relay(message)
        return encode_relay(change(relay)) if client == name else message

    lying = Lying(deaf(five), "unmask", lie)
    hold(five, first_plan(five), lying)
    return lying.answers, name


@pytest.mark.parametrize(
    "change",
    [
        {"index": 6},
        {"index": 0},
        {"clients": 4},
        {"clients": 1 << 18},
        {"vector_length": 1},
        {"ring_bits": 64},
    ],
    ids=str,
)
def test_keys_for_terms_that_are_not_this_runs_are_refused(
    five: Cohort, change: dict[str, int]
) -> None:
    answers, name = asked_for(
        five,
        lambda relay: dataclasses.replace(
            relay,
            ahead=None if relay.ahead is None else dataclasses.replace(relay.ahead, **change),
        ),
    )
    assert ("unmask", name) not in answers
    assert keys_kept(five.clients[name]) is None


@pytest.mark.parametrize("lie", ["lowered", "stranger", "serial"])
def test_an_active_client_makes_keys_for_enrolled_clients_under_its_own_terms(
    tmp_path: Path, lie: str
) -> None:
    found = cohort(tmp_path, ACTIVE)

    def change(relay: Relay) -> Relay:
        seat = relay.ahead
        assert seat is not None and seat.enrolled is not None
        held = seat.enrolled
        if lie == "lowered":
            seat = dataclasses.replace(seat, terms=dataclasses.replace(seat.terms, threshold=3))
        elif lie == "stranger":
            keys = (*held.identities[:-1], identity(99).public)
            seat = dataclasses.replace(seat, enrolled=dataclasses.replace(held, identities=keys))
        else:
            seat = dataclasses.replace(seat, enrolled=dataclasses.replace(held, serial=1))
        return dataclasses.replace(relay, ahead=seat)

    answers, name = asked_for(found, change)
    assert ("unmask", name) not in answers
    assert keys_kept(found.clients[name]) is None


def test_an_opening_with_another_roster_or_another_place_is_refused(five: Cohort) -> None:
    """And changes nothing: the honest one is answered after them, once."""
    outcome, _ = first_round(five)
    name, client = name_of(five), five.clients[name_of(five)]
    honest, other = opening(five, outcome, name), opening(five, outcome, name_of(five, 2))
    seat = honest.secure
    assert seat is not None and other.secure is not None
    before = client._store.sessions.newest(RUN)
    lies = [
        *(
            dataclasses.replace(honest, secure=dataclasses.replace(seat, **change))
            for change in (
                {"roster": other.secure.roster},
                {"roster": seat.roster[:-1]},
                {"roster": b"\0"},
                {"index": 2},
            )
        ),
        dataclasses.replace(honest, secure=None),
        dataclasses.replace(honest, envelope=dataclasses.replace(honest.envelope, attempt=2)),
        dataclasses.replace(honest, envelope=dataclasses.replace(honest.envelope, round_number=3)),
        dataclasses.replace(
            honest, envelope=dataclasses.replace(honest.envelope, committed=(1, 2))
        ),
    ]
    for lie in lies:
        with pytest.raises(ProtocolError):
            client.handle(encode_invitation(lie))
        assert client._store.sessions.newest(RUN) == before
    first, unasked = client.handle(encode_invitation(honest)), dataclasses.replace(seat, roster=b"")
    assert remade(five, name).handle(encode_invitation(honest)) == first
    for lie in (*lies[:2], dataclasses.replace(honest, secure=unasked)):
        with pytest.raises(ProtocolError):
            client.handle(encode_invitation(lie))


def test_an_opening_is_refused_where_no_keys_were_made(five: Cohort) -> None:
    """A store that knows of no keys, as one that caught up after a restore."""
    outcome, _ = first_round(five)
    name, client = name_of(five), five.clients[name_of(five)]
    honest = encode_invitation(opening(five, outcome, name))
    client._states.roll((1, 1))
    with pytest.raises(ProtocolError, match="no keys were made ahead"):
        client.handle(honest)


def test_who_refuses_an_opening_is_lost_for_that_round_only(five: Cohort) -> None:
    outcome, _ = first_round(five)
    name = name_of(five)
    five.clients[name]._states.roll((1, 1))
    journal = opened_with(outcome.ahead)
    following = hold(five, second_plan(five, outcome), deaf(five), journal)
    assert following.survivors == tuple(five.clients)[1:]
    np.testing.assert_allclose(following.summed.vector, [14.0, 14.0], atol=1e-2)
    committed = {**dict.fromkeys(following.survivors, (2, 1)), name: (1, 1)}
    third = dataclasses.replace(second_plan(five, following), round_number=3, committed=committed)
    ear = Overheard(five.transport())
    assert hold(five, third, ear).survivors == tuple(five.clients)
    assert ear.stages[0] == "advertise"


def test_keys_that_were_made_under_an_older_enrolment_are_not_used(tmp_path: Path) -> None:
    """A client was revoked between two rounds, and this one has the new file already."""
    found = cohort(tmp_path, ACTIVE)
    outcome, _ = first_round(found)
    name = name_of(found)
    message = encode_invitation(opening(found, outcome, name))
    newer = enrolled(list(found.clients)).revoke(name_of(found, 5))
    old = found.clients[name]
    safeguards = dataclasses.replace(
        old.profile.safeguards, credentials=Credentials(identity(1), newer)
    )
    profile = dataclasses.replace(old.profile, safeguards=safeguards)
    client = Client(profile, open_client_store(old._store._file.path), old._make_trainer)
    with pytest.raises(ProtocolError, match="older enrolment"):
        client.handle(message)


def test_a_client_without_budget_refuses_the_opening_and_not_the_keys(tmp_path: Path) -> None:
    """Keys tell nothing and cost nothing; the round is priced before shares leave."""
    found = cohort(tmp_path, HONEST, mechanism=UploadNoise(1.0, 4.0))
    name = name_of(found)
    old = found.clients[name]
    # Exactly one release of noise four times the clipping norm.
    one = gaussian_epsilon(4.0, 1) + 1e-6
    limits = Limits(delta=1e-5, accountant="exact", target_epsilon=one)
    profile = dataclasses.replace(
        old.profile, safeguards=dataclasses.replace(old.profile.safeguards, limits=limits)
    )
    client = Client(profile, old._store, old._make_trainer)
    poor = dataclasses.replace(found, clients={**found.clients, name: client})
    outcome, _ = first_round(poor)
    assert outcome.ahead.keys() == set(poor.clients)
    before = client._store.sessions.newest(RUN)
    with pytest.raises(BudgetExhausted):
        client.handle(encode_invitation(opening(poor, outcome, name)))
    assert client._store.sessions.newest(RUN) == before
    journal = opened_with(outcome.ahead)
    following = hold(poor, second_plan(poor, outcome), deaf(poor), journal)
    assert following.survivors == tuple(poor.clients)[1:]
    assert len(client._store.rows(RUN)) == 1


# --- what is fixed, and read back -----------------------------------------------------------------


def test_keys_of_some_are_nobodys(five: Cohort) -> None:
    plan = first_plan(five)
    secure = plan.secure
    assert secure is not None and secure.following is not None
    every = {name: name.encode() for name in plan.cohort}
    outcome = RoundOutcome(summed=StageResult, ahead=every)  # type: ignore[arg-type]
    assert outcome.keys_ahead(plan) == dataclasses.replace(secure.following, keys=every)
    few = dataclasses.replace(outcome, ahead=dict(list(every.items())[1:]))
    assert few.keys_ahead(plan) is None
    assert outcome.keys_ahead(five.plan) is None


def test_a_disclosure_and_a_relay_carry_what_was_asked_for(five: Cohort) -> None:
    outcome, heard = first_round(five)
    for name in five.clients:
        sent, said = heard.seen["unmask", name]
        relay, disclosure = decode_relay(sent), decode_disclosure(said)
        assert relay.ahead is not None and relay.ahead.index == five.plan.places[name]
        assert encode_relay(relay) == sent and isinstance(disclosure, Disclosure)
        assert disclosure.ahead == outcome.ahead[name]
        assert peek(sent)[1].round_number == 1
