"""Configurations of every mechanism, and rounds under the protection that each one builds.

Protection, trainers and runner come from the functions of real runs. So the tests notice a
mechanism whose configuration and application differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from methods import Arrays, Examples, Method, Task, Visibility
from platform.config import RunConfig, Sources, parse_config
from platform.contract.cases import Case
from platform.contract.driving import RUN, Setting, a_plan, clients_of, transport_to
from platform.experiment.method_building import build_method
from platform.experiment.simulation import trainer_factory
from platform.parties.client import Client
from platform.protection.building import protect_run
from platform.protection.uploads import Protection
from platform.rounds.plan import RoundOutcome, RoundPlan
from platform.rounds.runner import RoundRunner
from platform.wire.messages import MaskGraph, SumTerms
from platform.wire.transport import ClientId
from privacy import SeededNoise

NAMES = ("client-0", "client-1", "client-2")
NORM, MULTIPLIER, THRESHOLD = 0.05, 1e-3, 2


@dataclass(frozen=True)
class Asked:
    """One way to configure privacy.

    `privacy` is that section, without the keys that all cases share. `masks` says whether secure
    aggregation is on.
    """

    name: str
    privacy: Mapping[str, object]
    masks: bool = True

    @property
    def mechanism(self) -> str:
        """The mechanism's name."""
        return str(self.privacy["mechanism"])

    @property
    def decoupled(self) -> bool:
        """Whether personal state is trained without noise."""
        return self.privacy.get("personal") == "decoupled"

    @property
    def factors(self) -> dict[str, str]:
        """The values that the draw of cases pairs with others."""
        return {
            "asked": self.name,
            "mechanism": self.mechanism,
            "masks": str(self.masks),
            "distribution": str(self.privacy.get("noise_distribution")),
            "personal": str(self.decoupled),
        }


UPLOADS = {"clipping_norm": NORM, "noise_multiplier": MULTIPLIER}
STEPS = {
    "mechanism": "dp_sgd",
    "per_sample_clipping_norm": 0.5,
    "noise_multiplier": 0.5,
    "sampling_probability": 0.5,
}
ASKED = (
    Asked("none", {"mechanism": "none"}),
    Asked("none, bare", {"mechanism": "none"}, masks=False),
    Asked("upload_noise", {"mechanism": "upload_noise", **UPLOADS}),
    Asked("upload_noise, bare", {"mechanism": "upload_noise", **UPLOADS}, masks=False),
    Asked(
        "upload_noise, discrete",
        {"mechanism": "upload_noise", **UPLOADS, "noise_distribution": "discrete_gaussian"},
    ),
    Asked("distributed_noise", {"mechanism": "distributed_noise", **UPLOADS}),
    Asked(
        "distributed_noise, skellam",
        {"mechanism": "distributed_noise", **UPLOADS, "noise_distribution": "skellam"},
    ),
    Asked("central_noise", {"mechanism": "central_noise", **UPLOADS}),
    Asked("central_noise, bare", {"mechanism": "central_noise", **UPLOADS}, masks=False),
    Asked("dp_sgd", STEPS),
    Asked("dp_sgd, bare", STEPS, masks=False),
    Asked("dp_sgd, decoupled", {**STEPS, "personal": "decoupled"}),
)


def configure(
    case: Case, asked: Asked, *overrides: str, sources: Sources | None = None
) -> RunConfig:
    """Return the configuration of a small federation under this mechanism."""
    tree = {
        "name": "contract",
        "task": {"clients": len(NAMES)},
        "method": {"name": case.method, **case.options},
        "training": {"local_steps": 1, "batch_size": 4, "learning_rate": 0.5},
        "privacy": {**asked.privacy, "noise_source": "seeded"},
        "secure_aggregation": {"enabled": asked.masks, "threshold": THRESHOLD},
        # The default minimum is too large for so few clients.
        "pool": {"minimum": 2},
    }
    return parse_config(tree, overrides, sources)


def build(case: Case, config: RunConfig, task: Task) -> Method:
    """Return the method; `ConfigError` if it does not fit the configuration."""
    decoupled = config.privacy.personal == "decoupled"
    return build_method(case.registry, config, replace(task, decoupled=decoupled))


@dataclass(frozen=True)
class Stage:
    """A federation that can run rounds, with the protection that its configuration asks for."""

    config: RunConfig
    method: Method
    protection: Protection
    clients: Mapping[ClientId, Client]

    def play(
        self,
        experts: tuple[Arrays, ...] = (),
        lost: Collection[ClientId] = (),
        plan: RoundPlan | None = None,
    ) -> RoundOutcome:
        """Run a round from the first state; the first round, unless there is a plan."""
        transport, state = transport_to(self.clients, Setting(lost=lost)), self.state()
        runner = RoundRunner(transport, lambda number, attempt: central_noise())
        return runner.run(
            self.plan() if plan is None else plan,
            lambda client: self.method.broadcast(state, client),
            lambda asked: [experts] * len(asked),
        )

    def collect(self) -> RoundOutcome:
        """Run the collection, as if no rounds came before it."""
        number = self.protection.collects_at
        if number is None:
            raise ValueError("the method has no pool that is made once")
        protection = self.protection.in_round(number)
        plan = replace(
            self.plan(), round_number=number, secure=None, protection=protection, collects=True
        )
        return self.play(plan=plan)

    def plan(self) -> RoundPlan:
        """Return the plan of the first round."""
        terms = self.protection.terms
        return a_plan(
            RUN,
            (self.protection.first_round, 1),
            NAMES,
            self.protection,
            planned=self.config.cohort_size,
            terms=None
            if terms is None
            else SumTerms(terms.threshold, terms.corrupt, terms.smallest_sum),
            graph=MaskGraph(0 if terms is None else terms.degree),
        )

    def state(self) -> Arrays:
        """Return the first state of the server."""
        return self.method.init_server(np.random.default_rng(7))


def central_noise() -> SeededNoise:
    """Return the coordinator's noise of these rounds; each call returns the same noise."""
    return SeededNoise(np.random.default_rng(5))


def set_stage(
    config: RunConfig, method: Method, data: Mapping[ClientId, Examples], folder: Path
) -> Stage:
    """Return a federation with the configuration's protection, and stores in the folder."""
    protection, _ = protect_run(config, method)
    make_trainer = trainer_factory(config, "cpu", protection)
    clients = clients_of(*(method, data, folder), protection=protection, make_trainer=make_trainer)
    return Stage(config, method, protection, clients)


def why_refused(case: Case, method: Method, asked: Asked) -> str | None:
    """Return how the refusal must begin, or None if the combination is admitted."""
    if not admitted(method, asked):
        return "privacy.mechanism: "
    if method.visibility is Visibility.PER_CLIENT and asked.masks:
        return "secure_aggregation.enabled: true hides each client's update"
    if method.centralised:
        return f"task.clients: {len(NAMES)} parties share the data out"
    if asked.decoupled and not method.decouples:
        return "privacy.personal: "
    return None


def admitted(method: Method, asked: Asked) -> bool:
    """Whether a mechanism fits the method's visibility and units."""
    if asked.mechanism in ("distributed_noise", "central_noise"):
        return method.visibility is not Visibility.PER_CLIENT and "client" in method.units
    unit = {"none": None, "dp_sgd": "record", "upload_noise": "client"}[asked.mechanism]
    return unit is None or unit in method.units


def needs_own_entry_noise(method: Method, asked: Asked) -> bool:
    """Whether an entry differs from the update, so that the same noise cannot protect both."""
    policy = method.pool_policy()
    other = policy is not None and set(policy.spec) != set(method.shared_spec())
    return other and asked.mechanism == "upload_noise"
