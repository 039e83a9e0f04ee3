"""The tutorial is followed by its words, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|yaml|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\A# (\S+\.yaml)\n")
pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("tutorial"), pytest.mark.slow]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder, and all that was printed."""
    folder, said = tmp_path_factory.mktemp("first-steps"), ""
    scripts = Path(sys.executable).parent
    surroundings = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "80"}
    for kind, text in BLOCK.findall(PAGE):
        if kind == "yaml":
            name = FILE.match(text)
            assert name is not None, text
            (folder / name[1]).write_text(text)
            continue
        command = ["bash", "-e"] if kind == "sh" else [sys.executable, "-"]
        done = subprocess.run(
            command,
            input=text,
            cwd=folder,
            env=surroundings,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        said += done.stdout
    yield folder, said


def test_the_folder_is_recognised_before_anything_runs(walked: tuple[Path, str]):
    _, said = walked
    assert "4 classes, 160 images in class" in said[: said.index("run mine-")]


def test_there_is_a_table_of_four_methods_and_a_picture(walked: tuple[Path, str]):
    folder, _ = walked
    table = (folder / "compared" / "table.md").read_text()
    for method in ("zero_shot", "coop", "promptfl", "pfedmoap"):
        assert re.search(rf"{method}.*\d\d?\d?\.\d\d", table)
    pictures = {path.name for path in (folder / "pictures").iterdir()}
    assert {"final.svg", "final.png", "clients.svg"} <= pictures


def test_what_was_given_away_is_told(walked: tuple[Path, str]):
    folder, said = walked
    (private,) = folder.glob("runs/private-*/summary.json")
    epsilon = json.loads(private.read_text())["final"]["epsilon"]
    assert max(epsilon.values()) <= 8.0
    assert "8.00/8.00/8.00" in said
    assert "Privacy" in (folder / "budget.html").read_text()


def test_every_line_fits_a_terminal(walked: tuple[Path, str]):
    _, said = walked
    wide = [line for line in said.splitlines() if len(line) > 80]
    # What is to be copied stays whole: names of files, and heads of logs.
    assert [line for line in wide if " " in line.strip()] == []
