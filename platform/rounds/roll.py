"""The roll call: who takes part, from clients' own words, before anything else is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from platform.errors import RunStopped
from platform.rounds.asking import Question, ask_all
from platform.rounds.run import Roll
from platform.wire.envelopes import Envelope
from platform.wire.outside_rounds import RollCall, decode_introduction, encode_roll_call
from platform.wire.transport import ClientId, Transport


def call_roll(transport: Transport, run_id: str, clients: Sequence[ClientId]) -> Roll:
    """Return who takes part.

    Args:
        transport: Carries the messages.
        run_id: The run.
        clients: All clients' names on the transport, in order.

    Raises:
        ClientsSilent: If one does not introduce itself.
        RunStopped: If two have one pseudonym: one of them would be charged for both.
    """
    envelope = Envelope(run_id, 0, 0)
    message = encode_roll_call(RollCall(envelope))
    questions = (Question(client, envelope, message) for client in clients)
    told = dict(ask_all(transport, "join", questions, decode_introduction))
    pseudonyms = {client: told[client].pseudonym for client in clients}
    most = Counter(pseudonyms.values()).most_common(1)
    if most and most[0][1] > 1:
        raise RunStopped(f"run {run_id}: two clients have the pseudonym {most[0][0]}")
    return Roll(
        pseudonyms,
        {client: said.public_key for client, said in told.items() if said.public_key},
        max((said.enrolment_serial for said in told.values()), default=0),
    )
