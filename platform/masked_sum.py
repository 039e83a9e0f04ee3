"""The coordinator's side of the secure sum, with clients' names in place of share indices."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from platform.attempt import RoundPlan
from platform.client import round_parameters
from platform.messages import SecureRound
from platform.protection import Protection
from platform.transport import ClientId
from privacy.secure_aggregation import CollectingConfirmations, Finished, ServerState
from privacy.secure_aggregation import server as unmasking
from privacy.secure_aggregation.graph import SEED_BYTES


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
            smallest_sum=plan.smallest_sum,
            degree=plan.degree,
            # Drawn once the cohort is fixed, so that nobody could choose a place in the graph.
            graph_seed=secrets.token_bytes(SEED_BYTES) if plan.degree else b"",
            identities=tuple(plan.identities[client] for client in plan.cohort if plan.identities),
        )
        parameters = round_parameters(plan.envelope(plan.cohort[0]), template)
        return cls(unmasking.start(parameters), template)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether clients have to agree on the list of survivors first."""
        return isinstance(self.state, CollectingConfirmations)

    def seat(self, index: int) -> SecureRound:
        """What one client is told."""
        return dataclasses.replace(self.template, index=index)

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
