"""A notebook as a page: words, code, and what it printed when it was last run."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from docs.pages.markdown import fenced


def page(path: Path, folder: Path) -> str:
    """Return a notebook's page.

    Args:
        path: The notebook.
        folder: Where the page will lie, and where its pictures are written.
    """
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(
        text
        for number, cell in enumerate(cells)
        for text in _cell(cell, folder / f"{path.stem}-{number}")
    )


def _cell(cell: NotebookNode, picture: Path) -> Iterator[str]:
    if cell.cell_type != "code":
        yield f"{cell.source}\n"
        return
    if cell.source.strip():
        yield fenced(cell.source, "python")
    for number, output in enumerate(cell.outputs):
        yield from _output(output, picture.with_name(f"{picture.name}-{number}.png"))


def _output(output: NotebookNode, picture: Path) -> Iterator[str]:
    if output.output_type == "stream":
        yield fenced(output.text, "text")
        return
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        yield f"![{data.get('text/plain', 'A picture')}]({picture.name})\n"
    elif "text/plain" in data:
        yield fenced(data["text/plain"], "text")
