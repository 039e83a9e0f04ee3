"""The walk through a method of one's own, in `docs/own-method.md`, followed by its words."""

from __future__ import annotations

import csv
import importlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from methods.plugins import DOORS
from tests._forking import UNPLUGGED, exit_code, in_checkout
from tests.repository._source import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "own-method.md").read_text("utf-8")
WALK = PAGE.partition("\n## The walk\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```(\w+)( fails)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALL = (
    *("task.dataset=shapes", "task.domains=[real]", "task.clients=24", "task.shots=4"),
    *("task.test_per_class=4", "task.partition={kind: iid}", "rounds=2"),
    *("training.local_steps=1", "training.batch_size=4", "cohort.dropout_rate=0.0"),
    *("secure_aggregation={enabled: true, threshold: 20, corrupt: 1}",),
    *("evaluation.local_twins=false", "evaluation.worth_of_sharing=false"),
)
"""What makes a run one of a second; pFedMoAP hands its nine experts out of twenty and more."""
SET = [word for setting in SMALL for word in ("--set", setting)]
BRIEFLY = {
    "pytest": ["-k", "not round"],
    "run": [*SET, "--device", "cpu"],
    "study": [*SET, "--jobs", "1"],
}
"""What is added to a command to have time for it: real rounds are tried on other such methods."""


def follow(command: str, folder: Path) -> tuple[int, str]:
    """How a command of the page ended in a folder, and what it printed."""
    program, *arguments = shlex.split(command)
    if program == "python":
        assert arguments[:2] == ["-m", "pytest"]
        del arguments[:2]
    else:
        assert program == "sotto"

    def there() -> int:
        os.chdir(folder)
        if program == "python":
            without = [word for plugin in UNPLUGGED for word in ("-p", f"no:{plugin}")]
            briefly = BRIEFLY["pytest"] if "--pyargs" in arguments else []
            return int(
                pytest.main([*arguments, *briefly, "-q", "--rootdir", str(folder), *without])
            )
        briefly = BRIEFLY[arguments[0]] if arguments[0] in BRIEFLY else []
        sys.argv = ["sotto", *arguments, *briefly]
        return exit_code(importlib.import_module("platform.cli.app").main)

    return in_checkout(ROOT, there)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


BLOCKS = BLOCK.findall(WALK)
LAST = [block for block in BLOCKS if re.match("sotto (run|study)", block[2])]
"""Whole runs, which a quick run of the tests has no time for."""


@pytest.fixture(scope="module")
def said(folder: Path) -> list[str]:
    """What each command of the walk printed until the method is held to the contract."""
    return followed([block for block in BLOCKS if block not in LAST], folder)


def followed(blocks: Sequence[tuple[str, str, str]], folder: Path) -> list[str]:
    """What each command of these blocks printed, after each ended as the page says."""
    outputs = []
    for language, fails, text in blocks:
        if language == "python":
            file = folder / "test_my_prompt.py"
            name = text.partition(" =")[0]
            before = file.read_text()
            after, changed = re.subn(rf"^{re.escape(name)} =.*\n", text, before, flags=re.M)
            assert changed == 1
            file.write_text(after)
            continue
        assert language == "sh"
        code, printed = follow(text.strip(), folder)
        assert (code == 0) is not bool(fails), printed
        outputs.append(printed)
    return outputs


def test_the_contract_holds(said: list[str], folder: Path):
    listed = re.findall(r"^\| `([\w.]+)` \|", WALK, re.MULTILINE)
    assert len(listed) == 3
    assert all(name in said[0] and (folder / name).is_file() for name in listed)
    assert "REPLACE the None of BY_HAND" in said[1] and "1 passed" in said[2]
    passed = re.search(r"(\d+) passed", said[3])
    assert passed is not None and int(passed[1]) > 50
    assert "skipped" not in said[3] and "warning" not in said[3]


def test_the_run_is_protected_and_the_study_compares_both(said: list[str], folder: Path):
    assert BLOCKS[-2:] == LAST and len(said) == 4
    run, _ = followed(LAST, folder)
    assert "epsilon" in run
    (results,) = (folder / "studies").glob("*/results.csv")
    with results.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"my_prompt", "pfedmoap"}
    assert {row["seed"] for row in rows} == {"0", "1"}


def test_the_page_has_rules_of_every_kind():
    rules = PAGE.partition("## What the contract checks")[2]
    named = {row.replace(" ", "") for row in re.findall(r"^\| ([a-z ]+) \|", rules, re.MULTILINE)}
    assert named == {"kind", *DOORS}
