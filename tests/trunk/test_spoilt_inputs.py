"""What lies about or is typed in, spoilt: one sentence each, no trace, no raw escape."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.agreement.statements import read_summary
from platform.errors import ConfigError
from platform.experiment.resuming import require_same_classes
from tests.trunk._runs import Command, Finished
from tests.trunk._tampering import execute_and_rehash

SUMMARIES = {
    "empty": "",
    "cut": '{"schema_version": 1, "run_id": "a", "roun',
    "no object": "[1]",
    "null": "null",
    "brackets": "[" * 100_000,
    "digits": "1" * 5_000,
}


@pytest.mark.parametrize("case", SUMMARIES)
def test_a_spoilt_summary_is_named(tmp_path: Path, case: str) -> None:
    (tmp_path / "summary.json").write_text(SUMMARIES[case])
    with pytest.raises(ValueError, match=r"^summary\.json is (empty|no JSON)") as refused:
        read_summary(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_summary_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^summary\.json is missing"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"^summary\.json is empty, cut or otherwise no JSON"):
        read_summary(tmp_path)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "[" * 5_000, "a: 2026-99-99: b: c", "\x00", "- 1"])
def test_a_second_phase_names_spoilt_facts_of_the_first(tmp_path: Path, text: str) -> None:
    (tmp_path / "effective.yaml").write_text(text)
    with pytest.raises(ConfigError, match="run first") as refused:
        require_same_classes(tmp_path, "first", ["a"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        ("--round", "99999999999999999999"),
        ("--round", "-1"),
        ("--since", "2026-02-30"),
        ("--until", "2026-13-01T00:00:00"),
        ("--since", "0001-01-01T00:00:00+23:59"),
        ("--until", "9999-12-31T23:59:59-23:59"),
    ],
    ids=" ".join,
)
def test_an_absurd_filter_is_one_sentence(
    plain_run: Finished, sotto: Command, given: tuple[str, str]
) -> None:
    option, value = given
    answer = sotto("audit", "query", f"{option}={value}", "--storage", plain_run.storage.url)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {option}: ") and answer.err.count("\n") == 1
    assert value in answer.err


HEADS = ("9" * 5_000 + ":" + "a" * 64, "\N{SUPERSCRIPT TWO}:" + "a" * 64, "1:" + "\x1b" * 64)


@pytest.mark.parametrize("head", HEADS, ids=["digits", "superscript", "escapes"])
def test_an_absurd_head_is_one_sentence(plain_run: Finished, sotto: Command, head: str) -> None:
    run = ("--run", plain_run.run_id, "--storage", plain_run.storage.url)
    answer = sotto("audit", "verify", f"--head={head}", *run)
    assert answer.code == 2 and answer.err.startswith("error: --head: ")
    assert "\x1b" not in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize("command", [("runs",), ("audit", "query")], ids=" ".join)
def test_names_in_a_store_cannot_drive_the_terminal(
    own_copy: Finished,
    sotto: Command,
    command: tuple[str, ...],
) -> None:
    evil = "char(27) || ']0;owned' || char(7) || char(13) || char(10) || char(8238) || 'txt'"
    execute_and_rehash(
        own_copy.storage.file,
        f"UPDATE runs SET name = {evil}",  # noqa: S608
        f"UPDATE audit SET actor = {evil}",  # noqa: S608
    )
    answer = sotto(*command, "--storage", own_copy.storage.url, "--json")
    assert answer.code == 0 and "]0;owned" in answer.out
    answer = sotto(*command, "--storage", own_copy.storage.url)
    assert (answer.code, answer.err) == (0, "")
    # The list of runs shows no name of people's any more.
    shows_names = command != ("runs",)
    assert ("\\x1b]0;owned\\x07" in "".join(answer.out.split())) == shows_names
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(answer.out)
