"""CONTRIBUTING's walks, followed by their words: all in one copy, in which nothing else is changed.

Commands run in the copy in forks of this process (`tests/_forking.py`).
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests._forking import exit_code, in_checkout, run_tests
from tests.repository._source import ROOT
from tests.repository.conftest import copy_source

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("contributing")]

GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
WALKS = {
    title: GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    for title in ("A method", "A mechanism", "A data set", "A transport")
}
WRITE = re.compile(r"^\d\. Write `([\w/.]+)`.*?^( *)```\w+\n(.*?)^\2```", re.MULTILINE | re.DOTALL)
FILES = {
    path: textwrap.dedent(code)
    for section in WALKS.values()
    for path, _, code in WRITE.findall(section)
}
PASSED = {"A mechanism": 4, "A data set": 6, "A transport": 3}
"""How many tests each walk writes."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with its tests, in which the steps of all walks were done."""
    target = tmp_path_factory.mktemp("walk") / "sotto"
    copy_source(target)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", target / "conftest.py")
    assert len(FILES) == 9
    for path, code in FILES.items():
        assert not (target / path).exists()
        (target / path).write_text(code)
    _register_the_mechanism(target)
    _name_the_data_set(target)
    return target


def _register_the_mechanism(target: Path) -> None:
    rule = r"In `([\w/.]+)` import `(\w+)` from `([\w.]+)`, and add `(\w+)` to `(\w+)`"
    ((path, value, module, added, registry),) = re.findall(
        rule, " ".join(WALKS["A mechanism"].split())
    )
    before, start = (target / path).read_text("utf-8"), f"{registry} = Mechanisms(("
    assert before.count(start) == 1
    # In the order that the linter asks for.
    place = "from platform.mechanisms.mechanism import"
    after = before.replace(place, f"from {module} import {value}\n{place}", 1)
    (target / path).write_text(after.replace(start, f"{start}{added}, "))


def _name_the_data_set(target: Path) -> None:
    ((name, constant, path),) = re.findall(
        r'Add `"(\w+)"` to `(\w+)` in `([\w/.]+)`', WALKS["A data set"]
    )
    rule = re.compile(rf"(^{constant}: Final = \(.*?)^\)", re.MULTILINE | re.DOTALL)
    after, changed = rule.subn(rf'\1    "{name}",\n)', (target / path).read_text("utf-8"))
    assert changed == 1
    (target / path).write_text(after)


def require_house_style(copy: Path, files: list[str]) -> None:
    for command in (("check",), ("format", "--check")):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *files]
        subprocess.run(ruff, cwd=copy, check=True)


def command(copy: Path, *arguments: str) -> str:
    """What a command of the copy prints."""

    def call() -> int:
        sys.argv = ["sotto", *arguments]
        return exit_code(importlib.import_module("platform.cli.app").main)

    code, said = in_checkout(copy, call)
    assert code == 0, said
    return said


@pytest.mark.parametrize("title", PASSED)
def test_the_tests_of_a_walk_pass(copy: Path, title: str):
    (file,) = re.findall(r"-m pytest (\S+?)(?:`|$)", WALKS[title], re.MULTILINE)
    code, said = run_tests(copy, file)
    assert code == 0 and f"{PASSED[title]} passed" in said, said


def test_the_methods_test_and_the_contract_suite_pass(copy: Path):
    """Without the real rounds, which are long."""
    ((file, name),) = re.findall(
        r"-m pytest (tests/\S+) platform/contract -k (\w+)`", WALKS["A method"]
    )
    code, said = run_tests(copy, file, "platform/contract", "-k", f"{name} and not round")
    assert code == 0, said
    assert int(said.split(" passed")[0].split()[-1]) > 50


def test_all_files_are_in_the_house_style_and_typed(copy: Path):
    command(copy, "new", "method", "started")
    started = ["methods/started.py", "tests/methods/test_started.py"]
    registry = "platform/mechanisms/registry.py"
    require_house_style(copy, [*(p for p in FILES if p.endswith(".py")), registry, *started])
    mypy = [sys.executable, "-m", "mypy", "-p", "platform.mechanisms"]
    subprocess.run(mypy, cwd=copy, check=True)


def test_commands_list_what_was_added(copy: Path):
    listed = command(copy, "methods", "--json")
    assert '"name": "linear_probe"' in listed and '"scale"' in listed
    assert '"fruits"' in command(copy, "datasets", "--json")
