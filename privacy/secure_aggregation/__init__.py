"""Secure aggregation: a sum of vectors that shows the server no vector (Bonawitz et al. 2017).

Semi-honest parties, complete graph, double masking, Shamir recovery of clients that drop out after
sharing keys. The result is the exact sum of the survivors modulo 2^ring_bits, or an error. Both
sides are pure state machines, one frozen type per phase, that exchange bytes:

    client.advertise, client.step, client.mask        server.start, server.step

The protocol itself bounds no vector: a malicious client may shift the sum by any amount.
"""

from __future__ import annotations

from privacy.secure_aggregation import client, server
from privacy.secure_aggregation.parameters import Phase, RoundParameters, default_threshold
from privacy.secure_aggregation.state_codec import decode_client_state, encode_client_state
from privacy.secure_aggregation.states import (
    Advertised,
    ClientState,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
    Done,
    Finished,
    HeldShares,
    Masked,
    ReadyToMask,
    Refusal,
    ServerState,
    Shared,
)

__all__ = [
    "Advertised",
    "ClientState",
    "CollectingKeys",
    "CollectingMasked",
    "CollectingShares",
    "CollectingUnmasking",
    "Done",
    "Finished",
    "HeldShares",
    "Masked",
    "Phase",
    "ReadyToMask",
    "Refusal",
    "RoundParameters",
    "ServerState",
    "Shared",
    "client",
    "decode_client_state",
    "default_threshold",
    "encode_client_state",
    "server",
]
