"""What lines of a picture are called: what sets them apart, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from platform.results.statistics import Label, short

MECHANISM: Final = "mechanism"
"""Of a section of privacy as a whole: what people call it by."""


def line_names(labels: Sequence[Label]) -> dict[Label, str]:
    """Return a name for each line: the method, and what differs of its values on the axes.

    A value that is a section as a whole, `{mechanism: upload_noise, ...}`, is named by its keys
    that differ, and by its mechanism alone where that tells the lines apart.
    """
    keys = list(dict.fromkeys(key for label in labels for key, _ in label.axes))
    texts = {key: _texts(key, [dict(label.axes).get(key) for label in labels]) for key in keys}
    named = {label: _name(label, texts) for label in labels}
    if len(set(named.values())) < len(set(labels)):
        return {label: str(label) for label in labels}
    return named


def _name(label: Label, texts: Mapping[str, Mapping[str, str]]) -> str:
    parts = [texts[key][value] for key, value in label.axes]
    return ", ".join([label.method, *filter(None, parts)])


def _texts(key: str, values: Sequence[str | None]) -> dict[str, str]:
    """Return what each value of an axis is called."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    sections = [_section(value) for value in known]
    plain = {value: f"{short(key)} {value}" for value in known}
    whole = [section for section in sections if section is not None]
    if len(whole) < len(known) or len(known) < 2:
        return plain
    differing = _differing(whole)
    by_mechanism = [section.get(MECHANISM) for section in whole]
    if len(set(map(repr, by_mechanism))) == len(known):
        differing = [MECHANISM]
    found = {
        value: ", ".join(f"{name} {section[name]}" for name in differing if name in section)
        for value, section in zip(known, whole, strict=True)
    }
    return found if len(set(found.values())) == len(known) else plain


def _differing(sections: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for section in sections for name in section)
    first = sorted(names, key=lambda name: name != MECHANISM)
    return [n for n in first if len({repr(section.get(n)) for section in sections}) > 1]


def _section(value: str) -> Mapping[str, Any] | None:
    if not value.startswith("{"):
        return None
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    is_section = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_section else None
