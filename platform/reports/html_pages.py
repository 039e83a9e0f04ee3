"""A report as one HTML file: no script, nothing fetched, all text escaped, readable by all.

The template knows blocks, not runs. Undefined names in it are errors, and whatever is put into it
is escaped: names, sentences and details may have been written by anybody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from platform.reports.blocks import Figure, Link
from platform.reports.evidence import proof_anchor
from platform.reports.plots import HEIGHT, LEFT, RIGHT, TOP, WIDTH, canvas
from platform.reports.report import Report

TEMPLATES: Final = Path(__file__).parent / "templates"


def html_page(report: Report) -> str:
    """Return a report as a whole HTML document."""
    template = _environment().get_template("report.html.jinja")
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return template.render(
        report=report,
        style=(TEMPLATES / "report.css").read_text("utf-8"),
        number_of=lambda figure: numbers[figure.basis],
        proof_anchor=proof_anchor,
        canvas=canvas,
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
    )


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.tests["figure"] = _is_figure
    found.tests["link"] = _is_link
    found.filters["kind"] = _kind
    return found


def _is_figure(value: Any) -> bool:
    return isinstance(value, Figure)


def _is_link(value: Any) -> bool:
    return isinstance(value, Link)


def _kind(value: Any) -> str:
    return type(value).__name__
