"""The server's side of one secure aggregation (Bonawitz et al. 2017, figure 4).

    start -> CollectingKeys --> CollectingShares --> CollectingMasked
          [-> CollectingConfirmations] --> CollectingUnmasking --> Finished

The step in brackets exists against an active adversary only.
The driver sends what a step returns, collects answers until its deadline and gives all of them to
the next step. A client that is missing, late or sends anything but its one valid message has
dropped out at that phase; malformed messages are listed in the state as `refused`. With fewer than
the threshold left, in all or among the holders of one client's shares, a step raises
`ThresholdNotMet` and nothing is opened. The sum is exact or it is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeVar, overload

import numpy as np

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation.envelope import refusal
from privacy.secure_aggregation.faults import TooFewLeft
from privacy.secure_aggregation.keys import PublicKeys, is_usable
from privacy.secure_aggregation.masking import Words, word_type
from privacy.secure_aggregation.messages import (
    Dealing,
    ForwardedShares,
    Revealed,
    ShareType,
    decode_advertised_keys,
    decode_confirmed_survivors,
    decode_dealt_shares,
    decode_masked_input,
    decode_revealed_shares,
    encode_confirmations,
    encode_forwarded_shares,
    encode_roster,
    encode_survivors,
)
from privacy.secure_aggregation.parameters import Phase, RoundParameters
from privacy.secure_aggregation.recovery import open_sum
from privacy.secure_aggregation.states import (
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Dealt,
    Finished,
    Refusal,
    ServerState,
)

_Body = TypeVar("_Body")


def start(parameters: RoundParameters) -> CollectingKeys:
    """Return the state that waits for every invited client's public keys."""
    return CollectingKeys(parameters)


@overload
def step(
    state: CollectingKeys, messages: Mapping[int, bytes]
) -> tuple[CollectingShares, Mapping[int, bytes]]: ...
@overload
def step(
    state: CollectingShares, messages: Mapping[int, bytes]
) -> tuple[CollectingMasked, Mapping[int, bytes]]: ...
@overload
def step(
    state: CollectingMasked, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking | CollectingConfirmations, Mapping[int, bytes]]: ...
@overload
def step(
    state: CollectingConfirmations, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking, Mapping[int, bytes]]: ...
@overload
def step(
    state: CollectingUnmasking, messages: Mapping[int, bytes]
) -> tuple[Finished, Mapping[int, bytes]]: ...
@overload
def step(
    state: ServerState, messages: Mapping[int, bytes]
) -> tuple[ServerState, Mapping[int, bytes]]: ...
def step(
    state: ServerState, messages: Mapping[int, bytes]
) -> tuple[ServerState, Mapping[int, bytes]]:
    """Take the answers of one phase.

    Args:
        state: Any state but `Finished`.
        messages: For each client that answered, by the share index under which the transport
            knows it, the bytes it sent.

    Returns:
        The next state, and for each client that is still in the round the message to send it.
        After the last phase there is nothing to send.

    Raises:
        ThresholdNotMet: If too few valid answers came, as `TooFewLeft`, which names the phase and
            the clients whose messages were refused.
        InvalidShare: If revealed shares do not rebuild what a client published, as `FaultyShares`,
            which names who lied where that is known; no sum is given.
        ProtocolViolation: If the round is finished already.
    """
    match state:
        case CollectingKeys():
            return _publish_roster(state, messages)
        case CollectingShares():
            return _forward_shares(state, messages)
        case CollectingMasked():
            return _add_up(state, messages)
        case CollectingConfirmations():
            return _confirm(state, messages)
        case CollectingUnmasking():
            return _unmask(state, messages), MappingProxyType({})
        case _:
            raise refusal()


def _publish_roster(
    state: CollectingKeys, messages: Mapping[int, bytes]
) -> tuple[CollectingShares, Mapping[int, bytes]]:
    parameters = state.parameters
    seen: set[bytes] = set()

    def read(client: int, message: bytes) -> PublicKeys:
        keys = decode_advertised_keys(parameters, client, message)
        both = {keys.channel, keys.mask}
        # One unusable or repeated key would make every other client refuse the roster.
        if len(both) < 2 or both & seen or not all(map(is_usable, both)):
            raise refusal()
        seen.update(both)
        return keys

    roster, refused = _collect(messages, parameters.invited, read, Phase.ADVERTISE_KEYS)
    _require_enough(parameters, roster, refused, Phase.ADVERTISE_KEYS)
    outgoing = {
        client: encode_roster(parameters, client, _held_by(parameters, client, roster))
        for client in roster
    }
    return CollectingShares(parameters, MappingProxyType(roster), refused), outgoing


def _forward_shares(
    state: CollectingShares, messages: Mapping[int, bytes]
) -> tuple[CollectingMasked, Mapping[int, bytes]]:
    parameters, roster = state.parameters, state.roster

    def read(client: int, message: bytes) -> Dealing:
        dealing = decode_dealt_shares(parameters, client, message)
        if dealing.boxes.keys() != _held_by(parameters, client, roster).keys() - {client}:
            raise refusal()
        return dealing

    dealings, new = _collect(messages, roster, read, Phase.SHARE_KEYS)
    refused = state.refused + new
    _require_enough(parameters, dealings, refused, Phase.SHARE_KEYS)
    dealt = Dealt(
        roster=MappingProxyType({client: roster[client] for client in dealings}),
        commitments=MappingProxyType({c: d.commitment for c, d in dealings.items()}),
        share_commitments=MappingProxyType({c: d.share_commitments for c, d in dealings.items()}),
    )
    outgoing = {c: _forwarded_to(parameters, c, dealings) for c in dealings}
    return CollectingMasked(parameters, dealt, refused), outgoing


def _forwarded_to(
    parameters: RoundParameters, client: int, dealings: Mapping[int, Dealing]
) -> bytes:
    dealers = _held_by(parameters, client, dealings)
    forwarded = {
        dealer: ForwardedShares(d.boxes[client], d.share_commitments.get(client, b""))
        for dealer, d in dealers.items()
        if dealer != client
    }
    return encode_forwarded_shares(parameters, client, forwarded)


def _add_up(
    state: CollectingMasked, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking | CollectingConfirmations, Mapping[int, bytes]]:
    parameters, dealt = state.parameters, state.dealt
    total = np.zeros(parameters.vector_length, dtype=word_type(parameters.ring_bits))

    def read(client: int, message: bytes) -> None:
        np.add(total, decode_masked_input(parameters, client, message), out=total)

    answered, new = _collect(messages, dealt.roster, read, Phase.MASKED_INPUT)
    refused = state.refused + new
    _require_enough(parameters, answered, refused, Phase.MASKED_INPUT, dealers=dealt.roster)
    survivors = tuple(answered)
    following = CollectingConfirmations if parameters.is_active else CollectingUnmasking
    outgoing = {
        client: encode_survivors(parameters, client, tuple(_held_by(parameters, client, answered)))
        for client in survivors
    }
    return following(parameters, dealt, survivors, _read_only(total), refused), outgoing


def _confirm(
    state: CollectingConfirmations, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking, Mapping[int, bytes]]:
    parameters, survivors = state.parameters, state.survivors

    def read(client: int, message: bytes) -> bytes:
        return decode_confirmed_survivors(parameters, client, survivors, message)

    signatures, new = _collect(messages, survivors, read, Phase.CONSISTENCY_CHECK)
    refused = state.refused + new
    _require_threshold(parameters, len(signatures), refused, Phase.CONSISTENCY_CHECK)
    # Exactly t signatures prove as much as all of them, and cost every client less.
    proof = dict(list(signatures.items())[: parameters.threshold])
    following = CollectingUnmasking(parameters, state.dealt, survivors, state.masked_sum, refused)
    return following, {c: encode_confirmations(parameters, c, proof) for c in signatures}


def _unmask(state: CollectingUnmasking, messages: Mapping[int, bytes]) -> Finished:
    parameters, roster = state.parameters, state.dealt.roster
    alive = frozenset(state.survivors)
    expected = {c: ShareType.SEED if c in alive else ShareType.KEY for c in roster}

    def read(client: int, message: bytes) -> dict[int, Revealed]:
        revealed = decode_revealed_shares(parameters, client, message)
        types = {dealer: each.share_type for dealer, each in revealed.items()}
        held = _held_by(parameters, client, expected)
        # Only against an active adversary may a holder withhold shares that it found bad.
        if not types.items() <= held.items() or (types != held and not parameters.is_active):
            raise refusal()
        return revealed

    answers, new = _collect(messages, alive, read, Phase.UNMASKING)
    refused = state.refused + new
    _require_threshold(parameters, len(answers), refused, Phase.UNMASKING)
    if parameters.degree:
        _require_holders(parameters, answers, refused, Phase.UNMASKING, dealers=roster)
    total, faulty = open_sum(state, answers)
    refused += tuple(Refusal(holder, Phase.UNMASKING) for holder in sorted(faulty))
    return Finished(parameters, _read_only(total), state.survivors, refused)


def _held_by(
    parameters: RoundParameters, client: int, entries: Mapping[int, _Body]
) -> dict[int, _Body]:
    # Holding shares is mutual, so these are also the clients that hold shares of `client`.
    return {each: entries[each] for each in parameters.holders(client) if each in entries}


def _collect(
    messages: Mapping[int, bytes],
    expected: Collection[int],
    read: Callable[[int, bytes], _Body],
    phase: Phase,
) -> tuple[dict[int, _Body], tuple[Refusal, ...]]:
    bodies: dict[int, _Body] = {}
    refused: list[Refusal] = []
    for client in sorted(messages):
        try:
            if client not in expected:
                raise refusal()
            bodies[client] = read(client, messages[client])
        except ProtocolViolation:
            refused.append(Refusal(client, phase))
    return bodies, tuple(refused)


def _require_enough(
    parameters: RoundParameters,
    alive: Collection[int],
    refused: tuple[Refusal, ...],
    phase: Phase,
    *,
    dealers: Collection[int] | None = None,
) -> None:
    _require_threshold(parameters, len(alive), refused, phase, least=parameters.least_survivors)
    if parameters.degree:
        dealers = alive if dealers is None else dealers
        _require_holders(parameters, alive, refused, phase, dealers=dealers)


def _require_threshold(
    parameters: RoundParameters,
    answered: int,
    refused: tuple[Refusal, ...],
    phase: Phase,
    *,
    least: int | None = None,
) -> None:
    least = parameters.threshold if least is None else least
    if answered < least:
        raise TooFewLeft(
            f"{answered} valid answers came at phase {phase.value!r}; the threshold is {least}",
            phase=phase,
            culprits=(each.client for each in refused),
        )


def _require_holders(
    parameters: RoundParameters,
    alive: Collection[int],
    refused: tuple[Refusal, ...],
    phase: Phase,
    *,
    dealers: Collection[int],
) -> None:
    for dealer in dealers:
        left = sum(holder in alive for holder in parameters.holders(dealer))
        if left < parameters.threshold:
            raise TooFewLeft(
                f"{left} holders of shares of client {dealer} are left at phase {phase.value!r}; "
                f"the threshold is {parameters.threshold}",
                phase=phase,
                culprits=(each.client for each in refused),
            )


def _read_only(array: Words) -> Words:
    array.setflags(write=False)
    return array
