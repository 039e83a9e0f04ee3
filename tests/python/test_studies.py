"""`sotto.Study`: what it fills in, what it refuses, and what it writes."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sotto
from methods import BUILT_IN_METHODS
from platform.cli.app import main
from platform.config import load_config
from tests._forking import exit_code
from tests.python.test_runs import SMALL

TINY = {name: value for name, value in SMALL.items() if name != "progress"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> sotto.Data:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8, 8), dtype=np.uint8) for _ in range(80)]
    labels = ["cat", "dog"] * 40
    return sotto.Data(images, labels, folder=tmp_path_factory.mktemp("photos"))


def settings_of(study: sotto.Study) -> dict[str, set[object]]:
    """All values that the cells have in what a study must never change."""
    runs = [cell.run for cell in study.grid.cells if cell.run.mechanism.facts.claims]
    return {
        "unit": {run.mechanism.facts.unit for run in runs},
        "relation": {run.relation for run in runs},
        "delta": {run.privacy.target_delta for run in runs},
        "source": {run.privacy.noise_source for run in runs},
        "adversary": {
            (run.secure_aggregation.adversary, run.secure_aggregation.corrupt) for run in runs
        },
    }


def test_a_study_fills_in_what_a_mechanism_needs_and_says_so(photos):
    study = sotto.Study("promptfl", epsilon=[None, 8], config="comparison", data=photos)
    assert study.filled == (
        "privacy.mechanism=distributed_noise",
        "privacy.clipping_norm=0.3",
        "secure_aggregation.enabled=true",
    )
    assert len(study.cells) == 2 * 3
    steps = sotto.Study("promptfl", epsilon=8, config="comparison", mechanism="dp_sgd")
    assert {text.partition("=")[0] for text in steps.filled} == {
        "privacy.mechanism",
        "privacy.per_sample_clipping_norm",
        "privacy.sampling_probability",
    }
    # A pool of ten entries would never be large enough to hide whose is whose.
    pooled = sotto.Study("pfedmoap", epsilon=8, data=photos)
    assert pooled.filled == ("pool.generations=2 for pfedmoap",)
    assert sotto.Study("promptfl", epsilon=None, data=photos).filled == ()


def test_a_refusal_names_the_argument(tmp_path, monkeypatch, capsys):
    (tmp_path / "photos" / "train").mkdir(parents=True)
    place = str(tmp_path / "photos")
    with pytest.raises(sotto.Error) as caught:
        sotto.run("promptfl", data=place)
    assert caught.value.field == "data"
    with pytest.raises(sotto.Error, match=r"cell .*: data: "):
        sotto.Study("promptfl", data=place).run()
    for words, field in ((["--data", place], "cell .*: --data"), (["promptfl"], "METHOD")):
        monkeypatch.setattr(sys, "argv", ["sotto", "study", "promptfl", *words])
        assert exit_code(main) == 2
        assert re.search(f"error: {field}: ", capsys.readouterr().err)


def test_a_study_never_changes_the_promise(photos):
    study = sotto.Study(sorted(BUILT_IN_METHODS.available()), epsilon=[8, 2], seeds=1, data=photos)
    base = load_config(Path("own-data"))
    assert settings_of(study) == {
        "unit": {"client"},
        "relation": {base.relation},
        "delta": {base.privacy.target_delta},
        "source": {"os"},
        "adversary": {("semi_honest", base.secure_aggregation.corrupt)},
    }
    targets = {cell.axes: cell.run.privacy.target_epsilon for cell in study.grid.cells}
    assert targets == {(("epsilon", "8"),): 8.0, (("epsilon", "2"),): 2.0}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        # One line for each fault, with all of them.
        (
            {"methods": ["promptfl", "pfedmoap"], "method_settings": [
                "promptfl:method.context_tokens=0", "pfedmoap:method.experts=0"
            ]},
            ("method.context_tokens: 0", "method.experts: 0"),
        ),
        ({"epsilon": [8, 8.0]}, ("epsilon",)),
        ({"epsilon": [-1]}, ("privacy.target_epsilon: -1",)),
        ({"epsilon": "8"}, ("epsilon: '8'",)),
        ({"mechanism": "none", "epsilon": 8}, ("mechanism: 'none'", "upload_noise")),
        ({"seeds": 0}, ("seeds: 0",)),
        ({"methods": "nothing"}, ("'nothing'",)),
    ],
)  # fmt: skip
def test_all_faults_are_told_at_once_and_nothing_is_written(photos, tmp_path, wrong, words):
    given = {"methods": "promptfl", "data": photos, "output": tmp_path / "out", **wrong}
    with pytest.raises(sotto.Error) as caught:
        sotto.Study(**given)
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "out").exists()


def test_settings_that_only_planning_refuses_are_told_before_the_first_run(photos, tmp_path):
    url = f"sqlite:///{tmp_path}/sotto.db"
    study = sotto.Study(
        ["promptfl", "trip"],
        data=photos,
        seeds=1,
        storage=url,
        output=tmp_path / "out",
        **{"task.clients": 41, "secure_aggregation.threshold": None},
    )
    with pytest.raises(sotto.Error) as caught:
        study.run(progress=False)
    assert "promptfl" in str(caught.value) and "task.clients" in str(caught.value)
    with pytest.raises(sotto.Error):
        sotto.Run("latest", url)


@pytest.mark.slow
def test_a_study_is_run_once_and_compared(tmp_path):
    def study() -> sotto.Study:
        return sotto.Study(
            ["promptfl", "coop"],
            epsilon=[None, 8],
            seeds=2,
            output=tmp_path / "out",
            storage=f"sqlite:///{tmp_path}/sotto.db",
            **TINY,
        )

    found = study().run(progress=False)
    runs = [run for cell in found.results["cells"] for run in cell["runs"]]
    assert len(set(runs)) == 8 and found.results["failed"] == []
    assert set(found.table["epsilon"]) == {"none", "8"}
    private = found.table[found.table["epsilon"] == "8"]
    # CoOp sends nothing.
    assert private["spent"].tolist() == pytest.approx([8.0, 0.0], rel=1e-3)
    # Both methods are compared at either epsilon, on all and on own images, over two seeds.
    assert len(found.tests) == 4 and set(found.tests["n"]) == {2}
    with (tmp_path / "out" / "tests.csv").open() as file:
        assert [row["first"] for row in csv.DictReader(file)] == found.tests["first"].tolist()
    tex = (tmp_path / "out" / "table.tex").read_text("utf-8")
    assert "PromptFL, epsilon = 8 &" in tex and "CoOp, no noise &" in tex
    assert (tmp_path / "out" / "tradeoff.svg").exists()
    # The same study again runs nothing.
    again = study().run(progress=False)
    assert [run for cell in again.results["cells"] for run in cell["runs"]] == runs


GUARDLESS = """
print("program")
from platform.results.sweeping.running import _start

_start(None).end()
"""


@pytest.mark.slow
def test_a_program_needs_no_guard_for_its_workers(tmp_path):
    (tmp_path / "program.py").write_text(GUARDLESS)
    command = [sys.executable, "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["program"]


@pytest.mark.slow
def test_a_study_reads_runs_of_a_mechanism_that_a_folder_has(tmp_path, monkeypatch):
    monkeypatch.delenv("SOTTO_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sotto", "new", "mechanism", "mine", "--into", "."])
    assert exit_code(main) == 0
    study = sotto.Study("coop", epsilon=8, seeds=1, mechanism="mine", plugins=Path(), **TINY)
    found = study.run(progress=False).results
    assert found["failed"] == [] and found["cells"][0]["privacy"]["mechanism"] == "mine"
    assert "SOTTO_PLUGINS" not in os.environ
