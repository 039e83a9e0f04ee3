"""A client's side of one secure aggregation (Bonawitz et al. 2017, figure 4).

Against an active adversary the dealer also commits to every share, and a holder compares what it
decrypted with the commitments that the server will check later. A box that does not open, and a
share that is none or does not fit, is noted as withheld: the server is told before it asks for any
share, and the round goes on with those of others.

    advertise -> Advertised --roster--> Shared --forwarded shares--> ReadyToMask
    mask      -> Masked --survivors--> Done                              semi-honest parties
    mask      -> Masked --survivors--> Confirmed --confirmations--> Done   active adversary

Every function takes a state and returns the next state with the bytes to send. It raises
`ProtocolViolation`, or its subclass `Authentication` where a key or a ciphertext fails, for any
message that is not exactly the next one of this run, round and attempt for this client; the state
given is a value, so it stays good for the right message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from privacy.errors import Authentication, ProtocolViolation
from privacy.randomness import Entropy, draw
from privacy.secure_aggregation import messages as wire
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.identities import Credentials, Identity
from privacy.secure_aggregation.keys import (
    KEY_BYTES,
    NONCE_BYTES,
    PrivateKey,
    PublicKeys,
    commit_to_seed,
    commit_to_share,
    seal,
    self_mask_key,
    unseal,
)
from privacy.secure_aggregation.masking import Mask, add_masks, reduce_to_ring, word_type
from privacy.secure_aggregation.messages import Revealed, ShareType
from privacy.secure_aggregation.parameters import RoundParameters
from privacy.secure_aggregation.states import (
    NO_CONTEXT,
    Advertised,
    ClientState,
    Confirmed,
    Done,
    HeldShares,
    Masked,
    ReadyToMask,
    Shared,
    require_context,
    roster_digest,
    transcript_digest,
)


def share_keys(
    state: Advertised, message: bytes, *, entropy: Entropy, identity: Identity | None
) -> tuple[Shared, bytes]:
    """Take the roster, derive the channels' keys and deal shares of the two secrets.

    `ProtocolViolation` if the roster is not one for this client, `Authentication` if a channel key
    is unusable or a key not signed by its owner.
    """
    parameters, client = state.parameters, state.client
    roster = wire.decode_roster(parameters, client, message)
    channel, pairwise = _private_keys(state)
    _require_roster(state, roster, _public_halves(channel, pairwise))
    seed = draw(entropy, KEY_BYTES)
    dealt = _deal(state, seed, tuple(roster), entropy)
    peers = [peer for peer in roster if peer != client]
    channels = {p: channel.channel_keys(parameters, p, roster[p].channel) for p in peers}
    shared = Shared(
        parameters,
        client,
        seed=seed,
        own=dealt[client],
        mask_private=state.mask_private,
        mask_publics=MappingProxyType({peer: roster[peer].mask for peer in peers}),
        receiving_keys=MappingProxyType({peer: channels[peer].receiving for peer in peers}),
        roster=roster_digest(parameters, roster),
    )
    dealing = wire.Dealing(
        commit_to_seed(parameters, client, seed),
        {
            peer: seal(
                keys.sending,
                dealt[peer].key + dealt[peer].seed,
                nonce=draw(entropy, NONCE_BYTES),
                associated=wire.box_context(state.parameters, state.client, peer),
            )
            for peer, keys in channels.items()
        },
        _commit_all(state, dealt) if parameters.is_active else {},
    )
    return shared, wire.encode_dealt_shares(parameters, client, dealing, identity=identity)


def receive_shares(state: Shared, message: bytes) -> ReadyToMask:
    """Take the boxes of the peers, keep the shares in them and derive the pairwise masks' keys.

    Only the peers that dealt are masked with, so only theirs are derived. `ProtocolViolation` if
    the message is not one for this client, `Authentication` if a mask key is unusable.
    """
    parameters, client = state.parameters, state.client
    forwarded = wire.decode_forwarded_shares(parameters, client, message)
    if (
        len(forwarded) + 1 < parameters.threshold
        or not forwarded.keys() <= state.mask_publics.keys()
    ):
        raise wire.refusal()
    shares = {dealer: _open_box(state, dealer, each) for dealer, each in forwarded.items()}
    shares[client] = state.own
    held = {dealer: each for dealer, each in sorted(shares.items()) if each is not None}
    private = PrivateKey(client, state.mask_private)
    masks = {
        dealer: private.pairwise_mask_key(parameters, dealer, state.mask_publics[dealer])
        for dealer in forwarded
    }
    return ReadyToMask(
        parameters,
        client,
        seed=state.seed,
        mask_keys=MappingProxyType(masks),
        shares=MappingProxyType(held),
        roster=state.roster,
        withheld=tuple(sorted(shares.keys() - held.keys())),
    )


def _private_keys(state: Advertised) -> tuple[PrivateKey, PrivateKey]:
    return (
        PrivateKey(state.client, state.channel_private),
        PrivateKey(state.client, state.mask_private),
    )


def _public_halves(channel: PrivateKey, pairwise: PrivateKey) -> PublicKeys:
    return PublicKeys(channel=channel.public, mask=pairwise.public)


def _require_roster(
    state: Advertised, roster: Mapping[int, PublicKeys], expected: PublicKeys
) -> None:
    parameters, own = state.parameters, roster.get(state.client)
    keys = [key for pair in roster.values() for key in (pair.channel, pair.mask)]
    if (
        len(roster) < parameters.threshold
        or not roster.keys() <= set(parameters.holders(state.client))
        or own is None
        or (own.channel, own.mask) != (expected.channel, expected.mask)
        # A repeated key would give two pairs the same secret.
        or len(set(keys)) != len(keys)
    ):
        raise wire.refusal()


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


def _commit_all(state: Advertised, dealt: Mapping[int, HeldShares]) -> dict[int, bytes]:
    return {
        holder: share_commitments(state.parameters, state.client, holder, held)
        for holder, held in dealt.items()
    }


def share_commitments(
    parameters: RoundParameters, dealer: int, holder: int, held: HeldShares
) -> bytes:
    """Return the hashes of a holder's key share and seed share, 64 bytes."""
    of_key = commit_to_share(parameters, dealer, holder, held.key, of_key=True)
    return of_key + commit_to_share(parameters, dealer, holder, held.seed, of_key=False)


def _open_box(state: Shared, dealer: int, forwarded: wire.ForwardedShares) -> HeldShares | None:
    parameters = state.parameters
    context = wire.box_context(parameters, dealer, state.client)
    try:
        both = unseal(state.receiving_keys[dealer], forwarded.box, associated=context)
        held = HeldShares(key=both[: shamir.SHARE_BYTES], seed=both[shamir.SHARE_BYTES :])
        # A share outside the field, passed on later, would make this client look faulty.
        if not (shamir.is_share(held.key) and shamir.is_share(held.seed)):
            raise wire.refusal()
        if parameters.is_active:
            expected = share_commitments(parameters, dealer, state.client, held)
            if expected != forwarded.commitments:
                raise Authentication("a share is not the one committed to")
    except ProtocolViolation:
        # One spoilt box must not cost the round this client's vector: it complains instead.
        return None
    return held


def advertise(
    parameters: RoundParameters,
    client: int,
    *,
    entropy: Entropy = os.urandom,
    credentials: Credentials | None = None,
) -> tuple[Advertised, bytes]:
    """Draw fresh key pairs and announce their public halves.

    Args:
        parameters: The round, as this client was told it.
        client: Own share index, one of `parameters.clients`.
        entropy: Source of secret bytes; only tests give another than the operating system.
        credentials: What the client knows about an active round without asking the server. A
            client that has them takes part in no other round.

    Returns:
        The first state, and the message for the server.

    Raises:
        ValueError: If the client is not invited, or the round is active and credentials are
            missing: keys that the server vouches for prove nothing against the server.
        Authentication: If the round is not one that the credentials allow.
    """
    if client not in parameters.invited:
        raise ValueError(f"client {client} is not one of the clients of the round")
    _require_credentials(parameters, client, credentials)
    state = Advertised(
        parameters,
        client,
        channel_private=draw(entropy, KEY_BYTES),
        mask_private=draw(entropy, KEY_BYTES),
    )
    identity = None if credentials is None else credentials.identity
    keys = _public_halves(*_private_keys(state))
    return state, wire.encode_advertised_keys(parameters, client, keys, identity=identity)


def take_up(
    state: ClientState | None,
    parameters: RoundParameters,
    client: int,
    *,
    credentials: Credentials | None = None,
) -> Advertised:
    """Return keys that were announced before the round began, now that it begins.

    What `advertise` checked then may hold no more: an enrolment changes between two rounds.

    Args:
        state: What `advertise` returned, None where nothing is known of it.
        parameters: The round, as this client is told it now.
        client: Own share index.
        credentials: What the client knows about an active round now.

    Raises:
        ValueError: If there are no keys for exactly this round and place, or credentials are
            missing.
        Authentication: If the round is not one that the credentials allow.
    """
    if not isinstance(state, Advertised) or (state.parameters, state.client) != (
        parameters,
        client,
    ):
        raise ValueError("no keys were made ahead for this round")
    _require_credentials(parameters, client, credentials)
    return state


def _require_credentials(
    parameters: RoundParameters, client: int, credentials: Credentials | None
) -> None:
    if parameters.is_active:
        if credentials is None:
            raise ValueError("credentials are missing; an active adversary needs an enrolment")
        credentials.require_acceptable(parameters, client)
    elif credentials is not None:
        raise Authentication("the invitation is for semi-honest parties; this client is enrolled")


def step(
    state: ClientState,
    message: bytes,
    *,
    entropy: Entropy = os.urandom,
    identity: Identity | None = None,
) -> tuple[ClientState, bytes]:
    """Take the server's next message.

    Args:
        state: `Advertised` takes the roster, `Shared` the forwarded shares, `Masked` the
            survivor list and, against an active adversary, `Confirmed` the confirmations.
            `ReadyToMask` waits for the vector (`mask`) and `Done` for nothing, so both refuse
            every message.
        message: Bytes from the server.
        entropy: Source of secret bytes, used on the roster only.
        identity: Own signing key, needed against an active adversary.

    Returns:
        The next state, and the bytes to send, which are empty after the forwarded shares.

    Raises:
        ProtocolViolation: If the message is not the one awaited.
        Authentication: If a public key, a signature or an encrypted share does not verify.
        ValueError: If the identity is needed and missing.
    """
    match state:
        case Advertised():
            return share_keys(state, message, entropy=entropy, identity=identity)
        case Shared():
            return receive_shares(state, message), b""
        case Masked():
            return _take_survivors(state, message, identity)
        case Confirmed():
            return _take_confirmations(state, message, identity)
        case _:
            raise wire.refusal()


def mask(
    state: ClientState,
    vector: NDArray[np.uint64],
    *,
    context: bytes = NO_CONTEXT,
    identity: Identity | None = None,
) -> tuple[Masked, bytes]:
    """Hide a vector behind the self mask and one mask per peer.

    The masked vector is x + PRG(b) + sum over higher peers of PRG(s) - the same over lower peers,
    in the ring (Bonawitz et al. 2017, section 4.2). Call it once: two vectors masked from the
    same state differ on the wire by exactly their difference.

    Args:
        state: The state after the forwarded shares.
        vector: Ring elements, uint64 below 2^ring_bits, shape (vector_length,).
        context: 32-byte digest of what the server broadcast to all before this message. Against an
            active adversary nothing is opened unless enough clients sign the same one.
        identity: Own signing key, needed against an active adversary.

    Returns:
        The next state, without seed and mask keys, and the message for the server.

    Raises:
        ProtocolViolation: If the state is another; there is nothing to mask with.
        ValueError: If the vector has another type, shape or range, the context another size, or
            the identity is needed and missing.
    """
    if not isinstance(state, ReadyToMask):
        raise wire.refusal()
    parameters = state.parameters
    if not isinstance(vector, np.ndarray):
        raise ValueError(f"vector is a {type(vector).__name__}; valid is an array")
    if vector.dtype != np.uint64 or vector.shape != (parameters.vector_length,):
        raise ValueError(
            f"vector is {vector.dtype} of shape {vector.shape}; "
            f"valid is uint64 of shape ({parameters.vector_length},)"
        )
    if parameters.ring_bits < 64 and int(vector.max()) >> parameters.ring_bits:
        raise ValueError(f"vector holds a value of 2^{parameters.ring_bits} or more")
    require_context(context)
    words = vector.astype(word_type(parameters.ring_bits))
    masks = [Mask(self_mask_key(parameters, state.client, state.seed), negative=False)]
    masks += [Mask(key, negative=peer < state.client) for peer, key in state.mask_keys.items()]
    add_masks(words, masks)
    reduce_to_ring(words, parameters.ring_bits)
    masked = wire.MaskedInput(words, state.withheld)
    message = wire.encode_masked_input(parameters, state.client, masked, identity=identity)
    following = Masked(
        parameters, state.client, state.shares, state.roster, context, state.withheld
    )
    return following, message


def _take_survivors(
    state: Masked, message: bytes, identity: Identity | None
) -> tuple[Done | Confirmed, bytes]:
    parameters, client = state.parameters, state.client
    survivors = wire.decode_survivors(parameters, client, message)
    _require_survivors(state, frozenset(survivors))
    if not parameters.is_active:
        return _reveal(state.shares, Done(parameters, client, survivors), identity)
    transcript = transcript_digest(
        parameters,
        roster=state.roster,
        dealers=state.dealers,
        survivors=survivors,
        context=state.context,
    )
    confirmed = Confirmed(parameters, client, state.shares, survivors, transcript)
    return confirmed, wire.encode_confirmed_transcript(
        parameters, client, transcript, identity=identity
    )


def _require_survivors(state: Masked, survivors: frozenset[int]) -> None:
    parameters = state.parameters
    if (
        # Noise that is shared among the clients is calibrated to the smallest sum, so a server
        # that opens a smaller one must not find clients that help it.
        len(survivors) < parameters.least_survivors
        or not survivors <= parameters.invited
        or state.client not in survivors
        or not survivors & frozenset(parameters.holders(state.client)) <= state.dealers
    ):
        raise wire.refusal()


def _take_confirmations(
    state: Confirmed, message: bytes, identity: Identity | None
) -> tuple[Done, bytes]:
    parameters, survivors = state.parameters, state.survivors
    signers = wire.decode_confirmations(parameters, state.client, state.transcript, message)
    # 2t > n + c: no second transcript can have found t signers, because the keys of its roster
    # are drawn anew in every execution (Bonawitz et al. 2017, section 6.2).
    if len(signers) < parameters.threshold or not frozenset(signers) <= frozenset(survivors):
        raise wire.refusal()
    return _reveal(state.shares, Done(parameters, state.client, survivors), identity)


def _reveal(
    shares: Mapping[int, HeldShares], done: Done, identity: Identity | None
) -> tuple[Done, bytes]:
    alive = frozenset(done.survivors)
    revealed = {
        dealer: Revealed(ShareType.SEED, held.seed)
        if dealer in alive
        else Revealed(ShareType.KEY, held.key)
        for dealer, held in shares.items()
    }
    message = wire.encode_revealed_shares(done.parameters, done.client, revealed, identity=identity)
    return done, message
