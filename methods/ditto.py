"""Ditto: federated averaging as it is, and beside it a personal network pulled to the global one.

Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML, arXiv
2012.04221), by its published code (github.com/litian96/ditto at 26d9b29), as the paper's text was
not at hand.

A client trains the global network w as FedAvg does, and a network v of its own on

    F_k(v) + lambda/2 ||v - w^t||^2,    v <- v - eta (grad F_k(v) + lambda (v - w^t)),

w^t being the network as it was received. Only the change of w is sent; v predicts. As in the code
both are trained on the same batches, and v begins as a copy of the global network: here of the one
that a client is first sent, there of the first of all, which is the same for whoever is in round
one. With lambda = 0 and full cohorts v is trained by the client alone. The code averages changes
uniformly, as its script runs it; here they weigh by examples, so that w is FedAvg's bit for bit.
Its choice among three lambdas in each step, by validation data, is left out: it is a choice that
no noised step covers.

The code has as many steps for v as for w. `personal_rounds` is how many rounds' worth of steps v
takes, which PFLlib leaves open too; with 1 it is the code's.

No release depends on v, so it would need no noise. Under `dp_sgd` data is open to noised steps
alone: there both networks are trained in one fit of the steps that are charged, with one clip and
one noise over both, so that w is no longer FedAvg's. `privacy.personal: decoupled` leaves w alone
in the rounds, and trains v after the last release, without noise, for `personal_rounds`, from the
last global network and pulled to it. The pull sees no data and costs nothing of a bound.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from methods.fedavg import FedAvg
from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    ParameterGroup,
    Task,
    Trainer,
)
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters, under
from methods.networks.method import BatchObjective, pull_to

OWN = "own."

VARIANTS = ({"network": "features", "proximal_weight": 0.0, "personal_rounds": 2},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        proximal_weight: lambda, factor of the pull of the personal network to the global one.
        personal_rounds: How much the personal network is trained in each round, or after the last
            release where it is decoupled: as many times the steps of one round. Under `dp_sgd`,
            where both networks are trained together, it has no say.
    """

    proximal_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    personal_rounds: Annotated[int, Ge(1), Le(10000)] = 1


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A global and a personal network."""

    config: Config
    is_decoupled: bool = field(default=False, kw_only=True)
    has_personal_state: bool = field(default=True, init=False)
    decouples: bool = field(default=True, init=False)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the global network, then the personal one on the same batches; decoupled, FedAvg's.

        Under `dp_sgd` both take the charged steps together.
        """
        if self.is_decoupled:
            return super().client_update(view, data, trainer, rng)
        if trainer.charged_steps is not None:
            return self.trained_together(view, data, trainer, rng)
        same_batches = copy.deepcopy(rng)
        result = super().client_update(view, data, trainer, rng)
        return replace(result, personal=self.trained_own(view, data, trainer, same_batches))

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Train the personal network, decoupled, from the last global one."""
        if not self.is_decoupled:
            return view.personal
        return self.trained_own(view, data, trainer, rng)

    def trained_own(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return the personal network after its own fit, pulled to the broadcast."""
        rounds = self.config.personal_rounds
        trained = trainer.fit(
            BatchObjective(self.cross_entropies),
            self.whole_model_of(view),
            data.arrays,
            groups=(ParameterGroup(tuple(self.shared_layers)),),
            rng=rng,
            steps=None if rounds == 1 else rounds * trainer.steps_for(data.num_examples),
            penalty=pull_to(self.anchor(view), self.config.proximal_weight),
        )
        return prefixed(trained)

    def trained_together(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Return both networks after one fit, in which only an example's bound joins them."""
        own = prefixed(self.whole_model_of(view))
        trained = trainer.fit(
            BatchObjective(self.both_losses),
            {**self.model_of(view), **own},
            data.arrays,
            groups=(ParameterGroup((*self.shared_layers, *own)),),
            rng=rng,
            penalty=pull_to(self.anchor(view), self.config.proximal_weight, OWN),
        )
        personal = {name: trained[name] for name in own}
        return replace(self.result(view, trained), personal=personal)

    def both_losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example under the global network plus under the personal one."""
        own = self.cross_entropies(under(OWN, parameters), batch)
        return self.cross_entropies(parameters, batch) + own

    def anchor(self, view: ClientView) -> Parameters:
        """Return the global network as it was received, w^t."""
        return self.tensors(self.model_of(view))

    def whole_model_of(self, view: ClientView) -> dict[str, NDArray[Any]]:
        """Return arrays of the personal network; of the global one before the first fit."""
        return {
            name: view.personal.get(OWN + name, value)
            for name, value in self.model_of(view).items()
        }


def prefixed(network: Arrays) -> dict[str, NDArray[Any]]:
    """Return a network's arrays under the names of the personal one."""
    return {OWN + name: value for name, value in network.items()}


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return replace(Ditto.built(config, task), is_decoupled=task.decoupled)
