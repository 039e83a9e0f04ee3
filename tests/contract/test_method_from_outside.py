"""Somebody else's methods: the contract suite on a folder and a package, and a protected run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from platform.config import parse_config
from platform.contract.examples import random_backbone
from platform.errors import ConfigError
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.observing import SilentObserver
from tests._forking import ROOT, UNPLUGGED, in_checkout, run_tests
from tests.contract._momentum import write_momentum

SUITE = "platform/contract"
ELSEWHERE = [word for name in UNPLUGGED for word in ("-p", f"no:{name}")]


def run_from(folder: Path, *options: str) -> tuple[int, str]:
    """`pytest --pyargs platform.contract` in a folder that is no checkout."""

    def there() -> int:
        os.chdir(folder)
        # As in an install's environment: nothing of the repository's own settings.
        arguments = ("-q", "--rootdir", str(folder), *ELSEWHERE, "--pyargs", "platform.contract")
        return int(pytest.main([*arguments, *options]))

    return in_checkout(ROOT, there)


@pytest.mark.slow
def test_a_server_with_momentum_is_one_file_and_one_preset(tmp_path: Path):
    code, said = run_tests(ROOT, SUITE, "--plugins", str(write_momentum(tmp_path / "mine")))
    assert code == 0, said[-4000:]
    assert " skipped" not in said
    # The preset and the variant, each in every test of the suite.
    assert int(said.split(" passed")[0].split()[-1]) > 150


@pytest.mark.slow
def test_what_a_method_says_of_itself_falsely_is_found(tmp_path: Path):
    """Each change is one declared property that is not so."""
    averaged = '"""Nothing: the step has momentum."""\n        return frozenset()'
    closed = "def closed_classes(self):\n        return True"
    learns = "    def learns(self):\n        return False"
    lies = write_momentum(
        tmp_path / "mine",
        (averaged, 'return frozenset(("weight",))'),
        (closed, f"{closed[:-4]}False\n\n    @property\n{learns}"),
    )
    found = ("averaged_moves", "moves_something", "prediction_for_any_classes")
    files = (f"{SUITE}/test_{name}.py" for name in ("server", "training"))
    code, said = run_tests(ROOT, *files, "--plugins", str(lies), "-k", " or ".join(found))
    assert code == 1
    assert all(f"{name}" in said.partition("short test summary")[2] for name in found)


@pytest.mark.slow
def test_a_method_of_an_installed_package_is_tried_by_default(tmp_path: Path):
    write_momentum(tmp_path / "theirs_of_contract")
    (tmp_path / "theirs_of_contract" / "__init__.py").write_text("")
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    point = "[sotto.methods]\nmomentum = theirs_of_contract.momentum\n"
    (info / "entry_points.txt").write_text(point)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    few = ("-k", "is_what_was_announced or preset_states")
    code, said = run_from(tmp_path, *few)
    assert code == 0 and "6 passed" in said, said
    (tmp_path / "theirs_of_contract" / "momentum.yaml").unlink()
    code, said = run_from(tmp_path, *few)
    assert code == 4 and "cannot be read" in said, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [((), "--plugins: is not given"), (("--plugins", "broken"), "one.py' cannot be imported")],
)
def test_what_cannot_be_tried_is_one_sentence(tmp_path: Path, options: tuple[str, ...], words: str):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.py").write_text("1 / 0\n")
    (tmp_path / "broken" / "one.yaml").write_text("name: one\n")
    code, said = run_from(tmp_path, *options)
    assert code == 4 and words in said, said
    assert "Traceback" not in said


def run_of(folder: Path, tmp_path: Path):
    """A protected run of the folder's method, in which a client is lost."""
    (tmp_path / "model").mkdir()
    random_backbone(tmp_path / "model")
    tree = {
        "name": "outside",
        "rounds": 1,
        "device": "cpu",
        "task": {
            **{"dataset": "shapes", "clients": 4, "shots": 1, "test_per_class": 1},
            "model": {"name": f"local-dir:{tmp_path}/model"},
        },
        "method": {"name": "momentum"},
        "training": {"local_steps": 1, "learning_rate": 0.5},
        "evaluation": {"local_twins": False},
        "cohort": {"dropout_rate": 0.25},
        "secure_aggregation": {"enabled": True, "threshold": 3},
        "privacy": {"mechanism": "upload_noise", "clipping_norm": 1.0, "target_epsilon": 8.0},
        "storage": {"url": f"sqlite:///{tmp_path}/runs/sotto.db"},
    }
    return create_run(parse_config(tree), SilentObserver(), Surroundings.with_plugins(folder))


def test_a_method_from_outside_is_protected_like_any_other(tmp_path: Path):
    summary = execute(run_of(write_momentum(tmp_path / "mine"), tmp_path), SilentObserver())
    assert (summary["method"], summary["unit"]) == ("momentum", "client")
    assert [document["dropped"] for document in summary["rounds"]] == [1]
    assert 0 < summary["final"]["epsilon"]["server"] <= 8.0


def test_a_mechanism_that_a_method_does_not_admit_is_refused(tmp_path: Path):
    averaged = "    @property\n    def averaged(self)"
    units = "    @property\n    def units(self):\n        return frozenset()\n\n"
    folder = write_momentum(tmp_path / "mine", (averaged, units + averaged))
    with pytest.raises(ConfigError, match=r"privacy\.mechanism: 'upload_noise' .*valid: none"):
        run_of(folder, tmp_path)
    assert not (tmp_path / "runs" / "sotto.db").exists()
