"""`docs/notebook.ipynb` runs from top to bottom, and its cells show what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.repository._source import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

source, target, folder = sys.argv[1:]
book = nbformat.read(source, as_version=4)
NotebookClient(book, timeout=None, resources={"metadata": {"path": folder}}).execute()
nbformat.write(book, target)
"""


def cells(book: Any) -> dict[str, Any]:
    return {cell.id: cell for cell in book.cells if cell.cell_type == "code"}


def executed(place: Path) -> dict[str, Any]:
    """The cells of the notebook with their outputs, run in a folder of their own.

    In a process of its own: a kernel's libraries warn, and warnings are errors here. Its own
    settings must not come from whoever runs the tests.
    """
    folder, target = place / "notebook", place / "executed.ipynb"
    folder.mkdir()
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(target), str(folder)]
    own = {"PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(place / "own")}
    done = subprocess.run(
        command, cwd=place, env=os.environ | own, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return cells(nbformat.read(target, as_version=4))


def data_of(cell: Any, kind: str) -> list[str]:
    return [o.data[kind] for o in cell.outputs if "data" in o and kind in o.data]


def said_by(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_it_carries_no_outputs():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    for cell in cells(book).values():
        assert cell.outputs == [] and cell.execution_count is None
    assert set(book.metadata) == {"kernelspec", "language_info"}
    assert "version" not in json.dumps(book.metadata)


# On a machine that does much else beside it.
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_its_cells_show_what_they_say(tmp_path: Path):
    found, folder = executed(tmp_path), tmp_path / "notebook"
    assert said_by(found["run"]).count("accuracy ") == 3
    (table,) = data_of(found["load"], "text/html")
    assert table.count("<tr") == 4
    for word in ("target_epsilon", "gain_over_local", "16.0", "64"):
        assert word in table
    for name in ("tradeoff", "clients"):
        (picture,) = data_of(found[name], "image/png")
        assert len(picture) > 5_000
    assert data_of(found["plot"], "text/plain") == ["PosixPath('curves.png')"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    for cell in found.values():
        said = [o.text for o in cell.outputs if o.get("name") == "stderr"]
        # A library asks for widgets, which Sotto's bar does not need.
        assert not [text for text in said if "ipywidgets" not in text]
