"""The walk through a new mechanism, in CONTRIBUTING, followed by its words in a copy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests._forking import run_tests
from tests.repository._walks import copy_with_tests, require_house_style, walk

pytestmark = pytest.mark.slow

SECTION = walk("A mechanism")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, in which steps 1 to 3 were done and nothing else."""
    target = tmp_path_factory.mktemp("walk") / "sotto"
    copy_with_tests(target)
    steps = re.findall(r"^(\d)\. (.*?)(?=^\d\. |\Z)", SECTION, re.MULTILINE | re.DOTALL)
    assert [number for number, _ in steps] == ["1", "2", "3", "4"]
    for _, text in (steps[0], steps[2]):
        (path,) = re.findall(r"\AWrite `([a-z_/]+\.py)`", text)
        (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (target / path).write_text(code)
    rule = r"In `([\w/.]+)` import `(\w+)` from `([\w.]+)`, and add `(\w+)` to `(\w+)`"
    ((path, value, module, added, registry),) = re.findall(rule, " ".join(steps[1][1].split()))
    before = (target / path).read_text("utf-8")
    start = f"{registry} = Mechanisms(("
    assert before.count(start) == 1
    # In the order that the linter asks for.
    place = "from platform.mechanisms.mechanism import"
    after = before.replace(place, f"from {module} import {value}\n{place}", 1)
    (target / path).write_text(after.replace(start, f"{start}{added}, "))
    return target


def test_its_tests_pass(copy: Path):
    (file,) = re.findall(r"-m pytest (\S+)`", SECTION)
    code, said = run_tests(copy, file)
    assert code == 0 and "4 passed" in said, said


def test_its_files_are_in_the_house_style(copy: Path):
    files = [*re.findall(r"^\d\. Write `([a-z_/]+\.py)`", SECTION, re.MULTILINE)]
    files.append("platform/mechanisms/registry.py")
    require_house_style(copy, files)


def test_its_types_hold(copy: Path):
    mypy = [sys.executable, "-m", "mypy", "-p", "platform.mechanisms"]
    subprocess.run(mypy, cwd=copy, check=True)


def test_without_the_line_in_the_registry_it_is_noticed(copy: Path):
    path = copy / "platform" / "mechanisms" / "registry.py"
    whole = path.read_text("utf-8")
    path.write_text(whole.replace("HALF_NOISE, ", ""))
    tests = "tests/trunk/test_toy_mechanism.py::test_every_file_of_the_folder_is_registered_and"
    try:
        code, said = run_tests(copy, f"{tests}_the_other_way_round")
    finally:
        path.write_text(whole)
    assert code == 1 and "half_noise" in said, said
