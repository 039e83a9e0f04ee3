"""Rounds under secure aggregation with terms, credentials and a coordinator that may lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from methods import Examples, LocalResult, TensorSpec, Weighting
from methods.interface.defaults import MethodDefaults
from platform.contract.driving import IdleTrainer, a_plan
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.parties.identities import client_names
from platform.parties.profile import ClientProfile, Randomness, RunNames, Safeguards
from platform.protection.sums import SecureTerms, SumProtection
from platform.protection.uploads import Protection
from platform.rounds.plan import RoundOutcome, RoundPlan
from platform.rounds.runner import RoundRunner
from platform.wire.layout import build_layout
from platform.wire.messages import MaskGraph, Stage, SumTerms
from platform.wire.transport import ClientId, Dropout, InProcessTransport, Transport
from privacy import ClientMechanism, NoProtection
from privacy.secure_aggregation import Credentials, Enrolment, Identity
from storage import open_client_store
from tests.trunk._runs import over

RUN, BITS = "run", 20
NOTHING: ClientMechanism = NoProtection(256.0)


@dataclass(frozen=True)
class Numbered(MethodDefaults):
    """A method whose update is its client's number, once a coordinate, and keeps nothing."""

    length: int = 2

    def shared_spec(self):
        return {"x": TensorSpec((self.length,), weighting=Weighting.SUM)}

    def init_server(self, rng):
        return {"x": np.zeros(1)}

    def client_update(self, view, data, trainer, rng):
        number = float(data.arrays["number"][0])
        return LocalResult({"x": np.full(self.length, number)}, None, {})


def identity(number: int) -> Identity:
    return Identity(bytes([number]) * 32)


def enrolled(names: Sequence[ClientId]) -> Enrolment:
    known = Enrolment()
    for number, name in enumerate(names, start=1):
        known = known.enrol(name, identity(number).public)
    return known


@dataclass(frozen=True)
class Frank(InProcessTransport):
    """Tells of a refusal, which to a coordinator is silence like any other."""

    def _deliver(self, client: ClientId, message: bytes) -> bytes | Dropout:
        return self.handlers[client](message)


def frank(simulation: Simulation) -> Simulation:
    """A run whose clients' refusals are told, and not only missed."""
    inner = simulation.run.transport
    assert isinstance(inner, InProcessTransport)
    telling = Frank(handlers=inner.handlers, losses=inner.losses, lost_at=inner.lost_at)
    return over(simulation, telling)


@dataclass(frozen=True)
class Cohort:
    """Real clients of one round, client i with the number i + 1."""

    clients: Mapping[ClientId, Client]
    protection: Protection
    terms: SecureTerms

    @property
    def plan(self) -> RoundPlan:
        """What an honest coordinator fixes."""
        keys = {
            name: client.profile.safeguards.credentials.identity.public
            for name, client in self.clients.items()
            if client.profile.safeguards.credentials is not None
        }
        terms = self.terms
        return a_plan(
            RUN,
            (1, 1),
            tuple(self.clients),
            self.protection,
            terms=SumTerms(terms.threshold, terms.corrupt, terms.smallest_sum),
            graph=MaskGraph(terms.degree, bytes(range(32)) if terms.degree else b""),
            keys=(keys, len(keys)),
        )

    def transport(
        self, lost: Sequence[ClientId] = (), lost_at: Stage = "train", *, deaf: bool = False
    ) -> InProcessTransport:
        """To the cohort, some of it lost; to the deaf a refusal is silence, else it is told."""
        handlers = {name: client.handle for name, client in self.clients.items()}
        kind = InProcessTransport if deaf else Frank
        return kind(handlers=handlers, losses=lambda *_: frozenset(lost), lost_at=lost_at)

    def remade(self, name: ClientId, **guards: Any) -> Client:
        """The client as a new process would find itself, perhaps with other safeguards."""
        old = self.clients[name]
        safeguards = dataclasses.replace(old.profile.safeguards, **guards)
        profile = dataclasses.replace(old.profile, safeguards=safeguards)
        return Client(profile, open_client_store(old._store._file.path), old._make_trainer)

    def run(self, transport: Transport | None = None) -> RoundOutcome:
        runner = RoundRunner(transport or self.transport())
        return runner.run(
            self.plan, lambda client: {"x": np.zeros(1)}, lambda asked: [()] * len(asked)
        )


def cohort(
    folder: Path,
    terms: SecureTerms,
    *,
    mechanism: ClientMechanism = NOTHING,
    length: int = 2,
    credentials: Mapping[ClientId, Credentials | None] | None = None,
) -> Cohort:
    """Clients with uploads of so many coordinates, some with other credentials than enrolled."""
    method, names = Numbered(length), client_names(terms.clients)
    known = enrolled(names) if terms.active else Enrolment()
    weighs = not mechanism.facts.claims
    protection = Protection(
        sums=SumProtection(
            mechanism=mechanism,
            layout=build_layout(method.shared_spec(), weighs_examples=weighs),
            bits=BITS,
            masked=True,
            clients=terms.clients,
            terms=terms,
        )
    )
    clients = {}
    for number, client in enumerate(names, start=1):
        own = Credentials(identity(number), known) if terms.active else None
        profile = ClientProfile(
            name=client,
            run=RunNames(RUN),
            method=method,
            data=Examples({"labels": np.zeros(1, np.int64), "number": np.full(1, float(number))}),
            protection=protection,
            randomness=Randomness("seeded", initialisation=0, batches=1, noise=2),
            safeguards=Safeguards(credentials=(credentials or {}).get(client, own), simulated=True),
        )
        store = open_client_store(folder / f"{client}.db")
        clients[client] = Client(profile, store, lambda noise, **_: IdleTrainer())
    return Cohort(clients, protection, terms)


@dataclass
class Lying:
    """A coordinator that lies in one stage; errors in `deaf` are silence, as on networks."""

    inner: Transport
    stage: Stage
    lie: Callable[[ClientId, bytes], bytes]
    answers: dict[tuple[Stage, ClientId], bytes] = dataclasses.field(default_factory=dict)
    deaf: tuple[type[Exception], ...] = ()

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        replies: dict[ClientId, bytes | Dropout] = {}
        for client, message in messages.items():
            sent = self.lie(client, message) if stage == self.stage else message
            try:
                reply = self.inner.exchange(stage, {client: sent}, deadline)[client]
            except self.deaf as error:
                reply = Dropout(str(error))
            if not isinstance(reply, Dropout):
                self.answers[stage, client] = reply
            replies[client] = reply
        return replies
