"""Rounds of `central_noise` in which a client is hostile, and noise that a test chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Examples, LocalResult, TensorSpec, Weighting
from methods.interface.defaults import MethodDefaults
from platform.contract.driving import RUN, a_plan, clients_of
from platform.errors import RoundAborted
from platform.parties.client import Client
from platform.protection.extras import Extras, Grouping
from platform.protection.sums import SumProtection
from platform.protection.uploads import Protection
from platform.rounds.plan import RoundOutcome
from platform.rounds.runner import RoundRunner
from platform.wire.codec import decode_frame, encode_frame
from platform.wire.layout import build_layout
from platform.wire.messages import SumTerms
from platform.wire.transport import InProcessTransport
from privacy import CentralNoise, GroupCounts, NoiseSource
from tests.trunk._secure import BITS

TARGET = "client-0"
SCALE = 2.0**16
Spoil = Callable[[NDArray[np.uint64]], NDArray[Any]]


@dataclass(frozen=True)
class Told(MethodDefaults):
    """A method whose clients upload what the test says, and zeros where it says nothing."""

    shape: tuple[int, ...]
    wanted: dict[str, tuple[NDArray[np.float64], int | None]] = field(default_factory=dict)
    grouped: bool = False

    def shared_spec(self):
        return {"x": TensorSpec(self.shape, weighting=Weighting.SUM)}

    def init_server(self, rng):
        return {"x": np.zeros(1)}

    def client_update(self, view, data, trainer, rng):
        name = f"client-{int(data.arrays['place'][0])}"
        zeros = (np.zeros(self.shape), 0 if self.grouped else None)
        update, group = self.wanted.get(name, zeros)
        return LocalResult({"x": update}, None, {}, group=group)


class Hostile(Client):
    """Answers like any other, and uploads levels of its own."""

    spoil: Spoil

    def _upload(self, session, protection, prepared, assignment):
        if session.secure is None:
            return super()._upload(session, protection, prepared, assignment)
        levels = np.asarray(self.spoil(prepared.levels), np.uint64)
        prepared = dataclasses.replace(prepared, levels=levels)
        return super()._upload(session, protection, prepared, assignment)

    def handle(self, message: bytes) -> bytes:
        frame = decode_frame(answer := super().handle(message))
        if frame.kind != "upload" or "vector" not in frame.arrays:
            return answer
        spoiled = {"vector": np.asarray(self.spoil(frame.arrays["vector"]))}
        return encode_frame(dataclasses.replace(frame, arrays=spoiled))


def hostile(client: Client) -> Hostile:
    """The same client with uploads of its own; at first those that it should send."""
    made = Hostile(client.profile, client._store, client._make_trainer)
    made.spoil = lambda levels: levels
    return made


@dataclass(frozen=True)
class Chosen(NoiseSource):
    """Noise whose draws are a given vector of standard normal numbers; its bytes are all zero."""

    normals: NDArray[np.float64]
    name: str = "seeded"
    protects: bool = False

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        return np.array(self.normals[:size])

    def uniform_bytes(self, count: int) -> bytes:
        return bytes(count)


@dataclass(frozen=True)
class Seen:
    """All that a peer sees of a round: the end of it, in words, or what the model is made of."""

    aborted: str | None
    released: NDArray[np.float64] | None = None
    facts: tuple[Any, ...] = ()

    def same(self, other: Seen) -> bool:
        if (self.aborted, self.facts) != (other.aborted, other.facts):
            return False
        if self.released is None or other.released is None:
            return self.released is other.released
        return self.released.tobytes() == other.released.tobytes()


@dataclass
class Rounds:
    """Round after round among the same clients, of which the last ones are hostile."""

    method: Told
    protection: Protection
    clients: Mapping[str, Client]
    number: int = 0

    def play(self, honest, spoils, noise, group=None):
        """The round in which the target uploads this."""
        try:
            return seen(self.outcome(honest, spoils, noise, group))
        except RoundAborted as error:
            return Seen(str(error))

    def outcome(self, honest, spoils, noise, group=None):
        """The same as the coordinator sees it."""
        self.number += 1
        self.method.wanted[TARGET] = (np.asarray(honest, np.float64), group)
        for name, spoil in spoils.items():
            peer = self.clients[name]
            assert isinstance(peer, Hostile)
            peer.spoil = spoil
        handlers = {name: client.handle for name, client in self.clients.items()}
        transport = InProcessTransport(handlers=handlers, losses=lambda *_: frozenset())
        runner = RoundRunner(transport, lambda number, attempt: noise)
        terms = SumTerms(len(self.clients), 0, 2) if self.protection.masked else None
        names, protection = tuple(self.clients), self.protection
        plan = a_plan(RUN, (self.number, 1), names, protection, terms=terms)
        return runner.run(plan, lambda _: {"x": np.zeros(1)}, lambda asked: [()] * len(asked))

    @property
    def grid(self):
        return self.protection.sums.grid()

    def levels(self, values: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Whole steps as elements of the ring."""
        whole = np.asarray(values, np.int64).astype(np.uint64)
        return whole & np.uint64(self.grid.largest_level)


def seen(outcome: RoundOutcome) -> Seen:
    summed, readings = outcome.summed, outcome.readings
    groups = None if readings.groups is None else readings.groups.counts.tolist()
    facts = (
        *(outcome.survivors, summed.total_weight, tuple(summed.extras.items())),
        *(str(groups), readings.signal_to_noise, outcome.bytes_up, outcome.bytes_down),
    )
    return Seen(None, summed.vector, facts)


def rounds(folder, *, masked, multiplier, length=16, clients=4, hostiles=1, groups=None):
    counts = None if groups is None else GroupCounts(groups=groups, ratio=1.0)
    shape = (length,) if groups is None else (groups, length)
    method = Told(shape, grouped=groups is not None)
    extras = Extras() if counts is None else Extras(None, None, 1.0, Grouping(counts))
    mechanism = CentralNoise(
        clipping_norm=1.0, noise_multiplier=multiplier, scale=SCALE, counts=counts
    )
    layout = build_layout(method.shared_spec(), weighs_examples=False, extras=extras.names)
    sums = SumProtection(
        mechanism=mechanism, layout=layout, bits=BITS, masked=masked, clients=clients, extras=extras
    )
    protection = Protection(sums=sums)
    names = [f"client-{i}" for i in range(clients)]
    data = {
        name: Examples({"labels": np.zeros(1, np.int64), "place": np.full(1, i)})
        for i, name in enumerate(names)
    }
    made = dict(
        clients_of(
            *(method, data, folder), protection=protection, make_trainer=lambda noise, **_: None
        )
    )
    for name in names[clients - hostiles :]:
        made[name] = hostile(made[name])
    return Rounds(method, protection, made)
