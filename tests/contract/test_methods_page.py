"""Facts on the page of methods, worked out by hand."""

from __future__ import annotations

import pytest

from docs.pages import methods as pages
from methods import BUILT_IN_METHODS, Task
from methods.clip.adapter import load_backbone
from platform.data.shapes import CLASSES, DOMAINS


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        # 16 tokens of width 128.
        ("promptfl", ("context", "2048", "features", "all", "averaged")),
        # 20 prototypes of width 512, and as many flags.
        (
            "fedgh",
            (
                "prototypes, presence, seen one by one",
                "10260",
                "pixels",
                "`none`, `upload_noise`",
                "personal",
            ),
        ),
        # The mean over clients suffices; rows of logits are 20 wide.
        ("feddistill", ("logits, presence", "420", "pixels", "all but `dp_sgd`", "personal")),
    ],
)
def test_facts_that_were_worked_out_by_hand(name, facts):
    task = Task(CLASSES, DOMAINS, pages.CLIENTS, load_backbone("sotto-tiny"))
    found = pages.row(BUILT_IN_METHODS, name, task)
    assert found == (f"[`{name}`](#{name})", *facts)
