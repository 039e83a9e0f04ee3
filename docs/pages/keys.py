"""The page of a configuration's keys, from the sections' own words."""

from __future__ import annotations

import os
from pathlib import Path

from docs.pages.markdown import table
from platform.config.run import Key, known_keys

BESIDE = Path(__file__).resolve().parents[1] / "configuration.md"


def page(folder: Path) -> str:
    """Return the whole page, as it is to lie in a folder."""
    rows = [("key", "values", "default", "meaning"), *map(_row, known_keys())]
    beside = f"Files, protocols, phases: [configuration.md]({os.path.relpath(BESIDE, folder)})."
    return f"# Keys of a configuration\n\n{beside}\n\n{table(rows)}"


def _row(key: Key) -> tuple[str, str, str, str]:
    default = key.default if key.default in ("required", "section") else f"`{key.default}`"
    return f"`{key.name}`", key.values, default, key.meaning
