"""What people read fits where they read it, and is text: never cut, never orders to a terminal."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from platform.cli.client_app import main as client_main
from platform.cli.output import console, fitting, printable, shape_of, size, table
from platform.cli.reporting import heading, round_line
from platform.relay.hub import Hub
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._leaving import NOISED
from tests.trunk._runs import Command, command_line

NAMES = ("east", "north", "the-hospital-of-saint-mary-in-the-south", "west")
LONG = NAMES[2]


def too_wide(text: str, columns: int = 80) -> list[str]:
    """Lines that are longer than they may be."""
    return [line for line in text.splitlines() if cell_len(line) > columns]


def cut_words(narrow: str, wide: str) -> list[str]:
    """Words of a narrow print that a wide one does not have: halves of some.

    Numbers are never cut, and ages differ; what is longer than a line is cut in any shape.
    """
    known = set(wide.split())
    longer = [word for word in known if cell_len(word) > 76]
    return [
        word
        for word in narrow.split()
        if word not in known
        and not set(word) <= set("─0123456789")
        and not any(word in one for one in longer)
    ]


def require_fitting(command: Command, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Requires that an answer fits, with no word cut; the answer in eighty columns."""
    wide = command(*words)
    with monkeypatch.context() as narrower:
        narrower.setenv("COLUMNS", "80")
        narrow = command(*words)
    assert (narrow.code, wide.code) == (0, 0), narrow.err + wide.err
    assert too_wide(narrow.out) == []
    assert narrow.out and cut_words(narrow.out, wide.out) == []
    return narrow.out


# --- commands of both programs --------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *("runs", "report latest", "report latest --format table", "budget latest", "audit query"),
        *("audit verify", "cache list"),
    ],
)
def test_what_is_read_of_a_storage(sotto, noised_run, monkeypatch, words):
    require_fitting(sotto, monkeypatch, *words.split(), "--storage", noised_run.storage.url)


@pytest.mark.parametrize(
    "words",
    [
        *("methods", "configs", "configs --keys", "datasets", "datasets --show quickstart"),
        "secagg-plan --clients 100",
    ],
)
def test_what_is_read_without_one(sotto, monkeypatch, words):
    require_fitting(sotto, monkeypatch, *words.split())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, client_main)


@pytest.mark.slow
def test_what_a_holder_of_a_long_name_reads_and_its_coordinator(
    client, sotto, monkeypatch, tmp_path_factory
):
    """After a run of three noised rounds; paths are copied, so each is one line."""
    # A socket's path must not be long.
    folder = tmp_path_factory.mktemp("w")
    holders = Holders.written(folder, NAMES)
    named = f"federation.clients={list(NAMES)}".replace("'", "")
    config = federation(folder, *NOISED, named, "name=a-federation-of-several-hospitals")
    run_id = hold(config, within(holders.handlers()))["run_id"]
    monkeypatch.chdir(folder)
    with Hub(path=Path("hub.sock"), clients=NAMES):
        status = ("federation", "status", "hub.sock", "--storage", "sqlite:///sotto.db")
        told = require_fitting(sotto, monkeypatch, *status)
        assert LONG in told and "in round 3" in told
    monkeypatch.chdir(folder / LONG)
    image = "images/test/circle/0.png"
    for words in (
        *("check client.yaml", "budget client.yaml", f"predict client.yaml RUN {image} {image}"),
        *("evaluate client.yaml RUN", "receipts verify client.yaml", "example", "check --help"),
    ):
        require_fitting(client, monkeypatch, *words.replace("RUN", run_id).split())
    file = folder / ("a-folder-with-a-long-name" * 4) / "file"
    file.parent.mkdir()
    monkeypatch.setenv("COLUMNS", "80")
    answer = client("receipts", "export", "client.yaml", str(file))
    assert [line for line in answer.out.splitlines() if str(file) in line], answer.out
    assert too_wide(answer.out.replace(str(file), "")) == []


def test_a_pipe_of_unknown_width_has_eighty_columns(narrow_environment, noised_run):
    report = ("report", "latest", "--storage", noised_run.storage.url)
    done = subprocess.run(
        [sys.executable, "-m", "platform.coordinator", *report],
        env=narrow_environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert too_wide(done.stdout) == []
    # All of it is used, so it was not narrower either.
    assert max(map(cell_len, done.stdout.splitlines())) > 72


# --- rounds, sizes and tables ---------------------------------------------------------------------

ROUND = {
    **{"round": 100, "cohort": 1000, "dropped": 123},
    "accuracy": {"mean": 1.0, "std": 0.123, "worst": 1.0},
    "epsilon": {"server": 1234.5, "peers": 1234.5, "observer": 1234.5},
    "signal_to_noise": {"low": 12.34, "high": 56.78},
    **{"bytes_up": 123_456_789, "bytes_down": 999, "seconds": 1234.5},
}


def test_a_round_of_large_numbers_fits():
    line = round_line(ROUND)
    assert line.split() == [
        *("100", "1000", "(123)", "100.0%", "12.3%", "100.0%", "1235/1235/1235", "12.3-56.8"),
        *("123M", "999", "1234"),
    ]
    assert len(line) <= 80
    assert all(len(one) <= 80 for one in heading(1e-05).split("\n"))
    # What few rounds have stands below them.
    more = round_line({**ROUND, "validation": {"mean": 0.5}, "phase": "collection"})
    first, second = more.split("\n")
    assert (first, second.strip()) == (line, "val 50.0% collection")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_960, "100 kB"), (999_499, "999 kB")),
        *((999_500, "1.0 MB"), (10**16, "10000 TB")),
    ],
)
def test_bytes_in_three_digits(value, shown):
    assert size(value) == shown


def printed(rows: list[tuple[str, ...]], columns: tuple[str, ...], width: int) -> list[str]:
    out = console()
    out.width = width
    with out.capture() as captured:
        out.print(table(None, columns, rows))
    return captured.get().splitlines()


def test_columns_side_by_side_while_there_is_room():
    assert printed([("x", 1.5), ("why", 20)], ("name", "number"), 80) == [
        "name  number",
        "────  ──────",
        "x        1.5",
        "why       20",
    ]


SENTENCE = "some words that say what is to be known of it, and more of them after these"


@pytest.mark.parametrize(
    ("row", "width", "shape"),
    [
        (("a", "b", "c", SENTENCE), 80, (0, 0)),
        (("a" * 30, "b" * 20, "c" * 20, "d" * 20), 80, (1, 0)),
        (("a" * 15, "b" * 15, "c" * 15, SENTENCE), 60, (0, 1)),
        (("a" * 30, "b" * 20, "c" * 20, SENTENCE), 60, (1, 1)),
        (("a" * 30, "b" * 30, "c" * 30, SENTENCE), 60, None),
        (("name", "h" * 56), 60, (0, 0)),
    ],
)
def test_the_shape_follows_from_the_room(row, width, shape):
    columns = ("one", "two", "three", "four")[: len(row)]
    found = shape_of((columns, row), width)
    assert (found and (found.above, found.below)) == shape
    lines = printed([row], columns, width)
    assert too_wide("\n".join(lines), width) == []
    assert set(" ".join(row).split()) <= set(" ".join(lines).split())


def test_a_word_longer_than_a_line_is_cut_and_nothing_is_lost():
    lines = printed([("name", "h" * 100)], ("what", "value"), 40)
    assert max(map(len, lines)) == 40 and "".join(lines).count("h") == 101


def test_wide_characters_count_as_they_are_shown():
    wide = "\N{CJK UNIFIED IDEOGRAPH-8BED}" * 3
    assert fitting((("name",), (wide,)), 10) == [6]
    lines = printed([(wide, "x")], ("name", "b"), 80)
    assert cell_len(lines[0]) == cell_len(lines[2]) == len("name    b")


# --- text and no orders ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \N{LATIN SMALL LETTER U WITH DIAERESIS} text", None),
        ("\x1b[2Jgone\x9b31m", r"\x1b[2Jgone\x9b31m"),
        ("two\nlines\ttab", r"two\nlines\ttab"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}exe", r"\u202eexe"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_what_is_no_text_is_escaped(text, shown):
    assert printable(text) == (shown or text)


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    kinds = {unicodedata.category(character) for character in printable(text)}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("error", [False, True])
def test_lines_and_cells_show_escapes(capsys, error):
    out = console(error=error)
    out.print("first\nsecond \x1b[31m")
    out.print(table("title \x1b[1m", ("a \x1b[1m",), [("cell \x1b]0;t\x07",)]))
    captured = capsys.readouterr()
    shown = captured.err if error else captured.out
    assert "\x1b" not in shown and "\x07" not in shown
    assert shown.startswith("first\nsecond \\x1b[31m\n")
    assert r"cell \x1b]0;t\x07" in shown
