"""States as bytes, without pickle, for a party that is a new process at every message.

    "SC" for a client, "SS" for the server, version 4, tag of the phase (1 byte), then for the
    parameters and each attribute its length (4) and bytes; mappings are records in ascending
    order of index, as in messages

A client's bytes hold its secrets in the clear: they belong in its own store, are replaced as the
state goes forward and deleted after the round. The server's hold no client's secret: keys, boxes'
commitments and masked sums are what it saw anyway. Read back, a state goes on exactly where it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from privacy.secure_aggregation.keys import KEY_BYTES
from privacy.secure_aggregation.masking import Words, pack, unpack
from privacy.secure_aggregation.messages import (
    COMMITMENT_BYTES,
    COMMITMENTS_BYTES,
    SERVER,
    pack_indices,
    pack_records,
    pack_roster,
    refusal,
    unpack_records,
    unpack_roster,
)
from privacy.secure_aggregation.parameters import (
    PROTOCOL_VERSION,
    Phase,
    RoundParameters,
    decode_parameters,
)
from privacy.secure_aggregation.shamir import SHARE_BYTES
from privacy.secure_aggregation.states import (
    Advertised,
    ClientState,
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Complaints,
    Confirmed,
    Dealt,
    Done,
    Finished,
    HeldShares,
    Masked,
    ReadyToMask,
    Refusal,
    ServerState,
    Shared,
)

_LENGTH = struct.Struct("<I")
_NAMED = struct.Struct("<II")
_REFUSAL = struct.Struct("<qB")
_PHASES = tuple(Phase)
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Form:
    """How attributes of one kind are encoded in a state.

    Attributes:
        write: Gives the bytes of a valid value.
        read: Gives the value back; raises `ProtocolViolation`, `ValueError` or `struct.error` for
            bytes that are none. That there is one encoding only is checked for the whole state.
    """

    write: Callable[[RoundParameters, Any], bytes]
    read: Callable[[RoundParameters, bytes], Any]


def join_fields(fields: Iterable[bytes]) -> bytes:
    """Write the length (4) and the bytes of every field."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in fields)


def split_fields(body: bytes) -> list[bytes]:
    """Read back what `join_fields` wrote; a length that is too large gives a shorter field.

    `struct.error` if a length is cut.
    """
    fields, at = [], 0
    while at < len(body):
        (size,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        fields.append(body[at : at + size])
        at += size
    return fields


def _pack_named(fields: Mapping[int, bytes]) -> bytes:
    # Index (4), length (4) and bytes of every field, in ascending order of index.
    parts = (_NAMED.pack(index, len(fields[index])) + fields[index] for index in sorted(fields))
    return b"".join(parts)


def _unpack_named(body: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at, last = 0, SERVER
    while at < len(body):
        index, size = _NAMED.unpack_from(body, at)
        if index <= last:
            raise refusal()
        at += _NAMED.size
        fields[last := index] = body[at : at + size]
        at += size
    return fields


def _read_client(parameters: RoundParameters, field: bytes) -> int:
    (client,) = _LENGTH.unpack(field)
    if client not in parameters.invited:
        raise refusal()
    return int(client)


def _read_digest(parameters: RoundParameters, field: bytes) -> bytes:
    if len(field) != _DIGEST_BYTES:
        raise refusal()
    return field


def _read_indices(parameters: RoundParameters, field: bytes) -> tuple[int, ...]:
    return tuple(unpack_records(field, 0))


def _write_held(parameters: RoundParameters, held: HeldShares) -> bytes:
    return held.key + held.seed


def _read_held(parameters: RoundParameters, field: bytes) -> HeldShares:
    if len(field) != 2 * SHARE_BYTES:
        raise refusal()
    return HeldShares(key=field[:SHARE_BYTES], seed=field[SHARE_BYTES:])


def _write_shares(parameters: RoundParameters, shares: Mapping[int, HeldShares]) -> bytes:
    return pack_records({dealer: _write_held(parameters, held) for dealer, held in shares.items()})


def _read_shares(parameters: RoundParameters, field: bytes) -> Mapping[int, HeldShares]:
    records = unpack_records(field, 2 * SHARE_BYTES)
    return MappingProxyType({dealer: _read_held(parameters, r) for dealer, r in records.items()})


def _write_dealt(parameters: RoundParameters, dealt: Dealt) -> bytes:
    by_dealer = {dealer: pack_records(each) for dealer, each in dealt.share_commitments.items()}
    fields = (pack_roster(dealt.roster), pack_records(dealt.commitments), _pack_named(by_dealer))
    return join_fields(fields)


def _read_dealt(parameters: RoundParameters, field: bytes) -> Dealt:
    roster, commitments, share_commitments = split_fields(field)
    by_dealer = {
        dealer: MappingProxyType(unpack_records(each, COMMITMENTS_BYTES))
        for dealer, each in _unpack_named(share_commitments).items()
    }
    dealt = Dealt(
        roster=MappingProxyType(unpack_roster(parameters, roster)),
        commitments=MappingProxyType(unpack_records(commitments, COMMITMENT_BYTES)),
        share_commitments=MappingProxyType(by_dealer),
    )
    if not dealt.roster.keys() == dealt.commitments.keys() == dealt.share_commitments.keys():
        raise refusal()
    return dealt


def _read_sum(parameters: RoundParameters, field: bytes) -> Words:
    words = unpack(memoryview(field), parameters.vector_length, parameters.ring_bits)
    if words is None:
        raise refusal()
    words.setflags(write=False)
    return words


def _write_complaints(parameters: RoundParameters, complaints: Complaints) -> bytes:
    return _pack_named({client: pack_indices(each) for client, each in complaints.items()})


def _read_complaints(parameters: RoundParameters, field: bytes) -> Complaints:
    named = _unpack_named(field)
    return MappingProxyType({c: _read_indices(parameters, each) for c, each in named.items()})


def _write_refused(parameters: RoundParameters, refused: tuple[Refusal, ...]) -> bytes:
    return b"".join(_REFUSAL.pack(each.client, _PHASES.index(each.phase)) for each in refused)


def _read_refused(parameters: RoundParameters, field: bytes) -> tuple[Refusal, ...]:
    refused = list(_REFUSAL.iter_unpack(field))
    if any(at >= len(_PHASES) for _, at in refused):
        raise refusal()
    return tuple(Refusal(client, _PHASES[at]) for client, at in refused)


CLIENT = Form(lambda _, client: _LENGTH.pack(client), _read_client)
DIGEST = Form(lambda _, digest: bytes(digest), _read_digest)
"""A digest, a key or a seed: 32 bytes."""
KEYS = Form(
    lambda _, keys: pack_records(keys),
    lambda _, field: MappingProxyType(unpack_records(field, KEY_BYTES)),
)
INDICES = Form(lambda _, indices: pack_indices(indices), _read_indices)
HELD = Form(_write_held, _read_held)
SHARES = Form(_write_shares, _read_shares)
ROSTER = Form(
    lambda _, roster: pack_roster(roster),
    lambda parameters, field: MappingProxyType(unpack_roster(parameters, field)),
)
DEALT = Form(_write_dealt, _read_dealt)
SUM = Form(lambda parameters, words: bytes(pack(words, parameters.ring_bits)), _read_sum)
COMPLAINTS = Form(_write_complaints, _read_complaints)
REFUSED = Form(_write_refused, _read_refused)


_State = TypeVar("_State", bound=ClientState | ServerState)
_Forms = Mapping[str, Form]

_PREFIX = struct.Struct("<2sBB")

_OWN: _Forms = {"client": CLIENT}
_SUMMED: _Forms = {
    "dealt": DEALT,
    "survivors": INDICES,
    "masked_sum": SUM,
    "complaints": COMPLAINTS,
    "refused": REFUSED,
}


@dataclass(frozen=True)
class _Codec(Generic[_State]):
    """The states of one party.

    Attributes:
        magic: Two bytes that open them.
        forms: For each type of state how its attributes but `parameters` stand, in order; the
            types' order gives their tags, from 1.
    """

    magic: bytes
    forms: Mapping[type[Any], _Forms]

    def encode(self, state: _State) -> bytes:
        forms, tag = self.forms[type(state)], 1 + list(self.forms).index(type(state))
        parameters = state.parameters
        fields = (each.write(parameters, getattr(state, name)) for name, each in forms.items())
        whole = join_fields((parameters.encode(), *fields))
        return _PREFIX.pack(self.magic, PROTOCOL_VERSION, tag) + whole

    def decode(self, data: bytes) -> _State:
        if not isinstance(data, bytes):
            raise refusal()
        try:
            state = self._read(data)
        except (ValueError, struct.error):
            raise refusal() from None
        # One encoding for each state: this also settles magic, version, lengths and what is unused.
        if self.encode(state) != data:
            raise refusal()
        return state

    def _read(self, data: bytes) -> _State:
        _, _, tag = _PREFIX.unpack_from(data)
        if not 1 <= tag <= len(self.forms):
            raise refusal()
        made, forms = list(self.forms.items())[tag - 1]
        encoded, *fields = split_fields(data[_PREFIX.size :])
        parameters = decode_parameters(encoded)
        values = {
            name: each.read(parameters, field)
            for (name, each), field in zip(forms.items(), fields, strict=True)
        }
        state: _State = made(parameters, **values)
        return state


_CLIENTS: _Codec[ClientState] = _Codec(
    b"SC",
    MappingProxyType(
        {
            Advertised: {**_OWN, "channel_private": DIGEST, "mask_private": DIGEST},
            Shared: {
                **_OWN,
                "seed": DIGEST,
                "own": HELD,
                "mask_private": DIGEST,
                "mask_publics": KEYS,
                "receiving_keys": KEYS,
                "roster": DIGEST,
            },
            ReadyToMask: {
                **_OWN,
                "seed": DIGEST,
                "mask_keys": KEYS,
                "shares": SHARES,
                "roster": DIGEST,
                "withheld": INDICES,
            },
            Masked: {
                **_OWN,
                "shares": SHARES,
                "roster": DIGEST,
                "context": DIGEST,
                "withheld": INDICES,
            },
            Confirmed: {**_OWN, "shares": SHARES, "survivors": INDICES, "transcript": DIGEST},
            Done: {**_OWN, "survivors": INDICES},
        }
    ),
)

_SERVERS: _Codec[ServerState] = _Codec(
    b"SS",
    MappingProxyType(
        {
            CollectingKeys: {"context": DIGEST},
            CollectingShares: {"context": DIGEST, "roster": ROSTER, "refused": REFUSED},
            CollectingMasked: {
                "context": DIGEST,
                "announced": DIGEST,
                "dealt": DEALT,
                "refused": REFUSED,
            },
            CollectingConfirmations: {"transcript": DIGEST, **_SUMMED},
            CollectingUnmasking: _SUMMED,
        }
    ),
)


def encode_client_state(state: ClientState) -> bytes:
    """Return the one encoding of a client's state of any phase; it holds secrets."""
    return _CLIENTS.encode(state)


def decode_client_state(data: bytes) -> ClientState:
    """Read back a client's state; `ProtocolViolation`, without a reason, if it is not valid."""
    return _CLIENTS.decode(data)


def encode_server_state(state: ServerState) -> bytes:
    """Return the one encoding of a server's state; `ValueError` if the round is finished."""
    if isinstance(state, Finished):
        raise ValueError("state must wait for messages; a finished round has nothing to go on with")
    return _SERVERS.encode(state)


def decode_server_state(data: bytes) -> ServerState:
    """Read back what `encode_server_state` wrote; the same messages make it take the same steps.

    Raises:
        ProtocolViolation: If the bytes are no valid state; the error does not say why.
    """
    state = _SERVERS.decode(data)
    if not isinstance(state, CollectingConfirmations | CollectingUnmasking):
        return state
    survivors, dealers = frozenset(state.survivors), state.dealt.roster.keys()
    if (
        len(survivors) < state.parameters.least_survivors
        or not survivors <= dealers
        or not state.complaints.keys() <= survivors
        or not all(each and dealers >= set(each) for each in state.complaints.values())
        # Only an active round waits for signatures.
        or (isinstance(state, CollectingConfirmations) and not state.parameters.is_active)
    ):
        raise refusal()
    return state
