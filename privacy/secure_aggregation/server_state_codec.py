"""Server states as bytes, without pickle, for a server that may stop between any two phases.

The bytes hold no client's secret: keys, boxes' commitments and masked sums are what the server saw
anyway. Read back, a state goes on exactly where it was: the same answers give the same sum.

    "SS", version 4, tag of the phase (1 byte), then for each field its length (4) and bytes;
    mappings are records in ascending order of index, as in messages
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from privacy.secure_aggregation.envelope import refusal
from privacy.secure_aggregation.identities import SIGNATURE_BYTES
from privacy.secure_aggregation.keys import KEY_BYTES, PublicKeys
from privacy.secure_aggregation.masking import Words
from privacy.secure_aggregation.messages import (
    COMMITMENT_BYTES,
    COMMITMENTS_BYTES,
    pack_indices,
    pack_records,
    unpack_records,
)
from privacy.secure_aggregation.packing import pack, unpack
from privacy.secure_aggregation.parameters import (
    PROTOCOL_VERSION,
    Phase,
    RoundParameters,
    decode_parameters,
)
from privacy.secure_aggregation.state_fields import (
    join_fields,
    pack_named,
    split_fields,
    take_digest,
    unpack_named,
)
from privacy.secure_aggregation.states import (
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Complaints,
    Dealt,
    Finished,
    Refusal,
    ServerState,
)

_Waiting = (
    CollectingKeys
    | CollectingShares
    | CollectingMasked
    | CollectingConfirmations
    | CollectingUnmasking
)

_PREFIX = struct.Struct("<2sBB")
_REFUSAL = struct.Struct("<qB")
_MAGIC = b"SS"
_PHASES = tuple(Phase)
_TAGS: Mapping[type[_Waiting], int] = MappingProxyType(
    {
        CollectingKeys: 1,
        CollectingShares: 2,
        CollectingMasked: 3,
        CollectingConfirmations: 4,
        CollectingUnmasking: 5,
    }
)


def encode_server_state(state: ServerState) -> bytes:
    """Return the one encoding of a server's state.

    Args:
        state: A state that waits for messages.

    Returns:
        Bytes for the server's own store.

    Raises:
        ValueError: If the round is finished; its sum is a result and waits for nothing.
    """
    if isinstance(state, Finished):
        raise ValueError("state must wait for messages; a finished round has nothing to go on with")
    fields = state.parameters.encode(), *_fields(state)
    return _PREFIX.pack(_MAGIC, PROTOCOL_VERSION, _TAGS[type(state)]) + join_fields(fields)


def decode_server_state(data: bytes) -> ServerState:
    """Read back what `encode_server_state` wrote.

    Args:
        data: Exactly one encoded state.

    Returns:
        The state; the same messages make it take the same steps.

    Raises:
        ProtocolViolation: If the bytes are no valid state; the error does not say why.
    """
    if not isinstance(data, bytes):
        raise refusal()
    try:
        _, _, tag = _PREFIX.unpack_from(data)
        if tag not in _READERS:
            raise refusal()
        encoded, *fields = split_fields(data[_PREFIX.size :])
        state = _READERS[tag](decode_parameters(encoded), fields)
    except (ValueError, struct.error):
        raise refusal() from None
    # One encoding for each state: this also settles magic, version, lengths and what is unused.
    if encode_server_state(state) != data:
        raise refusal()
    return state


def _fields(state: _Waiting) -> tuple[bytes, ...]:
    match state:
        case CollectingKeys():
            return (state.context,)
        case CollectingShares():
            return state.context, _pack_roster(state.roster), _pack_refused(state.refused)
        case CollectingMasked():
            seen = state.context, state.announced
            return *seen, *_pack_dealt(state.dealt), _pack_refused(state.refused)
        case CollectingConfirmations():
            return state.transcript, *_pack_collected(state)
        case _:
            return _pack_collected(state)


def _pack_collected(state: CollectingConfirmations | CollectingUnmasking) -> tuple[bytes, ...]:
    return (
        *_pack_dealt(state.dealt),
        pack_indices(state.survivors),
        bytes(pack(state.masked_sum, state.parameters.ring_bits)),
        pack_named({client: pack_indices(each) for client, each in state.complaints.items()}),
        _pack_refused(state.refused),
    )


def _read_keys(parameters: RoundParameters, fields: list[bytes]) -> CollectingKeys:
    (context,) = fields
    return CollectingKeys(parameters, take_digest(context))


def _read_shares(parameters: RoundParameters, fields: list[bytes]) -> CollectingShares:
    context, roster, refused = fields
    return CollectingShares(
        parameters,
        take_digest(context),
        roster=_unpack_roster(parameters, roster),
        refused=_unpack_refused(refused),
    )


def _read_masked(parameters: RoundParameters, fields: list[bytes]) -> CollectingMasked:
    context, announced, *dealt, refused = fields
    return CollectingMasked(
        parameters,
        take_digest(context),
        announced=take_digest(announced),
        dealt=_unpack_dealt(parameters, dealt),
        refused=_unpack_refused(refused),
    )


def _read_confirmations(
    parameters: RoundParameters, fields: list[bytes]
) -> CollectingConfirmations:
    transcript, *rest = fields
    if not parameters.is_active:
        raise refusal()
    waiting = _read_unmasking(parameters, rest)
    return CollectingConfirmations(
        parameters,
        take_digest(transcript),
        dealt=waiting.dealt,
        survivors=waiting.survivors,
        masked_sum=waiting.masked_sum,
        complaints=waiting.complaints,
        refused=waiting.refused,
    )


def _read_unmasking(parameters: RoundParameters, fields: list[bytes]) -> CollectingUnmasking:
    *dealt, survivors, masked_sum, complaints, refused = fields
    state = CollectingUnmasking(
        parameters,
        _unpack_dealt(parameters, dealt),
        survivors=_unpack_indices(survivors),
        masked_sum=_unpack_sum(parameters, masked_sum),
        complaints=_unpack_complaints(complaints),
        refused=_unpack_refused(refused),
    )
    _require_consistent(state)
    return state


def _require_consistent(state: CollectingUnmasking) -> None:
    survivors, dealers = frozenset(state.survivors), state.dealt.roster.keys()
    if (
        len(survivors) < state.parameters.least_survivors
        or not survivors <= dealers
        or not state.complaints.keys() <= survivors
        or not all(each and dealers >= set(each) for each in state.complaints.values())
    ):
        raise refusal()


_READERS: Mapping[int, Callable[[RoundParameters, list[bytes]], _Waiting]] = MappingProxyType(
    {
        1: _read_keys,
        2: _read_shares,
        3: _read_masked,
        4: _read_confirmations,
        5: _read_unmasking,
    }
)


def _pack_roster(roster: Mapping[int, PublicKeys]) -> bytes:
    return pack_records({i: k.channel + k.mask + k.signature for i, k in roster.items()})


def _unpack_roster(parameters: RoundParameters, field: bytes) -> Mapping[int, PublicKeys]:
    signature = SIGNATURE_BYTES if parameters.is_active else 0
    records = unpack_records(field, 2 * KEY_BYTES + signature)
    _require_invited(parameters, records)
    return MappingProxyType(
        {
            i: PublicKeys(each[:KEY_BYTES], each[KEY_BYTES : 2 * KEY_BYTES], each[2 * KEY_BYTES :])
            for i, each in records.items()
        }
    )


def _pack_dealt(dealt: Dealt) -> tuple[bytes, bytes, bytes]:
    by_dealer = {dealer: pack_records(each) for dealer, each in dealt.share_commitments.items()}
    return _pack_roster(dealt.roster), pack_records(dealt.commitments), pack_named(by_dealer)


def _unpack_dealt(parameters: RoundParameters, fields: list[bytes]) -> Dealt:
    roster, commitments, share_commitments = fields
    by_dealer = unpack_named(share_commitments)
    dealt = Dealt(
        roster=_unpack_roster(parameters, roster),
        commitments=MappingProxyType(unpack_records(commitments, COMMITMENT_BYTES)),
        share_commitments=MappingProxyType(
            {
                dealer: MappingProxyType(unpack_records(each, COMMITMENTS_BYTES))
                for dealer, each in by_dealer.items()
            }
        ),
    )
    dealers = dealt.roster.keys()
    if not dealers == dealt.commitments.keys() == dealt.share_commitments.keys():
        raise refusal()
    return dealt


def _unpack_sum(parameters: RoundParameters, field: bytes) -> Words:
    words = unpack(memoryview(field), parameters.vector_length, parameters.ring_bits)
    if words is None:
        raise refusal()
    words.setflags(write=False)
    return words


def _unpack_complaints(field: bytes) -> Complaints:
    named = unpack_named(field)
    return MappingProxyType({client: _unpack_indices(each) for client, each in named.items()})


def _unpack_indices(field: bytes) -> tuple[int, ...]:
    return tuple(unpack_records(field, 0))


def _require_invited(parameters: RoundParameters, clients: Mapping[int, bytes]) -> None:
    if not clients.keys() <= parameters.invited:
        raise refusal()


def _pack_refused(refused: tuple[Refusal, ...]) -> bytes:
    return b"".join(_REFUSAL.pack(each.client, _PHASES.index(each.phase)) for each in refused)


def _unpack_refused(field: bytes) -> tuple[Refusal, ...]:
    # A length that does not fit is a `struct.error`, which the caller takes for a refusal.
    refused = list(_REFUSAL.iter_unpack(field))
    if any(at >= len(_PHASES) for _, at in refused):
        raise refusal()
    return tuple(Refusal(client, _PHASES[at]) for client, at in refused)
