"""The walk through a new transport, in CONTRIBUTING, followed by its words in a copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests._forking import run_tests
from tests.repository._walks import copy_with_tests, require_house_style, walk

pytestmark = pytest.mark.slow

SECTION = walk("A transport")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, in which steps 1 and 2 were done and nothing else."""
    target = tmp_path_factory.mktemp("walk") / "sotto"
    copy_with_tests(target)
    written = re.findall(
        r"^\d\. Write `([a-z_/]+\.py)`.*?```python\n(.*?)```", SECTION, re.MULTILINE | re.DOTALL
    )
    assert len(written) == 2
    for path, code in written:
        (target / path).write_text(code)
    return target


def test_its_tests_pass(copy: Path):
    (file,) = re.findall(r"-m pytest (\S+?)`", SECTION)
    code, said = run_tests(copy, file)
    assert code == 0 and "4 passed" in said, said


def test_its_files_are_in_the_house_style(copy: Path):
    files = re.findall(r"^\d\. Write `([a-z_/]+\.py)`", SECTION, re.MULTILINE)
    require_house_style(copy, files)
