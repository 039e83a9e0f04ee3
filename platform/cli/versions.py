"""`--version`: which Sotto answers, and from where."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""What holds the packages: a checkout, or a folder of installed packages."""


def version_text(root: Path = ROOT) -> str:
    """Return the version in one line, and whether it is a checkout.

    Args:
        root: The folder that holds the packages.
    """
    from platform.experiment.environment import checkout_commit, sotto_version

    declared = _declared(root)
    if declared is None:
        return f"sotto {sotto_version() or 'of unknown version'}, installed in {root}"
    commit = checkout_commit(root)
    known = "" if commit is None else f" at commit {commit[:12]}"
    return f"sotto {declared}, a checkout in {root}{known}"


def _declared(root: Path) -> str | None:
    """Return a checkout's own version, as what is installed may be another; None of no checkout."""
    from platform.experiment.environment import OWN

    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return str(project["version"]) if project.get("name") == OWN else None
