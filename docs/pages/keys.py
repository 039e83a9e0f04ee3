"""Build the page of all keys of a configuration from the text of their sections."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.pages.markdown import begun
from platform.config.run import Key, known_keys

BESIDE = Path(__file__).resolve().parents[1] / "configuration.md"


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    return "\n".join(
        (
            begun(
                "Keys of a configuration", BESIDE, "explains files, protocols and phases.", folder
            ),
            *_sections(known_keys()),
        )
    )


def _sections(keys: Sequence[Key]) -> Iterator[str]:
    """Yield a heading for each section and a definition for each of its keys."""
    first = [key.name.partition(".")[0] for key in keys]
    with_keys = {name for name, key in zip(first, keys, strict=True) if name != key.name}
    titles = [name if name in with_keys else "The run" for name in first]
    for title, found in itertools.groupby(zip(titles, keys, strict=True), lambda pair: pair[0]):
        yield f"## {title}\n"
        yield from (_definition(key) for _, key in found)


def _definition(key: Key) -> str:
    """Return a key as a definition list: the name, then values, default and meaning below it."""
    words = {"required": "required", "section": "by default a section"}
    default = words.get(key.default, f"by default `{key.default}`")
    return f"`{key.name}`\n: {key.meaning}\n\n  *{key.values}; {default}*\n"
