"""What people read fits where they read it, and is text: never cut, never orders to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from platform.cli.output import console, printable, table


def test_a_report_fits_eighty_columns_and_no_word_of_it_is_cut(sotto, noised_run, monkeypatch):
    place = ("--storage", noised_run.storage.url)
    wide = {one: sotto(one, "latest", "--all", *place).out for one in ("report", "budget")}
    monkeypatch.setenv("COLUMNS", "80")
    for command, text in wide.items():
        narrow = sotto(command, "latest", "--all", *place).out
        assert max(map(cell_len, narrow.splitlines())) <= 80
        # Numbers are never cut, and ages differ.
        words = [word for word in narrow.split() if not set(word) <= set("─0123456789")]
        assert words and set(words) <= set(text.split())


def test_a_word_longer_than_a_line_is_cut_and_nothing_is_lost():
    out = console()
    out.width = 40
    with out.capture() as captured:
        out.print(table(None, ("what", "value"), [("name", "h" * 100)]))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) == 40 and "".join(lines).count("h") == 101


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
