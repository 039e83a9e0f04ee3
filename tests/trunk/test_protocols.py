"""Whole runs under each evaluation protocol and partition, and what they report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from methods import Arrays, MethodError
from methods.clip.adapter import Backbone
from methods.errors import BackboneError
from methods.prompts.prompt import Captions
from methods.zero_shot import ZeroShot
from platform.bootstrap import Surroundings, create_run
from platform.data.loading import load_task_data
from platform.data.shapes import CLASSES
from platform.errors import ConfigError
from platform.experiment.evaluation import harmonic_mean
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from platform.rounds.run import Progress
from tests.trunk._runs import NO_POOL, NONE, SMALL, Command, Finished, Storage, opened
from tests.trunk.conftest import MakeStorage

SHORT = (NONE, *NO_POOL, "rounds=1", "cohort.dropout_rate=0", "secure_aggregation.threshold=2")
TO_NOVEL = ("evaluation.protocol=base_to_novel",)
LEFT_OUT = (
    *("task.domains=[real, clipart, sketch]", "task.partition.kind=domain", "task.clients=2"),
    *("task.held_out_domain=sketch", "evaluation.protocol=leave_one_domain_out"),
)


@pytest.fixture(scope="module")
def to_novel(make_storage: MakeStorage) -> Finished:
    return make_storage("to-novel").run(*SHORT, *TO_NOVEL)


@pytest.fixture(scope="module")
def left_out(make_storage: MakeStorage) -> Finished:
    return make_storage("left-out").run(*SHORT, *LEFT_OUT)


def test_base_to_novel_of_a_run(to_novel: Finished) -> None:
    summary = to_novel.summary
    for part in (summary["final"], summary["local"]):
        measured = part["protocol"]
        assert list(measured) == ["name", "local", "base", "novel", "harmonic_mean"]
        assert measured["local"] == part["accuracy"]["mean"]
        means = [measured[name] for name in ("local", "base", "novel")]
        assert measured["harmonic_mean"] == pytest.approx(harmonic_mean(means))
        # Five clients on 60 base and 60 novel images each.
        for name in ("base", "novel"):
            assert measured[name] * 300 == pytest.approx(round(measured[name] * 300))
    gain = summary["final"]["protocol"]["harmonic_mean"]
    gain -= summary["local"]["protocol"]["harmonic_mean"]
    assert summary["gain_over_local"] == pytest.approx(gain)
    assert json.loads((to_novel.folder / "summary.json").read_text()) == summary


def test_leave_one_domain_out_of_a_run(left_out: Finished) -> None:
    summary = left_out.summary
    for part in (summary["final"], summary["local"]):
        measured = part["protocol"]
        assert list(measured) == ["name", "local", "target"]
        assert measured["local"] == part["accuracy"]["mean"]
        target = measured["target"]
        assert target["worst"] == pytest.approx(target["mean"] - target["std"])  # two clients
    gain = summary["final"]["protocol"]["target"]["mean"]
    gain -= summary["local"]["protocol"]["target"]["mean"]
    assert summary["gain_over_local"] == pytest.approx(gain)


def test_the_client_mean_says_no_more_than_the_accuracy(plain_run: Finished) -> None:
    summary = plain_run.summary
    for part in (summary["final"], summary["local"]):
        assert part["protocol"] == {"name": "client_mean"}
    gain = summary["final"]["accuracy"]["mean"] - summary["local"]["accuracy"]["mean"]
    assert summary["gain_over_local"] == pytest.approx(gain)


@pytest.mark.parametrize("which", ["to_novel", "left_out"])
def test_rounds_are_measured_on_own_images(which: str, request: pytest.FixtureRequest) -> None:
    """This method personalises nothing, so the last round's accuracy is the final one."""
    run: Finished = request.getfixturevalue(which)
    assert "protocol" not in run.summary["rounds"][0]
    assert run.summary["rounds"][-1]["accuracy"] == run.summary["final"]["accuracy"]


def test_a_round_does_not_pay_for_the_protocol(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five clients on their own images: the sets that all have in common wait for the end."""
    predicted: list[tuple[str, ...]] = []
    original = ZeroShot.predict

    def counting(self: ZeroShot, *arguments: Any) -> Any:
        predicted.append(tuple(arguments[-1]))
        return original(self, *arguments)

    with opened(storage.create(NONE, "method.name=zero_shot", *TO_NOVEL)) as simulation:
        monkeypatch.setattr(ZeroShot, "predict", counting)
        start = Progress(completed=0, committed={}, state=simulation.run.terms.initial_state())
        document = simulation.run.measure(simulation.run, 3, start)
    assert document["protocol"] == {"name": "client_mean"}
    assert predicted == [simulation.learning.classes] * 5


def test_the_method_is_built_for_the_base_classes(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Any] = []

    def build(config: Any, task: Any) -> ZeroShot:
        tasks.append(task)
        return ZeroShot(Captions(task.backbone, config.template))

    monkeypatch.setattr("methods.zero_shot.build", build)
    with opened(storage.create(NONE, "method.name=zero_shot", *TO_NOVEL)) as simulation:
        assert tasks[0].classes == simulation.learning.classes == CLASSES[:10]


def test_zero_shot_is_measured_as_by_hand(storage: Storage) -> None:
    """All clients are alike, so base and novel are plain CLIP on half of the classes each."""
    run = storage.run(NONE, "method.name=zero_shot", "rounds=1", *TO_NOVEL)
    with opened(storage.reopen(run.run_id)) as simulation:
        method = simulation.run.terms.method
        assert isinstance(method, ZeroShot)
        for name, test in simulation.learning.evaluation.common.items():
            captions = [f"a photo of a {word}." for word in test.classes]
            text = method.captions.backbone.encode_texts(captions).numpy()
            said = (test.examples.arrays["features"] @ text.T).argmax(axis=1)
            expected = float(np.mean(said == test.examples.arrays["labels"]))
            assert run.summary["final"]["protocol"][name] == pytest.approx(expected)


def test_a_run_under_dirichlet(storage: Storage) -> None:
    # On a style that the model has not seen, so that clients differ in accuracy.
    unseen = "task.domains=[infograph]"
    run = storage.run(*SHORT, "task.partition.kind=dirichlet", "task.shots=4", unseen)
    with opened(storage.reopen(run.run_id)) as simulation:
        sizes = [c.profile.data.num_examples for c in simulation.population.clients.values()]
    assert sum(sizes) == 80 and min(sizes) >= 2 and len(set(sizes)) > 1
    accuracy = run.summary["final"]["accuracy"]
    # Clients hold unequal test sets, so the weighted mean is another number.
    assert accuracy["weighted"] != pytest.approx(accuracy["mean"], abs=1e-9)


def test_a_masked_and_noised_run_under_dirichlet(storage: Storage) -> None:
    run = storage.run("task.partition.kind=dirichlet", "task.shots=4", "rounds=1")
    plain = storage.run(
        *("task.partition.kind=dirichlet", "task.shots=4", "rounds=1"),
        "secure_aggregation.enabled=false",
    )
    for name, array in run.state().items():
        np.testing.assert_allclose(array, plain.state()[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_optimiser_is_the_configured_one(
    storage: Storage, optimizer: str, left_out: Finished
) -> None:
    run = storage.run(*SHORT, *LEFT_OUT, f"training.optimizer={optimizer}")
    states = [next(iter(one.state().values())) for one in (run, left_out)]
    assert not np.allclose(*states, atol=1e-4)


def test_the_second_run_encodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Backbone.encode_images

    def counting(self: Backbone, images: Any, **rest: Any) -> Any:
        seen.append(len(images))
        return original(self, images, **rest)

    monkeypatch.setattr(Backbone, "encode_images", counting)
    config = (NONE, "method.name=zero_shot", "task.test_per_class=6")
    for _ in range(2):
        with opened(Storage(tmp_path).create(*config)):
            # 20 classes of one shot, filled up to the smallest batch, and of six test images in two
            # batches; then from the disk.
            assert seen == [32, 64, 56]


@dataclass(frozen=True)
class Patches(ZeroShot):
    """Zero-shot on the mean of the patches' features, made once out of 64 times as much."""

    needs: frozenset[Any] = field(default=frozenset({"tokens", "domains"}), init=False)

    def prepare(self, arrays: Arrays) -> Arrays:
        assert set(arrays) == {"tokens"}
        return {"features": self.captions.backbone.project_tokens(arrays["tokens"]).mean(axis=1)}


def test_tokens_are_encoded_once_and_only_what_is_kept_is_dealt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = Backbone.encode_tokens

    def counting(self: Backbone, images: Any, **rest: Any) -> Any:
        seen.append(len(images))
        return original(self, images, **rest)

    def build(config: Any, task: Any) -> Patches:
        assert task.domains == ("real", "clipart")
        return Patches(Captions(task.backbone, config.template))

    monkeypatch.setattr(Backbone, "encode_tokens", counting)
    monkeypatch.setattr("methods.zero_shot.build", build)
    config = (NONE, "method.name=zero_shot", "rounds=1", "cohort.dropout_rate=0", *LEFT_OUT)
    config = (*config, "secure_aggregation.threshold=2")
    for _ in range(2):
        with opened(Storage(tmp_path).create(*config)) as simulation:
            # Two domains dealt out of three, 20 classes; one shot and two test images each.
            assert sum(seen) == 40 + 120
            summary = execute(simulation, SilentObserver())
    data = load_task_data(simulation.run.terms.config)
    for number, (name, client) in enumerate(simulation.population.clients.items()):
        dealt = client.profile.data.arrays
        assert set(dealt) == {"features", "labels", "domains"}
        assert set(dealt["domains"]) == {number}
        picture = data.dataset.test.images[data.clients[number].test[:1]]
        own = simulation.learning.evaluation.own[name].arrays
        assert set(own) == {"features", "labels"}
        # What a single picture becomes outside of the run is what it is in it.
        batch = simulation.learning.batch_of(picture)
        np.testing.assert_allclose(batch["features"], own["features"][:1], atol=1e-5)
    assert summary["final"]["protocol"]["target"]["mean"] > 1 / 20


def test_a_model_without_tokens_is_refused_in_one_sentence(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(self: Backbone, images: Any, **rest: Any) -> Any:
        raise BackboneError("task.model.name: 'x' gives no tokens")

    monkeypatch.setattr(Backbone, "encode_tokens", refusing)
    monkeypatch.setattr(
        "methods.zero_shot.build", lambda c, t: Patches(Captions(t.backbone, c.template))
    )
    overrides = (NONE, "method.name=zero_shot", "task.test_per_class=20")
    with pytest.raises(ConfigError, match="gives no tokens"):
        storage.create(*overrides)
    assert not storage.file.exists()


# --- the command line ----------------------------------------------------------------------------


def test_report_says_base_to_novel_in_words(sotto: Command, to_novel: Finished) -> None:
    answer = sotto("report", to_novel.run_id, "--storage", to_novel.storage.url)
    assert (answer.code, answer.err) == (0, "")
    measured = to_novel.summary["final"]["protocol"]
    text = " ".join(answer.out.replace("│", " ").split())
    assert f"novel classes {100 * measured['novel']:.1f}%" in text
    assert f"harmonic mean {100 * measured['harmonic_mean']:.1f}%" in text
    assert "local twins, base to novel" in text
    assert "points of the harmonic mean" in text


def test_report_says_the_held_out_domain_in_words(sotto: Command, left_out: Finished) -> None:
    answer = sotto("report", left_out.run_id, "--storage", left_out.storage.url)
    target = left_out.summary["final"]["protocol"]["target"]
    text = " ".join(answer.out.replace("│", " ").split())
    assert f"held-out domain {100 * target['mean']:.1f}% mean over clients" in text
    assert "local twins, held-out domain" in text
    assert "points of accuracy on the held-out domain" in text


def test_report_of_the_client_mean_has_no_more_rows(sotto: Command, plain_run: Finished) -> None:
    answer = sotto("report", plain_run.run_id, "--storage", plain_run.storage.url)
    assert "twins" not in answer.out and "held-out" not in answer.out


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (("task.held_out_domain=real",), "task.held_out_domain"),
        (("evaluation.protocol=leave_one_domain_out",), "evaluation.protocol"),
        (("task.partition.alpha=0.5",), "task.partition.alpha"),
        (("task.partition.kind=domain",), "task.clients"),
        ((*LEFT_OUT, "task.held_out_domain=infograph"), "task.held_out_domain"),
    ],
)
def test_contradictions_end_with_code_2_and_write_nothing(
    sotto: Command, tmp_path: Path, overrides: tuple[str, ...], field: str
) -> None:
    config, place = tmp_path / "small.yaml", tmp_path / "place"
    config.write_text(yaml.safe_dump(yaml.safe_load(SMALL)))
    sets = [x for text in (*SHORT, *overrides) for x in ("--set", text)]
    url = f"storage.url=sqlite:///{place}/sotto.db"
    answer = sotto("run", str(config), *sets, "--set", url)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {field}: ") and answer.err.count("\n") == 1
    assert not place.exists()


def test_a_method_that_refuses_novel_classes_is_refused_before_anything_is_written(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(self: Any, view: Any, batch: Any, classes: Any) -> Any:
        raise MethodError("classes: only what was trained on")

    monkeypatch.setattr(ZeroShot, "predict", refusing)
    overrides = (NONE, "method.name=zero_shot", *TO_NOVEL)
    with pytest.raises(ConfigError, match=r"evaluation\.protocol: base_to_novel .* 'base'"):
        create_run(storage.config(*overrides), SilentObserver(), Surroundings())
    assert not storage.file.exists()


def test_execute_measures_twins_by_the_same_protocol(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without sharing, a run and its twins are the same training: the same numbers throughout."""
    overrides = (NONE, "method.name=coop", "method.context_tokens=2", "rounds=1")
    with opened(storage.create(*overrides, *TO_NOVEL, "cohort.dropout_rate=0")) as simulation:
        summary = execute(simulation, SilentObserver())
    assert summary["final"]["protocol"] == summary["local"]["protocol"]
    assert summary["gain_over_local"] == 0.0
