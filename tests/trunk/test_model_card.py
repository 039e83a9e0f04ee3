"""A model card: the accuracy of the exported arrays, and names that are no mark-up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from safetensors.numpy import load_file

from methods import ClientView
from platform.experiment.caveats import escaped
from tests.trunk._runs import Command, Finished, opened


def card_of(sotto: Command, run: Finished, folder: Path, *arguments: str) -> str:
    out = ("--output", str(folder), "--storage", run.storage.url)
    answer = sotto("export", run.run_id, *arguments, *out)
    assert (answer.code, answer.err) == (0, "")
    return (folder / "MODEL_CARD.md").read_text()


def test_the_card_has_the_accuracy_of_the_file_beside_it(sotto, own_copy, tmp_path):
    card = card_of(sotto, own_copy, tmp_path)
    context = load_file(tmp_path / "prompts.safetensors")["shared.context"]
    view = ClientView({"context": context}, (), {})
    with opened(own_copy.storage.reopen(own_copy.run_id)) as simulation:
        learning, right = simulation.learning, []
        for test in learning.evaluation.own.values():
            batch = {name: array for name, array in test.arrays.items() if name != "labels"}
            logits = learning.method.predict(view, batch, learning.classes)
            right.append(float((logits.argmax(axis=1) == test.arrays["labels"]).mean()))
    assert f"{100 * np.mean(right):.0f}% mean over clients, {100 * min(right):.0f}% worst" in card
    assert "another number" in card
    exact = own_copy.summary["final"]["accuracy"]
    assert not [number for number in (exact["mean"], exact["worst"]) if str(number) in card]
    assert "not make it private" in card


def test_the_card_of_a_client_has_its_own_accuracy(sotto, own_copy, tmp_path):
    card = card_of(sotto, own_copy, tmp_path, "--client", "1")
    share = own_copy.summary["final"]["accuracy"]["per_client"][1]
    assert f"**Accuracy**: {100 * share:.0f}%" in card
    assert "another number" not in card


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
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def kinds(name: str) -> list[str]:
    """What a name makes of a card: a heading, an item and a row of a table."""
    items = f"- **Classes**: {name}, x\n- item {name}"
    card = f"# Card\n\n{items}\n\n| a | b |\n|---|---|\n| {name} | 1 |"
    return [token.type for token in parsed(card) if token.type not in PLAIN]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(name):
    assert kinds(escaped(name)) == kinds("plain")
    assert "\n" not in escaped(name) and "\x1b" not in escaped(name)
    # Without it, the same would be mark-up.
    assert name not in (HOSTILE[0], HOSTILE[1], HOSTILE[3]) or kinds(name) != kinds("plain")


@given(st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z", "C"])))
def test_any_text_stays_text(name):
    assert kinds(f"x{escaped(name)}") == kinds("plain")


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_what_is_read_is_what_was_written(name):
    tokens = parsed(f"x{escaped(name)}")
    shown = "".join(t.content for t in tokens if t.type in ("text", "text_special"))
    assert shown.strip() == f"x{' '.join(name.split())}".strip()
