"""Plug-ins of a program: a data set, model, mechanism or method that no file or package offers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from methods.plugins import DOORS, FileInFolder, InProgram, Kind
from sotto.errors import invalid
from sotto.runs import refusing


def plugin(kind: Kind, name: str, value: Any) -> InProgram:
    """Return an object as a plug-in for `sotto.run(..., plugins=[...])`.

    Args:
        kind: `dataset`, `model`, `mechanism` or `method`.
        name: Its name in configurations and records.
        value: A module, its file, or any object, with what a plug-in of this kind has:
            `methods.plugins` lists it.

    Raises:
        Error: The kind is another, the name is no name, the file cannot be imported, or a member
            is missing.
    """
    kinds = [each for each in DOORS if each != "transport"]
    if kind not in kinds:
        raise invalid("kind", kind, f"{', '.join(kinds)}; a transport stands in a folder")
    if not name.isidentifier():
        raise invalid("name", name, "letters, digits and _")
    digest = ""
    if isinstance(value, str | Path):
        try:
            file = FileInFolder(name, Path(value), Path(value).read_bytes(), kind)
        except OSError:
            raise invalid("value", str(value), "a module, or its file") from None
        with refusing():
            value, digest = file.load(), file.digest
    missing = [member for member in DOORS[kind].members if not hasattr(value, member)]
    if missing:
        valid = f"an object with {' and '.join(DOORS[kind].members)}"
        raise invalid("value", f"{type(value).__name__} without {missing[0]}", valid)
    # A file's digest is that of a folder's file, so that runs of both are read with either.
    if not digest and inspect.ismodule(value) and value.__file__:
        digest = sha256(Path(value.__file__).read_bytes()).hexdigest()
    if digest:
        return InProgram(name, value, digest, kind)
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
