"""Offering a run: every client must agree before anything else is asked of any."""

from __future__ import annotations

from collections.abc import Sequence

from platform.errors import RunStopped
from platform.rounds.asking import Question, ask_all
from platform.wire.envelopes import Envelope
from platform.wire.offers import Facts, Offer, decode_acceptance, encode_offer
from platform.wire.transport import ClientId, Transport


def offer_run(
    transport: Transport, run_id: str, clients: Sequence[ClientId], config: bytes, facts: Facts
) -> None:
    """Ask all clients to take part in a run; asking again changes nothing.

    Args:
        transport: Carries the messages.
        run_id: The run.
        clients: All clients' names.
        config: The run's configuration as it is offered.
        facts: In which all must agree.

    Raises:
        ClientsSilent: If one gives no answer.
        RunStopped: If one does not take part, with what it says.
    """
    envelope = Envelope(run_id, 0, 0)
    message = encode_offer(Offer(envelope, config, facts))
    questions = (Question(client, envelope, message) for client in clients)
    answers = dict(ask_all(transport, "join", questions, decode_acceptance))
    declined = {client: answers[client].reasons for client in clients if answers[client].reasons}
    if declined:
        said = "; ".join(f"{client}: {' | '.join(why)}" for client, why in declined.items())
        raise RunStopped(f"run {run_id}: not all clients take part: {said}")
