"""Secure aggregation: a sum of vectors that shows the server no vector (Bonawitz et al. 2017).

Double masking and Shamir recovery of clients that drop out after sharing keys. The result is the
exact sum of the survivors modulo 2^ring_bits, or an error that names the phase. Both sides are pure
state machines, one frozen type per phase, that exchange bytes:

    client.advertise, client.step, client.mask        server.start, server.step

Against semi-honest parties the graph may be k-regular (Bell et al. 2020); against an active
adversary keys, shares and survivor lists are signed under identities from an enrolment that every
party got over another channel. `plan` computes graph and threshold. The protocol itself bounds no
vector: a malicious client may shift the sum by any amount.
"""

from __future__ import annotations

from privacy.secure_aggregation import client, server
from privacy.secure_aggregation.identities import (
    Credentials,
    Enrolment,
    Identity,
    Member,
    decode_enrolment,
    fingerprint,
    new_identity,
    node_fingerprint,
)
from privacy.secure_aggregation.parameters import (
    Adversary,
    Phase,
    Plan,
    RoundParameters,
    default_threshold,
    plan,
)
from privacy.secure_aggregation.recovery import (
    FaultyShares,
    TooFewAnswers,
    largest_norm,
    require_plausible_norm,
)
from privacy.secure_aggregation.state_codec import (
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
)
from privacy.secure_aggregation.states import (
    NO_CONTEXT,
    Advertised,
    ClientState,
    CollectingConfirmations,
    CollectingKeys,
    CollectingMasked,
    CollectingShares,
    CollectingUnmasking,
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

__all__ = [
    "NO_CONTEXT",
    "Adversary",
    "Advertised",
    "ClientState",
    "CollectingConfirmations",
    "CollectingKeys",
    "CollectingMasked",
    "CollectingShares",
    "CollectingUnmasking",
    "Confirmed",
    "Credentials",
    "Dealt",
    "Done",
    "Enrolment",
    "FaultyShares",
    "Finished",
    "HeldShares",
    "Identity",
    "Masked",
    "Member",
    "Phase",
    "Plan",
    "ReadyToMask",
    "Refusal",
    "RoundParameters",
    "ServerState",
    "Shared",
    "TooFewAnswers",
    "client",
    "decode_client_state",
    "decode_enrolment",
    "decode_server_state",
    "default_threshold",
    "encode_client_state",
    "encode_server_state",
    "fingerprint",
    "largest_norm",
    "new_identity",
    "node_fingerprint",
    "plan",
    "require_plausible_norm",
    "server",
]
