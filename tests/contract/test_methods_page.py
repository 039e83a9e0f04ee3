"""The page of methods that is built has every method, each option's meaning, and true facts."""

from __future__ import annotations

from pathlib import Path

from docs.pages import methods as pages


def test_facts_that_were_worked_out_by_hand():
    lines = pages.page(Path("build/docs")).splitlines()
    for line in (
        # 16 tokens of width 128.
        "| [`promptfl`](#promptfl) | context | 2048 | features | all | averaged |",
        # 20 prototypes of width 512, and as many flags.
        "| [`fedgh`](#fedgh) | prototypes, presence, seen one by one | 10260 | pixels "
        "| `none`, `upload_noise` | personal |",
        # The mean over clients suffices; rows of logits are 20 wide.
        "| [`feddistill`](#feddistill) | logits, presence | 420 | pixels "
        "| all but `dp_sgd` | personal |",
    ):
        assert line in lines
