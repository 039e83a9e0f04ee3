r"""Sheets as HTML: no script or style in it, nothing fetched from elsewhere, all text escaped.

The templates know sheets, not runs. Undefined names in them are errors. Whatever is put into them
is escaped, and what a reader could not see, or what would turn the direction of writing, is shown
as an escape such as `\x1b`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from platform.errors import printable
from platform.page.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, drawing
from platform.page.sheets import Cell, Plot, Sheet

TEMPLATES: Final = Path(__file__).parent / "templates"
STATIC: Final = Path(__file__).parent / "static"
FRAME: Final = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "bottom": HEIGHT - BOTTOM,
}


class Pages:
    """Writes pages."""

    def __init__(self, *, has_login: bool) -> None:
        """Read the templates; `has_login` says whether one can log out again."""
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.tests["cell"] = _is_cell
        self._environment.tests["plot"] = _is_plot
        self._environment.globals.update(drawing=drawing, frame=FRAME, has_login=has_login)

    def sheet(self, sheet: Sheet, *, here: str, stamp: str = "", verifies: bool = False) -> str:
        """Return a sheet as a whole document.

        Args:
            sheet: What it says.
            here: The path of the page that it is.
            stamp: What the records' was before they were read.
            verifies: Whether it has the button that checks all records.
        """
        template = self._environment.get_template("sheet.html.jinja")
        return template.render(sheet=sheet, here=here, stamp=stamp, verifies=verifies)

    def login(self, *, was_wrong: bool) -> str:
        """Return the page that asks for the token."""
        return self._environment.get_template("login.html.jinja").render(was_wrong=was_wrong)


def _shown(value: Any) -> Any:
    """Return a text that can only be read; markup of the templates' own as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _is_cell(value: Any) -> bool:
    return isinstance(value, Cell)


def _is_plot(value: Any) -> bool:
    return isinstance(value, Plot)
