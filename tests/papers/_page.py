"""The built page of the papers' tables, taken apart by hand and not by what reads its commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any

from docs.pages.reproduce import page
from platform.config import RunConfig, Sources
from platform.results.sweeping.grid import Grid, SweepRequest, build_grid, parse_names, parse_seeds
from tests.papers._published import PAPERS

PAGE = page(PAPERS.parents[1] / "build" / "docs")
PREFIX = ["sotto", "sweep"]


@dataclass(frozen=True)
class Command:
    """A command of the page."""

    configs: tuple[str, ...]
    options: tuple[tuple[str, str], ...]

    def all(self, option: str) -> tuple[str, ...]:
        """Values of an option that may be given more than once."""
        return tuple(value for name, value in self.options if name == option)

    @property
    def output(self) -> str:
        """Where it writes."""
        (folder,) = self.all("--output")
        return folder

    @property
    def seeds(self) -> tuple[int, ...]:
        """All of them."""
        (text,) = self.all("--seed")
        return parse_seeds(text)

    def grid(self, *, as_published: bool = False) -> Grid:
        """The grid for the first seed, `--reference` or not; other seeds differ in nothing."""
        return _grid(self, as_published=as_published)


@cache
def _grid(command: Command, *, as_published: bool) -> Grid:
    methods = command.all("--method")
    return build_grid(
        SweepRequest(
            configs=command.configs,
            methods=parse_names(methods[0]) if methods else (),
            seeds=command.seeds[:1],
            settings=command.all("--set"),
            method_settings=command.all("--for"),
        ),
        Sources(as_published=as_published),
    )


def commands() -> list[Command]:
    """All commands of the page."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    found = []
    for line in filter(str.strip, lines):
        words = shlex.split(line)
        assert words[:2] == PREFIX
        rest = words[2:]
        first = next(i for i, word in enumerate(rest) if word.startswith("--"))
        options = rest[first:]
        pairs = tuple(zip(options[::2], options[1::2], strict=True))
        assert {name for name, _ in pairs} <= {"--method", "--seed", "--set", "--for", "--output"}
        found.append(Command(tuple(rest[:first]), pairs))
    return found


def optimiser(run: RunConfig) -> tuple[Any, ...]:
    """What a run's steps are made by."""
    training = run.training
    return training.optimizer, training.learning_rate, training.momentum, training.weight_decay


def tables(text: str = PAGE) -> list[tuple[list[str], list[list[str]]]]:
    """Every table of the page: its head and its rows, cells stripped."""
    found: list[tuple[list[str], list[list[str]]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
        found.append((rows[0], rows[2:]))
    return found
