"""The first words of a run: what the coordinator asks of a client, and whether it takes part.

A run is offered as its configuration, which is data: the client reads it by the closed schema,
checks it against its own limits, and builds all that follows from it by itself. Beside it are the
facts in which both must agree for the sums to mean anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform.errors import ProtocolError
from platform.wire.codec import Frame, encode_frame
from platform.wire.envelopes import Envelope, blob, envelope_fields, opened

LONGEST_CONFIG: Final = 1 << 20
_MOST_REASONS: Final = 32
_LONGEST_REASON: Final = 1024
_LONGEST_FACT: Final = 256


@dataclass(frozen=True)
class Facts:
    """What both sides must have alike; each is compared as it is.

    Attributes:
        version: Sotto's.
        model: Digest of the frozen model's weights and image preprocessing; empty without a model.
        method: Digest of the method's file where it is not a packaged one; empty else.
    """

    version: str
    model: str
    method: str


@dataclass(frozen=True)
class Offer:
    """Asks a client to take part in a run.

    Attributes:
        envelope: Of round 0.
        config: The run's configuration, canonical JSON without any path of the coordinator's.
        facts: Of the coordinator.
    """

    envelope: Envelope
    config: bytes
    facts: Facts


@dataclass(frozen=True)
class Acceptance:
    """What a client says to an offer.

    Attributes:
        envelope: The offer's.
        reasons: Why it does not take part, naming settings and never data; empty if it does.
    """

    envelope: Envelope
    reasons: tuple[str, ...]


def encode_offer(message: Offer) -> bytes:
    """Serialise an offer."""
    facts = message.facts
    fields = {
        **envelope_fields(message.envelope),
        "version": facts.version,
        "model": facts.model,
        "method": facts.method,
    }
    return encode_frame(Frame("offer", fields, {}, {"config": message.config}))


def decode_offer(data: bytes) -> Offer:
    """Read an offer.

    Raises:
        ProtocolError: If it is none.
    """
    frame, envelope = opened(data, "offer")
    if (envelope.round_number, envelope.attempt, envelope.committed) != (0, 0, None):
        raise ProtocolError("message: a run is offered before the first round")
    config = blob(frame, "config")
    if len(config) > LONGEST_CONFIG:
        raise ProtocolError("message: the configuration is too long")
    named = {name: _fact(frame.fields, name) for name in ("version", "model", "method")}
    return Offer(envelope, config, Facts(**named))


def encode_acceptance(message: Acceptance) -> bytes:
    """Serialise what a client says to an offer."""
    reasons = [reason[:_LONGEST_REASON] for reason in message.reasons[:_MOST_REASONS]]
    fields = {**envelope_fields(message.envelope), "reasons": reasons}
    return encode_frame(Frame("acceptance", fields, {}, {}))


def decode_acceptance(data: bytes) -> Acceptance:
    """Read what a client says to an offer.

    Raises:
        ProtocolError: If it is none.
    """
    frame, envelope = opened(data, "acceptance")
    reasons = frame.fields.get("reasons")
    if not isinstance(reasons, list) or len(reasons) > _MOST_REASONS:
        raise ProtocolError("message: the reasons are not valid")
    for reason in reasons:
        # They end up on terminals.
        if not isinstance(reason, str) or not reason.isprintable():
            raise ProtocolError("message: a reason is not a sentence")
        if len(reason) > _LONGEST_REASON:
            raise ProtocolError("message: a reason is too long")
    return Acceptance(envelope, tuple(reasons))


def _fact(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST_FACT or not (value + "x").isprintable():
        raise ProtocolError(f"message: {name} is missing")
    return value
