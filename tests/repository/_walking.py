"""Following a guide on bare machines, word for word but for what is named here.

What is not the guide's: commands that need the network of the world, what people carry, what they
wait for, and the placeholders (`PUBLIC_KEY_OF_NORTH`), for which stands what was printed before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.repository._machines import Machine

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


HOLDERS = ("north", "east", "south")
COORDINATOR = "coordinator.example"
PLACEHOLDER = re.compile(r"\b(?:NEW_)?[A-Z]+(?:_[A-Z]+)*_OF_[A-Z]+\b|\bRUN\b")
LONGEST = 400.0


@dataclass
class Walk:
    """A walk through pages, with all that was learnt on the way.

    People carry, or wait for, something where a paragraph, or a command, begins so.
    """

    machines: Mapping[str, Machine]
    carry: Mapping[str, Callable[[Walk], None]]
    waits: Mapping[str, Callable[[Walk], None]]
    checkout: Callable[[str], None]
    known: dict[str, str] = field(default_factory=dict)
    said: list[tuple[str, str, str]] = field(default_factory=list)

    def follow(self, page: Path, first: str = "", until: str = "") -> None:
        """Do all that a page asks for, or what lies between two headings."""
        for step in steps_of(page, first, until):
            if step.kind == "travels":
                (do,) = [do for word, do in self.carry.items() if step.text.startswith(word)]
                do(self)
            elif step.kind == "aside":
                continue
            elif step.where == "a checkout":
                self.checkout(step.text)
            else:
                for name in self._meant(step.where):
                    self._do(name, step)

    def _meant(self, where: str) -> tuple[str, ...]:
        if where == "each machine":
            return (COORDINATOR, *HOLDERS)
        if where == "each holder's machine":
            return HOLDERS
        if where == "the coordinator's machine":
            return (COORDINATOR,)
        return tuple(word.removesuffix("'s machine") for word in where.split(" and "))

    def _do(self, name: str, step: Step) -> None:
        text = step.text
        if step.where.startswith("each") and name != COORDINATOR:
            text = re.sub(r"\bnorth\b", name, text)
            text = text.replace("_OF_NORTH", f"_OF_{name.upper()}")
        text = PLACEHOLDER.sub(lambda match: self.known[match[0]], text)
        machine = self.machines[name]
        if step.kind == "file":
            machine.write(step.what, text.encode())
            return
        for word, wait in self.waits.items():
            if text.startswith(word):
                wait(self)
        said = machine.must(without_the_world(text), step.what, LONGEST)
        self.said.append((name, text, said))
        self._learn(name, said)

    def _learn(self, name: str, said: str) -> None:
        """Remember what later commands name: keys, a run, a pseudonym."""
        owner = f"OF_{name.partition('.')[0].upper()}"
        for pattern, placeholder in LEARNT.items():
            for found in re.findall(pattern, said, re.MULTILINE):
                known = f"{placeholder}_{owner}" if placeholder != "RUN" else placeholder
                if placeholder == "PUBLIC_KEY" and known in self.known:
                    known = f"NEW_{known}"
                self.known[known] = found


LEARNT = {
    r"^rootca_fingerprint_sha256: (SHA256:[0-9A-F:]+)$": "FINGERPRINT",
    r"^public key +([0-9a-f]{64})$": "PUBLIC_KEY",
    r"^((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/=]+)(?: .*)?$": "NODE_KEY",
    r"`charges ([0-9a-f]+) FILE`": "PSEUDONYM",
    r"\b(pilot-\d{8}-\d{6}-[0-9a-f]{4})\b": "RUN",
}


def without_the_world(commands: str) -> str:
    """The commands where there is no network: what they would fetch is there already."""
    commands = re.sub(r"^apt-get install --yes (.*)$", _installed, commands, flags=re.MULTILINE)
    return re.sub(
        r"^(/opt/(\w+))/bin/pip install --no-deps --require-hashes -r \S+$",
        _shown,
        commands,
        flags=re.MULTILINE,
    )


def _shown(match: re.Match[str]) -> str:
    """What makes installed packages visible to an environment, with the one program among them."""
    home, name = match.groups()
    line = f"echo /mirror/{name} > {home}/lib/python3.11/site-packages/zz_dependencies.pth"
    if name != "nvflare":
        return line
    program = f"{home}/bin/nvflare"
    text = f'#!/bin/sh\\nexec {home}/bin/python -m nvflare.cli "$@"\\n'
    return f"{line}; printf '{text}' > {program}; chmod 755 {program}"


def _installed(match: re.Match[str]) -> str:
    line = f"dpkg --status {match[1]} > /dev/null"
    # When it is installed, the package makes these keys and starts the server.
    started = f"{line}; ssh-keygen -A; systemctl enable --quiet --now ssh"
    return started if "openssh-server" in match[1] else line


def until(found: Callable[[], bool], what: str, seconds: float = LONGEST) -> None:
    """Wait for something as people do."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, f"in vain for {what}"
        time.sleep(0.5)
