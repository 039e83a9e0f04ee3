"""The server's side of one secure aggregation (Bonawitz et al. 2017, figure 4).

    start -> CollectingKeys --> CollectingShares --> CollectingMasked
          [-> CollectingConfirmations] --> CollectingUnmasking --> Finished

The step in brackets exists against an active adversary only.
The driver sends what a step returns, collects answers until its deadline and gives all of them to
the next step. A client that is missing, late or sends anything but its one valid message has
dropped out at that phase; malformed messages are listed in the state as `refused`. A step raises
`ThresholdNotMet`, and nothing is opened, if fewer clients than the threshold are left, or fewer
holders of one client's shares. Clients that could not read a share do not count as its holders. So
if too few shares are left, the round stops before any share is revealed. The sum is exact or it is
not given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import messages as wire
from privacy.secure_aggregation.keys import PublicKeys, is_usable
from privacy.secure_aggregation.masking import Words, reduce_to_ring, word_type
from privacy.secure_aggregation.parameters import LARGEST_SERIAL, Phase, RoundParameters
from privacy.secure_aggregation.recovery import (
    Standing,
    open_sum,
    require_enough,
    require_holders,
    require_threshold,
)
from privacy.secure_aggregation.states import (
    NO_CONTEXT,
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Dealt,
    Finished,
    Refusal,
    ServerState,
    require_context,
    roster_digest,
    transcript_digest,
)

_Body = TypeVar("_Body")


def start(parameters: RoundParameters, *, context: bytes = NO_CONTEXT) -> CollectingKeys:
    """Return the state that waits for every invited client's public keys.

    Args:
        parameters: The round.
        context: 32-byte digest of what is broadcast to all clients, as they compute it too.

    Raises:
        ValueError: If the context has another size.
    """
    return CollectingKeys(parameters, require_context(context))


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
        ThresholdNotMet: If too few valid answers came, as `TooFewAnswers`, which names the phase
            and the clients whose messages were refused.
        InvalidShare: If revealed shares do not rebuild what a client published, as `FaultyShares`,
            which names who lied where that is known; no sum is given.
        ProtocolViolation: If the round is finished already, or `messages` is no mapping from
            whole numbers; a message that is no bytes is refused as its client's.
    """
    # The keys are refused one by one later; what is no index of a client at all cannot be named.
    if not isinstance(messages, Mapping) or not all(
        type(key) is int and -LARGEST_SERIAL <= key <= LARGEST_SERIAL for key in messages
    ):
        raise wire.refusal()
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
            raise wire.refusal()


def _publish_roster(
    state: CollectingKeys, messages: Mapping[int, bytes]
) -> tuple[CollectingShares, Mapping[int, bytes]]:
    parameters = state.parameters
    seen: set[bytes] = set()

    def read(client: int, message: bytes) -> PublicKeys:
        keys = wire.decode_advertised_keys(parameters, client, message)
        both = {keys.channel, keys.mask}
        # One unusable or repeated key would make every other client refuse the roster.
        if len(both) < 2 or both & seen or not all(map(is_usable, both)):
            raise wire.refusal()
        seen.update(both)
        return keys

    roster, refused = _collect(messages, parameters.invited, read, Phase.ADVERTISE_KEYS)
    standing = Standing(Phase.ADVERTISE_KEYS, refused)
    require_enough(parameters, roster, standing, dealers=roster)
    outgoing = {
        client: wire.encode_roster(parameters, client, _held_by(parameters, client, roster))
        for client in roster
    }
    following = CollectingShares(parameters, state.context, MappingProxyType(roster), refused)
    return following, outgoing


def _forward_shares(
    state: CollectingShares, messages: Mapping[int, bytes]
) -> tuple[CollectingMasked, Mapping[int, bytes]]:
    parameters, roster = state.parameters, state.roster

    def read(client: int, message: bytes) -> wire.Dealing:
        dealing = wire.decode_dealt_shares(parameters, client, message)
        if dealing.boxes.keys() != _held_by(parameters, client, roster).keys() - {client}:
            raise wire.refusal()
        return dealing

    dealings, new = _collect(messages, roster, read, Phase.SHARE_KEYS)
    refused = state.refused + new
    require_enough(parameters, dealings, Standing(Phase.SHARE_KEYS, refused), dealers=dealings)
    dealt = Dealt(
        roster=MappingProxyType({client: roster[client] for client in dealings}),
        commitments=MappingProxyType({c: d.commitment for c, d in dealings.items()}),
        share_commitments=MappingProxyType({c: d.share_commitments for c, d in dealings.items()}),
    )
    outgoing = {c: _forwarded_to(parameters, c, dealings) for c in dealings}
    announced = roster_digest(parameters, roster)
    return CollectingMasked(parameters, state.context, announced, dealt, refused), outgoing


def _forwarded_to(
    parameters: RoundParameters, client: int, dealings: Mapping[int, wire.Dealing]
) -> bytes:
    dealers = _held_by(parameters, client, dealings)
    forwarded = {
        dealer: wire.ForwardedShares(d.boxes[client], d.share_commitments.get(client, b""))
        for dealer, d in dealers.items()
        if dealer != client
    }
    return wire.encode_forwarded_shares(parameters, client, forwarded)


def _add_up(
    state: CollectingMasked, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking | CollectingConfirmations, Mapping[int, bytes]]:
    parameters, dealt = state.parameters, state.dealt
    total = np.zeros(parameters.vector_length, dtype=word_type(parameters.ring_bits))

    def read(client: int, message: bytes) -> tuple[int, ...]:
        masked = wire.decode_masked_input(parameters, client, message)
        dealers = _held_by(parameters, client, dealt.roster).keys() - {client}
        if not dealers >= set(masked.withheld):
            raise wire.refusal()
        np.add(total, masked.vector, out=total)
        return masked.withheld

    answered, new = _collect(messages, dealt.roster, read, Phase.MASKED_INPUT)
    complaints = MappingProxyType({c: withheld for c, withheld in answered.items() if withheld})
    standing = Standing(Phase.MASKED_INPUT, state.refused + new, complaints)
    require_enough(parameters, answered, standing, dealers=dealt.roster)
    reduce_to_ring(total, parameters.ring_bits)
    survivors = tuple(answered)
    summed = CollectingUnmasking(
        parameters, dealt, survivors, _read_only(total), complaints, standing.refused
    )
    outgoing = {
        client: wire.encode_survivors(parameters, client, survivors) for client in survivors
    }
    if not parameters.is_active:
        return summed, outgoing
    transcript = transcript_digest(
        parameters,
        roster=state.announced,
        dealers=dealt.roster,
        survivors=survivors,
        context=state.context,
    )
    return CollectingConfirmations(**vars(summed), transcript=transcript), outgoing


def _confirm(
    state: CollectingConfirmations, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking, Mapping[int, bytes]]:
    parameters = state.parameters

    def read(client: int, message: bytes) -> bytes:
        return wire.decode_confirmed_transcript(parameters, client, state.transcript, message)

    signatures, new = _collect(messages, state.survivors, read, Phase.CONSISTENCY_CHECK)
    standing = Standing(Phase.CONSISTENCY_CHECK, state.refused + new, state.complaints)
    require_threshold(signatures, standing, least=parameters.threshold)
    # Exactly t signatures prove as much as all of them, and cost every client less.
    proof = dict(list(signatures.items())[: parameters.threshold])
    following = CollectingUnmasking(
        parameters,
        state.dealt,
        state.survivors,
        state.masked_sum,
        state.complaints,
        standing.refused,
    )
    return following, {c: wire.encode_confirmations(parameters, c, proof) for c in signatures}


def _unmask(state: CollectingUnmasking, messages: Mapping[int, bytes]) -> Finished:
    parameters, roster = state.parameters, state.dealt.roster
    alive = frozenset(state.survivors)
    expected = {c: wire.ShareType.SEED if c in alive else wire.ShareType.KEY for c in roster}

    def read(client: int, message: bytes) -> dict[int, wire.Revealed]:
        revealed = wire.decode_revealed_shares(parameters, client, message)
        types = {dealer: each.share_type for dealer, each in revealed.items()}
        withheld = state.complaints.get(client, ())
        held = _held_by(parameters, client, expected)
        # What it complained of it does not have, and all the rest it has promised.
        if types != {dealer: held[dealer] for dealer in held if dealer not in withheld}:
            raise wire.refusal()
        return revealed

    answers, new = _collect(messages, alive, read, Phase.UNMASKING)
    standing = Standing(Phase.UNMASKING, state.refused + new, state.complaints)
    require_threshold(answers, standing, least=parameters.threshold)
    require_holders(parameters, answers, standing, dealers=roster)
    total, faulty = open_sum(state, answers)
    refused = standing.refused + tuple(Refusal(each, Phase.UNMASKING) for each in sorted(faulty))
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
                raise wire.refusal()
            bodies[client] = read(client, messages[client])
        except ProtocolViolation:
            refused.append(Refusal(client, phase))
    return bodies, tuple(refused)


def _read_only(array: Words) -> Words:
    array.setflags(write=False)
    return array
