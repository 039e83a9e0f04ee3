"""A client's side of one secure aggregation (Bonawitz et al. 2017, figure 4, semi-honest).

    advertise -> Advertised --roster--> Shared --forwarded shares--> ReadyToMask
    mask      -> Masked --survivors--> Done

Every function takes a state and returns the next state with the bytes to send. It raises
`ProtocolViolation`, or its subclass `Authentication` where a key or a ciphertext fails, for any
message that is not exactly the next one of this run, round and attempt for this client; the state
given is a value, so it stays good for the right message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import overload

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.entropy import Entropy, draw
from privacy.secure_aggregation.keys import (
    KEY_BYTES,
    NONCE_BYTES,
    PrivateKey,
    PublicKeys,
    commit_to_seed,
    seal,
    self_mask_key,
    unseal,
)
from privacy.secure_aggregation.masking import Mask, add_masks, word_type
from privacy.secure_aggregation.messages import (
    Dealing,
    Revealed,
    ShareType,
    box_context,
    decode_forwarded_shares,
    decode_roster,
    decode_survivors,
    encode_advertised_keys,
    encode_dealt_shares,
    encode_masked_input,
    encode_revealed_shares,
    refusal,
)
from privacy.secure_aggregation.parameters import RoundParameters
from privacy.secure_aggregation.states import (
    Advertised,
    ClientState,
    Done,
    HeldShares,
    Masked,
    ReadyToMask,
    Shared,
)


def advertise(
    parameters: RoundParameters, client: int, *, entropy: Entropy = os.urandom
) -> tuple[Advertised, bytes]:
    """Draw fresh key pairs and announce their public halves.

    Args:
        parameters: The round, as this client was told it.
        client: Own share index, one of `parameters.clients`.
        entropy: Source of secret bytes; only tests give another than the operating system.

    Returns:
        The first state, and the message for the server.

    Raises:
        ValueError: If the client is not invited.
    """
    if client not in parameters.clients:
        raise ValueError(f"client {client} is not one of the clients of the round")
    state = Advertised(
        parameters,
        client,
        channel_private=draw(entropy, KEY_BYTES),
        mask_private=draw(entropy, KEY_BYTES),
    )
    return state, encode_advertised_keys(parameters, client, _public_keys(state))


@overload
def step(state: Advertised, message: bytes, *, entropy: Entropy = ...) -> tuple[Shared, bytes]: ...
@overload
def step(state: Shared, message: bytes, *, entropy: Entropy = ...) -> tuple[ReadyToMask, bytes]: ...
@overload
def step(state: Masked, message: bytes, *, entropy: Entropy = ...) -> tuple[Done, bytes]: ...
@overload
def step(
    state: ClientState, message: bytes, *, entropy: Entropy = ...
) -> tuple[ClientState, bytes]: ...
def step(
    state: ClientState, message: bytes, *, entropy: Entropy = os.urandom
) -> tuple[ClientState, bytes]:
    """Take the server's next message.

    Args:
        state: `Advertised` takes the roster, `Shared` the forwarded shares, `Masked` the
            survivor list. `ReadyToMask` waits for the vector (`mask`) and `Done` for nothing,
            so both refuse every message.
        message: Bytes from the server.
        entropy: Source of secret bytes, used on the roster only.

    Returns:
        The next state, and the bytes to send, which are empty after the forwarded shares.

    Raises:
        ProtocolViolation: If the message is not the one awaited.
        Authentication: If a public key or an encrypted share does not verify.
    """
    match state:
        case Advertised():
            return _share_keys(state, message, entropy)
        case Shared():
            return _receive_shares(state, message), b""
        case Masked():
            return _reveal(state, message)
        case _:
            raise refusal()


def mask(state: ReadyToMask, vector: NDArray[np.uint64]) -> tuple[Masked, bytes]:
    """Hide a vector behind the self mask and one mask per peer.

    The masked vector is x + PRG(b) + sum over higher peers of PRG(s) - the same over lower peers,
    in the ring (Bonawitz et al. 2017, section 4.2). Call it once: two vectors masked from the
    same state differ on the wire by exactly their difference.

    Args:
        state: The state after the forwarded shares.
        vector: Ring elements, uint64 below 2^ring_bits, shape (vector_length,).

    Returns:
        The next state, without seed and mask keys, and the message for the server.

    Raises:
        ProtocolViolation: If the state is another; there is nothing to mask with.
        ValueError: If the vector has another type, shape or range.
    """
    if not isinstance(state, ReadyToMask):
        raise refusal()
    parameters = state.parameters
    _require_vector(parameters, vector)
    words = vector.astype(word_type(parameters.ring_bits))
    message = encode_masked_input(parameters, state.client, add_masks(words, _masks(state)))
    return Masked(parameters, state.client, state.shares), message


def _masks(state: ReadyToMask) -> Iterator[Mask]:
    yield Mask(self_mask_key(state.parameters, state.client, state.seed), negative=False)
    for peer, key in state.mask_keys.items():
        yield Mask(key, negative=peer < state.client)


def _public_keys(state: Advertised) -> PublicKeys:
    channel, pairwise = _private_keys(state)
    return PublicKeys(channel=channel.public, mask=pairwise.public)


def _private_keys(state: Advertised) -> tuple[PrivateKey, PrivateKey]:
    return (
        PrivateKey(state.client, state.channel_private),
        PrivateKey(state.client, state.mask_private),
    )


def _share_keys(state: Advertised, message: bytes, entropy: Entropy) -> tuple[Shared, bytes]:
    parameters, client = state.parameters, state.client
    roster = decode_roster(parameters, client, message)
    _require_roster(state, roster)
    seed = draw(entropy, KEY_BYTES)
    dealt = _deal(state, seed, tuple(roster), entropy)
    peers = [peer for peer in roster if peer != client]
    channel, pairwise = _private_keys(state)
    channels = {p: channel.channel_keys(parameters, p, roster[p].channel) for p in peers}
    masks = {p: pairwise.pairwise_mask_key(parameters, p, roster[p].mask) for p in peers}
    boxes = {
        peer: seal(
            channels[peer].sending,
            dealt[peer].key + dealt[peer].seed,
            nonce=draw(entropy, NONCE_BYTES),
            associated=box_context(parameters, client, peer),
        )
        for peer in peers
    }
    shared = Shared(
        parameters,
        client,
        seed=seed,
        own=dealt[client],
        mask_keys=MappingProxyType(masks),
        receiving_keys=MappingProxyType({peer: channels[peer].receiving for peer in peers}),
    )
    dealing = Dealing(commit_to_seed(parameters, client, seed), boxes)
    return shared, encode_dealt_shares(parameters, client, dealing)


def _require_roster(state: Advertised, roster: Mapping[int, PublicKeys]) -> None:
    parameters = state.parameters
    keys = [key for pair in roster.values() for key in (pair.channel, pair.mask)]
    if (
        len(roster) < parameters.threshold
        or not roster.keys() <= set(parameters.clients)
        or roster.get(state.client) != _public_keys(state)
        # A repeated key would give two pairs the same secret.
        or len(set(keys)) != len(keys)
    ):
        raise refusal()


def _deal(
    state: Advertised, seed: bytes, indices: tuple[int, ...], entropy: Entropy
) -> dict[int, HeldShares]:
    def share(secret: bytes) -> list[bytes]:
        count = state.parameters.threshold - 1
        coefficients = shamir.draw_coefficients(count, entropy=entropy)
        return shamir.deal(secret, coefficients=coefficients, indices=indices)

    dealt = zip(share(state.mask_private), share(seed), strict=True)
    return {
        index: HeldShares(key=key, seed=of_seed)
        for index, (key, of_seed) in zip(indices, dealt, strict=True)
    }


def _receive_shares(state: Shared, message: bytes) -> ReadyToMask:
    parameters, client = state.parameters, state.client
    boxes = decode_forwarded_shares(parameters, client, message)
    if len(boxes) + 1 < parameters.threshold or not boxes.keys() <= state.mask_keys.keys():
        raise refusal()
    shares = {dealer: _open_box(state, dealer, box) for dealer, box in boxes.items()}
    shares[client] = state.own
    return ReadyToMask(
        parameters,
        client,
        seed=state.seed,
        mask_keys=MappingProxyType({dealer: state.mask_keys[dealer] for dealer in boxes}),
        shares=MappingProxyType(dict(sorted(shares.items()))),
    )


def _open_box(state: Shared, dealer: int, box: bytes) -> HeldShares:
    context = box_context(state.parameters, dealer, state.client)
    both = unseal(state.receiving_keys[dealer], box, associated=context)
    held = HeldShares(key=both[: shamir.SHARE_BYTES], seed=both[shamir.SHARE_BYTES :])
    # Passed on later, a share that is no field element would make this client look faulty.
    if not (shamir.is_share(held.key) and shamir.is_share(held.seed)):
        raise refusal()
    return held


def _reveal(state: Masked, message: bytes) -> tuple[Done, bytes]:
    parameters, client = state.parameters, state.client
    survivors = decode_survivors(parameters, client, message)
    if (
        len(survivors) < parameters.threshold
        or client not in survivors
        or not state.shares.keys() >= set(survivors)
    ):
        raise refusal()
    alive = frozenset(survivors)
    revealed = {
        dealer: Revealed(ShareType.SEED, held.seed)
        if dealer in alive
        else Revealed(ShareType.KEY, held.key)
        for dealer, held in state.shares.items()
    }
    done = Done(parameters, client, survivors)
    return done, encode_revealed_shares(parameters, client, revealed)


def _require_vector(parameters: RoundParameters, vector: NDArray[np.uint64]) -> None:
    if vector.dtype != np.uint64 or vector.shape != (parameters.vector_length,):
        raise ValueError(
            f"vector is {vector.dtype} of shape {vector.shape}; "
            f"valid is uint64 of shape ({parameters.vector_length},)"
        )
    if parameters.ring_bits < 64 and int(vector.max()) >> parameters.ring_bits:
        raise ValueError(f"vector holds a value of 2^{parameters.ring_bits} or more")
