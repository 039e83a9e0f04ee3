"""What people call their folders does not become mark-up; read by a parser of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from platform.experiment.caveats import escaped

PLAIN = {"text", "inline", "softbreak", "text_special"}
HOSTILE = (
    "<script>alert(1)</script>",
    "![x](https://example.org/a.png)",
    "[click](javascript:alert(1))",
    "a | b\n|---|---|\n| c | d |",
    "\n\n# Accuracy: 100%\n\n- **Method**: another",
    "`code` **bold** __bold__ _x_ ~~gone~~ &lt;b&gt; &#60;",
    "https://example.org www.example.org someone@example.org",
    "\\`\\*\\\\",
    "a\u2028b\x1b[31mred\x07",
)


def parsed(text: str) -> list[Token]:
    """The tokens of GitHub's dialect, those within lines too."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def words(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type in ("text", "text_special"):
            yield token.content


def kinds(name: str) -> list[str]:
    """What a name makes of a card: a heading, an item and a row of a table."""
    card = (
        f"# Card\n\n- **Classes**: {name}, x\n- item {name}\n\n| a | b |\n|---|---|\n| {name} | 1 |"
    )
    return [token.type for token in parsed(card) if token.type not in PLAIN]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_text(name: str) -> None:
    assert kinds(escaped(name)) == kinds("plain")
    assert "\n" not in escaped(name) and "\x1b" not in escaped(name)


@pytest.mark.parametrize("name", (HOSTILE[0], HOSTILE[1], HOSTILE[3]))
def test_without_it_the_same_would_be_mark_up(name: str) -> None:
    assert kinds(name) != kinds("plain")


@given(st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z", "C"])))
def test_any_text_stays_text(name: str) -> None:
    assert kinds(f"x{escaped(name)}") == kinds("plain")


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_what_is_read_is_what_was_written(name: str) -> None:
    shown = "".join(words(parsed(f"x{escaped(name)}")))
    assert shown.strip() == f"x{' '.join(name.split())}".strip()


def test_plain_names_look_as_they_are() -> None:
    assert escaped("golden retriever, base_to_novel: 8.00 (n=3) - 50%") == (
        "golden retriever, base_to_novel: 8.00 (n=3) - 50%"
    )
