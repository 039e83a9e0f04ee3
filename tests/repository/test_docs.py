"""Documents point at what exists, and no file tells of the machine it was written on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.repository._source import ROOT

LEFT_OUT = {
    ".git",
    ".hypothesis",
    "build",
    "dist",
    "runs",
    "__pycache__",
    "htmlcov",
}
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
WIDEST = 120
# Home folders, and the folders of containers and CI machines.
MACHINE_PATH = re.compile(r"(?<![\w.~}/])/(?:home/\w|Users/\w|root/|work/|workspace/|mnt/\w)")
ADRS = ROOT / "docs" / "adr"
ADR_NAME = re.compile(r"^\d{4}-[a-z0-9-]+\.md$")
ADR_NAMED = re.compile(r"\bADRs?[\s#]+(\d+(?:(?:,|\s+and)\s+\d+)*)\b|\bdocs/adr/(\d{4})-")
# Those that hold today; a new one takes the place of others, or is merged with one.
MOST_ADRS = 30
HISTORY = "../../CHANGELOG.md#decisions-that-were-merged-or-replaced"
# The targets that people and CI call by name.
TARGETS = {"demo", "test", "test-slow", "check", "pretrain", "clean", "help"}


def repository_files(root: Path = ROOT) -> list[Path]:
    """Every file of the repository that is not made by a tool."""
    found = []
    for folder, below, names in os.walk(root):
        # In place: what is left out is not walked either.
        below[:] = [name for name in below if is_kept(name)]
        found += [Path(folder, name) for name in names if is_kept(name)]
    return sorted(path for path in found if path.is_file())


def is_kept(name: str) -> bool:
    """Whether files and folders of this name are written by people."""
    made = name.startswith(".venv") or name.endswith((".egg-info", "_cache"))
    return not made and name not in LEFT_OUT


def text_of(path: Path) -> str | None:
    """A file's text, or None for binary files."""
    content = path.read_bytes()
    return None if b"\0" in content[:8192] else content.decode("utf-8", errors="replace")


def anchors(path: Path) -> set[str]:
    """The anchors that headings of a Markdown file get."""
    headings = re.findall(r"^#+\s+(.*)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {slug.replace(" ", "-") for slug in slugs}


def broken_links(path: Path) -> list[str]:
    """The relative links of a Markdown file that lead nowhere."""
    broken = []
    for link in LINK.findall(FENCE.sub("", path.read_text("utf-8"))):
        if EXTERNAL.match(link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        is_markdown = target.suffix == ".md"
        if not target.exists() or (anchor and is_markdown and anchor not in anchors(target)):
            broken.append(link)
    return broken


def unwrapped(text: str) -> list[str]:
    """The lines of prose too long for a terminal: neither code nor rows of a table."""
    lines = FENCE.sub("", text).splitlines()
    return [line for line in lines if len(line) > WIDEST and not line.startswith(("|", "    "))]


def decisions_in(text: str) -> list[int]:
    """The numbers of the decisions that a text names."""
    return [
        int(number)
        for match in ADR_NAMED.finditer(text)
        for number in re.findall(r"\d+", match[1] or match[2])
    ]


def name_of(path: Path) -> str:
    """The path of a file as a test's name."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "path", [path for path in repository_files() if path.suffix == ".md"], ids=name_of
)
def test_relative_links_resolve(path):
    assert broken_links(path) == []


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in repository_files()
        # Results are written by benchmarks, with the numbers in their sentences.
        if path.suffix == ".md" and path.parent != ROOT / "docs" / "results"
    ],
    ids=name_of,
)
def test_prose_is_wrapped(path):
    assert unwrapped(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("word " * 25, True),
        ("word " * 20, False),
        ("| word " * 25, False),
        ("```\n" + "word " * 25 + "\n```", False),
    ],
)
def test_a_line_that_is_not_wrapped_is_found(text, found):
    assert bool(unwrapped(text)) is found


def test_no_file_names_a_path_of_a_machine():
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_decisions_have_one_number_each_and_the_list_names_them():
    names = sorted(path.name for path in ADRS.glob("*.md") if path.name != "README.md")
    assert all(map(ADR_NAME.match, names)), f"an ADR is named like 0001-some-words.md: {names}"
    assert len({int(name[:4]) for name in names}) == len(names) <= MOST_ADRS
    assert sorted(LINK.findall((ADRS / "README.md").read_text("utf-8"))) == [HISTORY, *names]


def test_every_decision_that_a_file_names_is_there():
    numbers = {int(path.name[:4]) for path in ADRS.glob("0*.md")}
    found = {
        f"{name_of(path)}: ADR {number}"
        for path in repository_files()
        for number in decisions_in(text_of(path) or "")
        if number not in numbers
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("see {} 999.", [999]),
        ("# as {}\n# 999 says", [999]),
        ("{}s 7, 8 and 999", [7, 8, 999]),
        ("docs/{}/0999-gone.md", [999]),
        ("a new {}, and 3 of them", []),
    ],
)
def test_a_decision_that_a_text_names_is_found(text, numbers):
    assert decisions_in(text.format("adr" if "/" in text else "ADR")) == numbers


@pytest.mark.parametrize("path", sorted(ADRS.glob("0*.md")), ids=name_of)
def test_a_decision_has_its_sections(path):
    text = path.read_text("utf-8")
    assert text.startswith(f"# {int(path.name[:4])}. ")
    for heading in ("## Context", "## Decision", "## Consequences"):
        assert heading in text


def test_make_help_lists_every_target():
    done = subprocess.run(["make"], cwd=ROOT, text=True, capture_output=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make")}
    assert listed >= TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert listed == set(phony[1].split())


def test_contributing_names_the_checks():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for command in ("make check", "make test", "make test-slow"):
        assert command in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](gone.md)", ["gone.md"]),
        ("[a](there.md#no-such-part)", ["there.md#no-such-part"]),
        ("[a](#no-such-part)", ["#no-such-part"]),
        ("[a](there.md#a-part-its-name) [b](https://example.org) [c](mailto:a@b.c)", []),
        ("```\n[a](gone.md)\n```", []),
    ],
)
def test_a_broken_link_is_found(tmp_path, text, expected):
    (tmp_path / "there.md").write_text("# There\n\n## A part: its `name`\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken_links(page) == expected


@pytest.mark.parametrize(
    "parts", [("", "home", "ann", "x"), ("see ", "root", "x"), ("", "work", "")]
)
def test_a_machine_path_is_found(parts):
    assert MACHINE_PATH.search("/".join(parts))


@pytest.mark.parametrize("line", ["frame/work/a", "~/home/a", "https://a.org/home/b", "`/run`"])
def test_what_only_looks_like_a_machine_path_passes(line):
    assert not MACHINE_PATH.search(line)
