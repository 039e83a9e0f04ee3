"""Ditto: plain federated averaging, and beside it a personal network pulled to the global one.

Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML, arXiv
2012.04221), by its published code (github.com/litian96/ditto at 26d9b29): the paper's text was not
available.

A client trains the global network w as FedAvg does, and a network v of its own on

    F_k(v) + lambda/2 ||v - w^t||^2,    v <- v - eta (grad F_k(v) + lambda (v - w^t)),

where w^t is the network as received. The client sends the change of w only and predicts with v. As
in the code both train on the same batches, and v begins as a copy of a global network: here the
first that the client receives, in the code the initial one (the same for clients of round one).
With lambda = 0 and full cohorts the client trains v alone. The code, as its script runs it,
averages changes uniformly; here examples weigh them, so that w equals FedAvg's bit for bit. The
code chooses among three lambdas in each step by validation data; this choice is left out, because
noised steps do not cover it.

The code has as many steps for v as for w. PFLlib leaves that number open; here v takes the steps of
`personal_rounds` rounds, and 1 is the code's.

No release depends on v, so it needs no noise. Under `dp_sgd` only noised steps may read data: one
fit of the charged steps trains both networks, with one clip and one noise over both, so w is no
longer FedAvg's. `privacy.personal: decoupled` trains w alone in the rounds, and v after the last
release, without noise, for `personal_rounds`, from the last global network and pulled to it. The
pull sees no data, so it uses no part of a bound.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge, Le

from methods.fedavg import FedAvg
from methods.interface import method as m
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
        personal_rounds: Training of the personal network in each round, or after the last release
            where it is decoupled, as a multiple of the steps of one round. Under `dp_sgd`, where
            both networks train together, it has no effect.
    """

    proximal_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    personal_rounds: Annotated[int, Ge(1), Le(10000)] = 1


class Ditto(FedAvg):
    """A global and a personal network."""

    config: Config
    has_personal_state = True
    decouples = True

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the global network, then, unless decoupled, the personal one on the same batches.

        Under `dp_sgd` both take the charged steps together.
        """
        if self.task.decoupled:
            return super().client_update(view, data, trainer, rng)
        if trainer.charged_steps is not None:
            return self.trained_together(view, data, trainer, rng)
        same_batches = copy.deepcopy(rng)
        result = super().client_update(view, data, trainer, rng)
        return replace(result, personal=self.trained_own(view, data, trainer, same_batches))

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train the personal network, decoupled, from the last global one."""
        if not self.task.decoupled:
            return view.personal
        return self.trained_own(view, data, trainer, rng)

    def trained_own(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Return the personal network after its own fit, pulled to the broadcast."""
        rounds, start = self.config.personal_rounds, self.whole_model_of(view)
        steps = None if rounds == 1 else rounds * trainer.steps_for(data.num_examples)
        pull = pull_to(self.anchor(view), self.config.proximal_weight)
        trained = self.train(view, data, trainer, rng, start=start, steps=steps, penalty=pull)
        return prefixed(trained)

    def trained_together(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return both networks after one fit; only the bound on an example joins them."""
        own = prefixed(self.whole_model_of(view))
        names, start = (*self.shared_layers, *own), {**self.model_of(view), **own}
        loss = self.cross_entropies
        both = BatchObjective(lambda both, some: loss(both, some) + loss(under(OWN, both), some))
        pull = pull_to(self.anchor(view), self.config.proximal_weight, OWN)
        trained = self.train(
            view, data, trainer, rng, names=names, objective=both, start=start, penalty=pull
        )
        personal = {name: trained[name] for name in own}
        return replace(self.result(view, trained), personal=personal)

    def anchor(self, view: m.ClientView) -> Parameters:
        """Return the global network as received, w^t."""
        return self.tensors(self.model_of(view))

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return arrays of the personal network; of the global one before the first fit."""
        return {
            name: view.personal.get(OWN + name, value)
            for name, value in self.model_of(view).items()
        }


def prefixed(network: m.Arrays) -> m.Arrays:
    """Return a network's arrays under the names of the personal one."""
    return {OWN + name: value for name, value in network.items()}


build = Ditto.built
