"""What clients said in the open, as it crossed the wire: which nobody's database is asked about."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field

from platform.relay.packets import Outcome, Request, decode_packet
from platform.wire.codec import peek
from platform.wire.receipt_messages import bare, unclose_answer
from tests.faults._proxy import Saw, Way

IN_ROUNDS = ("invitation", "relay", "assignment")
"""Messages that have one answer ever; others tell how things stand."""
Key = tuple[str, str, int, int]
"""Client, run, round and attempt."""


@dataclass
class Wire:
    """Digests of what crossed it."""

    answers: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    uploads: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    disclosures: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    packets: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, client: str) -> Saw:
        """What a client's proxy tells."""
        asked: dict[int, deque[bytes]] = defaultdict(deque)

        def saw(connection: int, way: Way, packet: bytes) -> None:
            found = decode_packet(packet)
            with self._lock:
                self.packets += 1
                if isinstance(found, Request):
                    asked[connection].append(found.body)
                elif isinstance(found, Outcome) and asked[connection]:
                    self._answered(client, asked[connection].popleft(), found)

        return saw

    def _answered(self, client: str, request: bytes, outcome: Outcome) -> None:
        if outcome.kind != "answer":
            return
        if peek(bare(request))[0] in IN_ROUNDS:
            self.answers[client, _digest(request)].add(_digest(outcome.body))
        kind, envelope = peek(unclose_answer(outcome.body)[0])
        key = (client, envelope.run_id, envelope.round_number, envelope.attempt)
        for word, said in (("upload", self.uploads), ("disclosure", self.disclosures)):
            if kind == word:
                said[key].add(_digest(outcome.body))

    def require_once(self) -> None:
        """One answer a request, one upload and one disclosure a client and attempt, ever."""
        for said in (self.answers, self.uploads, self.disclosures):
            assert {key: len(found) for key, found in said.items() if len(found) != 1} == {}

    def require_noiseless_once(self) -> None:
        """Without noise of its own a vector leaves a client in one attempt of a round."""
        attempts = [key[:3] for key in self.uploads]
        assert len(attempts) == len(set(attempts))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
