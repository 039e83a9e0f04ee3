"""Pages that are built: into the folder that is asked for, with links that lead somewhere."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from docs.pages import __main__ as pages
from docs.pages import reproduce
from docs.pages.markdown import merged, slug, table
from tests.repository._source import ROOT
from tests.repository.test_docs import broken_links


@pytest.fixture(scope="module")
def built() -> Path:
    """Where `make docs` writes; links lead out of there, so that another folder would not do."""
    pages.write(pages.FOLDER)
    return pages.FOLDER


def test_all_pages_are_written_where_one_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "of" / "ours"
    monkeypatch.setattr(sys, "argv", ["docs.pages", str(folder)])
    runpy.run_path(pages.__file__, run_name="__main__")
    assert {path.name for path in folder.iterdir()} == set(pages.PAGES)
    assert all(path.read_text("utf-8").startswith("# ") for path in folder.iterdir())


@pytest.mark.parametrize("name", sorted(pages.PAGES))
def test_links_lead_somewhere(built: Path, name: str):
    assert broken_links(built / name) == []
    assert "](" in (built / name).read_text("utf-8")


def test_git_ignores_what_is_built():
    folder = pages.FOLDER.relative_to(ROOT)
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    assert folder.parts[0] in ignored


def test_a_pattern_without_a_configuration_is_refused(tmp_path: Path):
    path = tmp_path / "trip.md"
    path.write_text("# TRIP\n\n```sweep\ntable-99: table-99-*\n```\n")
    with pytest.raises(ValueError, match=r"trip.md: no configuration is named table-99-\*"):
        reproduce.filled(path)


BLOCK = """a: table-1-pacs
b: table-2-office_home
--method trip
--set method.beta=1

c: table-1-pacs
--seed 5"""


def test_a_block_is_a_command_for_each_of_its_names(tmp_path: Path):
    path = tmp_path / "trip.md"
    path.write_text(f"# TRIP\n\n```sweep\n{BLOCK}\n```\n\nWords.\n")
    text = reproduce.filled(path)
    start, held = "python -m platform.coordinator sweep papers/trip/", "--set task.held_out_domain="
    assert text.split("```")[1].replace(" \\\n    ", " ").splitlines() == [
        "bash",
        f"{start}table-1-pacs --method trip --seed 0,1,2 {held}art_painting,cartoon,photo,sketch "
        "--set method.beta=1 --output sweeps/trip-a",
        f"{start}table-2-office_home --method trip --seed 0,1,2 "
        f"{held}Art,Clipart,Product,Real_World --set method.beta=1 --output sweeps/trip-b",
        f"{start}table-1-pacs {held}art_painting,cartoon,photo,sketch --seed 5 "
        "--output sweeps/trip-c",
    ]


SECOND = """# The second

## A part

```bash
# no heading
```

[x](beside.md) [y](https://a.b/c.md)
"""


def test_merged_files_are_one_page(tmp_path: Path):
    paths = [tmp_path / "first.md", tmp_path / "second.md"]
    paths[0].write_text("# One\n\n[two](second.md) [part](second.md#a-part) [own](#one)\n")
    paths[1].write_text(SECOND)
    text = merged(paths, tmp_path / "out", lambda path: path.read_text())
    assert text == (
        "# One\n\n[two](#the-second) [part](#a-part) [own](#one)\n\n"
        "## The second\n\n### A part\n\n```bash\n# no heading\n```\n\n"
        "[x](../beside.md) [y](https://a.b/c.md)\n"
    )


def test_a_table_and_an_anchor():
    assert table([("a", "b"), ("1", "")]) == "| a | b |\n| --- | --- |\n| 1 |  |\n"
    assert slug("A part: its `name`") == "a-part-its-name"
