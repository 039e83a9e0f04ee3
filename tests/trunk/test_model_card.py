"""A model card has the accuracy of the exported arrays, rounded, or says that nobody knows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

from methods import ClientView, Examples, Method, MethodError
from platform.experiment.evaluation import EvaluationPlan, Panel
from platform.experiment.exported_models import exported_accuracy
from tests.trunk._runs import NONE, Command, Finished, Storage, opened

CLASSES = ("cat", "dog")


def predict(view: ClientView, batch: Any, classes: Any) -> Any:
    """Say dog without a personal part, and what the image shows with one."""
    if not view.broadcast:
        raise MethodError("client: none, but the head is a client's own; valid: one client")
    shown = batch["features"][:, 0] if view.personal else np.ones(len(batch["features"]))
    return np.stack((1.0 - shown, shown), axis=1)


METHOD = cast(Method, SimpleNamespace(predict=predict))
SHARED = {"w": np.zeros(1, np.float32)}
ALONE = ClientView(SHARED, (), {})
PERSONAL = ClientView(SHARED, (), {"p": np.zeros(1, np.float32)})


def examples(*labels: int) -> Examples:
    return Examples(
        {
            "labels": np.array(labels, np.int64),
            "features": np.array(labels, np.float32)[:, None],
        }
    )


def plan(measured: tuple[str, ...] = ("a", "b")) -> EvaluationPlan:
    own = {"a": examples(0, 1), "b": examples(0, 0, 0, 1), "c": examples()}
    return EvaluationPlan(protocol="client_mean", classes=CLASSES, own=own, panel=Panel(measured))


def test_what_is_shared_is_measured_without_personal_parts():
    found = exported_accuracy(METHOD, ALONE, plan(), None)
    assert found is not None
    # Dog is right for one of two, and for one of four.
    assert (found.mean, found.worst, found.per_client) == (0.375, 0.25, (0.5, 0.25))


def test_a_clients_model_is_measured_on_its_own_examples():
    found = exported_accuracy(METHOD, PERSONAL, plan(), "b")
    assert found is not None and found.per_client == (1.0,)


def test_what_predicts_nothing_alone_is_not_measured():
    assert exported_accuracy(METHOD, ClientView({}, (), {}), plan(), None) is None


def test_without_test_examples_nothing_is_measured():
    assert exported_accuracy(METHOD, ALONE, plan(("c",)), None) is None


def card_of(sotto: Command, run: Finished, folder: Path, *arguments: str) -> str:
    out = ("--output", str(folder), "--storage", run.storage.url)
    answer = sotto("export", run.run_id, *arguments, *out)
    assert (answer.code, answer.err) == (0, "")
    return (folder / "MODEL_CARD.md").read_text()


def test_the_card_has_the_accuracy_of_the_file_beside_it(
    sotto: Command, own_copy: Finished, tmp_path: Path
):
    card = card_of(sotto, own_copy, tmp_path)
    context = load_file(tmp_path / "prompts.safetensors")["shared.context"]
    view = ClientView({"context": context}, (), {})
    with opened(own_copy.storage.reopen(own_copy.run_id)) as simulation:
        learning, right = simulation.learning, []
        for test in learning.evaluation.own.values():
            batch = {name: array for name, array in test.arrays.items() if name != "labels"}
            logits = learning.method.predict(view, batch, learning.classes)
            right.append(float((logits.argmax(axis=1) == test.arrays["labels"]).mean()))
    assert f"{100 * np.mean(right):.0f}% mean over clients, {100 * min(right):.0f}% worst" in card
    assert "The run's report states another number" in card
    exact = own_copy.summary["final"]["accuracy"]
    assert not [number for number in (exact["mean"], exact["worst"]) if str(number) in card]
    assert "rounding does not make it private" in card


def test_the_card_of_a_client_has_its_own_accuracy(
    sotto: Command, own_copy: Finished, tmp_path: Path
):
    card = card_of(sotto, own_copy, tmp_path, "--client", "1")
    share = own_copy.summary["final"]["accuracy"]["per_client"][1]
    assert f"**Accuracy**: {100 * share:.0f}% on this client's test examples." in card
    assert "another number" not in card


@pytest.mark.parametrize("name", ["promptfl", "prompt_fedper"])
def test_the_card_of_a_method(sotto: Command, storage: Storage, tmp_path: Path, name: str):
    run = storage.run(f"method.name={name}", NONE, "rounds=1")
    card = card_of(sotto, run, tmp_path)
    if name == "promptfl":
        # Nothing is personal, so what is exported is what was reported.
        assert f"{100 * run.summary['final']['accuracy']['mean']:.0f}% mean over clients" in card
        assert "another number" not in card
    else:
        assert "not measured, as these tensors predict nothing without a client's part" in card
