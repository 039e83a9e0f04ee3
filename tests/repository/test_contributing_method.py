"""The walk through a new method, in CONTRIBUTING, followed by its words in a copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests._forking import run_tests
from tests.repository._walks import (
    copy_with_tests,
    require_house_style,
    run_command,
    walk,
)

pytestmark = pytest.mark.slow

SECTION = walk("A method")
STEP = re.compile(r"^\d\. Write `([\w/.]+)`.*?^ +```\w+\n(.*?)^ +```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, in which steps 1 to 3 were done and nothing else."""
    target = tmp_path_factory.mktemp("walk") / "sotto"
    copy_with_tests(target)
    steps = STEP.findall(SECTION)
    assert len(steps) == 3
    for path, code in steps:
        assert not (target / path).exists()
        (target / path).write_text(re.sub(r"^ {3}", "", code, flags=re.MULTILINE))
    return target


def test_its_test_and_the_contract_suite_pass(copy: Path):
    files, name = re.findall(r"-m pytest (tests/\S+) platform/contract -k (\w+)`", SECTION)[0]
    # Without the real rounds, which are long.
    suite = "platform/contract"
    code, said = run_tests(copy, files, suite, "-k", f"{name} and not round")
    assert code == 0, said
    assert int(said.split(" passed")[0].split()[-1]) > 50


def test_its_files_are_in_the_house_style(copy: Path):
    files = [path for path, _ in STEP.findall(SECTION) if path.endswith(".py")]
    require_house_style(copy, files)


def test_what_new_method_writes_is_in_the_house_style(copy: Path):
    code, said = run_command(copy, "new", "method", "started")
    assert code == 0, said
    require_house_style(copy, ["methods/started.py", "tests/methods/test_started.py"])
    code, said = run_tests(copy, "platform/contract/test_interface.py", "-k", "started")
    assert code == 0 and "passed" in said, said


def test_it_is_listed_with_its_options(copy: Path):
    code, listed = run_command(copy, "methods", "--json")
    assert code == 0, listed
    assert '"name": "linear_probe"' in listed and '"scale"' in listed
