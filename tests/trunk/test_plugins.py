"""Plug-ins of every kind: found in three ways, run, recorded, held to, and named when they fail."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

import sotto
from methods import BrokenPlugin
from methods.plugins import DOORS, Plugins
from platform.config import ModelConfig, Sources, parse_config
from platform.data.catalogue import DataRequest, dataset_infos, load_dataset
from platform.data.preparing import frozen_model
from platform.errors import ConfigError, RunStopped
from platform.experiment.federating import through_hub
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run, reopen_run
from platform.mechanisms import KNOWN
from platform.relay.hub import Told
from platform.relay.transports import forward_over, serve, transport_named
from platform.rounds.observing import SilentObserver
from tests.contract._outside import KINDS, write_outside, write_plugin
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._hubs import running, served
from tests.trunk._runs import Command

RUN = """
name: own
rounds: 2
device: cpu
task:
  dataset: own_dataset
  clients: 2
  shots: 2
  partition: {kind: iid}
  model: {name: own_model}
method: {name: fedper, network: features, feature_width: 8}
training: {local_steps: 1, batch_size: 2, learning_rate: 0.05}
privacy: {mechanism: own_mechanism, clipping_norm: 1.0, noise_multiplier: 4.0}
secure_aggregation: {enabled: false}
evaluation: {worth_of_sharing: false, local_twins: false}
"""

# Two releases of Gaussian noise 4 C on vectors that are at most 2 C apart (Balle and Wang 2018).
MU = math.sqrt(2) * 2 / 4
EPSILON = brentq(
    lambda e: norm.cdf(MU / 2 - e / MU) - math.exp(e) * norm.cdf(-MU / 2 - e / MU) - 1e-5, 1.0, 9.0
)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    found = write_outside(tmp_path / "mine")
    capsys.readouterr()
    return found


@pytest.fixture
def forgetting() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tree_of(folder: Path) -> dict:
    tree = yaml.safe_load(RUN)
    tree["task"]["root"] = str(folder / "data")
    tree["storage"] = {"url": f"sqlite:///{folder.parent}/sotto.db"}
    return tree


def begun(folder: Path):
    surroundings = Surroundings.with_plugins(folder)
    config = parse_config(tree_of(folder), sources=surroundings.sources)
    return create_run(config, SilentObserver(), surroundings), surroundings


def test_a_run_of_outside_data_model_and_mechanism_is_charged_and_recorded(
    folder: Path, sotto: Command, monkeypatch: pytest.MonkeyPatch, forgetting: ExitStack
):
    simulation, _ = begun(folder)
    summary = execute(simulation, SilentObserver())
    simulation.database.close()
    assert summary["final"]["epsilon"]["server"] == pytest.approx(EPSILON, abs=2e-3)
    effective = yaml.safe_load((simulation.folder / "effective.yaml").read_text())
    origins = effective["plugins_from"]
    assert {role: one["where"] for role, one in origins.items()} == {
        kind: str(folder / f"{kind}s") for kind in ("dataset", "model", "mechanism")
    }
    # Without the code, nobody guesses what its rows cost; with other code neither.
    at = ("--storage", f"sqlite:///{folder.parent}/sotto.db")
    missing = sotto("budget", simulation.run_id, *at)
    assert missing.code == 1 and "'own_mechanism' is code from outside" in missing.err
    assert len(missing.err.splitlines()) == 1
    verified = sotto("audit", "verify", *at, "--json")
    assert verified.code == 3
    monkeypatch.setenv("SOTTO_PLUGINS", str(folder))
    forgetting.callback(KNOWN.plugins._found.clear)
    path = folder / "mechanisms" / "own_mechanism.py"
    text = path.read_text()
    path.write_text(text + "\n")
    KNOWN.plugins._found.clear()
    assert "not the code of the run's start" in sotto("budget", simulation.run_id, *at).err
    path.write_text(text)
    KNOWN.plugins._found.clear()
    priced = sotto("budget", simulation.run_id, *at, "--json")
    assert priced.code == 0, priced.err
    assert {one["epsilon"]["server"] for one in priced.document["clients"]} == {
        summary["final"]["epsilon"]["server"]
    }


@pytest.mark.parametrize("kind", ["dataset", "model", "mechanism"])
def test_a_run_goes_on_with_the_same_code_only_and_other_code_does_not_run(
    folder: Path, tmp_path: Path, kind: str
):
    simulation, _ = begun(folder)
    simulation.database.close()
    url = f"sqlite:///{tmp_path}/sotto.db"
    ran, path = tmp_path / "ran", folder / f"{kind}s" / f"own_{kind}.py"
    path.write_text(f"open({str(ran)!r}, 'w')\n{path.read_text()}")
    with pytest.raises(RunStopped, match=f"its {kind} 'own_{kind}' is of the folder"):
        reopen_run(simulation.run_id, url, SilentObserver(), Surroundings.with_plugins(folder))
    path.unlink()
    with pytest.raises(ConfigError, match=f"its {kind} 'own_{kind}', from the folder"):
        reopen_run(simulation.run_id, url, SilentObserver(), Surroundings.with_plugins(folder))
    assert not ran.exists()


def test_a_transport_from_outside_carries_a_federation(folder: Path, tmp_path: Path):
    """Two relays and plain connections between coordinator and holders, against one process."""
    place = tmp_path / "fed"
    holders = Holders.written(place)
    transport = transport_named("own_transport", Plugins(folder))

    @contextmanager
    def reaching(section):
        with ExitStack() as stack:
            sockets = stack.enter_context(served(holders.handlers(), place))
            named = transport.local_addresses(len(sockets))
            to = dict(zip(sockets, named, strict=True))
            for name, path in sockets.items():
                work = lambda ended, n=name, p=path: serve(transport, to[n], p, ended)  # noqa: E731
                stack.enter_context(running(work))
            hub = Path(section.socket)
            stack.enter_context(running(lambda ended: forward_over(transport, hub, to, ended)))
            yield stack.enter_context(through_hub(section, Told()))

    summary = hold(federation(place, "rounds=1"), reaching)
    again = tmp_path / "again"
    same = hold(federation(again, "rounds=1"), within(Holders.written(again).handlers()))
    assert summary["rounds"][0]["dropped"] == 0
    assert summary["final"]["accuracy"] == same["final"]["accuracy"]


def test_objects_of_a_program_are_plug_ins_too(folder: Path, tmp_path: Path):
    code = []
    for kind in ("dataset", "model", "mechanism"):
        module = Plugins(folder).load(kind, f"own_{kind}")
        members = {member: getattr(module, member) for member in DOORS[kind].members}
        code.append(sotto.plugin(kind, f"own_{kind}", SimpleNamespace(**members)))
        file = folder / f"{kind}s" / f"own_{kind}.py"
        by_path = sotto.plugin(kind, f"own_{kind}", str(file))
        assert by_path.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    run = sotto.run(tree_of(folder), plugins=code, progress=False)
    assert run.epsilon.server == pytest.approx(EPSILON, abs=2e-3)
    again = sotto.resume(run.id, storage=run.storage, plugins=code)
    assert again.accuracy == run.accuracy
    with pytest.raises(sotto.Error, match="'own_mechanism' is code from outside"):
        sotto.Run(run.id, run.storage).accuracy  # noqa: B018
    with pytest.raises(sotto.Error, match="SimpleNamespace without SIZE"):
        sotto.plugin("model", "other", SimpleNamespace(load=None))
    with pytest.raises(sotto.Error, match=r"value: 'gone\.py'"):
        sotto.plugin("model", "other", "gone.py")


def test_an_installed_package_offers_every_kind(folder: Path, tmp_path: Path, monkeypatch):
    site, package = tmp_path / "site", f"theirs_{tmp_path.name.replace('-', '_')}"
    facts = site / "theirs-2.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 2.0\n")
    points = [f"[sotto.{kind}s]\nown_{kind} = {package}.{kind}s.own_{kind}\n" for kind in KINDS]
    (facts / "entry_points.txt").write_text("\n".join(points))
    shutil.copytree(folder, site / package)
    monkeypatch.syspath_prepend(str(site))
    found = Plugins()
    for kind in KINDS:
        assert f"own_{kind}" in found.of(kind)
        assert all(hasattr(found.load(kind, f"own_{kind}"), one) for one in DOORS[kind].members)
        origin = found.origin(kind, f"own_{kind}")
        assert (origin.kind, origin.where.partition(",")[0]) == ("package", "theirs 2.0")
    assert Sources.of(found).mechanisms.facts_of("own_mechanism").unit == "client"
    assert load_dataset("own_dataset", DataRequest(root=folder / "data")).classes == ("cat", "dog")
    with pytest.raises(BrokenPlugin, match="'own_model' is an entry point"):
        Plugins(folder).of("model")


def spoilt(folder: Path, kind: str, old: str, new: str) -> Plugins:
    shutil.rmtree(folder / f"{kind}s")
    write_plugin(folder, kind, f"own_{kind}", [(old, new)])
    return Plugins(folder, installed=False)


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        ("dataset", "    domains = ", "    1 / 0\n    domains = ", "its load raised ZeroDivisionE"),
        ("dataset", 'name="$name"'.replace("$name", "own_dataset"), 'name="x"', "its INFOS are"),
        ("dataset", "return Dataset(name=name,", "return dict(name=name,", "its load returns no"),
        ("dataset", "def load", "def loads", "has no load; valid: a dataset has INFOS and load"),
        ("model", "self.pool(images)", "self.pool(image)", "its forward raised NameError"),
        ("model", "Linear(3 * parts", "Linear(2 * parts", "its forward raised RuntimeError"),
        ("model", "return Network()", "return 3", "its load returns int"),
        ("model", "SIZE = 32", "SIZE = 0", "its SIZE is 0"),
        ("model", "return found", "return found[0]", "its forward returns (64,)"),
        ("mechanism", "MECHANISM = ", "OTHER = ", "has no MECHANISM"),
        ("mechanism", 'name="own_mechanism"', 'name="upload"', "whose facts have this name"),
        ("mechanism", "clip(vector", "clip(vectors", "its protect raised NameError"),
    ],
)
def test_an_error_names_the_plug_in_the_function_and_the_remedy(
    folder: Path, kind: str, old: str, new: str, said: str
):
    plugins = spoilt(folder, kind, old, new)
    with pytest.raises((ConfigError, BrokenPlugin)) as caught:
        if kind == "dataset":
            load_dataset("own_dataset", DataRequest(root=folder / "data", plugins=plugins))
        elif kind == "model":
            frozen_model(ModelConfig(name="own_model"), "cpu", plugins)
        else:
            execute(begun(folder)[0], SilentObserver())
    text = str(caught.value)
    assert "\n" not in text and f"own_{kind}" in text and said in text
    assert "; valid" in text or (", line " in text and f" of own_{kind}.py" in text)
    assert not (folder.parent / "sotto.db").exists() or "protect" in said


def test_a_method_that_vmap_cannot_run_is_one_sentence(sotto: Command, tmp_path: Path):
    """A mistake in a network under `dp_sgd` names the line, not torch's."""
    sotto("new", "method", "mine", "--into", str(tmp_path))
    path = tmp_path / "mine.py"
    path.write_text(
        path.read_text().replace(
            "return functional.cross_entropy(logits,",
            "logits = logits if logits.sum().item() else 0 * logits\n"
            "            return functional.cross_entropy(logits,",
        )
    )
    tree = yaml.safe_load(RUN)
    tree["task"] |= {"dataset": "digits", "model": {"name": "sotto-tiny"}, "shots": None}
    tree["task"]["partition"]["images_per_client"] = 10
    noise = {"per_sample_clipping_norm": 0.5, "noise_multiplier": 1.0, "sampling_probability": 0.5}
    tree |= {"method": {"name": "mine"}, "privacy": {"mechanism": "dp_sgd", **noise}}
    tree["storage"] = {"url": f"sqlite:///{tmp_path}/sotto.db"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    answer = sotto("run", str(tmp_path / "run.yaml"), "--plugins", str(tmp_path), "--json")
    told = json.loads(answer.err.splitlines()[-1])
    assert (answer.code, told["kind"]) == (2, "broken_plugin"), answer.err
    for words in ("'mine' is --plugins file", "it reads a number", "losses, line"):
        assert words in told["error"]
    assert "Traceback" not in answer.err and "vmap:" not in answer.err
    # Nothing was charged, and a loss that joins the batch is found the same way.
    assert not (tmp_path / "sotto.db").exists()
    text = path.read_text()
    path.write_text(
        text.replace("logits.sum().item() else 0 * logits", "True else 0 * logits").replace(
            "logits = logits if", "logits = logits - logits.mean(0) if"
        )
    )
    joined = sotto("run", str(tmp_path / "run.yaml"), "--plugins", str(tmp_path))
    assert joined.code == 2 and "alone than in a batch" in joined.err


def test_a_name_of_sottos_own_cannot_be_taken(folder: Path):
    for kind, name in (("dataset", "digits"), ("mechanism", "dp_sgd"), ("model", "RN50")):
        (folder / f"{kind}s" / f"own_{kind}.py").rename(folder / f"{kind}s" / f"{name}.py")
        plugins = Plugins(folder)
        with pytest.raises((ConfigError, BrokenPlugin), match=f"'{name}' is a"):
            if kind == "dataset":
                dataset_infos(plugins)
            elif kind == "mechanism":
                Sources.of(plugins).mechanisms.names  # noqa: B018
            else:
                frozen_model(ModelConfig(name=name), "cpu", plugins)
