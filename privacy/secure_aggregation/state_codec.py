"""Client states as bytes, without pickle, for a client that is a new process at every message.

The bytes hold the client's secrets in the clear. They belong in the client's own store, are
replaced as the state goes forward and deleted after the round.

    "SC", version 4, tag of the phase (1 byte), then for each field its length (4) and bytes;
    mappings are records in ascending order of index, as in messages
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from privacy.secure_aggregation.envelope import refusal
from privacy.secure_aggregation.keys import KEY_BYTES
from privacy.secure_aggregation.messages import pack_indices, pack_records, unpack_records
from privacy.secure_aggregation.parameters import (
    PROTOCOL_VERSION,
    RoundParameters,
    decode_parameters,
)
from privacy.secure_aggregation.shamir import SHARE_BYTES
from privacy.secure_aggregation.state_fields import join_fields, split_fields, take_digest
from privacy.secure_aggregation.states import (
    Advertised,
    ClientState,
    Confirmed,
    Done,
    HeldShares,
    Masked,
    ReadyToMask,
    Shared,
)

_PREFIX = struct.Struct("<2sBB")
_OWN = struct.Struct("<I")
_MAGIC = b"SC"
_TAGS: Mapping[type[ClientState], int] = MappingProxyType(
    {Advertised: 1, Shared: 2, ReadyToMask: 3, Masked: 4, Confirmed: 5, Done: 6}
)


def encode_client_state(state: ClientState) -> bytes:
    """Return the one encoding of a client's state; it holds secrets.

    Args:
        state: A state of any phase.

    Returns:
        Bytes for the client's own store.
    """
    own = _OWN.pack(state.client)
    fields = (state.parameters.encode(), own, *_fields(state))
    return _PREFIX.pack(_MAGIC, PROTOCOL_VERSION, _TAGS[type(state)]) + join_fields(fields)


def decode_client_state(data: bytes) -> ClientState:
    """Read back what `encode_client_state` wrote.

    Args:
        data: Exactly one encoded state.

    Returns:
        The state, equal to the one encoded.

    Raises:
        ProtocolViolation: If the bytes are no valid state; the error does not say why.
    """
    if not isinstance(data, bytes):
        raise refusal()
    try:
        _, _, tag = _PREFIX.unpack_from(data)
        if tag not in _READERS:
            raise refusal()
        encoded, own, *fields = split_fields(data[_PREFIX.size :])
        (client,) = _OWN.unpack(own)
        parameters = decode_parameters(encoded)
        if client not in parameters.clients:
            raise refusal()
        state = _READERS[tag](parameters, client, fields)
    except (ValueError, struct.error):
        raise refusal() from None
    # One encoding for each state: this also settles magic, version, lengths and what is unused.
    if encode_client_state(state) != data:
        raise refusal()
    return state


def _fields(state: ClientState) -> tuple[bytes, ...]:
    match state:
        case Advertised():
            return state.channel_private, state.mask_private
        case Shared():
            own = _pack_shares({state.client: state.own})
            keys = pack_records(state.mask_publics), pack_records(state.receiving_keys)
            return state.seed, own, state.mask_private, *keys, state.roster
        case ReadyToMask():
            keys = pack_records(state.mask_keys), _pack_shares(state.shares)
            return state.seed, *keys, state.roster, pack_indices(state.withheld)
        case Masked():
            seen = state.roster, state.context, pack_indices(state.withheld)
            return _pack_shares(state.shares), *seen
        case Confirmed():
            signed = pack_indices(state.survivors), state.transcript
            return _pack_shares(state.shares), *signed
        case _:
            return (pack_indices(state.survivors),)


def _read_advertised(parameters: RoundParameters, client: int, fields: list[bytes]) -> Advertised:
    channel, mask = fields
    return Advertised(parameters, client, take_digest(channel), take_digest(mask))


def _read_shared(parameters: RoundParameters, client: int, fields: list[bytes]) -> Shared:
    seed, own, mask_private, mask_publics, receiving_keys, roster = fields
    (held,) = _unpack_shares(own).values()
    return Shared(
        parameters,
        client,
        seed=take_digest(seed),
        own=held,
        mask_private=take_digest(mask_private),
        mask_publics=_unpack_keys(mask_publics),
        receiving_keys=_unpack_keys(receiving_keys),
        roster=take_digest(roster),
    )


def _read_ready(parameters: RoundParameters, client: int, fields: list[bytes]) -> ReadyToMask:
    seed, mask_keys, shares, roster, withheld = fields
    return ReadyToMask(
        parameters,
        client,
        seed=take_digest(seed),
        mask_keys=_unpack_keys(mask_keys),
        shares=_unpack_shares(shares),
        roster=take_digest(roster),
        withheld=_unpack_indices(withheld),
    )


def _read_masked(parameters: RoundParameters, client: int, fields: list[bytes]) -> Masked:
    shares, roster, context, withheld = fields
    return Masked(
        parameters,
        client,
        _unpack_shares(shares),
        roster=take_digest(roster),
        context=take_digest(context),
        withheld=_unpack_indices(withheld),
    )


def _read_confirmed(parameters: RoundParameters, client: int, fields: list[bytes]) -> Confirmed:
    shares, survivors, transcript = fields
    return Confirmed(
        parameters,
        client,
        _unpack_shares(shares),
        survivors=_unpack_indices(survivors),
        transcript=take_digest(transcript),
    )


def _read_done(parameters: RoundParameters, client: int, fields: list[bytes]) -> Done:
    (survivors,) = fields
    return Done(parameters, client, _unpack_indices(survivors))


_READERS: Mapping[int, Callable[[RoundParameters, int, list[bytes]], ClientState]] = (
    MappingProxyType(
        {
            1: _read_advertised,
            2: _read_shared,
            3: _read_ready,
            4: _read_masked,
            5: _read_confirmed,
            6: _read_done,
        }
    )
)


def _unpack_keys(field: bytes) -> Mapping[int, bytes]:
    return MappingProxyType(unpack_records(field, KEY_BYTES))


def _unpack_indices(field: bytes) -> tuple[int, ...]:
    return tuple(unpack_records(field, 0))


def _pack_shares(shares: Mapping[int, HeldShares]) -> bytes:
    return pack_records({dealer: held.key + held.seed for dealer, held in shares.items()})


def _unpack_shares(field: bytes) -> Mapping[int, HeldShares]:
    records = unpack_records(field, 2 * SHARE_BYTES)
    return MappingProxyType(
        {
            dealer: HeldShares(key=both[:SHARE_BYTES], seed=both[SHARE_BYTES:])
            for dealer, both in records.items()
        }
    )
