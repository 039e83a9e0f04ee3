"""Pictures of every form: nothing on them is cut, and nothing needs colour to be told apart."""

from __future__ import annotations

import itertools
import math
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from platform.cli.datasets import HoldingsPicture
from platform.data.loading import Holding
from platform.pictures.canvas import COLOURS, Picture, drawable, encoded, look, width_of, wrapped
from platform.pictures.charts import (
    Bar,
    BarPicture,
    CellPicture,
    DotPicture,
    Line,
    LinePicture,
    Panel,
    Scale,
    Series,
    percent,
    point,
)
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


def lines_of(names: list[str], panels: int = 2) -> LinePicture:
    lines = tuple(
        Line(name, tuple(percent(x, 0.5 + 0.01 * index, 0.1) for x in (1, 2, 3)))
        for index, name in enumerate(names)
    )
    panel = Panel(names[0], Scale(names[0], "whole"), Scale(names[0], "percent"), lines)
    return LinePicture(name="curves", title=names[0], panels=(panel,) * panels, columns=4)


def bars_of(names: list[str]) -> BarPicture:
    bars = tuple(Bar(90.0, 1.0) for _ in names)
    return BarPicture(
        name="final",
        title=names[0],
        across=names[0],
        up=names[0],
        rows=tuple(names),
        series=(Series(names[0], bars), Series(f"{names[0]}2", (Bar(None), *bars[1:]))),
        absent=names[0][:40],
    )


def cells_of(names: list[str]) -> CellPicture:
    return CellPicture(
        name="experts",
        title=names[0],
        across=names[0],
        columns=("0", "1", "20"),
        rows=tuple(names),
        cells=tuple((Bar(60.0, 1.0), Bar(40.0), Bar(None)) for _ in names),
    )


def dots_of(names: list[str]) -> DotPicture:
    values = tuple((90.0, 90.0, 95.5) for _ in names)
    return DotPicture(
        name="clients", title=names[0], across=names[0], rows=tuple(names), values=values
    )


def holdings_of(names: list[str]) -> HoldingsPicture:
    counts = np.arange(len(names))
    held = [
        Holding(
            client=f"client-{index:05d}",
            is_new=index == 2,
            train=counts,
            validation=counts,
            test=counts,
            domains=counts,
        )
        for index in range(3)
    ]
    return HoldingsPicture(held=held, classes=names, title=names[0])


FORMS = (lines_of, bars_of, cells_of, dots_of, holdings_of)


@pytest.mark.slow
@pytest.mark.parametrize("make", FORMS)
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("name", NAMES, ids=str)
def test_nothing_that_is_written_is_cut(make, count: int, name: str):
    # One name cannot be had twice; where there are many, each is told apart at its end.
    names = [NAMES[name] + (f" {index}" if index else "") for index in range(count)]
    with warnings.catch_warnings():
        # Of a glyph that is missing, or a layout that did not fit.
        warnings.simplefilter("error")
        canvas = drawn(make(names))
    assert canvas.texts
    assert canvas.cut() == []


@pytest.mark.parametrize("make", [lines_of, bars_of, cells_of, dots_of])
def test_every_label_is_there_in_full(make):
    names = [f"{NAMES['long']}{index}" for index in range(12)]
    words = [re.sub(r"\s", "", text) for text in drawn(make(names)).words]
    for name in names:
        assert re.sub(r"\s", "", name) in words


def test_a_text_outside_of_the_canvas_is_found():
    class Spoilt(BarPicture):
        def figure(self):
            figure = super().figure()
            figure.text(0.97, 0.5, "far too long for this place")
            return figure

    plain = bars_of(["a", "b"])
    spoilt = Spoilt(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    assert drawn(spoilt).cut() == ["far too long for this place"]


def test_a_legend_lies_on_the_canvas_with_all_its_lines():
    canvas = drawn(lines_of([f"method {index}, mechanism upload_noise" for index in range(17)]))
    (legend,) = canvas.figure.legends
    place = legend.get_window_extent()
    inside = canvas.figure.bbox
    assert inside.x0 <= place.x0 and place.x1 <= inside.x1
    assert inside.y0 <= place.y0 and place.y1 <= inside.y1
    assert len(legend.get_texts()) == 17
    for axes in canvas.figure.axes:
        assert not place.overlaps(axes.get_window_extent())


def test_series_are_told_apart_without_colour():
    looks = [look(index) for index in range(36)]
    assert len({(one.mark, one.dashes) for one in looks}) == 36
    assert len({one.hatch for one in looks[:8]}) == 8


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear light.
BLIND = {
    "protan": "0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998",
    "deutan": "0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.01182 0.04294 0.968881",
    "tritan": "1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.3039",
}


@pytest.mark.parametrize("kind", BLIND)
def test_colours_differ_for_the_colour_blind(kind: str):
    linear = np.array([[((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(name)] for name in COLOURS])
    matrix = np.array(BLIND[kind].split(), float).reshape(3, 3)
    seen = np.clip(linear @ matrix.T, 0.0, 1.0) ** (1 / 2.4)
    nearest = min(float(np.abs(a - b).sum()) for a, b in itertools.combinations(seen, 2))
    assert nearest > 0.12


def test_bars_carry_their_numbers_also_where_they_are_equal():
    series = (Series("a", (Bar(97.70), Bar(97.74), Bar(12.0, 3.25), Bar(None))),)
    picture = BarPicture(
        name="n", title="t", across="x", up="", rows=("a", "b", "c", "d"), series=series
    )
    canvas = drawn(picture)
    for text in ("97.7", "12.0 ± 3.2", "not measured"):
        assert text in canvas.words
    assert canvas.words.count("97.7") == 2


INF = math.inf


def infinite(*xs: float) -> LinePicture:
    line = Line("a", tuple(point(x, 50.0) for x in xs))
    panel = Panel("", Scale("epsilon", "amount"), Scale("y", "percent"), (line,))
    return LinePicture(name="n", title="t", panels=(panel,), columns=1)


@pytest.mark.parametrize(
    "xs", [(1.0, 2.0, INF), (INF,), (0.01, 8.0, INF), (0.0, INF), (INF,) * 3], ids=str
)
def test_an_infinite_value_lies_beyond_all_others_and_is_named(xs: tuple[float, ...]):
    canvas = drawn(infinite(*xs))
    (axes,) = canvas.figure.axes
    ticks = dict(
        zip([t.get_text() for t in axes.get_xticklabels()], axes.get_xticks(), strict=True)
    )
    (beyond,) = [place for text, place in ticks.items() if text.startswith("∞")]
    assert all(x < beyond for x in xs if math.isfinite(x))
    assert axes.get_xlim()[0] < beyond < axes.get_xlim()[1]
    marked = [x for line in axes.lines for x in np.atleast_1d(line.get_xdata()) if x == beyond]
    assert len(marked) == sum(math.isinf(x) for x in xs)
    assert canvas.cut() == []


def test_what_is_finite_has_no_place_for_infinity():
    assert not [text for text in drawn(infinite(1.0, 2.0)).words if "∞" in text]


def test_ticks_of_values_do_not_overlap():
    values = (0.0, 0.001, 0.5, 0.501, 1.0)
    line = Line("a", tuple(point(x, 50.0) for x in values))
    panel = Panel("", Scale("x", "values"), Scale("y", "percent"), (line,))
    canvas = drawn(LinePicture(name="n", title="t", panels=(panel,), columns=1))
    (axes,) = canvas.figure.axes
    places = [t.get_window_extent() for t in axes.get_xticklabels() if t.get_text()]
    assert len(places) == 3
    assert not any(a.overlaps(b) for a, b in itertools.combinations(places, 2))


@pytest.mark.parametrize("make", FORMS)
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_equal_pictures_give_equal_bytes_with_their_source_and_no_date(make, suffix: str):
    one, two = (encoded(make(["a", "b"]), suffix, "run r-1") for _ in range(2))
    assert one == two
    assert encoded(make(["a", "c"]), suffix, "run r-1") != one or make is dots_of
    text = one.decode("latin-1") if suffix == ".svg" else texts_of(one)
    assert "run r-1" in text and "Sotto" in text
    assert not re.search(r"dc:date|\b20\d\d-\d\d", text)


def texts_of(png: bytes) -> str:
    """The text chunks of a PNG, whose checksums hold."""
    found, place = "", 8
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        data = png[place + 8 : place + 8 + length]
        assert zlib.crc32(kind + data) == struct.unpack(">I", png[place + 8 + length :][:4])[0]
        found += data.decode("utf-8", "replace") if kind in (b"tEXt", b"iTXt") else ""
        place += 12 + length
    return found


@pytest.mark.parametrize("setting", [{"font.size": 40.0}, {"text.parse_math": True}])
def test_settings_of_the_user_change_nothing(setting: dict[str, object]):
    import matplotlib as mpl

    picture: Picture = lines_of(["$a_b$"])
    expected = encoded(picture, ".svg")
    with mpl.rc_context(setting):
        assert encoded(picture, ".svg") == expected


def test_lines_are_broken_where_they_must_be_and_nothing_is_lost():
    text = NAMES["long"] + NAMES["without a space"]
    found = wrapped(text, 2.0)
    assert max(width_of(line) for line in found.split("\n")) <= 2.0
    assert re.sub(r"\s", "", found) == re.sub(r"\s", "", text)
    assert wrapped("a\nb", 2.0) == "a\nb"


def test_what_the_font_lacks_is_escaped():
    assert drawable("Ω客\x1b\U00020000") == "Ω\\u5ba2\\x1b\\U00020000"
