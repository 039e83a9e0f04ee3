"""Every program in `examples/`, and the code of the pages on Python, run as a reader would."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import sotto
from tests._forking import exit_code, forked
from tests.repository._source import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIGHT = {
    "accounting",
    "colluding_clients",
    "epsilon_by_rounds",
    "errors",
    "secure_sum",
    "secure_sum_over_sockets",
}
"""Programs that train nothing."""
LONGEST = 30
NEEDS = re.compile(r"`pip install (\w+)`")
"""How an example says which library it needs beside Sotto."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def ended(work, folder: Path) -> tuple[int, str]:
    def there() -> int:
        os.chdir(folder)
        return exit_code(work)

    return forked(there)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in LIGHT else pytest.mark.slow)
        for path in EXAMPLES
    ],
)
def test_an_example_runs(path, tmp_path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LONGEST
    for name in NEEDS.findall(text):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    code, said = ended(lambda: runpy.run_path(str(path), run_name="__main__"), tmp_path)
    assert code == 0 and said.strip(), said


def test_every_example_that_needs_more_says_so_and_no_other_may_skip():
    said = {path.stem: NEEDS.findall(path.read_text("utf-8")) for path in EXAMPLES}
    names = ("mlflow", "tensorboard", "wandb")
    assert {stem: names for stem, names in said.items() if names} == {
        f"callback_{name}": [name] for name in names
    }


def test_there_are_eighteen_of_them():
    assert len(EXAMPLES) >= 18 and {path.stem for path in EXAMPLES} >= LIGHT


def digits() -> dict[str, object]:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images[:300] * 15).astype(np.uint8)
    return {"images": images, "labels": found.target[:300], "owner": np.arange(300) % 3}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("python.md", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        "python/secure-sums.md",
        "python/accounting.md",
    ],
)
def test_the_code_of_a_page_runs(page, tmp_path):
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))

    def work() -> None:
        names = digits()
        for block in blocks:
            exec(compile(block, page, "exec"), names)  # noqa: S102 - a page of ours

    code, said = ended(work, tmp_path)
    assert blocks and code == 0 and said.strip(), said


def test_every_name_is_described():
    pages = "".join(
        (ROOT / "docs" / page).read_text("utf-8")
        for page in ("python.md", "python/secure-sums.md", "python/accounting.md")
    )
    missing = [name for name in sotto.__all__ if name not in pages]
    assert missing == []
    for name in sotto.__all__:
        assert getattr(sotto, name).__doc__, name
