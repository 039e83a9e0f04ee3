"""Gathering: a shared linear classifier, and personal gains that all clients swap at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from torch.nn import functional

from methods import LocalResult, ParameterGroup, PoolPolicy, Task, TensorSpec
from methods.interface.defaults import MethodDefaults

GAIN = "gain"


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        shares: Whether the classifier is summed; else it stays as it is.
        trains: Whether a contribution is trained once more.
        width: Numbers of an entry beside the gain.
    """

    shares: bool = True
    trains: bool = False
    width: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of a linear classifier on features that are scaled."""

    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {}

    def losses(self, parameters, encoded, batch):
        scaled = batch["features"] * (1.0 + parameters[GAIN])
        logits = 10.0 * scaled @ parameters["weight"].T
        return functional.cross_entropy(logits, batch["labels"], reduction="none")


@dataclass(frozen=True)
class Gathering(MethodDefaults):
    """The method."""

    has_personal_state: bool = field(default=True, init=False)
    config: Config
    shape: tuple[int, int]

    def shared_spec(self):
        return {"weight": TensorSpec(self.shape)} if self.config.shares else {}

    def pool_policy(self):
        spec = {GAIN: TensorSpec((self.shape[1] + self.config.width,))}
        return PoolPolicy(spec, 1, "all", exclude_self=False, fixed=True, trains=self.config.trains)

    def init_server(self, rng):
        return {"weight": rng.standard_normal(self.shape, np.float32)}

    def init_client(self, shared_rng, client_rng):
        return {GAIN: np.zeros(self.shape[1], np.float32)}

    def client_update(self, view, data, trainer, rng):
        trained = self._fit(view, data, trainer, rng)
        update = {"weight": trained["weight"] - view.broadcast["weight"]}
        return LocalResult(update if self.config.shares else {}, None, {GAIN: trained[GAIN]})

    def server_update(self, state, aggregate, pool, rng):
        if not self.config.shares:
            return state
        return {"weight": (state["weight"] + aggregate.values["weight"]).astype(np.float32)}

    def contribute(self, view, data, trainer, rng):
        own = {GAIN: view.personal[GAIN]}
        if self.config.trains:
            own = {GAIN: self._fit(view, data, trainer, rng)[GAIN]}
        entry = np.concatenate([own[GAIN], np.zeros(self.config.width, np.float32)])
        return LocalResult({}, {GAIN: entry}, own)

    def personalise(self, view, data, trainer, rng):
        own = {GAIN: view.personal[GAIN]}
        if not view.experts:
            return own
        mixed = np.mean([expert[GAIN][: self.shape[1]] for expert in view.experts], axis=0)
        place = -1 if view.own is None else view.own
        return {
            **own,
            "mixed": (self.config.scale * mixed).astype(np.float32),
            "own": np.array(place),
        }

    def predict(self, view, batch, classes):
        gain = view.personal.get("mixed", view.personal.get(GAIN, 0.0))
        logits = (batch["features"] * (1.0 + gain)) @ view.broadcast["weight"].T
        return logits[:, : len(classes)].astype(np.float32)

    def _fit(self, view, data, trainer, rng):
        start = {"weight": view.broadcast["weight"], GAIN: view.personal[GAIN]}
        groups = (ParameterGroup(("weight", GAIN)),)
        return trainer.fit(Loss(), start, data.arrays, groups=groups, rng=rng)


def build(config: Config, task: Task) -> Gathering:
    """Builds the method."""
    return Gathering(config, (len(task.classes), task.backbone.embed_dim))
