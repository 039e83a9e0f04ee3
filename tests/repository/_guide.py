"""A guide's own words: which commands, files and journeys it asks for, in their order.

The first line of a block says where it belongs: `# MACHINE, as ACCOUNT` before commands, and
`# PATH on MACHINE` before a file. A paragraph **Travels:** is what people carry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAVELS = re.compile(r"^\*\*Travels:\*\* (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^# ([\w' ]+?)(?:, as (root|sotto))?(, where it applies)?$")
FILE = re.compile(r"^# (/\S+) on ([\w' ]+)$")


@dataclass(frozen=True)
class Step:
    """One thing that the guide asks for.

    Of the kind `commands`, `file` or `travels`, or `aside` for commands that only some type.
    """

    kind: str
    where: str
    what: str
    text: str


def steps_of(page: Path, first: str = "", until: str = "") -> list[Step]:
    """All that a page, or a part between two headings, asks for; each block must say where."""
    text = page.read_text("utf-8")
    text = text[text.index(f"\n## {first}\n") if first else 0 :]
    text = text[: text.index(f"\n## {until}\n") if until else None]
    found = [(match.start(), _block(match[1], match[2])) for match in BLOCK.finditer(text)]
    found += [
        (match.start(), Step("travels", "", "", " ".join(match[1].split())))
        for match in TRAVELS.finditer(text)
    ]
    return [step for _, step in sorted(found, key=lambda pair: pair[0])]


def _block(language: str, text: str) -> Step:
    head, _, rest = text.partition("\n")
    if (file := FILE.match(head)) is not None:
        return Step("file", file[2], file[1], text)
    commands = COMMANDS.match(head)
    assert commands is not None and language == "sh", f"a block without a place: {head}"
    kind = "aside" if commands[3] else "commands"
    return Step(kind, commands[1], commands[2] or "", rest)
