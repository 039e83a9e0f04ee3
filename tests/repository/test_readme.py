"""The README's first screen shows what the quickstart prints today."""

from __future__ import annotations

from pathlib import Path

from platform.cli.watching import heading

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_commands_come_first():
    first_screen = "\n".join(README.splitlines()[:24])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_the_output_shown_has_todays_form():
    for line in heading(1e-5).splitlines():
        assert line in README


def test_every_command_is_mentioned():
    commands = (
        "run methods datasets runs report audit audit-privacy export predict secagg-plan enrolment "
        "cache sweep clipping"
    )
    for command in commands.split():
        assert f"`{command}" in README
