"""The tutorial is followed by its words, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|yaml|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\A# (\S+\.yaml)\n")
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


def test_all_that_the_page_says_comes_about(tmp_path: Path):
    said = walked(tmp_path)
    assert "1198 training and 599 test" in " ".join(said[: said.index("run mine-")].split())
    table = (tmp_path / "compared" / "table.md").read_text()
    found = {
        (method, alpha): float(mean)
        for method, alpha, mean in re.findall(r"(\w+), alpha = ([\d.]+) \| \W*(\d+\.\d+) ±", table)
    }
    # What the page says of both methods, in its own order.
    assert found["PromptFL", "100"] > found["CoOp", "100"] + 5.0
    assert found["CoOp", "0.3"] > found["PromptFL", "0.3"] + 5.0
    pictures = {path.name for path in (tmp_path / "compared").iterdir()}
    assert {"final.svg", "final.png", "clients.svg"} <= pictures
    (private,) = tmp_path.glob("runs/private-*/summary.json")
    final = json.loads(private.read_text())["final"]
    assert max(final["epsilon"].values()) <= 8.0 and final["accuracy"]["mean"] < 0.3
    assert "8.00/8.00/8.00" in said
    assert "Privacy" in (tmp_path / "budget.html").read_text()
    # What is to be copied stays whole: names of files, and heads of logs.
    wide = [line for line in said.splitlines() if len(line) > 80]
    assert [line for line in wide if " " in line.strip()] == []


def walked(folder: Path) -> str:
    """All that the page's commands print in a folder."""
    said = ""
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
    return said
