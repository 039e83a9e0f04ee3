"""What clients are sent, encoded once for all who are told alike.

A broadcast is the same for all clients of most methods, and may be megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from methods import Arrays
from platform.protection.uploads import Protection
from platform.rounds.masked_sum import seat_of
from platform.rounds.plan import RoundPlan
from platform.wire.envelopes import Attempt
from platform.wire.messages import (
    Assignment,
    Invitation,
    encode_assignment,
    encode_invitation,
)
from platform.wire.transport import ClientId


def invitations(
    plan: RoundPlan, protection: Protection, clients: Iterable[ClientId]
) -> dict[ClientId, bytes]:
    """Return what invites each of these clients.

    Args:
        plan: The attempt.
        protection: How uploads are protected in it.
        clients: Some of the cohort.
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
            invitation = Invitation(envelope, facts.generations, seat, facts.clipping_norm)
            message = encode_invitation(invitation)
            if seat is None:
                alike[envelope.committed] = message
        messages[client] = message
    return messages


def assignments(
    plan: RoundPlan,
    payloads: Mapping[ClientId, bytes],
    broadcasts: Callable[[ClientId], Arrays],
    experts: Callable[[ClientId], tuple[Arrays, ...]],
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
        told = Assignment(plan.envelope(client), payload, broadcasts(client), experts(client))
        key = (told.envelope, payload, _which(told.broadcast), tuple(map(_which, told.experts)))
        if key not in alike:
            # With the message its arrays are kept, so that no others can take their places.
            alike[key] = told, encode_assignment(told)
        messages[client] = alike[key][1]
    return messages


def _which(arrays: Arrays) -> Hashable:
    """Return which arrays these are; equal ones that are others count as others."""
    return tuple([(name, id(array)) for name, array in arrays.items()])
