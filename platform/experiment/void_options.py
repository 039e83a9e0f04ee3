"""Options of methods that do nothing in a run as it is configured, by what each method declares.

They are said before the first round and not refused: a sweep, an override or a preset leaves them
behind legitimately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_type_hints

from methods import CountsUpTo, CountsWith
from platform.config import RunConfig


def marks_of(kind: type[Any]) -> Iterator[tuple[str, object]]:
    """Yield the name of every option of a `Config` with each mark that it has."""
    for key, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            yield key, mark


def void_options(config: RunConfig, options: Any, section: str = "method") -> Iterator[str]:
    """Yield one sentence for each option that does nothing, or is more than the run has use for.

    Args:
        config: The run's.
        options: The method's own `Config`.
        section: Where the configuration has them.
    """
    said: set[str] = set()
    for key, mark in marks_of(type(options)):
        where, value = f"{section}.{key}", getattr(options, key)
        if isinstance(mark, CountsUpTo):
            yield from _beyond(config, value, mark, where)
        if isinstance(mark, CountsWith) and key not in said and _is_set(options, key):
            named, other = _other(config, options, mark, section)
            if not mark.holds(other):
                said.add(key)
                needs = f"{named} = {other}; it takes {mark.wanted}"
                yield f"{where}: {value} does nothing with {needs}"
    for field in dataclasses.fields(options):
        if dataclasses.is_dataclass(nested := getattr(options, field.name)):
            yield from void_options(config, nested, f"{section}.{field.name}")


def _beyond(config: RunConfig, value: Any, mark: CountsUpTo, where: str) -> Iterator[str]:
    most = _of_run(config, mark.key)
    if value is not None and value > most:
        yield (
            f"{where}: {value} is more than {mark.key} = {most}, so {mark.so}; it takes {most} or "
            "less"
        )


def _other(config: RunConfig, options: Any, mark: CountsWith, section: str) -> tuple[str, Any]:
    """Return what an option counts with, as the configuration calls it, and its value."""
    if "." in mark.option:
        return mark.option, _of_run(config, mark.option)
    return f"{section}.{mark.option}", getattr(options, mark.option)


def _is_set(options: Any, key: str) -> bool:
    """Return whether an option is not at its default."""
    (field,) = (field for field in dataclasses.fields(options) if field.name == key)
    return bool(getattr(options, key) != field.default)


def _of_run(config: RunConfig, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found
