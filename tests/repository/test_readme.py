"""The README's first screen shows what the quickstart prints today; a page names every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.cli.reporting import heading

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
WIDTH = 110
"""A few links are longer than the hundred that is written to."""


def test_the_purpose_and_the_two_commands_come_first():
    first_screen = "\n".join(README.splitlines()[:24])
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert README.index("# Sotto") < README.index("make demo") < README.index("\n## ")


def test_the_output_shown_has_todays_form():
    for line in heading(1e-5).splitlines():
        assert line in README


def test_the_output_shown_has_what_a_run_ends_with():
    """Its rows and notes are those of a run of the quickstart; numbers differ from run to run."""
    block = README.split("```")[3]
    for word in ("method, data", "gain over local", "worth of sharing", "epsilon for observer"):
        assert f"\n{word}  " in block
    assert "note: distributed_noise: epsilon for server holds if" in block
    assert max(map(len, block.splitlines())) <= 80


def test_it_claims_no_gain():
    """What a run printed may stand there; a sentence that compares needs a strong opponent."""
    prose = "".join(README.split("```")[::2])
    assert re.findall(r"[+-]?\d[\d.]*%? points", prose) == []
    assert "the best that a client alone can do" in " ".join(prose.split())


COMPARES = re.compile(r"\| (gain|gain over local|alone) \|")
"""A column of numbers beside, or above, what a client reaches alone."""


@pytest.mark.parametrize(
    "name",
    [
        path.name
        for path in sorted((ROOT / "docs" / "results").glob("*.md"))
        if COMPARES.search(path.read_text("utf-8"))
    ],
)
def test_a_page_that_compares_with_training_alone_says_how_weak_that_is(name):
    page = (ROOT / "docs" / "results" / name).read_text("utf-8")
    assert "**which is not the best that a client alone can do**" in " ".join(page.split())


def test_lines_are_wrapped():
    # Rows of tables and links to pictures cannot be.
    long = [
        line
        for line in README.splitlines()
        if len(line) > WIDTH and not line.startswith(("|", "!["))
    ]
    assert long == []


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands") and command.commands:
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


@pytest.mark.parametrize("name", [*commands(get_command(app)), *commands(get_command(client_app))])
def test_every_command_is_on_the_page_of_commands(name):
    *group, last = name.split()
    if name == "CONFIG":
        assert "`sotto client CONFIG`" in COMMANDS
        return
    # A group is named once, and its commands in one list after it.
    pattern = rf"`(?:{re.escape(name)}|{re.escape(last)})[ `]"
    assert re.search(pattern, COMMANDS), name
    assert not group or f"`{group[0]} " in COMMANDS
