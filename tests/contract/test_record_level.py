"""Methods that cheat under `dp_sgd`: each is refused, nothing leaves, and the books stay right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch.nn import functional

from methods import LocalResult, ParameterGroup, PoolPolicy, TensorSpec
from methods.interface.defaults import MethodDefaults
from methods.networks.method import BatchObjective
from platform.config import parse_config
from platform.contract.driving import quick_folder
from platform.contract.examples import EMBED_DIM, draw_examples
from platform.contract.mechanisms import NAMES, RUN, STEPS, Stage, set_stage
from platform.errors import RoundAborted
from privacy import SensitivityViolation

SHAPE = (4, EMBED_DIM)
ZEROS = np.zeros(SHAPE, np.float32)


def losses(parameters, batch):
    """A linear classifier's."""
    logits = batch["features"] @ parameters["weight"].T
    return functional.cross_entropy(logits, batch["labels"], reduction="none")


@dataclass(frozen=True)
class Honest(MethodDefaults):
    """Trains a linear classifier and shows everybody what it trained."""

    def shared_spec(self):
        return {"weight": TensorSpec(SHAPE)}

    def pool_policy(self):
        return PoolPolicy({"weight": TensorSpec(SHAPE)}, 1)

    def init_server(self, rng):
        return {"weight": ZEROS}

    def init_client(self, shared_rng, client_rng):
        return {"own": ZEROS}

    def fit(self, start, data, trainer, rng, steps=None):
        groups = (ParameterGroup(("weight",)),)
        objective, arrays = BatchObjective(losses), data.arrays
        named = {"groups": groups, "rng": rng, "steps": steps}
        return trainer.fit(objective, {"weight": start}, arrays, **named)["weight"]

    def client_update(self, view, data, trainer, rng):
        trained = self.fit(view.broadcast["weight"], data, trainer, rng)
        return self.returns(trained, view.broadcast["weight"], data)

    def returns(self, trained, start, data):
        return LocalResult({"weight": trained - start}, {"weight": trained}, {"own": trained})


class ReadsLabels(Honest):
    """Scales its update by the mean of its labels: a number that no noise covers."""

    def returns(self, trained, start, data):
        share = float(np.mean(data.arrays["labels"]))
        return LocalResult({"weight": share * (trained - start)}, None, {})


@dataclass(frozen=True)
class Smuggler(Honest):
    """Has its data from elsewhere, past the seal: only the arrays' origin can give it away."""

    part: str = "entry"

    def returns(self, trained, start, data):
        means = np.full(SHAPE, 0.25, np.float32)
        update = means if self.part == "update" else trained - start
        if self.part == "scale":
            update = np.float32(1.37) * (trained - start)
        entry = means if self.part == "entry" else trained
        own = means if self.part == "personal" else trained
        return LocalResult({"weight": update}, {"weight": entry}, {"own": own})


class FitsTwice(Honest):
    """Takes twice the steps that are charged."""

    def client_update(self, view, data, trainer, rng):
        first = self.fit(view.broadcast["weight"], data, trainer, rng)
        second = self.fit(first, data, trainer, rng)
        return self.returns(second, view.broadcast["weight"], data)


CHEATS = [
    (ReadsLabels(), "'labels' was read"),
    (Smuggler(part="entry"), "pool entry 'weight'"),
    (Smuggler(part="update"), "update 'weight'"),
    pytest.param(Smuggler(part="scale"), "update 'weight'", marks=pytest.mark.slow),
    (Smuggler(part="personal"), "personal state 'own'"),
    (FitsTwice(), "2 noised steps"),
]


@pytest.fixture
def stores() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


def stage_of(method: Honest, folder: Path, *overrides: str) -> Stage:
    tree = {
        "name": "cheats",
        "task": {"clients": len(NAMES)},
        # Three clients fill no pool of the default size.
        "pool": {"minimum": 2},
        "method": {"name": "toy"},
        "training": {"local_steps": 1, "batch_size": 4, "learning_rate": 0.5},
        "privacy": {**STEPS, "noise_source": "seeded"},
        "secure_aggregation": {"enabled": True, "threshold": 2},
    }
    data = {n: draw_examples(method, i) for i, n in enumerate(NAMES)}
    return set_stage(parse_config(tree, overrides), method, data, folder)


@pytest.mark.parametrize(
    ("method", "words"), CHEATS, ids=lambda v: type(v).__name__ if isinstance(v, Honest) else None
)
def test_a_cheat_is_refused_and_nothing_leaves(method: Honest, words: str, stores: Path):
    stage = stage_of(method, stores)
    with pytest.raises(RoundAborted) as aborted:
        stage.play()
    assert isinstance(aborted.value.__cause__, SensitivityViolation)
    assert words in str(aborted.value)
    # The coordinator had asked, so its row stays charged; nobody's own books have one.
    assert aborted.value.uploads_asked
    for client in stage.clients.values():
        assert list(client._store.rows(RUN)) == []
        assert client._store.slots(RUN)[1] is None
        assert np.array_equal(client.state(None).personal["own"], ZEROS)


def test_an_honest_method_passes(stores: Path):
    stage = stage_of(Honest(), stores)
    outcome = stage.play()
    assert outcome.survivors == NAMES
    assert len(outcome.entries) == 3
    assert outcome.entries_void is None
    for client in stage.clients.values():
        (row,) = client._store.rows(RUN)
        assert (row.mechanism, row.channel, row.count) == ("dp_sgd", "sum", 1)
        assert (row.sampling, row.sampling_probability) == ("poisson", 0.5)
        assert (row.clipping_norm, row.standard_deviation) == (0.5, 0.25)
        assert not np.array_equal(client.state((1, 1)).personal["own"], ZEROS)


def test_without_record_level_privacy_data_is_open(stores: Path):
    """The seal is part of the mechanism; elsewhere the noise on the upload covers everything."""
    stage = stage_of(ReadsLabels(), stores, "privacy.mechanism=none")
    assert stage.play().survivors == NAMES
