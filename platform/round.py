"""One attempt at one round: invite, assign, collect, open the sum, collect the pool entries.

The coordinator sees masked vectors and their sum, never an update of its own, except where there
is no secure aggregation. An attempt either yields an outcome or raises `RoundAborted` naming the
phase; it writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, MethodError
from platform.attempt import PoolUpload, RoundOutcome, RoundPlan, Traffic
from platform.entries import LARGEST_COORDINATE
from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.layout import Summed, Totals, UploadLayout
from platform.masked_sum import MaskedSum
from platform.messages import (
    Assignment,
    Disclosure,
    Invitation,
    Relay,
    Stage,
    Upload,
    decode_answer,
    decode_disclosure,
    decode_relay,
    decode_upload,
    encode_assignment,
    encode_invitation,
    encode_relay,
)
from platform.protection import Protection
from platform.transport import ClientId, Dropout, Transport
from privacy import NoiseSource, PrivacyError, SystemNoise, ThresholdNotMet

Message = TypeVar("Message")
Experts = Callable[[Sequence[bytes]], tuple[Arrays, ...]]
HANDLE_BYTES = 32


@dataclass
class _Exchange:
    """Sends stages and counts bytes."""

    transport: Transport
    plan: RoundPlan
    protection: Protection
    up: int = 0
    down: int = 0
    sent: list[Stage] = field(default_factory=list)

    def __call__(
        self,
        stage: Stage,
        messages: Mapping[ClientId, bytes],
        decode: Callable[[bytes], Message],
    ) -> dict[ClientId, Message]:
        """The answers that parse and belong to this attempt; all else is a dropout."""
        if messages:
            # A stage without anybody left asked nobody for anything.
            self.sent.append(stage)
        self.down += sum(map(len, messages.values()))
        answers: dict[ClientId, Message] = {}
        for client, reply in self.transport.exchange(stage, messages, self.plan.deadline).items():
            if isinstance(reply, Dropout) or client not in messages:
                continue
            self.up += len(reply)
            message = self._read(client, reply, decode)
            if message is not None:
                answers[client] = message
        return answers

    def traffic(self) -> Traffic:
        """Mean bytes per invited client so far."""
        clients = max(1, len(self.plan.cohort))
        return Traffic(self.up // clients, self.down // clients)

    def _read(
        self, client: ClientId, reply: bytes, decode: Callable[[bytes], Message]
    ) -> Message | None:
        try:
            message: Any = decode(reply)
        except ProtocolError:
            return None
        return message if message.envelope == self.plan.envelope(client) else None


@dataclass(frozen=True)
class RoundRunner:
    """Runs attempts over one transport.

    Attributes:
        transport: Carries the messages.
        protection: How uploads are protected.
        noise_of: Where the coordinator's own noise of an attempt comes from.
    """

    transport: Transport
    protection: Protection
    noise_of: Callable[[RoundPlan], NoiseSource] = lambda _: SystemNoise()

    def run(
        self,
        plan: RoundPlan,
        broadcasts: Callable[[ClientId], Arrays],
        experts: Experts,
    ) -> RoundOutcome:
        """Runs one attempt.

        Args:
            plan: What is fixed.
            broadcasts: What each client is sent.
            experts: The experts of a client that presents these handles.

        Raises:
            RoundAborted: If too few clients are left; its `uploads_asked` says whether anything
                may have left a client.
        """
        exchange = self._exchange(plan)
        try:
            return self._run(exchange, broadcasts, experts)
        except ThresholdNotMet as error:
            raise RoundAborted(
                str(error.phase), str(error), uploads_asked="train" in exchange.sent
            ) from error
        except PrivacyError as error:
            raise RoundAborted(
                exchange.sent[-1], str(error), uploads_asked="train" in exchange.sent
            ) from error

    def noise_alone(self, plan: RoundPlan) -> RoundOutcome:
        """What a round of `central_noise` yields that nobody is left in: the noise.

        For empty sums only. Noise in place of a sum of few would hang the sum on one client's coin.
        """
        empty = np.zeros(self.protection.layout.protected)
        return self._outcome(self._exchange(plan), (), Totals(empty, 0, 0), {})

    def _exchange(self, plan: RoundPlan) -> _Exchange:
        protection = self.protection.in_round(plan.round_number).at(plan.clipping_norm)
        return _Exchange(self.transport, plan, protection)

    def _run(
        self, exchange: _Exchange, broadcasts: Callable[[ClientId], Arrays], experts: Experts
    ) -> RoundOutcome:
        plan = exchange.plan
        places = {client: i for i, client in enumerate(plan.cohort, start=1)}
        secure = MaskedSum.start(exchange.protection, plan)
        answers = exchange("advertise", self._invitations(plan, places, secure), decode_answer)
        relays: Mapping[ClientId, bytes] = dict.fromkeys(answers, b"")
        if secure is not None:
            relays = secure.advance({c: a.payload for c, a in answers.items()}, places)
            shares = exchange("share", _relays(plan, relays), decode_relay)
            relays = secure.advance({c: m.payload for c, m in shares.items()}, places)
        assignments = {
            client: encode_assignment(
                Assignment(
                    plan.envelope(client),
                    payload,
                    broadcasts(client),
                    experts(answers[client].handles),
                )
            )
            for client, payload in relays.items()
        }
        uploads = exchange("train", assignments, decode_upload)
        if plan.collects:
            return self._collect(exchange, uploads)
        if secure is not None:
            return self._open_masked(exchange, secure, uploads, places)
        return self._open_plain(exchange, uploads, broadcasts)

    def _invitations(
        self,
        plan: RoundPlan,
        places: Mapping[ClientId, int],
        secure: MaskedSum | None,
    ) -> dict[ClientId, bytes]:
        return {
            client: encode_invitation(
                Invitation(
                    plan.envelope(client),
                    plan.generations,
                    None if secure is None else secure.seat(places[client]),
                    plan.clipping_norm,
                )
            )
            for client in plan.cohort
        }

    def _open_masked(
        self,
        exchange: _Exchange,
        secure: MaskedSum,
        uploads: Mapping[ClientId, Upload],
        places: Mapping[ClientId, int],
    ) -> RoundOutcome:
        plan, layout = exchange.plan, exchange.protection.layout
        relays = secure.advance({c: u.payload for c, u in uploads.items()}, places)
        _require_minimum(plan, len(relays))
        if secure.awaits_confirmation:
            signed = exchange("confirm", _relays(plan, relays), decode_relay)
            relays = secure.advance({c: m.payload for c, m in signed.items()}, places)
        answers = exchange("unmask", _relays(plan, relays), decode_disclosure)
        secure.advance({c: d.payload for c, d in answers.items()}, places)
        finished = secure.finished()
        names = {place: client for client, place in places.items()}
        survivors = tuple(sorted(names[i] for i in finished.survivors))
        totals = layout.open_sum(finished.total, len(survivors), exchange.protection.grid())
        exchange.protection.require_plausible(totals)
        return self._outcome(exchange, survivors, totals, answers)

    def _open_plain(
        self,
        exchange: _Exchange,
        uploads: Mapping[ClientId, Upload],
        broadcasts: Callable[[ClientId], Arrays],
    ) -> RoundOutcome:
        plan, layout = exchange.plan, exchange.protection.layout
        vectors = {
            c: u.vector
            for c, u in uploads.items()
            if u.vector is not None and _is_usable(u.vector, u.weight, layout)
        }
        survivors = tuple(sorted(vectors))
        _require_minimum(plan, len(survivors))
        totals = layout.sum_plain(
            [vectors[c] for c in survivors], [uploads[c].weight for c in survivors]
        )
        answers: Mapping[ClientId, Disclosure] = {}
        if exchange.protection.pool_spec is not None:
            messages = _relays(plan, dict.fromkeys(survivors, b""))
            answers = exchange("unmask", messages, decode_disclosure)
        individual = {c: vector[: layout.coordinates] for c, vector in vectors.items()}
        return self._outcome(exchange, survivors, totals, answers, individual=individual)

    def _collect(self, exchange: _Exchange, uploads: Mapping[ClientId, Upload]) -> RoundOutcome:
        """The entries of a pool that is made once: with no sum beside them each stands alone."""
        plan = exchange.plan
        messages = _relays(plan, dict.fromkeys(uploads, b""))
        answers = exchange("unmask", messages, decode_disclosure)
        names = Counter(disclosure.handle for disclosure in answers.values())
        kept = {
            client: disclosure
            for client, disclosure in sorted(answers.items())
            if names[disclosure.handle] == 1 and _is_entry(exchange.protection, disclosure)
        }
        if len(kept) < plan.minimum:
            raise ThresholdNotMet(
                f"{len(kept)} of {len(plan.cohort)} clients gave a valid pool entry; at least "
                f"{plan.minimum} must (pool.minimum)",
                phase="collection",
            )
        entries = tuple(PoolUpload(d.handle, d.entry) for d in kept.values())
        nothing = Summed(np.zeros(0), float(len(kept)))
        return RoundOutcome(tuple(kept), nothing, None, entries, None, exchange.traffic())

    def _outcome(
        self,
        exchange: _Exchange,
        survivors: tuple[ClientId, ...],
        totals: Totals,
        answers: Mapping[ClientId, Disclosure],
        individual: Mapping[ClientId, NDArray[np.float64]] | None = None,
    ) -> RoundOutcome:
        collected = tuple(d for c, d in sorted(answers.items()) if c in survivors)
        plan, protection = exchange.plan, exchange.protection
        void = _entries_problem(protection, collected, len(survivors))
        kept = () if void is not None or protection.pool_spec is None else collected
        uploads = tuple(PoolUpload(d.handle, d.entry) for d in kept)
        summed = protection.average(totals, plan.planned_size, self.noise_of(plan))
        return RoundOutcome(
            survivors,
            summed,
            individual,
            uploads,
            void,
            exchange.traffic(),
            protection.extras.clipped_fraction(summed),
            protection.signal_to_noise(summed, len(survivors), plan.planned_size),
            protection.extras.noised_mean(summed, protection.mechanism),
        )


def _entries_problem(
    protection: Protection, collected: Sequence[Disclosure], survivors: int
) -> str | None:
    """Why entries may not be kept: the sum minus a subset of them would name the rest."""
    if protection.pool_spec is None:
        return None
    if len(collected) < survivors or any(not d.entry for d in collected):
        return "a survivor's pool entry is missing"
    if survivors < 2:
        return "a single entry would name its owner"
    handles = {d.handle for d in collected}
    if len(handles) < survivors or any(len(h) != HANDLE_BYTES for h in handles):
        return "a pool handle is not valid"
    if not all(_is_entry(protection, disclosure) for disclosure in collected):
        return "a pool entry is not valid"
    return None


def _is_entry(protection: Protection, disclosure: Disclosure) -> bool:
    if not disclosure.entry or len(disclosure.handle) != HANDLE_BYTES:
        return False
    try:
        protection.verify_entry(disclosure.entry)
    except (PlatformError, PrivacyError, MethodError):
        return False
    return True


def _is_usable(vector: NDArray[np.float64], weight: int, layout: UploadLayout) -> bool:
    # Where all weigh alike, everybody states 1.
    most = layout.largest_weight if layout.weighted else 1
    if vector.shape != (layout.protected,) or not 1 <= weight <= most:
        return False
    return not vector.size or float(np.abs(vector).max()) <= LARGEST_COORDINATE


def _require_minimum(plan: RoundPlan, survivors: int) -> None:
    if survivors < plan.minimum:
        raise ThresholdNotMet(
            f"round {plan.round_number}: {survivors} of {len(plan.cohort)} clients are left at "
            f"phase masked_input; at least {plan.minimum} must be (cohort.minimum)",
            phase="masked_input",
        )


def _relays(plan: RoundPlan, payloads: Mapping[ClientId, bytes]) -> dict[ClientId, bytes]:
    return {c: encode_relay(Relay(plan.envelope(c), payload)) for c, payload in payloads.items()}
