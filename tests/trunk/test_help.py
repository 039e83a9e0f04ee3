"""Help, command by command: what is explained, how wide it is, and that it is plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from platform.cli.command_line import CommandLine, config_names, run_names
from platform.cli.script import command_line
from tests.trunk._runs import Finished

ODD = re.compile(r"[^\x20-\x7e\n]|\\")
"""What is no plain character, or left over from somebody's markup."""


def commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of a tree, with the words that lead to it; groups before what is in them."""
    yield words, found
    for name, below in getattr(found, "commands", {}).items():
        yield from commands(below, (*words, name))


TREE = dict(commands(command_line()))
WORDS = [pytest.param(words, id=" ".join(words) or "sotto") for words in TREE]


def shown(found: Any, words: tuple[str, ...]) -> str:
    with found.make_context("sotto", [], resilient_parsing=True) as context:
        context.info_name = " ".join(("sotto", *words))
        return str(found.get_help(context))


def entries(text: str) -> dict[str, str]:
    """What help says of each argument, option and command, by its name as it is shown."""
    found: dict[str, str] = {}
    for line in text.partition("\n\n  ")[2].splitlines():
        if re.match(r"  \S", line):
            name, *said = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            found[name] = " ".join(said)
        elif line.startswith("    ") and found:
            found[list(found)[-1]] += f" {line.strip()}"
    return found


def metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[].")


def unexplained(found: Any, words: tuple[str, ...]) -> list[str]:
    """What a command takes and its help says no word about, or stops in the middle of one."""
    said = entries(shown(found, words))
    faults = [] if (found.help or "").strip() else ["the command itself"]
    taken = [one.opts[0] if one.opts[0][0] == "-" else metavar(one) for one in found.params]
    for name in [*taken, *getattr(found, "commands", {})]:
        texts = [text for head, text in said.items() if name in re.split(r"[ ,.\[\]]+", head)]
        told = [re.sub(r"\[[^]]*\]$", "", text).strip() for text in texts]
        if not any(told) or any(text.endswith("...") for text in told):
            faults.append(name)
    return faults


def test_the_tree_has_the_commands_of_both_sides() -> None:
    assert {("runs",), ("audit", "query"), ("client", "budget"), ("client", "keys", "show")} <= set(
        TREE
    )
    assert len(TREE) > 40


@pytest.mark.parametrize("words", WORDS)
def test_everything_that_a_command_takes_is_explained(words: tuple[str, ...]) -> None:
    assert unexplained(TREE[words], words) == []


@pytest.mark.parametrize("words", WORDS)
def test_help_is_plain_text_of_eighty_columns(words: tuple[str, ...]) -> None:
    text = shown(TREE[words], words)
    assert ODD.findall(text) == []
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_not_explained_is_found() -> None:
    app = CommandLine(help="A program.")

    @app.command()
    def one(file: str, plain: str = typer.Option("x")) -> None:
        """Do."""

    assert unexplained(typer.main.get_command(app), ()) == ["FILE", "--plain"]


def test_names_of_runs_and_configurations_are_completed(noised_run: Finished) -> None:
    words = ["--storage", noised_run.storage.url]
    with TREE[("report",)].make_context("report", words, resilient_parsing=True) as context:
        assert run_names(context, "") == ["latest", noised_run.run_id]
        assert run_names(context, "la") == ["latest"]
    assert config_names("quick") == ["quickstart"]


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/none.db", "nonsense", "sqlite:///pyproject.toml"]
)
def test_what_cannot_be_asked_completes_nothing(url: str) -> None:
    words = ["--storage", url]
    with TREE[("report",)].make_context("report", words, resilient_parsing=True) as context:
        assert run_names(context, "") == []
