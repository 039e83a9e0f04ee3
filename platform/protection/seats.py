"""A client's seat in the secure aggregation: what a message says of it, and if that is this run's.

Both sides make the protocol's parameters here, so that they agree where the message does.
"""

from __future__ import annotations

from platform.errors import ProtocolError
from platform.protection.secure_terms import meets
from platform.protection.uploads import Protection
from platform.wire.envelopes import Envelope
from platform.wire.secure_round import SecureRound
from privacy import CalibrationError
from privacy.secure_aggregation import Adversary, RoundParameters

LARGEST_COHORT = 1 << 17
"""Most clients of one round that an invitation may name, so that a number costs no memory."""


def parameters_of(envelope: Envelope, seat: SecureRound, protection: Protection) -> RoundParameters:
    """Return protocol's parameters, if they are possible and those of this run's vector and terms.

    Raises:
        ProtocolError: If they are not.
    """
    layout, terms = protection.layout, protection.terms
    try:
        if not 1 <= seat.index <= seat.clients <= LARGEST_COHORT:
            raise ValueError("the seat is not one of the cohort's")
        ring_bits = layout.ring_bits(protection.sums.grid(), seat.clients)
        if (seat.vector_length, seat.ring_bits) != (layout.length, ring_bits):
            raise ValueError("the vector is not this run's")
        parameters = round_parameters(envelope, seat)
        if terms is not None and not meets(parameters, terms):
            raise ValueError("the terms of the secure sum are not this run's")
        return parameters
    except (ValueError, CalibrationError) as error:
        raise ProtocolError(f"message: the invitation is not valid: {error}") from error


def round_parameters(envelope: Envelope, secure: SecureRound) -> RoundParameters:
    """Return the secure aggregation's parameters as a message states them.

    Raises:
        ValueError: If no round can be run with them.
    """
    enrolled = secure.enrolled
    identities = () if enrolled is None else enrolled.identities
    return RoundParameters(
        run_id=envelope.run_id,
        round_number=envelope.round_number,
        attempt=envelope.attempt,
        clients=tuple(range(1, secure.clients + 1)),
        threshold=secure.terms.threshold,
        vector_length=secure.vector_length,
        ring_bits=secure.ring_bits,
        corrupt=secure.terms.corrupt,
        adversary=Adversary.ACTIVE if identities else Adversary.SEMI_HONEST,
        identities=identities,
        degree=secure.graph.degree,
        graph_seed=secure.graph.seed,
        smallest_sum=secure.terms.smallest_sum,
        enrolment_serial=0 if enrolled is None else enrolled.serial,
    )
