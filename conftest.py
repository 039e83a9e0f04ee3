"""Puts this repository's `platform` in place before any test module is collected.

Under bare `pytest` the folder of the `pytest` script comes first on the path, and pytest itself
has already imported the standard library's `platform`. Our package is a superset of it, so the
swap is safe for whoever holds the old module. Nothing here is a fixture: those live beside the
tests, in `tests/` and in `platform/contract/`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# Of both folders of tests, so they are named above them.
pytest_plugins = ("tests._shards", "tests._watching")


def _is_ours() -> bool:
    """Whether the `platform` that is loaded now is this repository's package."""
    paths = getattr(sys.modules.get("platform"), "__path__", ())
    return any(Path(path).resolve() == ROOT / "platform" for path in paths)


def _swap_platform() -> None:
    """Imports this repository's `platform` over the one that is loaded."""
    if _is_ours():
        return
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    sys.modules.pop("platform", None)
    importlib.import_module("platform")
    if not _is_ours():
        raise ImportError(f"`platform` should come from {ROOT}, but {sys.modules['platform']} won")


_swap_platform()
