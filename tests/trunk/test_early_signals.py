"""Ctrl-C at any moment of a process's life, imports included: one sentence, 130, and no trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.trunk._runs import NONE, SMALL
from tests.trunk._schemas import require_published

pytestmark = pytest.mark.slow

MODULE = re.compile(r"import time: .*\| +(\S+)$")


def interrupted_at_import(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> tuple[int, list[str]]:
    """Sends a real Ctrl-C to a process once it has imported a module: exit code and last lines.

    The interpreter itself tells of each import; those lines are left out of what is returned.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts background jobs with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        found = MODULE.match(line)
        if found is None:
            said += [] if line.startswith("import time:") else [line.rstrip("\n")]
        elif found[1] == module:
            os.kill(process.pid, signal.SIGINT)
    process.stdout.close()
    return process.wait(), said


COMMANDS = {
    "client": ("-m", "platform.client", "check", "client.yaml"),
    "coordinator": ("-m", "platform.coordinator", "run", "small.yaml", "--set", NONE),
    "sotto": ("-c", "from platform.cli.script import main; main()", "runs"),
}
WITHIN = {
    "client": ("typer", "pydantic", "numpy", "sqlalchemy", "platform.holder.settings"),
    "coordinator": ("typer", "torch._C", "scipy", "platform.bootstrap"),
    "sotto": ("typer",),
}


CASES = [(command, module) for command, modules in WITHIN.items() for module in modules]


@pytest.mark.parametrize(("command", "module"), CASES)
def test_while_imports_are_running(
    narrow_environment: dict[str, str], tmp_path: Path, command: str, module: str
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "client.yaml").write_text("name: north")
    code, said = interrupted_at_import(module, COMMANDS[command], narrow_environment, tmp_path)
    assert (code, said) == (130, ["interrupted"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_under_json_it_is_an_object_as_any_other(
    narrow_environment: dict[str, str], tmp_path: Path, module: str
) -> None:
    (tmp_path / "client.yaml").write_text("name: north")
    command = (*COMMANDS["client"], "--json")
    code, said = interrupted_at_import(module, command, narrow_environment, tmp_path)
    told = json.loads(said[-1])
    require_published("error", told)
    assert (code, len(said), told["kind"], told["exit_code"]) == (130, 1, "interrupted", 130)
