"""LG-FedAvg: FedAvg's network with its extractor at home."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, fedavg, lg_fedavg
from methods.fedavg import FedAvg
from methods.lg_fedavg import LgFedAvg
from tests.methods._tiny_networks import some_examples, tiny
from tests.methods._training import rng, trainer


def build() -> LgFedAvg:
    return tiny(LgFedAvg, lg_fedavg, 3, 4)


def plain() -> FedAvg:
    return tiny(FedAvg, fedavg, 3, 4)


def parts_of(model):
    own = {name: value for name, value in model.items() if name.startswith("extractor.")}
    return {name: value for name, value in model.items() if name not in own}, own


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_one_client_trains_fedavgs_network(clipping):
    """Both parts together, clipped together; only the head's change is sent."""
    data, model = some_examples(10, 3), plain().init_server(rng(1))
    shared, own = parts_of(model)
    for _ in range(2):
        mine = build().client_update(
            ClientView(shared, personal=own), data, trainer(clipping=clipping), rng(2)
        )
        other = plain().client_update(ClientView(model), data, trainer(clipping=clipping), rng(2))
        assert set(mine.update) == {"head.weight", "head.bias"}
        for name in shared:
            np.testing.assert_allclose(mine.update[name], other.update[name], atol=1e-6)
        for name in own:
            moved = mine.personal[name] - own[name]
            np.testing.assert_allclose(moved, other.update[name], atol=1e-6)
            assert other.update[name].any()
        aggregate = Aggregate(mine.update, 10.0, 1, 1)
        shared, own = build().server_update(shared, aggregate, (), rng()), mine.personal
        model = {**shared, **own}
