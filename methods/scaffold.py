"""SCAFFOLD: control variates on both sides correct the drift of local training.

Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML),
Algorithm 1. Client i keeps a control variate c_i beside the server's c and trains by

    y <- y - eta_l (g_i(y) - c_i + c)                                    (Eq. 3)

from y = x for K steps. Then c_i becomes g_i(x), the gradient of all its data at x (option I), or
c_i - c + (x - y) / (K eta_l) (option II, Eq. 4); all start at zero. The server adds eta_g times the
plain mean of the changes of y to x, and the sum of the changes of c_i over the *population* to c
(Eq. 5): absent clients keep their c_i, so c is the mean of them all. That is two tensors for each
layer under two weightings, in one upload.

Eq. 3 and 4 are about plain SGD at the configured learning rate: with momentum or Adam the
correction and (x - y) / (K eta_l) are no longer in the units of a gradient, so both are refused.
Weight decay is part of the gradient under option II and not under option I.

A control variate is a function of a client's records, and later releases start from it. `dp_sgd` is
refused, because such a state must come from noised steps (the joint rule). A bound on the whole
upload covers both tensors, so mechanisms on uploads are admitted; c then follows from the clipped
and noised uploads, and is no longer the mean of what clients keep.

Published code (PFLlib) is option II with the number of batches in one epoch as K, which is too
small with several local epochs; here K is the number of steps taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Gt, Le
from numpy.typing import NDArray

from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters
from methods.networks.method import ROWS, blocks

CONTROL = "control."

VARIANTS = ({"network": "features", "control": "first"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        control: What a control variate becomes: by the difference to the broadcast (`second`, the
            paper's option II), or the gradient of all data at the broadcast (`first`).
        server_rate: eta_g, the server's step size.
    """

    control: Literal["first", "second"] = "second"
    server_rate: Annotated[float, Gt(0.0), Le(1e3)] = 1.0


class Scaffold(FedAvg):
    """Controlled averaging."""

    config: Config
    has_personal_state = True
    plain_sgd = True
    units = CLIENT_ONLY
    averaged = frozenset[str]()
    """Nothing: the server's step is the paper's, `server_rate` times the mean change."""

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the network, averaged plainly, and the change of the control variates, summed."""
        source = m.Source.GRADIENT if self.config.control == "first" else m.Source.TRAINING
        specs: dict[str, m.TensorSpec] = {}
        for name, each in self.shared_layers.items():
            specs[name] = m.TensorSpec(each.shape, weighting=m.Weighting.UNIFORM)
        for name, each in self.shared_layers.items():
            specs[CONTROL + name] = m.TensorSpec(
                each.shape, weighting=m.Weighting.SUM, source=source
            )
        return specs

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh network, and c = 0."""
        return {**super().init_server(rng), **self.no_controls()}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """c_i = 0."""
        return self.no_controls()

    def no_controls(self) -> dict[str, NDArray[np.float32]]:
        """Return control variates before the first round."""
        layers = self.shared_layers.items()
        return {CONTROL + name: np.zeros(layer.shape, np.float32) for name, layer in layers}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network with corrected steps (Eq. 3) and renew the control variate."""
        rate = trainer.learning_rate
        correction = self.tensors({n: rate * each for n, each in self.lead(view).items()})

        def after_step(trained: Parameters) -> None:
            for name, tensor in trained.items():
                tensor.add_(correction[name])

        trained = self.train(view, data, trainer, rng, after_step=after_step)
        controls = self.controls_after(view, trained, data, trainer)
        kept = {CONTROL + name: value.astype(np.float32) for name, value in controls.items()}
        moved = {name: value - view.personal[name] for name, value in kept.items()}
        return m.LocalResult({**self.result(view, trained).update, **moved}, None, kept)

    def lead(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        """c_i - c by layer."""
        own, common = view.personal, view.broadcast
        return {name: own[CONTROL + name] - common[CONTROL + name] for name in self.shared_layers}

    def controls_after(
        self, view: m.ClientView, trained: m.Arrays, data: m.Examples, trainer: m.Trainer
    ) -> dict[str, NDArray[Any]]:
        """Return the client's next control variate by layer (Eq. 4)."""
        if self.config.control == "first":
            return self.gradient(self.model_of(view), data.arrays)
        length = trainer.steps_for(data.num_examples) * trainer.learning_rate
        start = view.broadcast
        return {n: e + (start[n] - trained[n]) / length for n, e in self.lead(view).items()}

    def gradient(self, model: m.Arrays, examples: m.Arrays) -> dict[str, NDArray[Any]]:
        """Return gradient of the mean loss over all examples, by layer."""
        parameters = {n: tensor.requires_grad_() for n, tensor in self.tensors(model).items()}
        count = len(examples["labels"])
        sums = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        for some in blocks(examples, ROWS):
            share = self.cross_entropies(parameters, self.tensors(some)).sum() / count
            slopes = torch.autograd.grad(share, tuple(parameters.values()))
            sums = {n: sums[n] + slope for n, slope in zip(parameters, slopes, strict=True)}
        return {name: total.cpu().numpy() for name, total in sums.items()}

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Move the network by the mean change, and c by the share of the sum (Eq. 5)."""
        rate, share = self.config.server_rate, 1.0 / aggregate.population
        moved = {
            name: state[name] + (share if name.startswith(CONTROL) else rate) * value
            for name, value in aggregate.values.items()
        }
        return {name: value.astype(np.float32) for name, value in moved.items()}


build = Scaffold.built
