"""Rounds against a server that lies: exact where it is honest, refused by the clients where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from platform.contract.driving import quick_folder
from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.parties.identities import client_names
from platform.protection.secure_terms import SecureTerms
from platform.protection.sums import round_parameters
from platform.rounds.runner import seat_of
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
from platform.wire.transport import Transport
from privacy import PrivacyError
from privacy.secure_aggregation import Credentials, Enrolment, Identity, RoundParameters
from privacy.secure_aggregation.messages import decode_survivors, encode_survivors
from tests._plans import changed
from tests.trunk._secure import RUN, Cohort, Lying, cohort, enrolled, identity

FIVE = SecureTerms(clients=5, active=True, threshold=4, smallest_sum=4, corrupt=1)
SIX = SecureTerms(clients=6, active=True, threshold=5, smallest_sum=6, corrupt=1)
"""Stricter than the protocol asks of six clients, so that only the run's terms refuse less."""

NAMES = client_names(5)
REFUSALS = (PlatformError, PrivacyError)
STEP = 2 * 256.0 / (2**20 - 1)


@pytest.fixture
def stores() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


def require_sum(found: Cohort, *numbers: int, transport: Transport | None = None) -> None:
    """The round opens exactly this sum, within half a step of the grid a client."""
    outcome = found.run(transport)
    np.testing.assert_allclose(outcome.summed.vector, sum(numbers), atol=len(numbers) * STEP / 2)


# --- an honest coordinator ------------------------------------------------------------------------


def test_the_sum_is_exact(stores: Path) -> None:
    found = cohort(stores, FIVE)
    require_sum(found, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("stage", "numbers"),
    [
        ("advertise", (1, 2, 4, 5)),
        ("share", (1, 2, 4, 5)),
        ("train", (1, 2, 4, 5)),
        ("confirm", (1, 2, 3, 4, 5)),
        ("unmask", (1, 2, 3, 4, 5)),
    ],
)
def test_one_may_be_lost_at_any_stage(stores: Path, stage: str, numbers: tuple[int, ...]) -> None:
    found = cohort(stores, FIVE)
    require_sum(found, *numbers, transport=found.transport(NAMES[2:3], stage))


@pytest.mark.parametrize(
    ("stage", "phase", "asked"),
    [
        ("advertise", "advertise_keys", False),
        ("share", "share_keys", False),
        ("train", "masked_input", True),
        ("confirm", "consistency_check", True),
        ("unmask", "unmasking", True),
    ],
)
def test_two_lost_abort_and_name_the_phase(
    stores: Path, stage: str, phase: str, asked: bool
) -> None:
    found = cohort(stores, FIVE)
    with pytest.raises(RoundAborted) as caught:
        found.run(found.transport(NAMES[:2], stage))
    assert (caught.value.phase, caught.value.uploads_asked) == (phase, asked)


def test_nobody_is_asked_for_shares_before_the_list_is_agreed_on(stores: Path) -> None:
    found = cohort(stores, FIVE)
    transport = Lying(found.transport(NAMES[:2], "confirm"), "confirm", lambda _, message: message)
    with pytest.raises(RoundAborted):
        found.run(transport)
    assert {stage for stage, _ in transport.answers} == {"advertise", "share", "train", "confirm"}


# --- a coordinator that lies in its invitations ---------------------------------------------------

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
    "an identity is missing": lambda s: changed(s, identities=s.enrolled.identities[:-1]),
    "an identity is there twice": lambda s: changed(
        s, identities=(*s.enrolled.identities[:-1], s.enrolled.identities[0])
    ),
    "no identities: a downgrade": with_numbers(identities=()),
    "no masks at all": lambda seat: None,
    "a lower threshold": with_numbers(threshold=4),
    "a lower smallest sum": with_numbers(smallest_sum=5),
    "no smallest sum": with_numbers(smallest_sum=0),
    "fewer that may collude": with_numbers(corrupt=0),
    "a thinner graph": with_numbers(degree=2, graph_seed=bytes(32)),
    "a thinner graph and no identities": with_numbers(
        degree=2, graph_seed=bytes(32), identities=(), threshold=2, corrupt=0
    ),
    "a smaller cohort": lambda s: changed(
        s, clients=5, identities=s.enrolled.identities[:5], smallest_sum=5
    ),
    "a longer vector": with_numbers(vector_length=3),
    "a wider ring": with_numbers(ring_bits=64),
    "another seat": with_numbers(index=2),
}


def told(lie: Lie, victim: str) -> Callable[[str, bytes], bytes]:
    """One client's invitation, as the lie has it."""

    def change(client: str, message: bytes) -> bytes:
        honest = decode_invitation(message)
        assert honest.secure is not None
        if client != victim:
            return message
        return encode_invitation(
            Invitation(honest.envelope, honest.generations, lie(honest.secure))
        )

    return change


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_an_invitation_is_refused(stores: Path, name: str) -> None:
    found = cohort(stores, SIX)
    victim = client_names(6)[0]
    transport = Lying(found.transport(), "advertise", told(LIES[name], victim))
    with pytest.raises(REFUSALS):
        found.run(transport)
    assert ("advertise", victim) not in transport.answers
    assert found.clients[victim]._store.sessions.newest(RUN) is None


def test_the_terms_of_the_lies_are_met_by_the_truth(stores: Path) -> None:
    require_sum(cohort(stores, SIX), *range(1, 7))


@pytest.mark.parametrize("name", ["a lower threshold", "a lower smallest sum"])
def test_terms_bind_a_semi_honest_coordinator_too(stores: Path, name: str) -> None:
    found = cohort(stores, dataclasses.replace(SIX, active=False))
    transport = Lying(found.transport(), "advertise", told(LIES[name], client_names(6)[0]))
    with pytest.raises(ProtocolError, match="the terms of the secure sum are not this run's"):
        found.run(transport)


# --- credentials ----------------------------------------------------------------------------------


def own(number: int, known: Enrolment) -> Credentials:
    return Credentials(identity(number), known)


@pytest.mark.parametrize(
    "credentials",
    [
        own(99, enrolled(NAMES)),
        own(2, enrolled(NAMES)),
        own(1, enrolled(NAMES).revoke(NAMES[4])),
        own(1, enrolled(NAMES).rotate(NAMES[4], identity(77).public)),
        own(1, enrolled(NAMES[:4])),
        own(1, Enrolment()),
        Credentials(identity(1), enrolled(NAMES), corrupt_rate=0.4),
    ],
    ids=[
        "a key nobody enrolled",
        "another's key",
        "a peer was revoked",
        "a peer has another key now",
        "a peer was never enrolled",
        "nobody is enrolled",
        "it insists on more that collude",
    ],
)
def test_a_client_answers_only_where_its_own_enrolment_agrees(
    stores: Path, credentials: Credentials
) -> None:
    """The coordinator goes by the honest enrolment; the first client has another view."""
    honest = cohort(stores / "honest", FIVE)
    odd = cohort(stores / "odd", FIVE, credentials={NAMES[0]: credentials})
    mixed = dataclasses.replace(honest, clients={**honest.clients, NAMES[0]: odd.clients[NAMES[0]]})
    transport = Lying(mixed.transport(), "advertise", lambda _, message: message)
    with pytest.raises(ProtocolError, match="message: the invitation is not valid"):
        honest.run(transport)
    assert ("advertise", NAMES[0]) not in transport.answers


def keys(found: Cohort) -> tuple[bytes, ...]:
    return found.plan.secure.enrolled(found.plan.cohort).identities


def test_a_client_without_credentials_takes_part_in_no_active_round(stores: Path) -> None:
    found = cohort(stores, FIVE)
    bare = cohort(stores / "bare", FIVE, credentials={NAMES[0]: None}).clients[NAMES[0]]
    invitations: dict[str, bytes] = {}

    def keep(client: str, message: bytes) -> bytes:
        invitations[client] = message
        return message

    found.run(Lying(found.transport(), "advertise", keep))
    with pytest.raises(ProtocolError, match="credentials are missing"):
        bare.handle(invitations[NAMES[0]])


# --- a coordinator with two lists of survivors ----------------------------------------------------


def parameters_of(found: Cohort) -> RoundParameters:
    plan = found.plan
    seat = seat_of(plan, 1)
    return round_parameters(plan.envelope(plan.cohort[0]), seat)


def survivors_without(found: Cohort, dropped: int) -> Callable[[str, bytes], bytes]:
    """The list of survivors as if one more client had been lost."""
    parameters, places = parameters_of(found), {n: i for i, n in enumerate(found.plan.cohort, 1)}

    def change(client: str, message: bytes) -> bytes:
        relay = decode_relay(message)
        listed = decode_survivors(parameters, places[client], relay.payload)
        fewer = tuple(i for i in listed if i != dropped)
        return encode_relay(
            Relay(relay.envelope, encode_survivors(parameters, places[client], fewer))
        )

    return change


@pytest.mark.parametrize("told_otherwise", [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_two_lists_of_survivors_open_no_two_sums(
    stores: Path, told_otherwise: tuple[int, ...]
) -> None:
    """Some clients are told that the last one is gone; whoever is enough, one list at most opens.

    Both lists would need four signatures of five clients.
    """
    found = cohort(stores, FIVE)
    without = survivors_without(found, 5)
    victims = {NAMES[i] for i in told_otherwise}

    def lie(client: str, message: bytes) -> bytes:
        return without(client, message) if client in victims else message

    transport = Lying(found.transport(), "confirm", lie, deaf=REFUSALS)
    if len(victims) == 1:
        require_sum(found, 1, 2, 3, 4, 5, transport=transport)
    else:
        with pytest.raises(RoundAborted):
            found.run(transport)
    shown = {client for stage, client in transport.answers if stage == "unmask"}
    assert not shown & victims
    assert not shown or len(victims) == 1


def test_a_second_list_after_the_first_was_signed_is_refused(stores: Path) -> None:
    """In place of the confirmations everybody is shown the other list."""
    found = cohort(stores, FIVE)
    without, lists = survivors_without(found, 5), {}

    def keep(client: str, message: bytes) -> bytes:
        lists[client] = message
        return message

    first = Lying(found.transport(), "confirm", keep)
    second = Lying(first, "unmask", lambda client, _: without(client, lists[client]), deaf=REFUSALS)
    with pytest.raises(RoundAborted) as caught:
        found.run(second)
    assert caught.value.phase == "unmasking"
    assert not any(stage == "unmask" for stage, _ in second.answers)


def test_shares_are_shown_once(stores: Path) -> None:
    """The same request gets the same bytes, whichever it was; other confirmations get none."""
    found, seen, lists = cohort(stores, FIVE), {}, {}

    def keep(client: str, message: bytes) -> bytes:
        seen[client] = message
        return message

    def list_kept(client: str, message: bytes) -> bytes:
        lists[client] = message
        return message

    first = Lying(found.transport(), "confirm", list_kept)
    transport = Lying(first, "unmask", keep)
    found.run(transport)
    for client, message in seen.items():
        assert found.clients[client].handle(message) == transport.answers["unmask", client]
        relay = decode_relay(message)
        changed = encode_relay(dataclasses.replace(relay, payload=relay.payload + b"\0"))
        with pytest.raises(ProtocolError, match="not what this client awaits"):
            found.clients[client].handle(changed)
        assert found.clients[client].handle(lists[client]) == first.answers["confirm", client]


def test_no_answer_before_the_shares_carries_them(stores: Path) -> None:
    """What confirms a list is a relay, not the message with shares and pool entry."""
    found = cohort(stores, FIVE)
    transport = Lying(found.transport(), "unmask", lambda _, message: message)
    found.run(transport)
    for client in NAMES:
        decode_relay(transport.answers["confirm", client])
        with pytest.raises(ProtocolError):
            decode_disclosure(transport.answers["confirm", client])
        assert isinstance(decode_disclosure(transport.answers["unmask", client]), Disclosure)


class Impostor(Identity):
    """Signs with its own key and says that it is another's."""

    def __init__(self, private: bytes, claimed: bytes) -> None:
        super().__init__(private)
        self.public = claimed


def test_who_signs_with_another_key_is_a_dropout(stores: Path) -> None:
    """Whoever answers in a client's name without its key is not in the sum."""
    impostor = Impostor(bytes([88]) * 32, identity(1).public)
    found = cohort(stores, FIVE, credentials={NAMES[0]: Credentials(impostor, enrolled(NAMES))})
    transport = Lying(found.transport(), "advertise", lambda _, message: message)
    require_sum(found, 2, 3, 4, 5, transport=transport)
    assert ("advertise", NAMES[0]) in transport.answers
    assert ("share", NAMES[0]) not in transport.answers
