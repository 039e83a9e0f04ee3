"""What is written on a picture, and where: measured by matplotlib, as it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from platform.results.charts import STYLE, Picture


@dataclass(frozen=True)
class Written:
    """A text on a canvas: what it says and where, in pixels."""

    text: str
    place: Bbox


@dataclass(frozen=True)
class Canvas:
    figure: Figure
    texts: tuple[Written, ...]

    @property
    def words(self) -> list[str]:
        return [written.text for written in self.texts]

    def cut(self) -> list[str]:
        """Texts that do not lie inside the canvas, by more than rounding."""
        inside = self.figure.bbox.padded(1.0)
        return [
            one.text
            for one in self.texts
            if not (inside.contains(*one.place.min) and inside.contains(*one.place.max))
        ]


def drawn(picture: Picture) -> Canvas:
    """A picture drawn with each text that reaches the renderer noted."""
    found: list[Text] = []
    draw = Text.draw

    def noting(self: Text, renderer: Any, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found.append(self)
        draw(self, renderer, *args, **kwargs)

    with mpl.rc_context(STYLE), pytest.MonkeyPatch.context() as patch:
        figure = picture.figure()
        canvas = FigureCanvasAgg(figure)
        patch.setattr(Text, "draw", noting)
        canvas.draw()
        renderer = canvas.get_renderer()
        texts = dict.fromkeys(found)
        written = tuple(Written(t.get_text(), t.get_window_extent(renderer)) for t in texts)
    return Canvas(figure, written)
