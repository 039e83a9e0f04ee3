"""What clients are sent, encoded once for all who are told alike.

A broadcast is the same for all clients of most methods, and may be megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace

from methods import Arrays
from platform.protection.uploads import Protection
from platform.rounds.masked_sum import seat_of
from platform.rounds.plan import RoundPlan
from platform.wire.codec import Attempt
from platform.wire.messages import (
    Assignment,
    Invitation,
    Relay,
    encode_assignment,
    encode_invitation,
    encode_relay,
)
from platform.wire.transport import ClientId


def invitations(
    plan: RoundPlan,
    protection: Protection,
    clients: Iterable[ClientId],
    rosters: Mapping[ClientId, bytes] | None = None,
) -> dict[ClientId, bytes]:
    """Return what invites each of these clients.

    Args:
        plan: The attempt.
        protection: How uploads are protected in it.
        clients: Some of the cohort.
        rosters: By client everybody's keys, where they were made ahead; else keys are asked for.
    """
    facts, places = plan.facts, plan.places
    alike: dict[Attempt | None, bytes] = {}
    messages: dict[ClientId, bytes] = {}
    for client in clients:
        envelope = plan.envelope(client)
        message = alike.get(envelope.committed)
        if message is None:
            # A seat is one client's own.
            seat = seat_of(protection, plan, places[client]) if protection.masked else None
            if seat is not None and rosters is not None:
                seat = replace(seat, roster=rosters[client])
            invitation = Invitation(envelope, facts.generations, seat, facts.clipping_norm)
            message = encode_invitation(invitation)
            if seat is None:
                alike[envelope.committed] = message
        messages[client] = message
    return messages


def last_relays(
    plan: RoundPlan, protection: Protection, payloads: Mapping[ClientId, bytes]
) -> dict[ClientId, bytes]:
    """Return a masked round's last messages, which ask for keys ahead where everybody can be asked.

    Args:
        plan: The attempt.
        protection: How uploads are protected in it, and in the next round.
        payloads: By client, what the secure aggregation sends it.
    """
    following = plan.next_plan
    places: Mapping[ClientId, int] = {}
    # Keys of some are of no use, and those of who is missing here cannot be had.
    if following is not None and payloads.keys() >= set(following.cohort):
        places = following.places
    messages: dict[ClientId, bytes] = {}
    for client, payload in payloads.items():
        seat = None
        if following is not None and client in places:
            seat = seat_of(protection, following, places[client])
        messages[client] = encode_relay(Relay(plan.envelope(client), payload, seat))
    return messages


def assignments(
    plan: RoundPlan,
    payloads: Mapping[ClientId, bytes],
    broadcasts: Callable[[ClientId], Arrays],
    experts: Mapping[ClientId, tuple[Arrays, ...]],
) -> dict[ClientId, bytes]:
    """Return what each client is to train from.

    Args:
        plan: The attempt.
        payloads: By client, what the secure aggregation sends it; empty bytes without one.
        broadcasts: What each is sent.
        experts: What each is handed.
    """
    alike: dict[Hashable, tuple[Assignment, bytes]] = {}
    messages: dict[ClientId, bytes] = {}
    for client, payload in sorted(payloads.items()):
        told = Assignment(plan.envelope(client), payload, broadcasts(client), experts[client])
        key = (told.envelope, payload, _which(told.broadcast), tuple(map(_which, told.experts)))
        if key not in alike:
            # With the message its arrays are kept, so that no others can take their places.
            alike[key] = told, encode_assignment(told)
        messages[client] = alike[key][1]
    return messages


def _which(arrays: Arrays) -> Hashable:
    """Return which arrays these are; equal ones that are others count as others."""
    return tuple([(name, id(array)) for name, array in arrays.items()])
