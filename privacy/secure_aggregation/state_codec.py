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
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from privacy.secure_aggregation import state_fields as form
from privacy.secure_aggregation.envelope import refusal
from privacy.secure_aggregation.parameters import PROTOCOL_VERSION, decode_parameters
from privacy.secure_aggregation.state_fields import Form, join_fields, split_fields
from privacy.secure_aggregation.states import (
    Advertised,
    ClientState,
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Confirmed,
    Done,
    Finished,
    Masked,
    ReadyToMask,
    ServerState,
    Shared,
)

_State = TypeVar("_State", bound=ClientState | ServerState)
_Forms = Mapping[str, Form]

_PREFIX = struct.Struct("<2sBB")

_OWN: _Forms = {"client": form.CLIENT}
_SUMMED: _Forms = {
    "dealt": form.DEALT,
    "survivors": form.INDICES,
    "masked_sum": form.SUM,
    "complaints": form.COMPLAINTS,
    "refused": form.REFUSED,
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
            Advertised: {
                **_OWN,
                "channel_private": form.DIGEST,
                "mask_private": form.DIGEST,
            },
            Shared: {
                **_OWN,
                "seed": form.DIGEST,
                "own": form.HELD,
                "mask_private": form.DIGEST,
                "mask_publics": form.KEYS,
                "receiving_keys": form.KEYS,
                "roster": form.DIGEST,
            },
            ReadyToMask: {
                **_OWN,
                "seed": form.DIGEST,
                "mask_keys": form.KEYS,
                "shares": form.SHARES,
                "roster": form.DIGEST,
                "withheld": form.INDICES,
            },
            Masked: {
                **_OWN,
                "shares": form.SHARES,
                "roster": form.DIGEST,
                "context": form.DIGEST,
                "withheld": form.INDICES,
            },
            Confirmed: {
                **_OWN,
                "shares": form.SHARES,
                "survivors": form.INDICES,
                "transcript": form.DIGEST,
            },
            Done: {**_OWN, "survivors": form.INDICES},
        }
    ),
)

_SERVERS: _Codec[ServerState] = _Codec(
    b"SS",
    MappingProxyType(
        {
            CollectingKeys: {"context": form.DIGEST},
            CollectingShares: {
                "context": form.DIGEST,
                "roster": form.ROSTER,
                "refused": form.REFUSED,
            },
            CollectingMasked: {
                "context": form.DIGEST,
                "announced": form.DIGEST,
                "dealt": form.DEALT,
                "refused": form.REFUSED,
            },
            CollectingConfirmations: {"transcript": form.DIGEST, **_SUMMED},
            CollectingUnmasking: _SUMMED,
        }
    ),
)


def encode_client_state(state: ClientState) -> bytes:
    """Return the one encoding of a client's state of any phase; it holds secrets."""
    return _CLIENTS.encode(state)


def decode_client_state(data: bytes) -> ClientState:
    """Read back what `encode_client_state` wrote, equal to the state encoded.

    Raises:
        ProtocolViolation: If the bytes are no valid state; the error does not say why.
    """
    return _CLIENTS.decode(data)


def encode_server_state(state: ServerState) -> bytes:
    """Return the one encoding of a server's state.

    Raises:
        ValueError: If the round is finished; its sum is a result and waits for nothing.
    """
    if isinstance(state, Finished):
        raise ValueError("state must wait for messages; a finished round has nothing to go on with")
    return _SERVERS.encode(state)


def decode_server_state(data: bytes) -> ServerState:
    """Read back what `encode_server_state` wrote; the same messages make it take the same steps.

    Raises:
        ProtocolViolation: If the bytes are no valid state; the error does not say why.
    """
    state = _SERVERS.decode(data)
    if isinstance(state, CollectingConfirmations | CollectingUnmasking):
        _require_consistent(state)
    return state


def _require_consistent(state: CollectingConfirmations | CollectingUnmasking) -> None:
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
