"""How an attempt begins: clients are invited, say their keys and deal their shares.

Where all keys were made ahead, with the last message of the round before, the advertise stage is
not held: the invitation goes out with everybody's keys, and what comes back are shares. All or
none: if one client's keys are missing or not valid everybody is asked for fresh ones, so that no
attempt has keys of two ages, and who was lost in one round is waited for in the next as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from methods import Arrays
from platform.errors import ProtocolError
from platform.rounds.exchange import Exchange
from platform.rounds.journal import AHEAD, StageResult, decode_keys
from platform.rounds.masked_sum import MaskedSum
from platform.rounds.telling import invitations
from platform.wire.messages import Answer, Relay, Stage, decode_answer, decode_relay
from platform.wire.transport import ClientId
from privacy import PrivacyError

Rosters = Mapping[ClientId, bytes]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Who takes part in an attempt.

    Attributes:
        exchange: The attempt's talk with its clients.
        relays: By client that is there, what the secure aggregation sends it with its assignment;
            empty bytes without one.
        secure: The secure sum, None without one.
        rosters: By client everybody's keys, if all were made ahead.
        heard: By client, the names of its own pool entries; empty where a life before this one
            of the coordinator heard them.
    """

    exchange: Exchange
    relays: Mapping[ClientId, bytes]
    secure: MaskedSum | None = None
    rosters: Rosters | None = None
    heard: Mapping[ClientId, tuple[bytes, ...]] = field(default_factory=dict)

    def handles(self) -> Mapping[ClientId, tuple[bytes, ...]]:
        """Return the names of each client's own pool entries, asked for again where need be."""
        if self.heard or not self.exchange.plan.facts.generations:
            return self.heard
        stage: Stage = "advertise" if self.rosters is None else "share"
        answers = self.exchange.again(
            stage, _invitations(self.exchange, self.relays, self.rosters), decode_answer
        )
        return {client: answer.handles for client, answer in answers.items()}


def join(exchange: Exchange, broadcast: Callable[[], Arrays]) -> Joined:
    """Invite an attempt's clients, or go on where that was interrupted.

    Args:
        exchange: The attempt's talk with its clients.
        broadcast: What all clients are sent alike, asked for under secure aggregation only.

    Raises:
        PrivacyError: If too few clients are left.
    """
    if not exchange.protection.masked:
        result = exchange.settled("advertise", lambda: _advertise(exchange, None))
        return Joined(exchange=exchange, relays=result.relays, heard=result.handles)
    start = MaskedSum.start(exchange.protection, exchange.plan, broadcast())
    ahead = _made_ahead(exchange, start)
    if ahead is not None:
        secure, rosters = ahead
        result = exchange.settled("share", lambda: _share_at_once(exchange, secure, rosters))
        return _dealt(exchange, start, result, rosters=rosters, heard=result.handles)
    told = exchange.settled("advertise", lambda: _advertise(exchange, start))
    at = start.at(told.state)
    result = exchange.settled("share", lambda: _share(exchange, at, told.relays))
    return _dealt(exchange, start, result, heard=told.handles)


def _dealt(
    exchange: Exchange,
    start: MaskedSum,
    result: StageResult,
    *,
    rosters: Rosters | None = None,
    heard: Mapping[ClientId, tuple[bytes, ...]],
) -> Joined:
    return Joined(
        exchange=exchange,
        relays=result.relays,
        secure=start.at(result.state),
        rosters=rosters,
        heard=heard,
    )


def _made_ahead(exchange: Exchange, start: MaskedSum) -> tuple[MaskedSum, Rosters] | None:
    """Return the secure sum and everybody's keys if all of them were made ahead and are valid.

    A function of what is kept: whoever goes on with the attempt comes to the same.
    """
    kept = exchange.journal.stage(AHEAD)
    if kept is None:
        return None
    try:
        secure, rosters = start.advance(decode_keys(kept))
    except (PrivacyError, ProtocolError, KeyError):
        return None
    return (secure, rosters) if rosters.keys() == set(exchange.plan.cohort) else None


def _advertise(exchange: Exchange, start: MaskedSum | None) -> StageResult:
    invited = _invitations(exchange, exchange.plan.places)
    answers = exchange("advertise", invited, decode_answer)
    handles = _handles(answers)
    if start is None:
        return StageResult(relays=dict.fromkeys(answers, b""), handles=handles)
    secure, relays = start.advance({c: a.payload for c, a in answers.items()})
    return StageResult(relays=relays, state=secure.encode(), handles=handles)


def _share(exchange: Exchange, secure: MaskedSum, rosters: Rosters) -> StageResult:
    return _deal(secure, exchange("share", exchange.relays(rosters), decode_relay))


def _share_at_once(exchange: Exchange, secure: MaskedSum, rosters: Rosters) -> StageResult:
    invited = _invitations(exchange, rosters, rosters)
    answers = exchange("share", invited, decode_answer)
    return _deal(secure, answers, _handles(answers))


def _deal(
    secure: MaskedSum,
    answers: Mapping[ClientId, Answer] | Mapping[ClientId, Relay],
    handles: Mapping[ClientId, tuple[bytes, ...]] | None = None,
) -> StageResult:
    following, relays = secure.advance({c: a.payload for c, a in answers.items()})
    return StageResult(relays=relays, state=following.encode(), handles=handles or {})


def _handles(answers: Mapping[ClientId, Answer]) -> dict[ClientId, tuple[bytes, ...]]:
    return {client: answer.handles for client, answer in answers.items()}


def _invitations(
    exchange: Exchange, clients: Mapping[ClientId, object], rosters: Rosters | None = None
) -> dict[ClientId, bytes]:
    return invitations(exchange.plan, exchange.protection, clients, rosters)
