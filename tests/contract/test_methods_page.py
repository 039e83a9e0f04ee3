"""The page of methods that is built has every method, each option's meaning, and true facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import methods as pages


@pytest.fixture(scope="module")
def page() -> str:
    return pages.page(Path("build/docs"))


@pytest.mark.parametrize(
    "line",
    [
        # 16 tokens of width 128.
        "| [`promptfl`](#promptfl) | context | 2048 | features | all | averaged |",
        # 20 prototypes of width 512, and as many flags.
        "| [`fedgh`](#fedgh) | prototypes, presence, seen one by one | 10260 | pixels "
        "| `none`, `upload_noise` | personal |",
        # The mean over clients suffices; rows of logits are 20 wide.
        "| [`feddistill`](#feddistill) | logits, presence | 420 | pixels "
        "| all but `dp_sgd` | personal |",
    ],
)
def test_facts_that_were_worked_out_by_hand(page: str, line: str):
    assert line in page.splitlines()
