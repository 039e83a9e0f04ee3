"""What people read fits where they read it: in a terminal, in a pipe, and in COLUMNS."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from platform.cli.output import console, fitting, shape_of, size, table
from platform.cli.reporting import heading, round_line
from tests.trunk._runs import NONE, SMALL, Command, Finished, Storage
from tests.trunk._widths import COORDINATOR, cut_words, in_pipe, in_terminal, too_wide

READING = (
    ("runs",),
    ("runs", "--all"),
    ("report", "latest"),
    ("report", "latest", "--format", "table"),
    ("budget",),
    ("budget", "latest"),
    ("audit", "query"),
    ("audit", "verify"),
    ("cache", "list"),
    ("methods",),
    ("configs",),
    ("configs", "--keys"),
    ("datasets",),
    ("datasets", "--show", "quickstart"),
    ("datasets", "--check", "digits"),
    ("secagg-plan", "--clients", "100"),
)
WITHOUT_STORAGE = ("methods", "configs", "datasets", "secagg-plan")


def asked(command: tuple[str, ...], storage: Storage) -> tuple[str, ...]:
    return command if command[0] in WITHOUT_STORAGE else (*command, "--storage", storage.url)


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_every_table_fits_into_eighty_columns(
    sotto: Command,
    noised_run: Finished,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    words = asked(command, noised_run.storage)
    wide = sotto(*words)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = sotto(*words)
    assert narrow.code == wide.code and narrow.out
    assert too_wide(narrow.out) == []
    assert cut_words(narrow.out, wide.out) == []


def test_a_pipe_of_unknown_width_has_eighty_columns(
    narrow_environment: dict[str, str], noised_run: Finished, tmp_path: Path
) -> None:
    words = asked(("report", "latest"), noised_run.storage)
    printed = in_pipe(COORDINATOR, words, narrow_environment, tmp_path)
    assert too_wide(printed) == []
    # All of it is used, so it was not narrower either.
    assert max(map(cell_len, printed.splitlines())) > 72


@pytest.mark.slow
def test_a_run_in_a_terminal_of_eighty_columns(
    narrow_environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    text = in_terminal(
        COORDINATOR, ["run", str(config), "--set", NONE], narrow_environment, tmp_path
    )
    lines = [line for part in text.splitlines() for line in part.split("\r")]
    assert too_wide("\n".join(lines)) == []
    rounds = [line for line in lines if re.match(r" +[123] ", line)]
    assert len(rounds) == 3 and all(len(line.split()) == 11 for line in rounds)
    again = in_terminal(COORDINATOR, ["report", "latest"], narrow_environment, tmp_path)
    assert too_wide(again) == []
    assert [line.rstrip() for line in again.splitlines() if line.startswith("method, data")]


ROUND = {
    "round": 100,
    "cohort": 1000,
    "dropped": 123,
    "accuracy": {"mean": 1.0, "std": 0.123, "worst": 1.0},
    "epsilon": {"server": 1234.5, "peers": 1234.5, "observer": 1234.5},
    "signal_to_noise": {"low": 12.34, "high": 56.78},
    "bytes_up": 123_456_789,
    "bytes_down": 999,
    "seconds": 1234.5,
}


def test_a_round_of_large_numbers_fits() -> None:
    line = round_line(ROUND)
    assert line.split() == [
        *("100", "1000", "(123)", "100.0%", "12.3%", "100.0%", "1235/1235/1235", "12.3-56.8"),
        *("123M", "999", "1234"),
    ]
    assert len(line) <= 80
    assert all(len(one) <= 80 for one in heading(1e-05).split("\n"))


def test_what_few_rounds_have_stands_below_them() -> None:
    line = round_line({**ROUND, "validation": {"mean": 0.5}, "phase": "collection"})
    first, second = line.split("\n")
    assert (first, second.strip()) == (round_line(ROUND), "val 50.0% collection")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_940, "99.9 kB"), (99_960, "100 kB")),
        *((999_499, "999 kB"), (999_500, "1.0 MB"), (10**12, "1.0 TB"), (10**16, "10000 TB")),
    ],
)
def test_bytes_in_three_digits(value: int, shown: str) -> None:
    assert size(value) == shown


def printed(rows: list[tuple[str, ...]], columns: tuple[str, ...], width: int) -> list[str]:
    out = console()
    out.width = width
    with out.capture() as captured:
        out.print(table(None, columns, rows))
    return captured.get().splitlines()


LONG = "a" * 30
SENTENCE = "some words that say what is to be known of it, and more of them after these"


def test_columns_side_by_side_while_there_is_room() -> None:
    assert printed([("x", 1.5), ("why", 20)], ("name", "number"), 80) == [
        "name  number",
        "────  ──────",
        "x        1.5",
        "why       20",
    ]


@pytest.mark.parametrize(
    ("row", "width", "shape"),
    [
        (("a", "b", "c", SENTENCE), 80, (0, 0)),
        ((LONG, "b" * 20, "c" * 20, "d" * 20), 80, (1, 0)),
        (("a" * 15, "b" * 15, "c" * 15, SENTENCE), 60, (0, 1)),
        ((LONG, "b" * 20, "c" * 20, SENTENCE), 60, (1, 1)),
        ((LONG, "b" * 30, "c" * 30, SENTENCE), 60, None),
        (("name", "h" * 56), 60, (0, 0)),
    ],
)
def test_the_shape_follows_from_the_room(
    row: tuple[str, ...], width: int, shape: tuple[int, int] | None
) -> None:
    columns = ("one", "two", "three", "four")[: len(row)]
    found = shape_of((columns, row), width)
    assert (found and (found.above, found.below)) == shape
    lines = printed([row], columns, width)
    assert too_wide("\n".join(lines), width) == []
    assert set(" ".join(row).split()) <= set(" ".join(lines).split())


def test_a_word_longer_than_a_line_is_cut_and_nothing_is_lost() -> None:
    lines = printed([("name", "h" * 100)], ("what", "value"), 40)
    assert max(map(len, lines)) == 40 and "".join(lines).count("h") == 101


def test_wide_characters_count_as_they_are_shown() -> None:
    rows = (("name",), ("\N{CJK UNIFIED IDEOGRAPH-8BED}" * 3,))
    assert fitting(rows, 10) == [6]
    lines = printed([("\N{CJK UNIFIED IDEOGRAPH-8BED}" * 3, "x")], ("name", "b"), 80)
    assert cell_len(lines[0]) == cell_len(lines[2]) == len("name    b")


def test_what_is_no_text_is_escaped() -> None:
    assert printed([("a\x1b[31m", "b")], ("c", "d"), 80)[2] == "a\\x1b[31m  b"
