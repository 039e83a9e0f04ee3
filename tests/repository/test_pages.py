"""The documents' site: its sources, its navigation, and links that lead somewhere."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import __main__ as pages
from docs.pages import advice, api, built, reproduce, site
from platform.results.advice import measured
from tests.repository._source import ROOT, module_name, python_files
from tests.repository.test_docs import broken_links


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources, as `make docs` writes them."""
    folder = tmp_path_factory.mktemp("site") / "of" / "ours"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["docs.pages", str(folder)])
        runpy.run_path(pages.__file__, run_name="__main__")
    return folder


@pytest.mark.slow
def test_every_document_is_a_page(written: Path):
    own = {path.relative_to(site.DOCS) for path in site.DOCS.rglob("*.md")}
    expected = {path.as_posix() for path in own if path.parts[0] != "papers"}
    expected |= {name.lower() for name in site.ABOVE}
    expected |= {f"reference/{name}" for name in site.BUILT}
    expected |= {f"{name}/index.md" for name in site.LISTS}
    found = {path.relative_to(written).as_posix() for path in written.rglob("*.md")}
    assert expected <= {name for name in found if not name.startswith(("api/", "files/"))}
    assert all((written / name).read_text("utf-8").startswith("# ") for name in expected)


@pytest.mark.slow
def test_links_lead_somewhere(written: Path):
    paths = [path for path in written.rglob("*.md") if path.parent.name != "api"]
    assert {path.name: broken for path in paths if (broken := broken_links(path))} == {}


@pytest.mark.slow
def test_every_page_is_in_the_navigation_once(written: Path):
    names = sorted(path.relative_to(written).as_posix() for path in written.rglob("*.md"))
    named = [page for each in site.navigation(site.NAVIGATION, names) for page in each.pages]
    assert len(named) == len(set(named))
    below = {name for name in names if name.startswith(("api/", "adr/", "results/", "files/"))}
    assert set(names) - below - {"index.md"} <= set(named)


def test_a_page_that_nobody_named_comes_last(tmp_path: Path):
    path = tmp_path / "navigation.yaml"
    path.write_text("First:\n  - gone.md\n")
    with pytest.raises(ValueError, match=r"'gone.md' is no page"):
        site.navigation(path, ["a.md"])
    path.write_text("First:\n  - One: a.md\n  - tutorial*.md\n")
    assert site.navigation(path, ["a.md", "index.md", "new.md"]) == [
        site.Section("First", ("a.md",), {"a.md": "One"}),
        site.Section("More", ("new.md",)),
    ]


@pytest.mark.parametrize("link", ["gone.md", "../../etc/passwd", "pictures"])
def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path, link: str):
    with pytest.raises(ValueError, match=r"page.md: .* leads to no page and no file"):
        site._led(f"[a]({link})", site.DOCS, "page.md", {}, tmp_path)


def test_measured_cells_are_tables_on_the_page_of_which_method():
    rows = measured(
        "data,domain,clients,images,classes_each,groups,epsilon,way,seeds,all,alone,gain,low,high,"
        "own_gain,own_low,own_high,source\n"
        "a/b,b,1200,16,all,0,8,sums,9,80,70,10,8,12,,,,x\n"
        "a/b,b,50,16,2,1,4,sums,9,50,50,0,-1,1,-2,-3,-1,x\n"
    )
    text = advice.filled((site.DOCS / "which-method.md").read_text("utf-8"), rows)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert [line[1] for line in lines[:4]] == ["clients", "---", "1,200", "50"]
    assert [line[6] for line in lines[2:4]] == ["`sums`", "stay alone"]
    assert lines[2][9] == "+10.0 [+8.0, +12.0]" and lines[3][10] == "-2.0 [-3.0, -1.0]"
    assert [line[:3] for line in lines[6:]] == [["few", "yes", "never"], ["all", "no", "1,200"]]
    assert "csv" not in text


@pytest.mark.slow
def test_the_interface_has_every_module_of_its_packages_and_no_other(written: Path):
    text = "".join(path.read_text("utf-8") for path in (written / "api").iterdir())
    expected = {
        name
        for name in map(module_name, python_files())
        if name.startswith(tuple(f"{public}." for public in api.PUBLIC)) or name in api.PUBLIC
        if not any(part.startswith("_") for part in name.split("."))
    }
    found = re.findall(r"^`+\{py:module\} (\S+)$", text, re.MULTILINE)
    assert set(api.PUBLIC) <= expected
    assert sorted(found) == sorted(expected)


GOOD = '<a href="b.html#there">b</a><link rel="stylesheet" href="s.css"><a href="https://a.b">x</a>'


@pytest.mark.parametrize(
    ("html", "wrong"),
    [
        (GOOD, []),
        ('<a href="b.html#gone">b</a>', ["a.html: b.html#gone leads nowhere"]),
        ('<a href="c.html">b</a>', ["a.html: c.html leads nowhere"]),
        ('<img src="gone.png">', ["a.html: gone.png leads nowhere"]),
        ('<script src="https://a.b/c.js">', ["a.html: https://a.b/c.js is loaded from elsewhere"]),
        ('<link rel="stylesheet" href="//a.b/c">', ["a.html: //a.b/c is loaded from elsewhere"]),
    ],
)
def test_what_is_wrong_with_a_built_page_is_told(tmp_path: Path, html: str, wrong: list[str]):
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "s.css").write_text("")
    assert list(built.wrong(tmp_path)) == wrong


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site_is_built_without_a_warning():
    done = subprocess.run(["make", "docs"], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    text = (ROOT / "build" / "docs" / "index.html").read_text("utf-8")
    captions = re.findall(r'<span class="caption-text">([^<]+)</span>', text)
    parts = ["Use", "Extend", "Operate", "Verify", "Results", "Papers", "Decisions"]
    assert captions[: len(parts)] == parts
    assert str(ROOT) not in text


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
    start, held = "sotto sweep papers/trip/", "--set task.held_out_domain="
    assert text.split("```")[1].replace(" \\\n    ", " ").splitlines() == [
        "bash",
        f"{start}table-1-pacs --method trip --seed 0,1,2 {held}art_painting,cartoon,photo,sketch "
        "--set method.beta=1 --output sweeps/trip-a",
        f"{start}table-2-office_home --method trip --seed 0,1,2 "
        f"{held}Art,Clipart,Product,Real_World --set method.beta=1 --output sweeps/trip-b",
        f"{start}table-1-pacs {held}art_painting,cartoon,photo,sketch --seed 5 "
        "--output sweeps/trip-c",
    ]
