"""A new method is one file, one YAML and one test: this is the test of a method in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from methods import Registry
from platform.bootstrap import Surroundings, create_run
from platform.config import Sources, load_config
from platform.contract.examples import EMBED_DIM, random_backbone
from platform.errors import ConfigError
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from platform.wire.codec import decode_arrays

METHOD = '''\
"""Toy: a linear classifier on frozen features, averaged over clients.

No paper: it exists to show what adding a method takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch.nn import functional

from methods import LocalResult, ParameterGroup, TensorSpec
from methods.interface.defaults import MethodDefaults


@dataclass(frozen=True)
class Config:
    """Options."""

    scale: float = 10.0


@dataclass(frozen=True)
class Loss:
    scale: float
    encoder_parameters: frozenset = frozenset()

    def encode(self, parameters):
        return {}

    def losses(self, parameters, encoded, batch):
        logits = self.scale * batch["features"] @ parameters["weight"].T
        return functional.cross_entropy(logits, batch["labels"], reduction="none")


@dataclass(frozen=True)
class Toy(MethodDefaults):
    config: Config
    shape: tuple
    units: frozenset = field(default=frozenset({"client"}), init=False)
    has_personal_state: bool = field(default=False, init=False)

    def shared_spec(self):
        return {"weight": TensorSpec(self.shape)}

    def init_server(self, rng):
        return {"weight": np.zeros(self.shape, np.float32)}

    def client_update(self, view, data, trainer, rng):
        groups = (ParameterGroup(("weight",)),)
        loss, start = Loss(self.config.scale), view.broadcast
        trained = trainer.fit(loss, start, data.arrays, groups=groups, rng=rng)
        return LocalResult({"weight": trained["weight"] - start["weight"]}, None, {})

    def server_update(self, state, aggregate, pool, rng):
        return {"weight": (state["weight"] + aggregate.values["weight"]).astype(np.float32)}

    def predict(self, view, batch, classes):
        logits = batch["features"] @ view.broadcast["weight"].T
        return logits[:, : len(classes)].astype(np.float32)


def build(config, task):
    """Builds the method."""
    return Toy(config, (len(task.classes), task.backbone.embed_dim))
'''

PRESET = "name: toy\nscale: 20.0\n"

RUN = """\
name: toy-run
rounds: 2
device: cpu
task:
  dataset: shapes
  clients: 4
  shots: 4
  test_per_class: 6
method:
  name: promptfl
training:
  local_steps: 2
  learning_rate: 0.5
cohort:
  dropout_rate: 0.25
secure_aggregation:
  enabled: true
  threshold: 3
"""


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    """A package with one method and a folder with one preset, both outside the repository."""
    # Python keeps what it has imported, so each test's package has a name of its own.
    package, presets = tmp_path / f"toy_{tmp_path.name}", tmp_path / "presets"
    package.mkdir()
    presets.mkdir()
    (package / "__init__.py").write_text('"""Methods of this test."""\n')
    (package / "toy.py").write_text(METHOD)
    (presets / "toy.yaml").write_text(PRESET)
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = Sources(presets=presets)
    return Surroundings(registry=Registry(package.name), sources=sources)


def config_of(tmp_path: Path, surroundings: Surroundings, *overrides: str):
    model = tmp_path / "model"
    model.mkdir()
    random_backbone(model)
    (tmp_path / "run.yaml").write_text(RUN)
    always = (
        "method.name=toy",
        f"task.model.name=local-dir:{model}",
        f"storage.url=sqlite:///{tmp_path}/runs/sotto.db",
    )
    return load_config(tmp_path / "run.yaml", (*always, *overrides), surroundings.sources)


def test_a_toy_method_runs_from_one_file_and_one_preset(tmp_path, surroundings):
    config = config_of(tmp_path, surroundings)
    assert config.method.options == {"scale": 20.0}
    simulation = create_run(config, SilentObserver(), surroundings)
    summary = execute(simulation, SilentObserver())
    assert summary["method"] == "toy"
    assert [document["dropped"] for document in summary["rounds"]] == [1, 1]
    with simulation.database.unit_of_work(read_only=True) as uow:
        latest = uow.states.latest(simulation.run_id)
    assert latest is not None
    assert latest.round_number == 2
    weight = decode_arrays(latest.blob)["weight"]
    assert weight.shape == (20, EMBED_DIM)
    assert np.abs(weight).max() > 0.01
    assert json.loads((simulation.folder / "summary.json").read_text()) == summary


def test_a_toy_method_is_protected_like_any_other(tmp_path, surroundings):
    config = config_of(
        tmp_path,
        surroundings,
        "privacy.mechanism=upload_noise",
        "privacy.clipping_norm=1.0",
        "privacy.target_epsilon=8.0",
    )
    summary = execute(create_run(config, SilentObserver(), surroundings), SilentObserver())
    assert summary["unit"] == "client"
    assert 0 < summary["final"]["epsilon"]["server"] <= 8.0


def test_a_mechanism_that_the_toy_method_does_not_admit_is_refused(tmp_path, surroundings):
    (tmp_path / surroundings.registry.package / "toy.py").write_text(
        METHOD.replace('frozenset({"client"})', "frozenset()")
    )
    config = config_of(
        tmp_path,
        surroundings,
        "privacy.mechanism=upload_noise",
        "privacy.clipping_norm=1.0",
        "privacy.target_epsilon=8.0",
    )
    with pytest.raises(ConfigError, match=r"privacy\.mechanism: 'upload_noise' .*toy; valid: none"):
        create_run(config, SilentObserver(), surroundings)
    assert not (tmp_path / "runs" / "sotto.db").exists()
