"""Who answers in a data holder's process: it considers offers, and is a client in what it accepted.

An accepted offer is kept beside the client's store, so that a process that was started anew, at
any moment, is the same client in the same runs. Under one name only one configuration is ever
accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from platform.disk.files import write_bytes
from platform.errors import ConfigError, DataError, Declined, ProtocolError
from platform.wire.envelopes import peek
from platform.wire.offers import Acceptance, Offer, decode_offer, encode_acceptance, encode_offer
from storage.files import make_folder

KEPT: Final = "offers"
"""Folder of accepted offers, in the client's storage folder."""
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST_NAME: Final = 128
UNFIT: Final = "the run cannot be set up on this client's machine; its own log says why"
UNFIT_DATA: Final = (
    "federation.classes: this client's images do not fit them, or cannot be read; its own log says "
    "why"
)
"""What a coordinator is told where the reason itself is nobody's but the data holder's."""


class Handles(Protocol):
    """What answers a run's messages: a client of it."""

    def handle(self, message: bytes) -> bytes:
        """Answer one message."""
        ...


Joining = Callable[[Offer], Handles]
"""Makes a client of an offer's run; raises `Declined` or `ConfigError` where it takes no part."""


@dataclass
class Host:
    """Answers every message that reaches a data holder's process.

    Attributes:
        folder: The client's storage folder.
        join: Makes the client of a run.
        tell: Told of offers that were accepted or declined, for the log.
    """

    folder: Path
    join: Joining
    tell: Callable[[str], None] = lambda line: None
    _clients: dict[str, Handles] = field(default_factory=dict, init=False)

    def handle(self, message: bytes) -> bytes:
        """Answer one message.

        Raises:
            ProtocolError: If it belongs to no run that was accepted, or is refused there.
            BudgetExhausted: If it would pass the client's own limits.
        """
        kind, envelope = peek(message)
        if kind == "offer":
            return self._consider(decode_offer(message))
        return self._client_of(envelope.run_id).handle(message)

    def _consider(self, offer: Offer) -> bytes:
        run_id, place = offer.envelope.run_id, self._place(offer.envelope.run_id)
        kept = _read(place)
        if kept is not None and kept != offer:
            reasons: tuple[str, ...] = (f"run {run_id} was offered before, and otherwise",)
        else:
            reasons = self._accept(offer, place)
        said = "accepted" if not reasons else f"declined: {'; '.join(reasons)}"
        self.tell(f"run {run_id}: {said}")
        return encode_acceptance(Acceptance(offer.envelope, reasons))

    def _accept(self, offer: Offer, place: Path) -> tuple[str, ...]:
        run_id = offer.envelope.run_id
        try:
            if run_id not in self._clients:
                self._clients[run_id] = self.join(offer)
        except Declined as error:
            return error.reasons
        except ConfigError as error:
            # It may name this machine's files, and what classes it has images of.
            self.tell(f"run {run_id}: {error}")
            return (UNFIT_DATA if isinstance(error, DataError) else UNFIT,)
        # Only now: what is kept was accepted.
        make_folder(place.parent)
        write_bytes(place, encode_offer(offer))
        return ()

    def _client_of(self, run_id: str) -> Handles:
        if run_id not in self._clients:
            offer = _read(self._place(run_id))
            if offer is None:
                raise ProtocolError("message: it belongs to no run that was accepted here")
            try:
                self._clients[run_id] = self.join(offer)
            except (Declined, ConfigError) as error:
                # Limits were tightened, or data were moved, since it was accepted.
                self.tell(f"run {run_id}: takes part no more: {error}")
                raise ProtocolError("message: this client takes part in the run no more") from error
        return self._clients[run_id]

    def _place(self, run_id: str) -> Path:
        # It becomes a file's name.
        if not 0 < len(run_id) <= _LONGEST_NAME or not _NAME.issuperset(run_id) or run_id[0] == ".":
            raise ProtocolError("message: the run's name is not valid")
        return self.folder / KEPT / f"{run_id}.offer"


def _read(place: Path) -> Offer | None:
    try:
        return decode_offer(place.read_bytes())
    except FileNotFoundError:
        return None
