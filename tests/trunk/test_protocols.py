"""Whole runs under each evaluation protocol and partition, and what they report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from methods import MethodError
from methods.zero_shot import ZeroShot
from platform.data.shapes import CLASSES
from platform.errors import ConfigError
from platform.experiment.evaluation import harmonic_mean
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, TWINS, Finished, Storage, opened
from tests.trunk.conftest import MakeStorage

NO_MASKS = "secure_aggregation={enabled: false}"
SHORT = (NONE, TWINS, *NO_POOL, "rounds=1", "cohort.dropout_rate=0", NO_MASKS)
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


def test_what_runs_report_by_protocol(to_novel, left_out, plain_run):
    for run, names, headline in (
        (to_novel, ["name", "local", "base", "novel", "harmonic_mean"], "harmonic_mean"),
        (left_out, ["name", "local", "target"], "target"),
        (plain_run, ["name"], None),
    ):
        final, twins = run.summary["final"], run.summary["local"]
        values = []
        for part in (final, twins):
            measured = part["protocol"]
            assert list(measured) == names
            assert measured.get("local", part["accuracy"]["mean"]) == part["accuracy"]["mean"]
            found = part["accuracy"] if headline is None else measured[headline]
            values.append(found["mean"] if isinstance(found, dict) else found)
        assert run.summary["gain_over_local"] == pytest.approx(values[0] - values[1])
        assert "protocol" not in run.summary["rounds"][0]
        assert json.loads((run.folder / "summary.json").read_text()) == run.summary
    measured = to_novel.summary["final"]["protocol"]
    means = [measured[name] for name in ("local", "base", "novel")]
    assert measured["harmonic_mean"] == pytest.approx(harmonic_mean(means))
    # Five clients on 60 base and 60 novel images each.
    assert measured["novel"] * 300 == pytest.approx(round(measured["novel"] * 300))
    target = left_out.summary["final"]["protocol"]["target"]
    assert target["worst"] == pytest.approx(target["mean"] - target["std"])  # two clients
    # This method personalises nothing, so the last round's accuracy is the final one.
    assert to_novel.summary["rounds"][-1]["accuracy"] == to_novel.summary["final"]["accuracy"]


@pytest.mark.parametrize("method", ["swad", "doprompt"])
def test_one_party_with_all_domains_is_measured_on_the_held_out_one(storage: Storage, method: str):
    """Both refusals are gone, and the held-out domain is none that the method knows."""
    small = f"method={{name: {method}, network: clip, lora_rank: 1}}"
    one = ("task.clients=1", "cohort.minimum=1", "cohort.size=null", "training.local_steps=1")
    run = storage.run(*SHORT, *LEFT_OUT, small, *one)
    protocol = run.summary["final"]["protocol"]
    assert protocol["name"] == "leave_one_domain_out" and protocol["target"]["std"] == 0.0
    with opened(storage.reopen(run.run_id)) as simulation:
        assert simulation.run.terms.method.task.domains == ("real", "clipart")


def test_zero_shot_is_measured_as_by_hand(storage: Storage) -> None:
    """All clients are alike, so base and novel are plain CLIP on half of the classes each."""
    run = storage.run(NONE, "method.name=zero_shot", "rounds=1", NO_MASKS, *TO_NOVEL)
    with opened(storage.reopen(run.run_id)) as simulation:
        method = simulation.run.terms.method
        assert simulation.learning.classes == CLASSES[:10]
        for name, test in simulation.learning.evaluation.common.items():
            captions = [f"a photo of a {word}." for word in test.classes]
            text = method.captions.backbone.encode_texts(captions).numpy()
            said = (test.examples.arrays["features"] @ text.T).argmax(axis=1)
            expected = float(np.mean(said == test.examples.arrays["labels"]))
            assert run.summary["final"]["protocol"][name] == pytest.approx(expected)


def test_a_method_that_refuses_novel_classes_is_refused_before_a_run(storage, monkeypatch):
    def refusing(self: Any, view: Any, batch: Any, classes: Any) -> Any:
        raise MethodError("classes: only what was trained on")

    monkeypatch.setattr(ZeroShot, "predict", refusing)
    overrides = (NONE, "method.name=zero_shot", *TO_NOVEL)
    with pytest.raises(ConfigError, match=r"evaluation\.protocol: base_to_novel .* 'base'"):
        create_run(storage.config(*overrides), SilentObserver(), Surroundings())
    assert not storage.file.exists()
