"""Opening: clients swap the means of their features before the first round, and train on them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch.nn import functional

from methods import LocalResult, ParameterGroup, PoolPolicy, Task, TensorSpec
from methods.interface.defaults import MethodDefaults
from methods.networks.method import BatchObjective

MEAN = "mean"


@dataclass(frozen=True)
class Config:
    """Options."""


@dataclass(frozen=True)
class Opening(MethodDefaults):
    """A shared linear classifier on features that lean to the others' mean."""

    has_personal_state: bool = field(default=True, init=False)
    shape: tuple[int, int]

    def shared_spec(self):
        return {"weight": TensorSpec(self.shape)}

    def pool_policy(self):
        spec = {MEAN: TensorSpec((self.shape[1],))}
        return PoolPolicy(spec, 1, "all", fixed=True, when="before")

    def init_server(self, rng):
        return {"weight": rng.standard_normal(self.shape, np.float32)}

    def contribute(self, view, data, trainer, rng):
        return LocalResult({}, {MEAN: data.arrays["features"].mean(0)}, view.personal)

    def client_update(self, view, data, trainer, rng):
        others = np.zeros(self.shape[1], np.float32)
        for expert in view.experts:
            others += expert[MEAN]

        def losses(parameters, batch):
            logits = (batch["features"] + batch["others"]) @ parameters["weight"].T
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        rows = np.tile(0.1 * others, (data.num_examples, 1))
        trained = trainer.fit(
            BatchObjective(losses),
            {"weight": view.broadcast["weight"]},
            {**data.arrays, "others": rows},
            groups=(ParameterGroup(("weight",)),),
            rng=rng,
        )
        update = {"weight": trained["weight"] - view.broadcast["weight"]}
        kept = {"others": others, "handed": np.array(len(view.experts), np.int64)}
        return LocalResult(update, None, kept)

    def server_update(self, state, aggregate, pool, rng):
        return {"weight": (state["weight"] + aggregate.values["weight"]).astype(np.float32)}

    def predict(self, view, batch, classes):
        return (batch["features"] @ view.broadcast["weight"].T)[:, : len(classes)]


def build(config: Config, task: Task) -> Opening:
    """Builds the method."""
    return Opening((len(task.classes), task.backbone.embed_dim))
