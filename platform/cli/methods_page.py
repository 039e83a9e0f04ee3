"""`methods --page`: all that the methods say of themselves, as one page of Markdown."""

from __future__ import annotations

from pathlib import Path


def print_page(folder: Path | None) -> None:
    """Print the page."""
