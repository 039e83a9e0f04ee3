"""The page of methods that is built has every method, each option's meaning, and true facts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from docs.pages import methods as pages
from methods import Registry
from platform.config import PACKAGED_CONFIGS

NAMES = Registry(installed=False).available()


@pytest.fixture(scope="module")
def page() -> str:
    return pages.page(Path("build/docs"))


def section(page: str, name: str) -> str:
    return page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_every_method_has_one_line_and_one_section(page: str):
    lines = [line for line in page.splitlines() if line.startswith("| [`")]
    assert [line.split("`")[1] for line in lines] == list(NAMES)
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_its_preset_and_a_meaning(page: str, name: str):
    preset = yaml.safe_load((PACKAGED_CONFIGS / "methods" / f"{name}.yaml").read_text())
    rows = [line.split(" | ", 2) for line in section(page, name).splitlines() if line[:3] == "| `"]
    found = {row[0].strip("| `"): row[1:] for row in rows}
    assert set(found) == set(preset) - {"name"}
    for option, (value, meaning) in found.items():
        assert yaml.safe_load(value.strip("`")) == preset[option]
        assert len(meaning.strip(" |")) > 3, option


@pytest.mark.parametrize(
    "line",
    [
        # 16 tokens of width 128.
        "| [`promptfl`](#promptfl) | context | 2048 | features | all | averaged |",
        "| [`zero_shot`](#zero_shot) | nothing | 0 | features | all | - |",
        # 20 prototypes of width 512, and as many flags.
        "| [`fedgh`](#fedgh) | prototypes, presence, seen one by one | 10260 | pixels "
        "| `none`, `upload_noise` | personal |",
        # The mean over clients suffices; rows of logits are 20 wide.
        "| [`fedproto`](#fedproto) | prototypes, presence | 10260 | pixels "
        "| all but `dp_sgd` | personal |",
        "| [`feddistill`](#feddistill) | logits, presence | 420 | pixels "
        "| all but `dp_sgd` | personal |",
    ],
)
def test_facts_that_were_worked_out_by_hand(page: str, line: str):
    assert line in page.splitlines()
