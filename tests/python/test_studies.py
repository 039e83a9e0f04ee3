"""`sotto.Study`: what it fills in, what it refuses, and what it writes."""

from __future__ import annotations

import csv
import math
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
from tests.trunk.loaders._refusing import draw

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
    assert pooled.filled == (
        "method.context_tokens=4 for pfedmoap",
        "pool.generations=2 for pfedmoap",
    )
    assert sotto.Study("promptfl", epsilon=None, data=photos).filled == ()


def test_a_folder_of_clients_is_named_and_may_be_given_as_a_layout(tmp_path):
    draw(tmp_path, 4, "ann/cat", "ann/dog", "bob/cat", "bob/dog")
    for more in ((), ("task.layout=client_folders",)):
        study = sotto.Study("promptfl", epsilon=None, data=tmp_path, settings=more)
        assert [text.partition(",")[0] for text in study.filled] == ["task.dataset=client_folders"]
        assert study.grid.cells[0].run.task.clients == 2
    other = ("task.dataset=images", "task.layout=domain_folders")
    assert sotto.Study("promptfl", epsilon=None, data=tmp_path, settings=other).filled == ()


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
    expected = {"8": 8.0, "2": 2.0, "sends nothing": None}
    assert targets == {(("epsilon", text),): target for text, target in expected.items()}


def options_of(study: sotto.Study, name: str) -> dict[str, set[object]]:
    """The values of an option, by method."""
    found: dict[str, set[object]] = {}
    for cell in study.grid.cells:
        found.setdefault(cell.method, set()).add(cell.run.method.options.get(name))
    return found


def test_the_configurations_own_options_hold_for_all_methods(photos):
    def study(**more: object) -> sotto.Study:
        return sotto.Study(
            ["promptfl", "pfedmoap", "coop", "zero_shot"], epsilon=[8, 2], data=photos, **more
        )

    plain = study()
    assert options_of(plain, "context_tokens") == {
        **{"promptfl": {4}, "pfedmoap": {4}, "coop": {4}},
        "zero_shot": {None},
    }
    assert "method.context_tokens=4 for coop" in plain.filled
    assert plain.grid.unequal == ()
    # What the user says comes first, and is named where it makes methods unequal.
    own = study(method_settings=["pfedmoap:method.context_tokens=8"])
    assert options_of(own, "context_tokens")["pfedmoap"] == {8}
    assert "method.context_tokens=4 for pfedmoap" not in own.filled
    assert own.grid.unequal == (
        "options that differ: context_tokens: promptfl 4, pfedmoap 8, coop 4",
    )
    tokens = {
        "settings": ["method.context_tokens=2"],
        "epsilon": [8],
        "methods": ["promptfl", "coop"],
    }
    every = sotto.Study(data=photos, **tokens)
    assert options_of(every, "context_tokens") == {"promptfl": {2}, "coop": {2}}
    assert not [text for text in every.filled if "context_tokens" in text]


def test_more_experts_than_there_are_clients_become_as_many_as_there_are(photos):
    three = {"data": photos, "epsilon": 8, "task.clients": 3}
    study = sotto.Study(["promptfl", "pfedmoap"], **three)
    assert "method.experts=2 for pfedmoap" in study.filled
    assert options_of(study, "experts")["pfedmoap"] == {2}
    # PM-MoE's experts are all clients', so its bound is another one.
    mixed = sotto.Study("pm_moe", method_settings=["pm_moe:method.top_k=3"], **three)
    assert "top_k" not in " ".join(mixed.filled)
    asked = sotto.Study("pfedmoap", method_settings=["pfedmoap:method.experts=9"], **three)
    with pytest.raises(sotto.Error, match=r"method\.experts: 9 .*1 to 2"):
        asked.run(progress=False)


def test_a_method_that_sends_nothing_runs_once_without_noise(photos):
    # The norm has no meaning without noise.
    study = sotto.Study(
        ["coop", "promptfl"],
        **{"epsilon": [8, 2], "seeds": 2, "data": photos, "privacy.clipping_norm": 0.5},
    )
    found = [(c.method, dict(c.axes)["epsilon"], c.run.privacy.mechanism) for c in study.grid.cells]
    assert found == [
        *[("coop", "sends nothing", "none")] * 2,
        *[("promptfl", "8", "distributed_noise")] * 2,
        *[("promptfl", "2", "distributed_noise")] * 2,
    ]
    norms = {cell.run.privacy.clipping_norm for cell in study.grid.cells}
    assert norms == {None, 0.5}


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
        (
            {"methods": ["promptfl", "magic", "magic"], "epsilon": [-1], "seeds": 0,
             "mechanism": "gauss", "rounds": 0},
            ("methods: 'magic' is g", "methods: 'magic'", "epsilon: -1", "seeds: 0",
             "mechanism: 'gauss'", "rounds: 0"),
        ),
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
    assert len(set(runs)) == 6 and found.results["failed"] == []
    spent = dict(zip(found.table["epsilon"], found.table["spent"], strict=True))
    assert spent == pytest.approx({"none": math.inf, "sends nothing": 0.0, "8": 8.0}, rel=1e-3)
    # CoOp is each client alone.
    assert found.table["gain"].isna().tolist() == [False, True, False]
    # Both methods are compared at either epsilon, on all and on own images, over two seeds.
    assert set(found.tests["n"]) == {2} and set(found.tests["tests"]) == {4}
    assert sorted(found.tests["at"].str.partition(", ")[2]) == [
        *["epsilon = 8"] * 2,
        *["no noise"] * 2,
    ]
    with (tmp_path / "out" / "tests.csv").open() as file:
        assert [row["first"] for row in csv.DictReader(file)] == found.tests["first"].tolist()
    tex = (tmp_path / "out" / "table.tex").read_text("utf-8")
    assert r"PromptFL & $\infty$ &" in tex and "CoOp" in tex
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
    study = sotto.Study("promptfl", epsilon=8, seeds=1, mechanism="mine", plugins=Path(), **TINY)
    found = study.run(progress=False).results
    assert found["failed"] == [] and found["cells"][0]["privacy"]["mechanism"] == "mine"
    assert "SOTTO_PLUGINS" not in os.environ
