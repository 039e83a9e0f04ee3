"""Ctrl-C at any moment of a process's life, imports included: one sentence, 130, and no trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.trunk._runs import NONE, SMALL
from tests.trunk._schemas import require_published

pytestmark = pytest.mark.slow

MODULE = re.compile(r"import time: .*\| +(\S+)$")


def interrupted_at_import(module, arguments, environment, folder):
    """How a process ends that gets a real Ctrl-C at an import: exit code and its own lines."""
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


CLIENT = ("-m", "platform.client", "check", "client.yaml")
COORDINATOR = ("-m", "platform.coordinator", "run", "small.yaml", "--set", NONE)
SOTTO = ("-c", "from platform.cli.script import main; main()", "runs")
CASES = (
    *((CLIENT, module) for module in ("typer", "numpy", "platform.holder.settings")),
    *((COORDINATOR, module) for module in ("typer", "torch._C", "platform.experiment.planning")),
    (SOTTO, "typer"),
    ((*CLIENT, "--json"), "pydantic"),
)


@pytest.mark.parametrize(("command", "module"), CASES)
def test_while_imports_are_running(narrow_environment, tmp_path, command, module):
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "client.yaml").write_text("name: north")
    code, said = interrupted_at_import(module, command, narrow_environment, tmp_path)
    assert code == 130
    assert not (tmp_path / "runs").exists()
    if "--json" not in command:
        assert said == ["interrupted"]
        return
    (told,) = map(json.loads, said)
    require_published("error", told)
    assert (told["kind"], told["exit_code"]) == ("interrupted", 130)
