"""`sotto.run` and what it returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sotto
from methods import ClientView, Task
from tests.repository._source import ROOT

SMALL = {
    "task.clients": 4,
    "task.domains": ["real"],
    "task.test_per_class": 2,
    "task.partition.images_per_client": 4,
    "training.local_steps": 1,
    "cohort.dropout_rate": 0.0,
    "secure_aggregation.threshold": 3,
    "secure_aggregation.corrupt": 1,
    "rounds": 2,
    "progress": False,
}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('runs')}/sotto.db"


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def run(storage, told):
    return sotto.run("quickstart", storage=storage, on_round=told.append, **SMALL)


def test_a_run_has_numbers(run, told):
    assert run.finished and 0.0 <= run.accuracy <= 1.0
    assert run.unit == "client" and run.delta == 1e-5
    assert run.epsilon.server == pytest.approx(8.0, rel=1e-4)
    assert len(run.rounds) == 2 and list(run.rounds["round"]) == [1, 2]
    assert run.summary["run_id"] == run.id and run.config["rounds"] == 2
    assert [(one.number, one.of) for one in told] == [(1, 2), (2, 2)]
    assert told[0].epsilon.server < told[1].epsilon.server == run.epsilon.server


def test_a_run_is_found_again(run, storage):
    assert sotto.Run("latest", storage).id == run.id
    assert sotto.resume(run.id, storage=storage).epsilon == run.epsilon
    with pytest.raises(sotto.Error):
        sotto.Run("nobody", storage)


def test_a_report_and_a_picture_are_files(run, tmp_path):
    page = run.report(tmp_path / "report.html")
    assert page.read_text("utf-8").count(run.id)
    assert json.loads(run.report(tmp_path / "report.json").read_text("utf-8"))
    assert run.plot(tmp_path / "accuracy.svg").read_text("utf-8").count("<svg")
    for refused in (lambda: run.report(page), lambda: run.report(tmp_path / "report.doc")):
        with pytest.raises(sotto.Error) as caught:
            refused()
        assert caught.value.field == "path"
    with pytest.raises(sotto.Error) as caught:
        run.plot(tmp_path / "experts.svg", kind="experts")
    assert caught.value.field == "kind" and not (tmp_path / "experts.svg").exists()


@pytest.mark.parametrize("missing", [ImportError("weasyprint"), OSError("pango")])
def test_a_pdf_without_its_libraries_is_refused_before_it_is_written(
    run, tmp_path, monkeypatch, missing
):
    def absent():
        raise missing

    monkeypatch.setattr("platform.results.report.rendering.load_weasyprint", absent)
    with pytest.raises(sotto.Error) as caught:
        run.report(tmp_path / "report.pdf")
    assert caught.value.field == "path" and not (tmp_path / "report.pdf").exists()


def test_what_a_callback_does_changes_nothing(run, storage):
    def meddle(found):
        found.document["epsilon"]["server"] = 0.0

    again = sotto.run("quickstart", storage=storage, on_round=meddle, **SMALL)
    assert again.epsilon == run.epsilon


def test_ctrl_c_leaves_a_run_that_goes_on(storage, run):
    def stop(found):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sotto.run("quickstart", storage=storage, on_round=stop, **SMALL)
    left = sotto.Run("latest", storage)
    assert not left.finished and len(left.rounds) == 1
    with pytest.raises(sotto.Error, match="resume"):
        _ = left.summary
    gone_on = sotto.resume(storage=storage, progress=False)
    assert gone_on.id == left.id and gone_on.finished
    # Round one is not paid for twice.
    assert gone_on.epsilon == run.epsilon


def test_a_plan_is_the_privacy_of_a_run(storage):
    plan = sotto.Plan("upload_noise", rounds=2, noise_multiplier=9.0)
    small = {key: value for key, value in SMALL.items() if key != "rounds"}
    run = sotto.run("promptfl", storage=storage, privacy=plan, **small)
    assert run.epsilon.server == pytest.approx(plan.epsilon(1e-5).server, rel=1e-9)
    for key, value, valid in (("rounds", 3, "2"), ("privacy.noise_multiplier", 1.0, "9.0")):
        with pytest.raises(sotto.Error) as caught:
            sotto.run("promptfl", storage=storage, privacy=plan, **{**small, key: value})
        said = caught.value
        assert (said.field, said.value, said.valid.partition(",")[0]) == (key, value, valid)


@pytest.mark.parametrize(
    ("config", "changes", "field", "value"),
    [
        ("nope", {}, "CONFIG", "nope"),
        ("quickstart", {"rounds": 0}, "rounds", 0),
        ("quickstart", {"privacy": {"mechanism": "magic"}}, "privacy.mechanism", "magic"),
        ({"name": "mine"}, {}, "method", None),
        ("federation", {}, "federation", "given"),
        ("quickstart", {"data": "nowhere"}, "data", "nowhere"),
    ],
)
def test_the_command_line_refuses_the_same(tmp_path, config, changes, field, value):
    storage = f"sqlite:///{tmp_path}/runs/sotto.db"
    with pytest.raises(sotto.Error) as caught:
        sotto.run(config, storage=storage, **changes)
    assert caught.value.field == field and not (tmp_path / "runs").exists()
    assert caught.value.valid and caught.value.value == value


def test_arrays_are_data(storage, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 9, 9), dtype=np.uint8)
    labels, owners = np.arange(24) % 2, np.arange(24) // 8
    given = {"clients": owners, "classes": ["cat", "dog"], "folder": tmp_path}
    data = sotto.Data(images, labels, **given)
    assert (data.classes, data.clients) == (("cat", "dog"), ("0", "1", "2"))
    assert sotto.Data(images, labels, **given).folder == data.folder
    assert sotto.Data(images[::-1], labels, **given).folder != data.folder
    run = sotto.run("promptfl", data=data, storage=storage, rounds=1, progress=False)
    assert run.config["task"]["clients"] == 3 and 0.0 <= run.accuracy <= 1.0


def test_pairs_of_image_and_label_are_data(tmp_path):
    tensors = np.zeros((3, 9, 9), np.float32), np.ones((3, 9, 9), np.float32)
    pairs = [(tensors[0], 0), (tensors[1], 1)]
    data = sotto.Data(pairs, folder=tmp_path)
    assert sorted(path.parent.name for path in data.folder.rglob("*.png")) == ["0", "1"]
    tested = sotto.Data(pairs, test=[False, True], folder=tmp_path)
    assert {p.name for p in tested.folder.iterdir()} == {"train", "test"}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"images": np.zeros((2, 9, 9)), "labels": [0, 1]}, "images"),
        ({"images": np.zeros((2, 9, 9, 4), np.uint8), "labels": [0, 1]}, "images"),
        ({"images": [(np.full((3, 9, 9), 2.0), 0)]}, "images"),
        ({"images": np.zeros((2, 9, 9), np.uint8), "labels": [0]}, "labels"),
        ({"images": np.zeros((2, 9, 9), np.uint8), "labels": ["..", "a/b"]}, "labels"),
        ({"images": np.zeros((1, 9, 9), np.uint8), "labels": [1], "classes": ["a"]}, "classes"),
        ({"images": np.zeros((1, 9, 9), np.uint8), "labels": [0], "clients": []}, "clients"),
        ({"images": np.zeros((1, 9, 9), np.uint8), "labels": [0], "clients": [" "]}, "clients"),
    ],
)
def test_what_is_no_image_is_refused_and_nothing_written(tmp_path, arguments, field):
    with pytest.raises(sotto.Error) as caught:
        sotto.Data(**arguments, folder=tmp_path)
    assert caught.value.field == field and not list(tmp_path.iterdir())


def test_import_is_light_and_sums_and_plans_never_load_torch():
    script = """
import sys, sotto
heavy = {"torch", "matplotlib", "numpy", "pandas"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
sotto.secure_sum({"a": [1.0], "b": [2.0]}, clipping_norm=9.0)
sotto.Plan("upload_noise", noise_multiplier=4.0).guesses()
sotto.calibrate(sotto.Plan("dp_sgd", sampling_probability=0.5), epsilon=4.0)
assert not {"torch", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = (rng.integers(0, 60, (60, 8, 8)) + 120 * labels[:, None, None]).astype(np.uint8)
    folder = tmp_path_factory.mktemp("data")
    return sotto.Data(images, labels, clients=np.arange(60) // 20, folder=folder)


def linear(outputs=2, **more):
    from torch import nn

    return sotto.averaged(nn.Sequential(nn.Flatten(), nn.Linear(192, outputs)), size=8, **more)


def test_a_network_of_ones_own_is_averaged_and_learns(storage, two_classes):
    from torch.nn import CrossEntropyLoss

    facts = {"data": two_classes, "storage": storage, "progress": False, "rounds": 3}
    settings = {"privacy": {"mechanism": "none"}, "training.learning_rate": 0.5}
    run = sotto.run(linear(loss=CrossEntropyLoss(reduction="none")), **facts, **settings)
    assert run.accuracy == 1.0 and run.config["method"]["name"] == "averaged"
    plan = sotto.Plan("upload_noise", rounds=3, noise_multiplier=4.0)
    private = sotto.run(linear(), **{**facts, "privacy": plan, "rounds": 3})
    assert private.epsilon.server == pytest.approx(plan.epsilon(1e-5).server)


def test_a_mistake_in_it_names_function_and_remedy(storage, two_classes):
    from torch import nn
    from torch.nn import functional

    facts = {"data": two_classes, "storage": storage, "progress": False}

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, images):
            return self.layer(images)

    wrong = {
        "correct forward, line": sotto.averaged(Broken(), size=8),
        "(3, 5)": linear(5),
        'reduction="none"': linear(loss=functional.cross_entropy),
    }
    for words, method in wrong.items():
        with pytest.raises(sotto.Error) as caught:
            sotto.run(method, **facts)
        assert words in str(caught.value) and "\n" not in str(caught.value)
    for other in (nn.Flatten(), nn.Linear, lambda images: images):
        with pytest.raises(sotto.Error) as caught:
            sotto.averaged(other)
        assert caught.value.field == "module"


def step_by_step(step, **members):
    """A network of which `step` changes the flat images."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(192, 2)
            self.register_buffer("seen", nn.Parameter().new_zeros(()))
            for name, layer in members.items():
                setattr(self, name, layer)

        def forward(self, images):
            return self.last(step(self, images.flatten(1)))

    return sotto.averaged(Net(), size=8)


def keeping(net, x):
    net.seen += x.sum()
    return x


def test_a_network_that_breaks_a_bound_is_refused_before_a_charge(two_classes, tmp_path):
    from torch import nn

    plans = {
        "upload": sotto.Plan("upload_noise", rounds=2, noise_multiplier=4.0),
        "steps": sotto.Plan(
            "dp_sgd", rounds=2, noise_multiplier=1.0, sampling_probability=0.5, steps=1
        ),
    }
    wrong = [
        ("upload", "image of a batch", step_by_step(lambda net, x: x - x.mean(0))),
        (
            "upload",
            "BatchNorm1d at norm",
            step_by_step(lambda n, x: n.norm(x), norm=nn.BatchNorm1d(192)),
        ),
        ("upload", "Net.seen", step_by_step(keeping)),
        ("upload", "NaN", step_by_step(lambda net, x: x / 0)),
        ("steps", "Dropout draws", step_by_step(lambda net, x: net.drop(x), drop=nn.Dropout(0.5))),
        ("steps", "Net reads", step_by_step(lambda net, x: x if x.sum().item() else -x)),
    ]
    facts = {"data": two_classes, "storage": f"sqlite:///{tmp_path}/runs/s.db", "progress": False}
    for plan, words, network in wrong:
        with pytest.raises(sotto.Error) as caught:
            sotto.run(network, privacy=plans[plan], **facts)
        said = str(caught.value)
        assert words in said and "vmap" not in said and "\n" not in said
    assert not (tmp_path / "runs").exists()


def test_dropout_is_off_in_predictions():
    from torch import nn

    made = step_by_step(lambda net, x: net.drop(x), drop=nn.Dropout(0.5))
    network = made.module.build(None, Task(("a", "b"), (), 1))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    view = ClientView(network.init_server(np.random.default_rng(0)))
    one, again = (network.predict(view, {"pixels": pixels}, ("a", "b")) for _ in range(2))
    assert np.array_equal(one, again) and network.module.training


def test_predictions_that_become_nan_stop_the_run(two_classes, tmp_path):
    made = []

    def spoilt(net, x):
        # Finite while the network is as it was made.
        made.append(net.last.bias.sum().item())
        return x if made[-1] == made[0] else x * float("nan")

    network = step_by_step(spoilt)
    plan = sotto.Plan("upload_noise", rounds=2, noise_multiplier=4.0)
    facts = {"data": two_classes, "storage": f"sqlite:///{tmp_path}/s.db", "progress": False}
    with pytest.raises(sotto.Error, match="in round 1 the method predicts NaN"):
        sotto.run(network, privacy=plan, **facts)


@pytest.mark.parametrize("name", ["methods", "privacy", "storage"])
def test_another_package_of_the_same_name_is_told_in_one_sentence(tmp_path, name):
    (tmp_path / "script.py").write_text("import sotto\nsotto.secure_sum")
    mine = tmp_path / name
    mine.mkdir()
    (mine / "notes.txt").write_text("a folder without code is in nobody's way")
    assert script(tmp_path).returncode == 0
    (mine / "__init__.py").write_text("")
    done = script(tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {name}: {str(mine)!r} is found")


def script(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder / "script.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
