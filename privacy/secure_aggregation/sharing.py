"""A client's first half of a round: from the roster to dealt shares, from boxes to shares held.

Against an active adversary the dealer also commits to every share, and a holder compares what it
decrypted with the commitments that the server will check later. A box that does not open, and a
share that is none or does not fit, is noted as withheld: the server is told before it asks for any
share, and the round goes on with those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from privacy.errors import Authentication, ProtocolViolation
from privacy.secure_aggregation import shamir
from privacy.secure_aggregation.entropy import Entropy, draw
from privacy.secure_aggregation.envelope import refusal
from privacy.secure_aggregation.identities import Identity
from privacy.secure_aggregation.keys import (
    KEY_BYTES,
    NONCE_BYTES,
    ChannelKeys,
    PrivateKey,
    PublicKeys,
    commit_to_seed,
    commit_to_share,
    seal,
    unseal,
)
from privacy.secure_aggregation.messages import (
    Dealing,
    ForwardedShares,
    box_context,
    decode_forwarded_shares,
    decode_roster,
    encode_dealt_shares,
)
from privacy.secure_aggregation.parameters import RoundParameters
from privacy.secure_aggregation.states import Advertised, HeldShares, ReadyToMask, Shared
from privacy.secure_aggregation.transcript import roster_digest


def public_keys(state: Advertised) -> PublicKeys:
    """Return what a client announces, without a signature."""
    return _public_halves(*_private_keys(state))


def share_keys(
    state: Advertised, message: bytes, *, entropy: Entropy, identity: Identity | None
) -> tuple[Shared, bytes]:
    """Take the roster, derive the channels' keys and deal shares of the two secrets.

    Raises:
        ProtocolViolation: If the roster is not one for this client.
        Authentication: If a channel key is unusable or a key not signed by its owner.
    """
    parameters, client = state.parameters, state.client
    roster = decode_roster(parameters, client, message)
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
    dealing = Dealing(
        commit_to_seed(parameters, client, seed),
        _seal_all(state, dealt, channels, entropy),
        _commit_all(state, dealt) if parameters.is_active else {},
    )
    return shared, encode_dealt_shares(parameters, client, dealing, identity=identity)


def receive_shares(state: Shared, message: bytes) -> ReadyToMask:
    """Take the boxes of the peers, keep the shares in them and derive the pairwise masks' keys.

    Only the peers that dealt are masked with, so only theirs are derived.

    Raises:
        ProtocolViolation: If the message is not one for this client.
        Authentication: If a mask key is unusable.
    """
    parameters, client = state.parameters, state.client
    forwarded = decode_forwarded_shares(parameters, client, message)
    if (
        len(forwarded) + 1 < parameters.threshold
        or not forwarded.keys() <= state.mask_publics.keys()
    ):
        raise refusal()
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


def _seal_all(
    state: Advertised,
    dealt: Mapping[int, HeldShares],
    channels: Mapping[int, ChannelKeys],
    entropy: Entropy,
) -> dict[int, bytes]:
    return {
        peer: seal(
            keys.sending,
            dealt[peer].key + dealt[peer].seed,
            nonce=draw(entropy, NONCE_BYTES),
            associated=box_context(state.parameters, state.client, peer),
        )
        for peer, keys in channels.items()
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


def _open_box(state: Shared, dealer: int, forwarded: ForwardedShares) -> HeldShares | None:
    parameters = state.parameters
    try:
        held = _unseal(state, dealer, forwarded.box)
        if parameters.is_active:
            expected = share_commitments(parameters, dealer, state.client, held)
            if expected != forwarded.commitments:
                raise Authentication("a share is not the one committed to")
    except ProtocolViolation:
        # One spoilt box must not cost the round this client's vector: it complains instead.
        return None
    return held


def _unseal(state: Shared, dealer: int, box: bytes) -> HeldShares:
    context = box_context(state.parameters, dealer, state.client)
    both = unseal(state.receiving_keys[dealer], box, associated=context)
    held = HeldShares(key=both[: shamir.SHARE_BYTES], seed=both[shamir.SHARE_BYTES :])
    # Passed on later, a share that is no field element would make this client look faulty.
    if not (shamir.is_share(held.key) and shamir.is_share(held.seed)):
        raise refusal()
    return held
