"""Plug-ins of a program: a data set, model, mechanism or method that no file or package offers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from methods.plugins import DOORS, InProgram, Kind
from sotto.errors import invalid


def plugin(kind: Kind, name: str, value: Any) -> InProgram:
    """Return an object as a plug-in for `sotto.run(..., plugins=[...])`.

    Args:
        kind: `dataset`, `model`, `mechanism` or `method`.
        name: Its name in configurations and records.
        value: A module, or any object, with what a plug-in of this kind has:
            `methods.plugins` lists it.

    Raises:
        Error: The kind is another, the name is no name, or the object lacks a member.
    """
    kinds = [each for each in DOORS if each != "transport"]
    if kind not in kinds:
        raise invalid("kind", kind, f"{', '.join(kinds)}; a transport stands in a folder")
    if not name.isidentifier():
        raise invalid("name", name, "letters, digits and _")
    missing = [member for member in DOORS[kind].members if not hasattr(value, member)]
    if missing:
        valid = f"an object with {' and '.join(DOORS[kind].members)}"
        raise invalid("value", f"{type(value).__name__} without {missing[0]}", valid)
    if inspect.ismodule(value) and value.__file__:
        # As a folder's file has it, so that runs of both are read with either.
        return InProgram(name, value, sha256(Path(value.__file__).read_bytes()).hexdigest(), kind)
    parts = [value] if inspect.ismodule(value) else [getattr(value, m) for m in DOORS[kind].members]
    told = "\n".join(line for part in parts for line in _told(part, depth=1))
    return InProgram(name, value, sha256(told.encode()).hexdigest(), kind)


def _told(value: object, depth: int) -> Iterator[str]:
    """Yield what tells a value from others: how it shows itself, its code, and its members."""
    yield re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    for each in (value, type(value)):
        with suppress(OSError, TypeError):
            yield inspect.getsource(each)  # type: ignore[arg-type]
    if depth and not inspect.ismodule(value):
        for name, member in sorted(getattr(value, "__dict__", {}).items()):
            yield name
            yield from _told(member, depth - 1)
