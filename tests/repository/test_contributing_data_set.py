"""The walk through a new data set, in CONTRIBUTING, followed by its words in a copy."""

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

SECTION = walk("A data set")


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
    name, constant, path = re.findall(r'Add `"(\w+)"` to `(\w+)` in `([\w/.]+)`', steps[1][1])[0]
    before = (target / path).read_text("utf-8")
    rule = re.compile(rf"(^{constant}: Final = \(.*?)^\)", re.MULTILINE | re.DOTALL)
    after, changed = rule.subn(rf'\1    "{name}",\n)', before)
    assert changed == 1
    (target / path).write_text(after)
    return target


def test_its_tests_pass(copy: Path):
    (file,) = re.findall(r"-m pytest (\S+)", SECTION)
    code, said = run_tests(copy, file)
    assert code == 0 and "6 passed" in said, said


def test_its_files_are_in_the_house_style(copy: Path):
    files = re.findall(r"^\d\. Write `([a-z_/]+\.py)`", SECTION, re.MULTILINE)
    require_house_style(copy, files)


@pytest.mark.parametrize("is_named", [True, False])
def test_the_command_line_knows_it_by_its_name_in_the_list(copy: Path, is_named: bool):
    path = copy / "platform" / "data" / "catalogue.py"
    whole = path.read_text("utf-8")
    if not is_named:
        path.write_text(whole.replace('    "fruits",\n', ""))
    try:
        code, said = run_command(copy, "datasets", "--json")
    finally:
        path.write_text(whole)
    assert code == 0 and ('"fruits"' in said) is is_named, said
