"""Documents point at what exists, tell of no machine, and install Sotto from no package index."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from typer.main import get_command

from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.cli.reporting import NAMES
from tests.repository._source import PACKAGES, ROOT, python_files

pytestmark = pytest.mark.lint

LEFT_OUT = {".git", ".hypothesis", "build", "dist", "runs", "__pycache__", "htmlcov"}
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
# Files, labels and entry points begin with `sotto` as well, so it names no module here.
NAMED = sorted({*PACKAGES} - {"sotto"})
FOLDERS = "|".join((*NAMED, "benchmarks", "configs", "docs", "examples", "tests"))
PATH = re.compile(rf"(?<![\w./-])((?:{FOLDERS})/(?:[\w.-]+/)*[\w.-]*\w)(?![\w/]*[*{{<])")
MODULE = re.compile(rf"(?<![\w./-])((?:{'|'.join(NAMED)})(?:\.\w+)+)\b(?!/)")
# Sections of a configuration have the names of two packages.
KEY = re.compile(r"^(?:privacy|storage)\.\w+$")
# What a walk-through asks to write is not there yet.
ADDED = re.compile(r"^\d+\. Write `([\w./]+)`", re.MULTILINE)
# A column of numbers beside, or above, what a client reaches alone.
COMPARES = re.compile(r"\| (gain|over twin|alone) \|")
# The targets that people and CI call by name.
TARGETS = {"demo", "test", "test-slow", "check", "pretrain", "clean", "help"}


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file of the repository that is not made by a tool."""
    found = []
    for folder, below, names in os.walk(ROOT):
        # In place: what is left out is not walked either.
        below[:] = [name for name in below if is_kept(name)]
        found += [Path(folder, name) for name in names if is_kept(name)]
    return tuple(sorted(path for path in found if path.is_file()))


def is_kept(name: str) -> bool:
    """Whether files and folders of this name are written by people."""
    made = name.startswith(".venv") or name.endswith((".egg-info", "_cache"))
    return not made and name not in LEFT_OUT


@cache
def text_of(path: Path) -> str | None:
    """A file's text, or None for binary files."""
    content = path.read_bytes()
    return None if b"\0" in content[:8192] else content.decode("utf-8", errors="replace")


@cache
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


def named_paths(text: str) -> Iterator[str]:
    """Yield paths that do not exist and that the text does not ask to write."""
    added = set(ADDED.findall(text))
    for name in PATH.findall(text):
        known = (ROOT / name).exists() or any((ROOT / name).parent.glob(f"{Path(name).name}.*"))
        if name not in added and not known:
            yield name


def named_modules(text: str) -> Iterator[str]:
    """Yield dotted names that are neither a module nor a name within one."""
    added = {name.removesuffix(".py").replace("/", ".") for name in ADDED.findall(text)}
    for name in MODULE.findall(text):
        if name.endswith((".py", ".md")) or KEY.match(name) or name in added:
            continue
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            yield name


def told(found: Callable[[Path], Iterable[object]], paths: Iterable[Path]) -> dict[str, list]:
    """What is found in each of some files, by their names."""
    each = ((str(path.relative_to(ROOT)), list(found(path))) for path in paths)
    return {name: wrong for name, wrong in each if wrong}


def documents() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".md"]


def test_relative_links_resolve():
    assert told(broken_links, documents()) == {}


def test_prose_is_wrapped():
    """But for results, which benchmarks write with the numbers in their sentences."""
    paths = [path for path in documents() if path.parent != ROOT / "docs" / "results"]
    assert told(lambda path: unwrapped(path.read_text("utf-8")), paths) == {}


def test_what_documents_and_sources_name_is_there():
    """Decisions tell of their time, and the change log of all of them."""
    pages = [path for path in documents() if path.name != "CHANGELOG.md" and path.parent != ADRS]
    for found in (named_paths, named_modules):
        assert told(lambda path, found=found: found(path.read_text("utf-8")), pages) == {}
    assert told(lambda path: named_paths(path.read_text("utf-8")), python_files()) == {}


def test_no_file_names_a_path_of_a_machine():
    def found(path: Path) -> list[str]:
        lines = (text_of(path) or "").splitlines()
        return [line.strip()[:100] for line in lines if MACHINE_PATH.search(line)]

    assert told(found, repository_files()) == {}


def test_decisions_have_one_number_each_and_the_list_names_them():
    names = sorted(path.name for path in ADRS.glob("*.md") if path.name != "README.md")
    assert all(map(ADR_NAME.match, names)), f"an ADR is named like 0001-some-words.md: {names}"
    numbers = {int(name[:4]) for name in names}
    assert len(numbers) == len(names) <= MOST_ADRS
    assert sorted(LINK.findall((ADRS / "README.md").read_text("utf-8"))) == [HISTORY, *names]
    wrong = told(lambda path: set(decisions_in(text_of(path) or "")) - numbers, repository_files())
    assert wrong == {}
    for name in names:
        text = (ADRS / name).read_text("utf-8")
        assert text.startswith(f"# {int(name[:4])}. ")
        assert all(f"## {word}" in text for word in ("Context", "Decision", "Consequences")), name


def test_make_help_lists_every_target():
    done = subprocess.run(["make"], cwd=ROOT, text=True, capture_output=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make")}
    assert listed >= TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert listed == set(phony[1].split())


def test_the_readme_shows_what_the_quickstart_prints_today():
    """Its rows and notes are those of a run; numbers differ from run to run."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme.index("# Sotto") < readme.index("make demo") < readme.index("\n## ")
    block = readme.split("```")[3]
    assert " ".join(NAMES) in map(" ".join, map(str.split, block.splitlines()))
    for word in ("accuracy", "over its twin", "worth of sharing", "epsilon", "in guesses"):
        assert f"\n{word}  " in block
    assert max(map(len, block.splitlines())) <= 80


def test_no_page_claims_a_gain_over_a_weak_opponent():
    """What a run printed may stand there; who compares says how weak training alone was."""
    prose = "".join((ROOT / "README.md").read_text("utf-8").split("```")[::2])
    assert re.findall(r"[+-]?\d[\d.]*%? points", prose) == []
    results = [path.read_text("utf-8") for path in (ROOT / "docs" / "results").glob("*.md")]
    comparing = [text for text in results if COMPARES.search(text)]
    assert comparing
    for text in (prose, *comparing):
        assert "the best that a client alone can do" in " ".join(text.split())


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands") and command.commands:
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_command_is_on_the_page_of_commands():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert "`sotto client CONFIG`" in page
    for name in {*commands(get_command(app)), *commands(get_command(client_app))} - {"CONFIG"}:
        *group, last = name.split()
        # A group is named once, and its commands in one list after it.
        assert re.search(rf"`(?:{re.escape(name)}|{re.escape(last)})[ `]", page), name
        assert not group or f"`{group[0]} " in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](gone.md)", ["gone.md"]),
        ("[a](there.md#no-such-part)", ["there.md#no-such-part"]),
        ("[a](there.md#a-part-its-name) [b](https://example.org) [c](mailto:a@b.c)", []),
        ("```\n[a](gone.md)\n```", []),
    ],
)
def test_a_broken_link_is_found(tmp_path, text, expected):
    (tmp_path / "there.md").write_text("# There\n\n## A part: its `name`\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken_links(page) == expected


# Written so that this file itself passes.
A_PATH, A_NUMBER = "/".join(("see ", "root", "x")), "docs/{}/0999-gone.md".format("adr")


@pytest.mark.parametrize(
    ("check", "text", "found"),
    [
        (unwrapped, "word " * 25, ["word " * 25]),
        (unwrapped, "| word " * 25 + "\n```\n" + "word " * 25 + "\n```", []),
        (decisions_in, "as {}\n# 7, 8 and 999 say".format("ADRs"), [7, 8, 999]),
        (decisions_in, A_NUMBER, [999]),
        (decisions_in, "a new {}, and 3 of them".format("ADR"), []),
        (MACHINE_PATH.findall, A_PATH, [A_PATH[4:10]]),
        (MACHINE_PATH.findall, "frame/work/a ~/home/a https://a.org/home/b `/run`", []),
        (named_paths, "`platform/gone.py`", ["platform/gone.py"]),
        (named_paths, "platform/wire/codec.py, platform/wire, platform/data/loaders/*.py", []),
        (named_paths, "1. Write `platform/wire/mailbox.py`. `platform/wire/mailbox.py` is", []),
        (named_modules, "python -m platform.gone.away", ["platform.gone.away"]),
        (named_modules, "`platform.wire.codec.encode_frame`, `privacy.mechanism` is a key", []),
    ],
)
def test_each_check_finds_what_it_should_and_nothing_else(check, text, found):
    assert list(check(text)) == found


# The index knows another project by the name `sotto`, whose code `pip install sotto[pdf]` runs.
# `pip install sotto`, also with options before the name, and by whichever tool; not a wheel's file.
FROM_THE_INDEX = re.compile(
    r"\b(?:pip[\d.]*|pipx|uv(?:\s+pip)?|uv\s+tool)\s+(?:install|download|add|run)\b[^\n`]*?"
    r"""(?:\s|['"])sotto(?:[-_.]fl)?(?![\w-]|\.\w)""",
    re.IGNORECASE,
)
# `sotto[pdf]`: an extra by the name that pip would look up.
EXTRA_BY_NAME = re.compile(r"\bsotto(?:[-_.]fl)?\[", re.IGNORECASE)
# `pip install -e '.[pdf]'`, which takes this checkout.
FROM_THE_CHECKOUT = re.compile(r"install -e '\.\[([\w,-]+)\]'")
WRITTEN = [path for path in repository_files() if path != Path(__file__)]


def from_the_index(text: str) -> list[str]:
    """What a text would have its reader install from the index."""
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)))
    found = [found[0] for part in (text, *spans) for found in FROM_THE_INDEX.finditer(part)]
    return found + [found[0] for found in EXTRA_BY_NAME.finditer(text)]


def project() -> dict[str, Any]:
    """The table `project` of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_no_text_installs_sotto_from_the_index():
    assert told(lambda path: from_the_index(text_of(path) or ""), WRITTEN) == {}


def test_every_extra_that_a_text_installs_exists():
    asked = {
        extra
        for path in WRITTEN
        for found in FROM_THE_CHECKOUT.findall(text_of(path) or "")
        for extra in found.split(",")
    }
    assert asked and asked <= project()["optional-dependencies"].keys()


FROM_FILES = (
    ".venv/bin/pip install -e '.[pdf]'",
    "/opt/sotto/bin/pip install --no-deps sotto_fl-0.1.0-py3-none-any.whl",
    "pip install --no-deps -r requirements.lock` and then `sotto run`",
    "Sotto in an environment (`pip install` with its extra `contract`)",
)


@pytest.mark.parametrize(
    "text",
    [
        "pip install sotto",
        "`pip install --upgrade sotto-fl`",
        "pip3 install -q sotto_fl==0.1.0",
        "uv pip install sotto.",
        "the extra `sotto[pdf]`",
        "run `pip install\nsotto` first",
    ],
)
def test_an_install_from_the_index_is_found(text: str):
    assert from_the_index(text)
    assert [*map(from_the_index, FROM_FILES)] == [[]] * len(FROM_FILES)


def test_the_command_keeps_its_name():
    found = project()
    assert found["name"] == "sotto-fl"
    assert found["scripts"] == {"sotto": "platform.cli.script:main"}
