"""PM-MoE over small networks: clients that have trained, experts, and gates that say one thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from methods import Arrays, ClientView, Task, pm_moe
from methods.networks.mixture import Gate
from methods.pm_moe import OWN, PMMoE
from platform.contract.examples import draw_examples, frozen
from tests.methods._training import rng, trainer

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 6)
SMALL = {"image_size": 16, "channels": (2, 3), "feature_width": 5}
BASES = (
    *("fedper", "lg_fedavg", "fedrep", "fedrod", "fedgh"),
    *("fedbabu", "gpfl", "fedcp", "dbe"),
)
PREFIX = "moe."


def build(base: str = "fedper", network: Mapping | None = None, **options) -> PMMoE:
    given = {"gate_rounds": 2, "gamma": 0.0, "initialisation": "normal", **options}
    return pm_moe.build(pm_moe.Config(base=base, base_options=network or SMALL, **given), TASK)


def trained(method: PMMoE, seed: int = 0, rounds: int = 2) -> ClientView:
    """A client after some rounds of its own, with what it would be sent next."""
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(seed))
    sent = dict(method.broadcast(state))
    if "has_consensus" in sent:
        sent |= {"has_consensus": np.ones(1, np.int64), "consensus": sent["consensus"] + 1}
    for number in range(rounds):
        view = ClientView(frozen(sent), (), frozen(personal))
        data = draw_examples(method, seed + 10 * number, 9)
        personal = dict(method.client_update(view, data, trainer(), rng(3)).personal)
    return ClientView(sent, (), personal)


def drawn_experts(method: PMMoE, count: int, seed: int = 5) -> list[Arrays]:
    draw = rng(seed)
    return [
        {n: draw.normal(0, 0.5, s.shape).astype(np.float32) for n, s in policy.spec.items()}
        for policy in [method.pool_policy()] * count
    ]


def with_gate(method: PMMoE, view: ClientView, count: int, bias: Mapping[int, float], own: int):
    """The view with a gate that says the same of every example."""
    gate = Gate(method.base.gated_width, count, method.config).start(rng(9))
    last = method.config.gate_layers
    gate[f"{PREFIX}{last}.weight"][:] = 0.0
    gate[f"{PREFIX}{last}.bias"][:] = 0.0
    for place, value in bias.items():
        gate[f"{PREFIX}{last}.bias"][place] = value
    return dataclasses.replace(
        view, personal={**view.personal, **gate, OWN: np.array(own, np.int64)}
    )
