"""The coordinator's side of the secure sum, with clients' names in place of share indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from methods import Arrays
from platform.protection.sums import round_parameters
from platform.protection.uploads import Protection
from platform.rounds.plan import RoundPlan
from platform.wire.messages import SecureRound, broadcast_digest
from platform.wire.transport import ClientId
from privacy.secure_aggregation import Finished, ServerState, decode_server_state
from privacy.secure_aggregation import encode_server_state as encode_state
from privacy.secure_aggregation import server as unmasking


@dataclass(frozen=True)
class MaskedSum:
    """The server's state machine, with clients' names in place of share indices.

    Attributes:
        state: How far it has come.
        places: Each client's share index.
    """

    state: ServerState
    places: Mapping[ClientId, int]

    @classmethod
    def start(cls, protection: Protection, plan: RoundPlan, broadcast: Arrays) -> MaskedSum:
        """Return the protocol's first state.

        Args:
            protection: How uploads are protected in this round.
            plan: The attempt.
            broadcast: What all clients are sent alike.
        """
        seat = seat_of(protection, plan, 0)
        parameters = round_parameters(plan.envelope(plan.cohort[0]), seat)
        context = broadcast_digest(broadcast, plan.facts.clipping_norm)
        return cls(unmasking.start(parameters, context=context), plan.places)

    def at(self, encoded: bytes) -> MaskedSum:
        """Return the same sum at a state that was kept."""
        return dataclasses.replace(self, state=decode_server_state(encoded))

    def encode(self) -> bytes:
        """Return the state, to be kept until the next stage has been answered."""
        return encode_state(self.state)

    def advance(
        self, payloads: Mapping[ClientId, bytes]
    ) -> tuple[MaskedSum, dict[ClientId, bytes]]:
        """Return one step: answers in, the next state and messages out."""
        messages = {self.places[client]: payload for client, payload in payloads.items()}
        state, outgoing = unmasking.step(self.state, messages)
        named = {name: outgoing[i] for name, i in self.places.items() if i in outgoing}
        return dataclasses.replace(self, state=state), named

    def finished(self) -> Finished:
        """Return the last state."""
        if not isinstance(self.state, Finished):
            raise TypeError("the protocol has not finished")
        return self.state

    def names(self, indices: tuple[int, ...]) -> tuple[ClientId, ...]:
        """Return the clients with these share indices, sorted."""
        wanted = frozenset(indices)
        return tuple(sorted(name for name, i in self.places.items() if i in wanted))


def seat_of(protection: Protection, plan: RoundPlan, index: int) -> SecureRound:
    """Return what the client with this share index is told.

    Raises:
        ValueError: If the attempt has no secure sum.
    """
    layout, grid, clients = protection.layout, protection.sums.grid(), len(plan.cohort)
    if plan.secure is None:
        raise ValueError("there is no secure sum in this attempt")
    return SecureRound(
        index=index,
        clients=clients,
        vector_length=layout.length,
        ring_bits=layout.ring_bits(grid, clients),
        terms=plan.secure.terms,
        graph=plan.secure.graph,
        enrolled=plan.secure.enrolled(plan.cohort),
    )
