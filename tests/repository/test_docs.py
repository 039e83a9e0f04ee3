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
ADR_NAME = re.compile(r"^(\d{4})-[a-z0-9-]+\.md$")
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


def test_decisions_are_numbered_without_gaps():
    names = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    numbers = [int(match[1]) for name in names if (match := ADR_NAME.match(name))]
    assert len(numbers) == len(names), f"an ADR is named like 0001-some-words.md: {names}"
    assert numbers == list(range(1, len(names) + 1))


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=name_of)
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
