"""The server's side of one secure aggregation (Bonawitz et al. 2017, figure 4, semi-honest).

    start -> CollectingKeys --> CollectingShares --> CollectingMasked --> CollectingUnmasking
          -> Finished

The driver sends what a step returns, collects answers until its deadline and gives all of them to
the next step. A client that is missing, late or sends anything but its one valid message has
dropped out at that phase; malformed messages are listed in the state as `refused`. With fewer than
the threshold left a step raises `ThresholdNotMet` and nothing is opened. The sum is exact or it is
not given: rebuilt secrets are checked against what their owners published.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar, overload

import numpy as np

from privacy.errors import InvalidShare, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.keys import (
    PrivateKey,
    PublicKeys,
    commit_to_seed,
    is_usable,
    self_mask_key,
)
from privacy.secure_aggregation.masking import Mask, Words, add_masks, word_type
from privacy.secure_aggregation.messages import (
    Dealing,
    Revealed,
    ShareType,
    decode_advertised_keys,
    decode_dealt_shares,
    decode_masked_input,
    decode_revealed_shares,
    encode_forwarded_shares,
    encode_roster,
    encode_survivors,
    refusal,
)
from privacy.secure_aggregation.parameters import Phase, RoundParameters
from privacy.secure_aggregation.states import (
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
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
        ThresholdNotMet: If too few valid answers came; it names the phase.
        InvalidShare: If revealed shares do not rebuild what a client published; no sum is given.
        ProtocolViolation: If the round is finished already.
    """
    match state:
        case CollectingKeys():
            return _publish_roster(state, messages)
        case CollectingShares():
            return _forward_shares(state, messages)
        case CollectingMasked():
            return _add_up(state, messages)
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

    roster, refused = _collect(messages, parameters.clients, read, Phase.ADVERTISE_KEYS)
    _require_threshold(parameters, len(roster), Phase.ADVERTISE_KEYS)
    outgoing = {client: encode_roster(parameters, client, roster) for client in roster}
    return CollectingShares(parameters, MappingProxyType(roster), refused), outgoing


def _forward_shares(
    state: CollectingShares, messages: Mapping[int, bytes]
) -> tuple[CollectingMasked, Mapping[int, bytes]]:
    parameters = state.parameters

    def read(client: int, message: bytes) -> Dealing:
        dealing = decode_dealt_shares(parameters, client, message)
        if dealing.boxes.keys() != state.roster.keys() - {client}:
            raise refusal()
        return dealing

    dealings, refused = _collect(messages, state.roster, read, Phase.SHARE_KEYS)
    _require_threshold(parameters, len(dealings), Phase.SHARE_KEYS)
    outgoing = {
        client: encode_forwarded_shares(
            parameters,
            client,
            {dealer: d.boxes[client] for dealer, d in dealings.items() if dealer != client},
        )
        for client in dealings
    }
    following = CollectingMasked(
        parameters,
        roster=MappingProxyType({client: state.roster[client] for client in dealings}),
        commitments=MappingProxyType({c: d.commitment for c, d in dealings.items()}),
        refused=state.refused + refused,
    )
    return following, outgoing


def _add_up(
    state: CollectingMasked, messages: Mapping[int, bytes]
) -> tuple[CollectingUnmasking, Mapping[int, bytes]]:
    parameters = state.parameters
    total = np.zeros(parameters.vector_length, dtype=word_type(parameters.ring_bits))

    def read(client: int, message: bytes) -> None:
        np.add(total, decode_masked_input(parameters, client, message), out=total)

    answered, refused = _collect(messages, state.roster, read, Phase.MASKED_INPUT)
    _require_threshold(parameters, len(answered), Phase.MASKED_INPUT)
    survivors = tuple(answered)
    following = CollectingUnmasking(
        parameters,
        roster=state.roster,
        commitments=state.commitments,
        survivors=survivors,
        masked_sum=_read_only(total),
        refused=state.refused + refused,
    )
    return following, {c: encode_survivors(parameters, c, survivors) for c in survivors}


def _unmask(state: CollectingUnmasking, messages: Mapping[int, bytes]) -> Finished:
    parameters = state.parameters
    alive = frozenset(state.survivors)
    expected = {c: ShareType.SEED if c in alive else ShareType.KEY for c in state.roster}

    def read(client: int, message: bytes) -> dict[int, Revealed]:
        revealed = decode_revealed_shares(parameters, client, message)
        if {dealer: r.share_type for dealer, r in revealed.items()} != expected:
            raise refusal()
        return revealed

    answers, refused = _collect(messages, alive, read, Phase.UNMASKING)
    _require_threshold(parameters, len(answers), Phase.UNMASKING)
    secrets = _rebuild(parameters, answers, state.roster)
    total = add_masks(state.masked_sum, _masks_to_remove(state, secrets)).astype(np.uint64)
    return Finished(parameters, _read_only(total), state.survivors, state.refused + refused)


def _rebuild(
    parameters: RoundParameters,
    answers: Mapping[int, Mapping[int, Revealed]],
    dealers: Collection[int],
) -> dict[int, bytes]:
    # Every answer holds a share of every dealer, so one set of t indices serves all secrets.
    holders = tuple(answers)[: parameters.threshold]
    coefficients = shamir.lagrange_at_zero(holders)
    return {
        dealer: shamir.combine([answers[h][dealer].share for h in holders], coefficients)
        for dealer in dealers
    }


def _masks_to_remove(state: CollectingUnmasking, secrets: Mapping[int, bytes]) -> Iterator[Mask]:
    parameters = state.parameters
    for survivor in state.survivors:
        seed = secrets[survivor]
        if commit_to_seed(parameters, survivor, seed) != state.commitments[survivor]:
            raise InvalidShare(f"the shares of client {survivor} do not rebuild its seed")
        yield Mask(self_mask_key(parameters, survivor, seed), negative=True)
    for dropout in state.roster.keys() - set(state.survivors):
        private = PrivateKey(dropout, secrets[dropout])
        if private.public != state.roster[dropout].mask:
            raise InvalidShare(f"the shares of client {dropout} do not rebuild its mask key")
        for survivor in state.survivors:
            key = private.pairwise_mask_key(parameters, survivor, state.roster[survivor].mask)
            # The survivor subtracted this mask if the dropout's index is the lower one.
            yield Mask(key, negative=survivor < dropout)


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


def _require_threshold(parameters: RoundParameters, answered: int, phase: Phase) -> None:
    if answered < parameters.threshold:
        raise ThresholdNotMet(
            f"{answered} valid answers came at phase {phase.value!r}; "
            f"the threshold is {parameters.threshold}",
            phase=phase,
        )


def _read_only(array: Words) -> Words:
    array.setflags(write=False)
    return array
