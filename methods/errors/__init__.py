"""Errors of the methods package.

    MethodError
      UnknownMethod        a method's name is not in the registry
      BrokenPlugin         a plug-in cannot be imported or used, or takes another's name
      UpdateSpecMismatch   an array differs from the spec that announced it
      BackboneError        the frozen CLIP model cannot be loaded or used as asked

Messages are one plain sentence that names the field, the value and the valid values.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MethodError(Exception):
    """Root of all errors that this package raises on purpose."""


class UnknownMethod(MethodError):
    """The named method is not in the registry."""


class BrokenPlugin(MethodError):
    """A plug-in, code from outside this repository, cannot be used."""


class UpdateSpecMismatch(MethodError):
    """An array's name, shape or dtype differs from its `TensorSpec`."""


class BackboneError(MethodError):
    """The frozen CLIP model cannot be loaded, or was asked for what it cannot do."""


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return a question after the valid name that is most like this one; empty if none is."""
    found = get_close_matches(str(name).casefold(), valid, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def unknown(field: str, name: object, valid: Iterable[str]) -> str:
    """Return the sentence that refuses a name that is not one of the valid ones."""
    names = tuple(valid)
    return f"{field}: {name!r} is unknown{nearest(name, names)}; valid: {', '.join(names)}"
