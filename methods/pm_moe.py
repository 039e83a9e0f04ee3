"""PM-MoE: a personalised method, then a gate on each client over all clients' personal modules.

Feng et al. 2025, "PM-MoE: Mixture of Experts on Private Model Parameters for Personalized Federated
Learning" (WWW, doi 10.1145/3696410.3714561), Algorithm 1. The rounds are the base method's. Then
all converged personal modules go into a pool that every client fetches. With everything frozen, a
client trains a gating network that mixes the modules' outputs; the energy-based denoising drops
those least like its own module's.

The paper says that a converged module leaks nothing. But it is a model of its owner's data, so here
it is a release like any pool entry, noised and charged. For its own gate, a client replaces its
noised entry by its own module, which never left.

Where the paper is silent or its published code departs from it:

- Weights: softmax over the experts that denoising left, then the k largest, as they are (text and
  code); `renormalise` scales them to add up to one.
- Denoising is not in the published code at all. T has no published value (`kept_experts`).
- The loss is cross-entropy of the mixture. The code adds GPFL's and DBE's own losses, which do not
  depend on the gate. Experts are frozen always (the code can train them).
- The code takes the local learning rate for six of nine bases; here `gate_rate` holds for all.
- The gate's E_moe epochs are counted in rounds' worth of steps, see `gate_rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from methods import fedbabu
from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import OverMethod
from methods.interface.method import OptionsOf
from methods.interface.registry import BUILT_IN_METHODS, options_of
from methods.networks.layers import specs
from methods.networks.method import BatchObjective, ModularMethod, columns_of
from methods.networks.mixture import GATE, Gate, GateConfig, Mixture, stacked

OWN = f"{GATE}own"
"""Name under which a client keeps the number of its own expert."""

VARIANTS = tuple(
    # One base of each kind.
    {"base": base, "base_options": {"network": "features"}}
    for base in ("lg_fedavg", "fedgh", "fedbabu", "dbe")
)


@dataclass(frozen=True)
class Config(GateConfig):
    """Options.

    Attributes:
        base: The method of the rounds.
        base_options: Its own options; those not named are at their defaults.
        top_k: Experts that count for an example; None for all.
        renormalise: Whether the weights of these experts add up to one.
        gate_rate: The gate's learning rate (the paper has 0.05, 0.1 and 0.5).
        gate_rounds: The gate's training, as a multiple of the steps of one round: with
            `training.local_epochs: 1`, as in the paper, its epochs E_moe (50 to 400).
        gamma: Share of the other experts that denoising drops.
        temperature: T of the free energy.
    """

    base: Literal[
        "fedper", "lg_fedavg", "fedrep", "fedrod", "fedgh", "fedbabu", "gpfl", "fedcp", "dbe"
    ] = "fedper"
    base_options: Annotated[Any, OptionsOf("base")] = field(default_factory=dict)
    top_k: Annotated[Annotated[int, Ge(1), Le(10000)] | None, m.UpToClients()] = None
    renormalise: bool = False
    gate_rate: Annotated[float, Gt(0.0), Le(1e3)] = 0.1
    gate_rounds: Annotated[int, Ge(1), Le(100000)] = 50
    gamma: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2
    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 1.0


@dataclass(frozen=True)
class PMMoE(OverMethod):
    """A base method's second phase, for `population` clients and at most as many experts."""

    base: ModularMethod
    config: Config
    population: int

    def pool_policy(self) -> m.PoolPolicy | None:
        """Return all clients' modules, given once; by training where the base refines them."""
        policy = serving(self.config, self.population)
        return replace(policy, spec=specs(self.base.module_layers), trains=self.base.refines)

    def contribute(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return the client's module as it converged."""
        personal = self._refined(view, data, trainer, rng) if self.base.refines else view.personal
        return m.LocalResult({}, self._module(replace(view, personal=personal)), personal)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train a fresh gate over the experts; without experts, do what the base does."""
        if not view.experts:
            return self._refined(view, data, trainer, rng)
        # A client without an entry of its own has not trained its module to the end.
        is_refined = view.own is not None or OWN in view.personal
        personal: m.Arrays = without_gate(view.personal)
        if self.base.refines and not is_refined:
            personal = self._refined(view, data, trainer, rng)
        own = len(view.experts) if view.own is None else view.own
        ready = replace(view, personal={**personal, OWN: np.array(own, np.int64)})
        mixture = self._mixture(ready)
        start = mixture.gate.start(rng)
        losses = partial(mixture.cross_entropies, drop=mixture.gate.drop(rng))
        trained = trainer.fit(
            BatchObjective(losses),
            {**self.base.whole_model_of(ready), **start},
            {**mixture.seen(data.arrays), "labels": data.arrays["labels"]},
            groups=(m.ParameterGroup(tuple(start), self.config.gate_rate),),
            rng=rng,
            steps=self.config.gate_rounds * trainer.steps_for(data.num_examples),
        )
        return {**ready.personal, **{name: trained[name] for name in start}}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)) of the mixture; of the base without a gate."""
        if not has_gate(view):
            return self.base.predict(view, batch, classes)
        columns, mixture = columns_of(classes, self.base.classes), self._mixture(view)
        with torch.no_grad():
            seen = self.base.tensors(mixture.seen(batch))
            logits = mixture.logits(self.base.tensors(self._parameters(view)), seen)
        return logits[:, columns].cpu().numpy().astype(np.float32)

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return weights (n, E) in the pool's order, rows of sum one also after top-k.

        An own module that the pool lacks comes last.
        """
        if not has_gate(view):
            return None
        mixture = self._mixture(view)
        with torch.no_grad():
            seen = self.base.tensors(mixture.seen(batch))
            weights = mixture.weights(self.base.tensors(self._parameters(view)), seen)
            weights = weights / weights.sum(1, keepdim=True)
        return weights.cpu().numpy().astype(np.float32)

    def _refined(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        plain = replace(view, experts=(), own=None, personal=without_gate(view.personal))
        return self.base.personalise(plain, data, trainer, rng)

    def _module(self, view: m.ClientView) -> m.Arrays:
        model = self.base.whole_model_of(view)
        return {name: np.asarray(model[name], np.float32) for name in self.base.module_layers}

    def _mixture(self, view: m.ClientView) -> Mixture:
        own = int(view.personal[OWN])
        experts = [*view.experts[:own], self._module(view), *view.experts[own + 1 :]]
        return Mixture(
            self.base,
            self.base.tensors(self.base.whole_model_of(view)),
            self.base.tensors(stacked(experts, self.base.module_layers)),
            own,
            Gate(self.base.gated_width, len(experts), self.config),
            top_k=self.config.top_k,
            renormalise=self.config.renormalise,
            gamma=self.config.gamma,
            temperature=self.config.temperature,
        )

    def _parameters(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        gate = {name: value for name, value in view.personal.items() if name.startswith(GATE)}
        return {**self.base.whole_model_of(view), **gate}


def has_gate(view: m.ClientView) -> bool:
    """Return whether a client has a gate for its experts."""
    return bool(view.experts) and OWN in view.personal


def without_gate(personal: m.Arrays) -> dict[str, NDArray[Any]]:
    """Return a client's state without a second phase's additions."""
    return {name: value for name, value in personal.items() if not name.startswith(GATE)}


def serving(config: Config, clients: int) -> m.PoolPolicy:
    """Return the pool's use, without an entry's tensors; known before the method is built."""
    return m.PoolPolicy({}, clients, select="all", exclude_self=False, minimum=2, fixed=True)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse modules that are all the same."""
    chosen = options_of(config.base, config.base_options)
    if isinstance(chosen, fedbabu.Config) and chosen.fine_tune == "body":
        raise MethodError(
            "method.base_options.fine_tune: 'body' leaves all clients the same head, so that there "
            "is nothing to mix; valid with method.name = pm_moe: head, all"
        )
    base = BUILT_IN_METHODS.build(config.base, chosen, task)
    return PMMoE(cast("ModularMethod", base), config, task.population)
