"""Makes a command find its own packages, whatever lies in the folder that it is called from.

`python -m` puts the current folder first on the path. Python would then import a folder `storage/`,
`methods/` or `privacy/` there, or a file named like a library, in place of the program's own. So
the command does not search that folder, unless the program itself lies there, as in a checkout. If
another package still comes first, for example by `PYTHONPATH`, the command refuses in one sentence.

Imports the standard library only: it runs before anything else.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder

LEAVES = ("methods", "privacy", "storage")
BAD_INPUT = 2
FIELD = "PYTHONPATH"


def find_own_packages() -> None:
    """Take the current folder off the path, and require that our packages come first on it.

    Worker processes inherit the path, and the environment tells them not to add the folder again.
    The function exits with code 2 and one sentence if another package comes first.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and sys.path and not _is_same(sys.path[0], home):
        del sys.path[0]
        os.environ["PYTHONSAFEPATH"] = "1"
    if (found := shadowed(home)) is not None:
        name, other = found
        own = os.path.join(home, name)
        sentence = (
            f"{FIELD}: {other!r} is found before {own!r}, which this program is made of; "
            f"valid: a path on which no other {name!r} comes first"
        )
        text = f"error: {sentence}"
        if "--json" in sys.argv[1:]:
            document = {"error": sentence, "kind": "config_error", "exit_code": BAD_INPUT}
            text = json.dumps({**document, "field": FIELD, "run_id": None, "command": None})
        sys.stderr.write(f"{text}\n")
        sys.exit(BAD_INPUT)


def shadowed(home: str) -> tuple[str, str] | None:
    """Return a package of ours before which another one is found, and where that one is."""
    for name in LEAVES:
        found = _place(name)
        if found is not None and not _is_same(found, os.path.join(home, name)):
            return name, found
    return None


def _place(name: str) -> str | None:
    """Return where a package would be imported from; None where an import hook finds it."""
    spec = PathFinder.find_spec(name)
    if spec is None:
        return None
    # A package's folder, with or without `__init__.py`; else the module's file.
    folders = list(spec.submodule_search_locations or ())
    return folders[0] if folders else spec.origin


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
