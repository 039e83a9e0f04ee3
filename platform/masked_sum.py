"""The coordinator's side of the secure sum, with clients' names in place of share indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from platform.attempt import RoundPlan
from platform.client import round_parameters
from platform.messages import SecureRound
from platform.protection import Protection
from platform.transport import ClientId
from privacy.secure_aggregation import Finished, ServerState
from privacy.secure_aggregation import server as unmasking


@dataclass
class MaskedSum:
    """The server's state machine, with clients' names in place of share indices."""

    state: ServerState
    template: SecureRound

    @classmethod
    def start(cls, protection: Protection, plan: RoundPlan) -> MaskedSum | None:
        """The protocol's first state, None where the sum is not masked."""
        if not protection.masked or plan.threshold is None:
            return None
        layout, grid = protection.layout, protection.at(plan.clipping_norm).grid()
        template = SecureRound(
            index=0,
            clients=len(plan.cohort),
            threshold=plan.threshold,
            vector_length=layout.length,
            ring_bits=layout.ring_bits(grid, len(plan.cohort)),
            corrupt=plan.corrupt,
        )
        return cls(
            unmasking.start(round_parameters(plan.envelope(plan.cohort[0]), template)), template
        )

    def seat(self, index: int) -> SecureRound:
        """What one client is told."""
        kept = self.template
        return SecureRound(
            index, kept.clients, kept.threshold, kept.vector_length, kept.ring_bits, kept.corrupt
        )

    def advance(
        self, payloads: Mapping[ClientId, bytes], places: Mapping[ClientId, int]
    ) -> dict[ClientId, bytes]:
        """One step: answers in, next messages out."""
        messages = {places[client]: payload for client, payload in payloads.items()}
        names = {place: client for client, place in places.items()}
        self.state, outgoing = unmasking.step(self.state, messages)
        return {names[place]: payload for place, payload in outgoing.items()}

    def finished(self) -> Finished:
        """The last state."""
        if not isinstance(self.state, Finished):
            raise TypeError("the protocol has not finished")
        return self.state
