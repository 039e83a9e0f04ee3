"""What is printed of names that anybody may have written: text, never orders to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.cli.output import console, printable, table

CASES = {
    "plain \N{LATIN SMALL LETTER U WITH DIAERESIS} text": None,
    "\x1b[2Jgone": r"\x1b[2Jgone",
    "two\nlines\ttab": r"two\nlines\ttab",
    "\x9b31m": r"\x9b31m",
    "\N{RIGHT-TO-LEFT OVERRIDE}exe": r"\u202eexe",
    "half \ud800": r"half \ud800",
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_no_text_is_escaped(text: str) -> None:
    assert printable(text) == (text if CASES[text] is None else CASES[text])


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    kinds = {unicodedata.category(character) for character in printable(text)}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("error", [False, True])
def test_lines_and_cells_show_escapes(capsys: pytest.CaptureFixture[str], error: bool) -> None:
    out = console(error=error)
    out.print("first\nsecond \x1b[31m")
    out.print(table("title \x1b[1m", ("a \x1b[1m",), [("cell \x1b]0;t\x07",)]))
    captured = capsys.readouterr()
    shown = captured.err if error else captured.out
    assert "\x1b" not in shown and "\x07" not in shown
    assert shown.startswith("first\nsecond \\x1b[31m\n")
    assert r"cell \x1b]0;t\x07" in shown
