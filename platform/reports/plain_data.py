"""A report as plain data, for JSON: the same blocks, their numbers as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platform.reports.blocks import (
    Basis,
    Block,
    Bullets,
    Facts,
    Figure,
    Paragraph,
    Piece,
    Section,
    Table,
    Words,
    text_of,
)
from platform.reports.report import SCHEMA_VERSION, Report


def plain_data(report: Report) -> dict[str, Any]:
    """Return a report as plain data, warnings first; infinity as "inf"."""
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return {
        "warnings": list(report.warnings),
        "schema_version": SCHEMA_VERSION,
        "run_id": report.run_id,
        "title": report.title,
        "lead": _block(report.lead, numbers),
        "right_guesses_of_100_at_most": {
            name: None if figure is None else figure.value for name, figure in report.odds
        },
        "sections": [_section(section, numbers) for section in report.sections],
        "rests_on": [_basis(basis, number) for basis, number in numbers.items()],
    }


def _section(section: Section, numbers: Mapping[Basis, int]) -> dict[str, Any]:
    blocks = [_block(block, numbers) for block in section.blocks]
    return {"anchor": section.anchor, "title": section.title, "blocks": blocks}


def _block(block: Block, numbers: Mapping[Basis, int]) -> dict[str, Any]:
    match block:
        case Paragraph():
            return {"kind": "paragraph", "text": _words(block.words, numbers)}
        case Bullets():
            return {"kind": "list", "items": [_words(item, numbers) for item in block.items]}
        case Facts():
            rows = [{"term": term, "is": _words(line, numbers)} for term, line in block.rows]
            return {"kind": "facts", "rows": rows}
        case Table():
            cells = [[_words(cell, numbers) for cell in row] for row in block.rows]
            head = {"caption": block.caption, "columns": list(block.columns)}
            return {"kind": "table", **head, "rows": cells, "anchors": list(block.anchors)}
        case _:
            lines = [{"label": one.label, "points": list(one.points)} for one in block.lines]
            return {"kind": "plot", "title": block.title, "says": block.says, "lines": lines}


def _words(line: Words, numbers: Mapping[Basis, int]) -> dict[str, Any] | str:
    """Return plain text, and beside it the numbers in it where there are any."""
    figures = [_figure(piece, numbers) for piece in line if isinstance(piece, Figure)]
    return {"text": text_of(line), "numbers": figures} if figures else text_of(line)


def _figure(piece: Piece, numbers: Mapping[Basis, int]) -> dict[str, Any]:
    if not isinstance(piece, Figure):
        raise TypeError(f"a {type(piece).__name__} is no figure")
    return {"text": piece.text, "value": piece.value, "rests_on": numbers[piece.basis]}


def _basis(basis: Basis, number: int) -> dict[str, Any]:
    return {
        "number": number,
        "what": basis.what,
        "run": basis.run_id or None,
        "rows": [
            {"round": number_, "attempt": attempt, "channel": channel}
            for number_, attempt, channel in basis.places
        ],
        "pseudonyms": None if basis.pseudonyms is None else list(basis.pseudonyms),
        "audit_entries": list(basis.entries),
        "command": basis.check or None,
    }
