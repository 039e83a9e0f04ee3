"""Pictures of every form: nothing on them is cut, and nothing needs colour to be told apart."""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from platform.cli.datasets import HoldingsPicture
from platform.data.loading import Holding
from platform.results import charts
from tests.trunk._pictures import drawn

NAMES = {
    "short": "a",
    "long": "a very long name of a setting with many words " * 8,
    "without a space": "W" * 300,
    "mathematics": r"$x_1^2$ and \frac{1}{2} $ of_all",
    "unicode": "émile Ωmega Жук 客户 😀 \u202egnorw\u202c \x1b[31m",
    "lines": "one\ntwo\n\nfour",
    "empty": "",
}


def lines_of(names: list[str], panels: int = 2) -> charts.LinePicture:
    lines = tuple(
        charts.Line(name, tuple(charts.percent(x, 0.5 + 0.01 * index, 0.1) for x in (1, 2, 3)))
        for index, name in enumerate(names)
    )
    panel = charts.Panel(
        names[0], charts.Scale(names[0], "whole"), charts.Scale(names[0], "percent"), lines
    )
    return charts.LinePicture(name="curves", title=names[0], panels=(panel,) * panels, columns=4)


def bars_of(names: list[str]) -> charts.BarPicture:
    first, bars = names[0], tuple(charts.Bar(90.0, 1.0) for _ in names)
    series = {first: bars, f"{first}2": (charts.Bar(None), *bars[1:])}
    named = {"title": first, "across": first, "up": first, "absent": first[:40]}
    return charts.BarPicture(name="final", rows=tuple(names), series=series, **named)


def dots_of(names: list[str]) -> charts.DotPicture:
    rows = dict.fromkeys(names, (90.0, 90.0, 95.5))
    return charts.DotPicture(name="clients", title=names[0], across=names[0], rows=rows)


def holdings_of(names: list[str]) -> HoldingsPicture:
    counts = np.arange(len(names))
    parts = dict.fromkeys(("train", "validation", "test", "domains"), counts)
    held = [Holding(client=f"client-{n:05d}", is_new=n == 2, **parts) for n in range(3)]
    return HoldingsPicture(held=held, classes=names, title=names[0])


FORMS = (lines_of, bars_of, dots_of, holdings_of)


@pytest.mark.slow
@pytest.mark.parametrize("make", FORMS)
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("name", NAMES, ids=str)
def test_nothing_that_is_written_is_cut(make, count, name):
    # One name cannot be had twice; where there are many, each is told apart at its end.
    names = [NAMES[name] + (f" {index}" if index else "") for index in range(count)]
    with warnings.catch_warnings():
        # Of a glyph that is missing, or a layout that did not fit.
        warnings.simplefilter("error")
        canvas = drawn(make(names))
    assert canvas.texts and canvas.cut() == []


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear light.
BLIND = {
    "protan": "0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998",
    "deutan": "0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.01182 0.04294 0.968881",
    "tritan": "1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.3039",
}


@pytest.mark.parametrize("kind", BLIND)
def test_colours_differ_for_the_colour_blind(kind):
    linear = np.array(
        [[((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(name)] for name in charts.COLOURS]
    )
    matrix = np.array(BLIND[kind].split(), float).reshape(3, 3)
    seen = np.clip(linear @ matrix.T, 0.0, 1.0) ** (1 / 2.4)
    nearest = min(float(np.abs(a - b).sum()) for a, b in itertools.combinations(seen, 2))
    assert nearest > 0.12


INF = math.inf


def test_intervals_at_one_epsilon_stand_beside_each_other():
    lines = [charts.Line(n, tuple(charts.percent(x, 0.5, 0.1) for x in (8.0, INF))) for n in "ab"]
    scales = charts.Scale("epsilon", "amount"), charts.Scale("y", "percent")
    panel = charts.Panel("", *scales, tuple(lines))
    canvas = drawn(charts.LinePicture(name="n", title="t", panels=(panel,), columns=1))
    bars = canvas.figure.axes[0].collections
    places = sorted(bar.get_transform().transform(bar.get_segments()[0])[0][0] for bar in bars)
    assert len(places) == 4 and min(b - a for a, b in itertools.pairwise(places)) > 5.0


@pytest.mark.parametrize("xs", [(1.0, 2.0), (0.01, 8.0, INF), (0.0, INF), (INF,) * 3], ids=str)
def test_an_infinite_value_lies_beyond_all_others_and_is_named(xs):
    line = charts.Line("a", tuple(charts.point(x, 50.0) for x in xs))
    scales = charts.Scale("epsilon", "amount"), charts.Scale("y", "percent")
    panel = charts.Panel("", *scales, (line,))
    canvas = drawn(charts.LinePicture(name="n", title="t", panels=(panel,), columns=1))
    (axes,) = canvas.figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    ticks = dict(zip(labels, axes.get_xticks(), strict=True))
    beyond = next((place for text, place in ticks.items() if text.startswith("∞")), None)
    assert (beyond is not None) == (INF in xs)
    if beyond is None:
        return
    assert all(x < beyond for x in xs if math.isfinite(x))
    assert axes.get_xlim()[0] < beyond < axes.get_xlim()[1]
    marked = [x for line in axes.lines for x in np.atleast_1d(line.get_xdata()) if x == beyond]
    assert len(marked) == sum(math.isinf(x) for x in xs)
    assert canvas.cut() == []


@pytest.mark.parametrize(
    ("make", "suffix"),
    [
        (lines_of, ".svg"),
        (lines_of, ".pdf"),
        *(pytest.param(make, ".svg", marks=pytest.mark.slow) for make in FORMS[1:]),
        *(pytest.param(make, ".png", marks=pytest.mark.slow) for make in FORMS),
    ],
)
def test_equal_pictures_give_equal_bytes_with_their_source_and_no_date(make, suffix):
    one, two = (charts.encoded(make(["a", "b"]), suffix, "run r-1") for _ in range(2))
    assert one == two
    assert charts.encoded(make(["a", "c"]), suffix, "run r-1") != one or make is dots_of
    text = str(Image.open(io.BytesIO(one)).text) if suffix == ".png" else one.decode("latin-1")
    assert "run r-1" in text and "Sotto" in text
    assert not re.search(r"dc:date|\b20\d\d-\d\d", text)


def test_lines_are_broken_where_they_must_be_and_nothing_is_lost():
    text = NAMES["long"] + NAMES["without a space"]
    found = charts.wrapped(text, 2.0)
    assert max(charts.width_of(line) for line in found.split("\n")) <= 2.0
    assert re.sub(r"\s", "", found) == re.sub(r"\s", "", text)
    assert charts.wrapped("a\nb", 2.0) == "a\nb"
    assert charts.drawable("Ω客\x1b\U00020000") == "Ω\\u5ba2\\x1b\\U00020000"
