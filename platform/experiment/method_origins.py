"""Which code a run's method is, where it comes from outside: recorded, and held to afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from methods import Registry
from platform.errors import ConfigError, RunStopped


def origin_document(registry: Registry, name: str) -> dict[str, str] | None:
    """Return kind, place and digest of a method's file for records; None for a packaged method.

    Raises:
        UnknownMethod: If there is none of this name.
        BrokenMethod: If its file cannot be read.
    """
    origin = registry.origin(name)
    return None if origin is None else asdict(origin)


def require_same_method(run_id: str, name: str, started: Any, registry: Registry) -> None:
    """Check, before any of its code runs, that a method is the one a run was started with.

    Args:
        run_id: The run.
        name: Its method.
        started: What the run's audit log says of the method's code, None for a packaged method.
        registry: The methods there are now.

    Raises:
        ConfigError: If the method is not here.
        RunStopped: If its code is another.
    """
    then = dict(started) if isinstance(started, Mapping) else None
    if name not in registry.available():
        where = "" if then is None else f", which was in the {then.get('kind')} {then.get('where')}"
        raise ConfigError(
            f"run {run_id}: its method {name!r}{where}, is not here; valid is that file's folder "
            "as --methods, or that package installed"
        )
    now = origin_document(registry, name)
    # A folder may have moved; a package's version speaks for its other files.
    if _code(now) != _code(then):
        raise RunStopped(
            f"run {run_id}: its method {name!r} is {_told(now)} now and was {_told(then)} when the "
            "run was started; put that file back or start a new run"
        )


def _code(document: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if document is None:
        return ()
    is_folder = document.get("kind") == "folder"
    where = None if is_folder else document.get("where")
    return document.get("kind"), where, document.get("sha256")


def _told(document: Mapping[str, Any] | None) -> str:
    if document is None:
        return "a packaged method"
    digest = str(document.get("sha256"))[:16]
    return f"of the {document.get('kind')} {document.get('where')} with SHA-256 {digest}..."
