"""Rounds against a server that lies: exact where it is honest, refused by the clients where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.parties.identities import client_names
from platform.protection.sums import SecureTerms, round_parameters
from platform.rounds.runner import seat_of
from platform.wire.messages import (
    Invitation,
    Relay,
    SecureRound,
    decode_invitation,
    decode_relay,
    encode_invitation,
    encode_relay,
)
from platform.wire.transport import Transport
from privacy import PrivacyError
from privacy.secure_aggregation import Credentials, Enrolment
from privacy.secure_aggregation.messages import decode_survivors, encode_survivors
from tests._plans import changed
from tests.trunk._ahead import Overheard
from tests.trunk._secure import RUN, Cohort, Lying, cohort, enrolled, identity

FIVE = SecureTerms(clients=5, active=True, threshold=4, smallest_sum=4, corrupt=1)
SIX = SecureTerms(clients=6, active=True, threshold=5, smallest_sum=6, corrupt=1)
"""Stricter than the protocol asks of six clients, so that only the run's terms refuse less."""

NAMES = client_names(5)
REFUSALS = (PlatformError, PrivacyError)
STEP = 2 * 256.0 / (2**20 - 1)


def require_sum(found: Cohort, *numbers: int, transport: Transport | None = None) -> None:
    outcome = found.run(transport)
    np.testing.assert_allclose(outcome.summed.vector, sum(numbers), atol=len(numbers) * STEP / 2)


@pytest.mark.parametrize(
    ("stage", "numbers"),
    [("share", (1, 2, 4, 5)), ("train", (1, 2, 4, 5)), ("confirm", (1, 2, 3, 4, 5))],
)
def test_one_may_be_lost_at_any_stage(stores: Path, stage: str, numbers: tuple[int, ...]) -> None:
    found = cohort(stores, FIVE)
    require_sum(found, *numbers, transport=found.transport(NAMES[2:3], stage))


def test_two_who_do_not_confirm_the_list_leave_nobody_asked_for_shares(stores: Path) -> None:
    found = cohort(stores, FIVE)
    transport = Lying(found.transport(NAMES[:2], "confirm"), "confirm", lambda _, message: message)
    with pytest.raises(RoundAborted) as caught:
        found.run(transport)
    assert (caught.value.phase, caught.value.uploads_asked) == ("consistency_check", True)
    assert {stage for stage, _ in transport.answers} == {"advertise", "share", "train", "confirm"}


Lie = Callable[[SecureRound], SecureRound | None]


def swapped(seat: SecureRound) -> SecureRound:
    first, second, *others = seat.enrolled.identities
    return changed(seat, identities=(second, first, *others))


def stranger(seat: SecureRound) -> SecureRound:
    keys = (*seat.enrolled.identities[:-1], identity(99).public)
    return changed(seat, identities=keys)


def with_numbers(**numbers: object) -> Lie:
    return lambda seat: changed(seat, **numbers)


LIES: dict[str, Lie] = {
    "its own seat has the key of another": swapped,
    "another seat has a key that nobody enrolled": stranger,
    "no identities: a downgrade": with_numbers(identities=()),
    "no masks at all": lambda seat: None,
    "a lower threshold": with_numbers(threshold=4),
    "a thinner graph": with_numbers(degree=2, graph_seed=bytes(32)),
    "a lower smallest sum": with_numbers(smallest_sum=5),
    "fewer that may collude": with_numbers(corrupt=0),
    "a longer vector": with_numbers(vector_length=3),
    "a wider ring": with_numbers(ring_bits=64),
    "another seat": with_numbers(index=2),
}


def told(lie: Lie, victim: str) -> Callable[[str, bytes], bytes]:
    def change(client: str, message: bytes) -> bytes:
        honest = decode_invitation(message)
        assert honest.secure is not None
        if client != victim:
            return message
        secure = lie(honest.secure)
        return encode_invitation(Invitation(honest.envelope, honest.generations, secure))

    return change


def test_a_lie_in_an_invitation_is_refused(stores: Path) -> None:
    found = cohort(stores, SIX)
    victim = client_names(6)[0]
    for name, lie in LIES.items():
        transport = Lying(found.transport(), "advertise", told(lie, victim))
        with pytest.raises(REFUSALS):
            found.run(transport)
        assert ("advertise", victim) not in transport.answers, name
        assert found.clients[victim]._store.sessions.newest(RUN) is None, name
    # The truth is answered after them.
    require_sum(found, *range(1, 7))


def test_terms_bind_a_semi_honest_coordinator_too(stores: Path) -> None:
    found = cohort(stores, dataclasses.replace(SIX, active=False))
    lie = told(LIES["a lower threshold"], client_names(6)[0])
    transport = Lying(found.transport(), "advertise", lie)
    with pytest.raises(ProtocolError, match="terms of the secure"):
        found.run(transport)


def own(number: int, known: Enrolment) -> Credentials:
    return Credentials(identity(number), known)


OTHER_VIEWS = {
    "a key nobody enrolled": own(99, enrolled(NAMES)),
    "a peer was revoked": own(1, enrolled(NAMES).revoke(NAMES[4])),
    "a peer has another key now": own(1, enrolled(NAMES).rotate(NAMES[4], identity(77).public)),
    "it insists on more that collude": Credentials(identity(1), enrolled(NAMES), corrupt_rate=0.4),
}


@pytest.mark.parametrize("credentials", OTHER_VIEWS.values(), ids=OTHER_VIEWS)
def test_a_client_answers_only_where_its_own_enrolment_agrees(stores, credentials):
    honest = cohort(stores / "honest", FIVE)
    odd = cohort(stores / "odd", FIVE, credentials={NAMES[0]: credentials})
    mixed = dataclasses.replace(honest, clients={**honest.clients, NAMES[0]: odd.clients[NAMES[0]]})
    transport = Lying(mixed.transport(), "advertise", lambda _, message: message)
    with pytest.raises(ProtocolError, match="invitation is not valid"):
        honest.run(transport)
    assert ("advertise", NAMES[0]) not in transport.answers


def test_a_client_without_credentials_takes_part_in_no_active_round(stores: Path) -> None:
    found = cohort(stores, FIVE)
    bare = cohort(stores / "bare", FIVE, credentials={NAMES[0]: None}).clients[NAMES[0]]
    ear = Overheard(found.transport())
    found.run(ear)
    with pytest.raises(ProtocolError, match="credentials are missing"):
        bare.handle(ear.seen["advertise", NAMES[0]][0])


def survivors_without(found: Cohort, dropped: int) -> Callable[[str, bytes], bytes]:
    plan = found.plan
    parameters = round_parameters(plan.envelope(plan.cohort[0]), seat_of(plan, 1))

    def change(client: str, message: bytes) -> bytes:
        relay = decode_relay(message)
        listed = decode_survivors(parameters, plan.places[client], relay.payload)
        fewer = tuple(i for i in listed if i != dropped)
        payload = encode_survivors(parameters, plan.places[client], fewer)
        return encode_relay(Relay(relay.envelope, payload))

    return change


@pytest.mark.parametrize("count", [1, 2, 4])
def test_two_lists_of_survivors_open_no_two_sums(stores: Path, count: int) -> None:
    """Some are told that the last one is gone; both lists would need four signatures of five."""
    found = cohort(stores, FIVE)
    without = survivors_without(found, 5)
    victims = set(NAMES[:count])

    def lie(client: str, message: bytes) -> bytes:
        return without(client, message) if client in victims else message

    transport = Lying(found.transport(), "confirm", lie, deaf=REFUSALS)
    if count == 1:
        require_sum(found, 1, 2, 3, 4, 5, transport=transport)
    else:
        with pytest.raises(RoundAborted):
            found.run(transport)
    shown = {client for stage, client in transport.answers if stage == "unmask"}
    assert not shown & victims
    assert bool(shown) == (count == 1)
