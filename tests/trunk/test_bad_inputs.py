"""Two hundred bad inputs and more: one sentence each, nothing half-written, never a trace.

The sentence names the field, option or argument, the value, and what is valid. Other tests have
more of them, beside what they are about: `test_cli_errors.py`, `test_datasets_cli.py` and so on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from platform.cli.client_app import main as client_main
from tests.trunk._bad_inputs import (
    FILES,
    HOLDERS,
    LONG,
    MISUSED,
    RUN_VALUES,
    SETTINGS,
    client_settings,
    lay_out,
)
from tests.trunk._runs import Answer, Command, command_line

ROOT = Path(__file__).resolve().parents[2]
VALID = ("valid", "should", "must", "needs", "exactly one", "leave it out", "leave CONFIG", "give ")
"""One of these begins what is valid."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with what the command lines name."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, client_main)


def everything(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their content, and all folders."""
    found = sorted(folder.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def require_refused(
    command: Command, place: Path, arguments: Sequence[str], words: Sequence[str]
) -> Answer:
    before = everything(place)
    answer = command(*arguments)
    require_sentence(answer, words)
    assert everything(place) == before
    return answer


def require_sentence(answer: Answer, words: Sequence[str]) -> None:
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    assert answer.err[:-1].isprintable() and len(answer.err) < 2_500, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, (word, answer.err)
    assert any(word in answer.err for word in VALID), answer.err


def short(text: object) -> str:
    return ascii(text)[:60]


@pytest.mark.parametrize("setting", RUN_VALUES, ids=short)
def test_a_value_of_a_run(sotto: Command, place: Path, setting: str) -> None:
    key, words = setting.partition("=")[0], RUN_VALUES[setting]
    field = () if words[0] == "--set" or len(key) > 100 else (key.split(".")[0],)
    arguments = ("run", "small.yaml", "--set", setting)
    require_refused(sotto, place, arguments, (*field, *words))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration(sotto: Command, place: Path, name: str) -> None:
    answer = require_refused(sotto, place, ("run", name), ())
    assert any(word in answer.err for word in (name, "name: is missing"))


@pytest.mark.parametrize(("arguments", "words"), MISUSED, ids=short)
def test_a_command_line_of_the_coordinator(
    sotto: Command, place: Path, arguments: Sequence[str], words: Sequence[str]
) -> None:
    require_refused(sotto, place, arguments, words)


@pytest.mark.parametrize(("arguments", "words"), HOLDERS, ids=short)
def test_a_command_line_of_a_data_holder(
    holder: Command, place: Path, arguments: Sequence[str], words: Sequence[str]
) -> None:
    require_refused(holder, place, arguments, words)


@pytest.mark.parametrize(("change", "words"), SETTINGS, ids=short)
def test_settings_of_a_data_holder(
    holder: Command, place: Path, change: dict[str, object], words: Sequence[str]
) -> None:
    (place / "client.yaml").write_text(client_settings(change))
    require_refused(holder, place, ("budget", "client.yaml"), words)


def test_there_are_as_many_as_it_says_and_none_twice() -> None:
    lines = [("run", "--set", setting) for setting in RUN_VALUES]
    lines += [("run", name) for name in FILES]
    lines += [arguments for arguments, _ in MISUSED]
    holders = [arguments for arguments, _ in HOLDERS]
    settings = [client_settings(change) for change, _ in SETTINGS]
    assert len(set(lines)) == len(lines) and len(set(holders)) == len(holders)
    assert len(set(settings)) == len(settings)
    assert len(lines) + len(holders) + len(settings) > 300


UNDER_JSON = [arguments for arguments, _ in MISUSED if arguments[0] not in ("serve", "--fly")]


@pytest.mark.parametrize("arguments", UNDER_JSON[::4], ids=short)
def test_under_json_it_is_one_object(sotto: Command, place: Path, arguments: Sequence[str]) -> None:
    """Also where the command line does not parse, and where an option is none."""
    plain = sotto(*arguments)
    answer = sotto(*arguments, "--json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    told = json.loads(answer.err)
    assert told["exit_code"] == 2 and told["kind"] in (
        "usage",
        "config_error",
        "unknown_run",
        "foreign_file",
        "broken_method",
    )
    assert plain.err.startswith(f"error: {told['field'] or ''}")


SAMPLE = (
    *((("-m", "platform.coordinator", *arguments), words) for arguments, words in MISUSED[::24]),
    *((("-m", "platform.client", *arguments), words) for arguments, words in HOLDERS[::12]),
    (("-m", "platform.coordinator", "run", f"{LONG}.yaml"), ("CONFIG",)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "words"), SAMPLE, ids=short)
def test_a_sample_in_processes_of_their_own(
    place: Path, arguments: Sequence[str], words: Sequence[str]
) -> None:
    before = everything(place)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=240,
    )
    require_sentence(Answer(done.returncode, done.stdout, done.stderr), words)
    assert everything(place) == before
