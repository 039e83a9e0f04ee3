"""A pool that is made once, as PM-MoE has it: who puts what in, and in which order it comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from methods import Registry, Task, fedper, pm_moe
from methods.networks.mixture import GATE
from methods.pm_moe import OWN
from platform.config import MethodConfig, RunConfig, TrainingConfig, parse_config
from platform.contract.examples import draw_experts
from platform.errors import ConfigError
from platform.experiment import method_building
from platform.experiment.finishing import execute
from platform.experiment.method_building import build_method
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.observing import SilentObserver
from platform.rounds.pool import fixed_pool
from platform.wire.codec import encode_arrays
from storage import PoolEntry

HEAD = ("head.bias", "head.weight")


def test_what_the_data_layer_does_not_provide_is_refused(task: Task, monkeypatch):
    monkeypatch.setattr(method_building, "PROVIDED_NEEDS", frozenset({"features"}))
    config = RunConfig(
        name="needs", method=MethodConfig(name="trip_lite"), training=TrainingConfig(local_steps=1)
    )
    with pytest.raises(ConfigError, match="trip_lite needs tokens"):
        build_method(Registry(), config, task)


def test_all_are_served_the_same_pool_in_one_order_and_know_their_own(task: Task):
    options = fedper.Config(network="features")
    modules = draw_experts(pm_moe.build(pm_moe.Config(base_options=options), task), 5)
    entries = [PoolEntry(2, bytes([i]) * 32, encode_arrays(m)) for i, m in enumerate(modules)]
    older = PoolEntry(1, b"x" * 32, encode_arrays(modules[0]))
    pools = [fixed_pool([older, *entries], 2, 2), fixed_pool([*entries[::-1], older], 2, 2)]
    assert [len(pool.experts) for pool in pools] == [5, 5]
    # The order is the same for everybody, so a gate's rows keep their meaning.
    for one, other in zip(pools[0].experts, pools[1].experts, strict=True):
        assert np.array_equal(one["head.weight"], other["head.weight"])
    for i, module in enumerate(modules):
        fetched = pools[0].fetch(bytes([i]) * 32)
        assert fetched.own is not None
        assert np.array_equal(fetched.experts[fetched.own]["head.weight"], module["head.weight"])
    assert pools[0].fetch(b"x" * 32).own is None


@pytest.mark.slow
def test_a_run_ends_with_all_converged_modules_on_every_client(tmp_path: Path):
    """End to end: no experts in the rounds, then everybody's module, one order for everybody."""
    tree = {
        "name": "phase-two",
        "rounds": 2,
        "task": {"clients": 4, "shots": 1, "test_per_class": 6},
        "method": {"name": "pm_moe", "base_options": {"network": "features"}},
        "training": {"local_steps": 1, "learning_rate": 0.02},
        "evaluation": {"local_twins": False},
        "storage": {"url": f"sqlite:///{tmp_path}/runs/sotto.db"},
    }
    simulation = create_run(parse_config(tree), SilentObserver(), Surroundings())
    execute(simulation, SilentObserver())
    last = simulation.run.terms.final_attempt
    states = [client.state(last) for client in simulation.population.clients.values()]
    simulation.database.close()
    assert all(any(name.startswith(GATE) for name in state.personal) for state in states)
    assert [len(state.experts) for state in states] == [4, 4, 4, 4]
    orders = {tuple(e[name].tobytes() for e in s.experts for name in HEAD) for s in states}
    assert len(orders) == 1
    # The modules are those that phase one left in the clients' own state.
    for state in states:
        mine = state.experts[int(state.personal[OWN])]
        assert all(np.array_equal(mine[name], state.personal[name]) for name in HEAD)
    assert len({state.personal["head.weight"].tobytes() for state in states}) == 4
