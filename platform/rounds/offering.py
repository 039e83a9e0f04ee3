"""Offering a run: every client must agree before anything else is asked of any."""

from __future__ import annotations

from collections.abc import Container, Sequence

from platform.errors import RunStopped
from platform.rounds.asking import Question, ask_all
from platform.wire.outside_rounds import Offer, decode_acceptance, encode_offer
from platform.wire.transport import ClientId, Transport


def offer_run(
    transport: Transport, clients: Sequence[ClientId], offer: Offer, left: Container[ClientId] = ()
) -> None:
    """Ask all clients to take part in a run; asking again changes nothing.

    Args:
        transport: Carries the messages.
        clients: All clients' names.
        offer: What they are asked.
        left: Who has left the run for good by now.

    Raises:
        ClientsSilent: If one gives no answer.
        RunStopped: If one does not take part, with what it says.
    """
    envelope, message = offer.envelope, encode_offer(offer)
    questions = (Question(client, envelope, message) for client in clients)
    answers = dict(ask_all(transport, "join", questions, decode_acceptance, left=left))
    declined = {client: said.reasons for client, said in answers.items() if said.reasons}
    if declined:
        listed = "; ".join(f"{client}: {' | '.join(why)}" for client, why in declined.items())
        raise RunStopped(f"run {envelope.run_id}: not all clients take part: {listed}")
