"""Write the pages that are built from code and configurations: `python -m docs.pages [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.pages import accountants, keys, methods, reproduce

PAGES = {
    "accountants.md": accountants.page,
    "keys.md": keys.page,
    "methods.md": methods.page,
    "reproduce.md": reproduce.page,
}
FOLDER = Path(__file__).resolve().parents[2] / "build" / "docs"
"""Git ignores it."""


def write(folder: Path) -> None:
    """Write all pages into a folder, which is made where it is missing."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
