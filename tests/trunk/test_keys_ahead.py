"""Keys for the next round ride on this round's last message; an attempt has keys of one age only.

Cohorts of `Numbered` clients: client i gives the number i, so five of them sum to 15.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.errors import ProtocolError, RoundAborted
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.parties.client_state import decode_session
from platform.protection.charging import Limits
from platform.protection.sums import SecureTerms
from platform.rounds.attempts import Attempts, Spending
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.plan import RoundOutcome
from platform.rounds.runner import MemoryJournal, seat_of
from platform.wire.codec import peek
from platform.wire.messages import (
    ROUND_STAGES,
    Invitation,
    SecureRound,
    decode_disclosure,
    decode_invitation,
    decode_relay,
    encode_invitation,
    encode_relay,
)
from platform.wire.transport import Dropout, Transport
from privacy import BudgetExhausted, UploadNoise
from privacy.secure_aggregation import Advertised, Credentials
from tests.trunk._ahead import Overheard, first_plan, first_round, hold, opened_with, second_plan
from tests.trunk._runs import Finished, crashed, gaussian_epsilon, losing, opened, over, slow
from tests.trunk._seams import CLIENTS, overrides, seam_storage
from tests.trunk._secure import RUN, Cohort, Lying, cohort, enrolled, identity

ACTIVE = SecureTerms(clients=5, active=True, threshold=4, smallest_sum=4, corrupt=1)
HONEST = dataclasses.replace(ACTIVE, active=False, threshold=3, smallest_sum=3)
CLASSICAL = {True: ["share", "train", "confirm", "unmask"], False: ["share", "train", "unmask"]}


@pytest.fixture(params=[True, slow(False)], ids=["active", "semi_honest"])
def five(request: pytest.FixtureRequest, tmp_path: Path) -> Cohort:
    return cohort(tmp_path, ACTIVE if request.param else HONEST)


def name_of(found: Cohort, number: int = 1) -> str:
    return list(found.clients)[number - 1]


def keys_kept(client: Client) -> Advertised | None:
    record = client._store.sessions.newest(RUN)
    return None if record is None else decode_session(record).ahead


def test_keys_are_in_the_store_before_they_leave_and_gone_when_they_are_used(five):
    """A coordinator that lost the keys after it sent them gets no others."""
    outcome, _ = first_round(five)
    kept = {name: keys_kept(client) for name, client in five.clients.items()}
    paths = {name: Path(client._store._file.path) for name, client in five.clients.items()}
    assert all(keys.channel_private in paths[name].read_bytes() for name, keys in kept.items())
    assert len({keys.mask_private for keys in kept.values()}) == 5
    plan = second_plan(five, outcome)
    hold(five, plan, five.transport(), opened_with(outcome.ahead))
    for name, keys in kept.items():
        assert keys_kept(five.clients[name]) is None
        lies = paths[name].read_bytes()
        assert keys.channel_private not in lies and keys.mask_private not in lies
    with pytest.raises(RoundAborted, match="advertise"):
        hold(five, plan, five.transport(deaf=True), MemoryJournal())


def test_who_is_lost_before_the_last_message_leaves_nobody_asked_for_keys(five):
    outcome, heard = first_round(five, lost=[name_of(five)], lost_at="train")
    assert outcome.ahead == {} and outcome.keys_ahead(first_plan(five)) is None
    asked = [decode_relay(heard.seen["unmask", name][0]) for name in outcome.survivors]
    assert len(asked) == 4 and all(relay.ahead is None for relay in asked)


def test_who_is_lost_at_the_last_message_is_in_the_next_round_again(five):
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


def flipped(keys):
    spoilt = bytearray(keys[min(keys)])
    spoilt[60] ^= 1
    return {**keys, min(keys): bytes(spoilt)}


def swapped(keys):
    one, other, *_ = sorted(keys)
    return {**keys, one: keys[other], other: keys[one]}


def nobodys(keys):
    return {**keys, "client-99999": keys[min(keys)]}


@pytest.mark.parametrize("spoil", [flipped, slow(swapped), slow(nobodys)])
def test_spoilt_keys_cost_a_wait_and_nothing_else(five, spoil):
    outcome, _ = first_round(five)
    second = Overheard(five.transport())
    following = hold(five, second_plan(five, outcome), second, opened_with(spoil(outcome.ahead)))
    assert second.stages == ["advertise", *CLASSICAL[five.terms.active]]
    np.testing.assert_allclose(following.summed.vector, [15.0, 15.0], atol=1e-2)


def test_a_further_attempt_has_fresh_keys(tmp_path):
    found = cohort(tmp_path, HONEST, mechanism=UploadNoise(1.0, 0.01))
    outcome, _ = first_round(found)
    names = list(found.clients)
    first = Overheard(found.transport(names[:3]))
    with pytest.raises(RoundAborted):
        hold(found, second_plan(found, outcome), first, opened_with(outcome.ahead))
    assert first.stages == ["share", "train"]
    second = Overheard(found.transport())
    # Whoever hands the next attempt the same keys is noticed: they are of another attempt.
    hold(found, second_plan(found, outcome, attempt=2), second, opened_with(outcome.ahead))
    assert second.stages == ["advertise", "share", "train", "unmask"]
    for name in names:
        told = decode_invitation(first.seen["share", name][0]).secure.roster
        announced = decode_relay(second.seen["share", name][0]).payload
        assert announced and announced != told


def opening(found: Cohort, outcome: RoundOutcome, name: str) -> Invitation:
    sent: dict[str, bytes] = {}

    class Silent:
        def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: Any) -> Any:
            sent.update(messages)
            return dict.fromkeys(messages, Dropout("silent"))

    with pytest.raises(RoundAborted):
        hold(found, second_plan(found, outcome), Silent(), opened_with(outcome.ahead))
    return decode_invitation(sent[name])


def test_the_same_last_message_gets_the_same_keys_and_another_one_none(five):
    outcome, heard = first_round(five)
    name = name_of(five)
    sent, said = heard.seen["unmask", name]
    assert five.remade(name).handle(sent) == said
    assert decode_disclosure(said).ahead == outcome.ahead[name]
    relay, before = decode_relay(sent), keys_kept(five.clients[name])
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


def test_keys_are_asked_for_with_the_last_message_only(tmp_path):
    """Of four messages each could bring a set, with other neighbours."""
    five = cohort(tmp_path, ACTIVE)
    plan, name = first_plan(five), name_of(five)
    seat = seat_of(plan.next_plan, 1)

    def early(client: str, message: bytes) -> bytes:
        return encode_relay(dataclasses.replace(decode_relay(message), ahead=seat))

    lying = Lying(five.transport(deaf=True), "confirm", early)
    with pytest.raises(RoundAborted):
        hold(five, plan, lying)
    assert ("confirm", name) not in lying.answers
    assert keys_kept(five.clients[name]) is None


def stranger(seat: SecureRound) -> SecureRound:
    others = (*seat.enrolled.identities[:-1], identity(99).public)
    enrolled = dataclasses.replace(seat.enrolled, identities=others)
    return dataclasses.replace(seat, enrolled=enrolled)


def lowered(seat: SecureRound) -> SecureRound:
    return dataclasses.replace(seat, terms=dataclasses.replace(seat.terms, threshold=3))


@pytest.mark.parametrize(
    "lies",
    [
        (stranger, lowered, lambda seat: dataclasses.replace(seat, index=6)),
        tuple(
            lambda seat, field=field: dataclasses.replace(seat, **field)
            for field in ({"clients": 4}, {"vector_length": 1}, {"ring_bits": 64})
        ),
    ],
    ids=["who", "what"],
)
def test_keys_for_terms_that_are_not_this_runs_are_refused(tmp_path, lies):
    """Three clients are each told another lie; two are told the truth, and answer."""
    found = cohort(tmp_path, ACTIVE)
    told = dict(zip(found.clients, lies, strict=False))

    def change(client: str, message: bytes) -> bytes:
        relay = decode_relay(message)
        lie = told.get(client, lambda seat: seat)
        return encode_relay(dataclasses.replace(relay, ahead=lie(relay.ahead)))

    lying = Lying(found.transport(deaf=True), "unmask", change)
    with pytest.raises(RoundAborted):
        hold(found, first_plan(found), lying)
    for name, client in found.clients.items():
        assert (("unmask", name) in lying.answers) == (name not in told)
        assert (keys_kept(client) is None) == (name in told)


def test_an_opening_with_another_roster_or_another_place_is_refused(five):
    """And changes nothing: the honest one is answered after them, once."""
    outcome, _ = first_round(five)
    name, client = name_of(five), five.clients[name_of(five)]
    honest, other = opening(five, outcome, name), opening(five, outcome, name_of(five, 2))
    seat, envelope = honest.secure, honest.envelope
    before = client._store.sessions.newest(RUN)
    seats = ({"roster": other.secure.roster}, {"roster": seat.roster[:-1]}, {"index": 2})
    places = ({"attempt": 2}, {"round_number": 3}, {"committed": (1, 2)})
    lies = [
        *(dataclasses.replace(honest, secure=dataclasses.replace(seat, **lie)) for lie in seats),
        *(dataclasses.replace(honest, envelope=dataclasses.replace(envelope, **p)) for p in places),
        dataclasses.replace(honest, secure=None),
    ]
    for lie in lies:
        with pytest.raises(ProtocolError):
            client.handle(encode_invitation(lie))
        assert client._store.sessions.newest(RUN) == before
    first, unasked = client.handle(encode_invitation(honest)), dataclasses.replace(seat, roster=b"")
    assert five.remade(name).handle(encode_invitation(honest)) == first
    for lie in (*lies[:2], dataclasses.replace(honest, secure=unasked)):
        with pytest.raises(ProtocolError):
            client.handle(encode_invitation(lie))


def test_who_refuses_an_opening_is_lost_for_that_round_only(five):
    outcome, _ = first_round(five)
    name = name_of(five)
    five.clients[name]._states.roll((1, 1))
    journal = opened_with(outcome.ahead)
    following = hold(five, second_plan(five, outcome), five.transport(deaf=True), journal)
    assert following.survivors == tuple(five.clients)[1:]
    np.testing.assert_allclose(following.summed.vector, [14.0, 14.0], atol=1e-2)
    committed = {**dict.fromkeys(following.survivors, (2, 1)), name: (1, 1)}
    third = dataclasses.replace(second_plan(five, following), round_number=3, committed=committed)
    ear = Overheard(five.transport())
    assert hold(five, third, ear).survivors == tuple(five.clients)
    assert ear.stages[0] == "advertise"


def test_keys_that_were_made_under_an_older_enrolment_are_not_used(tmp_path):
    found = cohort(tmp_path, ACTIVE)
    outcome, _ = first_round(found)
    name = name_of(found)
    message = encode_invitation(opening(found, outcome, name))
    newer = enrolled(list(found.clients)).revoke(name_of(found, 5))
    client = found.remade(name, credentials=Credentials(identity(1), newer))
    with pytest.raises(ProtocolError, match="older enrolment"):
        client.handle(message)


def test_a_client_without_budget_refuses_the_opening_and_not_the_keys(tmp_path):
    """Keys tell nothing and cost nothing; the round is priced before shares leave."""
    found = cohort(tmp_path, HONEST, mechanism=UploadNoise(1.0, 4.0))
    name = name_of(found)
    # Exactly one release of noise four times the clipping norm.
    one = gaussian_epsilon(4.0, 1) + 1e-6
    client = found.remade(name, limits=Limits(delta=1e-5, accountant="exact", target_epsilon=one))
    poor = dataclasses.replace(found, clients={**found.clients, name: client})
    outcome, _ = first_round(poor)
    assert outcome.ahead.keys() == set(poor.clients)
    before = client._store.sessions.newest(RUN)
    with pytest.raises(BudgetExhausted):
        client.handle(encode_invitation(opening(poor, outcome, name)))
    assert client._store.sessions.newest(RUN) == before
    journal = opened_with(outcome.ahead)
    following = hold(poor, second_plan(poor, outcome), poor.transport(deaf=True), journal)
    assert following.survivors == tuple(poor.clients)[1:]
    assert len(client._store.rows(RUN)) == 1


THREE = "rounds=3"
SEEDED = (THREE, "privacy.noise_source=seeded")


@dataclass
class Counted:
    """Counts the stages in which clients were waited for, by attempt, and keeps keys ahead."""

    inner: Transport
    waits: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    told: list[bytes] = field(default_factory=list)

    def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: Any) -> Any:
        if stage in ROUND_STAGES:
            place = peek(next(iter(messages.values())))[1]
            self.waits.setdefault((place.round_number, place.attempt), []).append(stage)
        replies = self.inner.exchange(stage, messages, deadline)
        if stage == "unmask":
            said = [reply for reply in replies.values() if isinstance(reply, bytes)]
            self.told += [decode_disclosure(reply).ahead for reply in said]
        return replies


def counted(simulation: Simulation) -> tuple[Simulation, Counted]:
    carrying = Counted(simulation.run.transport)
    return over(simulation, carrying), carrying


def run(folder, chosen, lost=frozenset()):
    storage = seam_storage(folder)
    with opened(storage.create(*chosen)) as simulation:
        lossy = losing(simulation, lambda n, *_: lost if n < 3 else frozenset(), "unmask")
        counting, carrying = counted(lossy)
        summary = execute(counting, SilentObserver())
    return Finished(storage, simulation.run_id, summary), carrying


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["semi_honest", "active"])
def test_keys_ahead_save_waits_and_change_no_number(tmp_path, adversary):
    """A quick test of waits is in `test_ledger_of_a_run.py`."""
    chosen = (*overrides("upload_noise", adversary, tmp_path), *SEEDED)
    ahead, usual = run(tmp_path / "ahead", chosen)
    fresh, held = run(tmp_path / "fresh", chosen, frozenset({"client-00000"}))
    waits = CLASSICAL[adversary == "active"]
    assert usual.waits == {(1, 1): ["advertise", *waits], (2, 1): waits, (3, 1): waits}
    keys = [each for each in usual.told if each]
    assert len(set(keys)) == len(keys) == 2 * CLIENTS
    assert usual.told[2 * CLIENTS :] == [b""] * CLIENTS
    assert held.waits[2, 1] == held.waits[3, 1] == ["advertise", *waits]
    for name, value in ahead.state().items():
        np.testing.assert_array_equal(value, fresh.state()[name])
    assert ahead.personal_parts() == fresh.personal_parts()
    assert ahead.survivors() == fresh.survivors()
    charges = "SELECT round_number, attempt, channel, status FROM ledger ORDER BY 1, 2, 3, 4"
    assert ahead.storage.rows(charges) == fresh.storage.rows(charges)


@pytest.mark.slow
def test_a_death_with_the_last_message_out_asks_for_the_very_same_keys(tmp_path, monkeypatch):
    storage = seam_storage(tmp_path / "torn")
    dying, first = counted(storage.create(*overrides("none", "active", tmp_path), THREE))
    run_id = crashed(monkeypatch, dying, Federation, "_commit", 1)
    with opened(storage.reopen(run_id)) as again:
        living, second = counted(again)
        execute(living, SilentObserver())
    assert second.waits[1, 1] == ["unmask"] and second.waits[2, 1] == CLASSICAL[True]
    assert first.told and second.told[:CLIENTS] == first.told


def following_of(simulation: Simulation, number: int, **config: Any) -> Any:
    held = simulation.run
    terms = dataclasses.replace(held.terms, config=held.terms.config.model_copy(update=config))
    attempts = Attempts(held, SilentObserver(), Spending(run=held))
    changed = dataclasses.replace(attempts, run=dataclasses.replace(held, terms=terms))
    return changed._draw(number, 1).plan.get("following")


def test_none_are_asked_for_where_the_next_cohort_is_another_or_a_secret(tmp_path, monkeypatch):
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        config = simulation.run.terms.config
        names = sorted(simulation.population.clients)
        assert following_of(simulation, 1) == {"cohort": names, "graph_seed": ""}
        assert following_of(simulation, 3) is None
        six = config.cohort.model_copy(update={"size": 6})
        others = [following_of(simulation, 1, cohort=six, seed=seed) for seed in range(12)]
        # Six of seven are the same six again by one chance in seven.
        assert None in others
        assert all(each is None or len(each["cohort"]) == 6 for each in others)
        monkeypatch.setattr(type(config), "has_secret_cohorts", property(lambda self: True))
        assert following_of(simulation, 1) is None
