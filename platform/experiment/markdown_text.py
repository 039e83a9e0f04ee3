"""Names of people's own, such as folders' and files', within Markdown."""

from __future__ import annotations

import re
from typing import Final

# An underscore within a word is none of Markdown's; addresses become links by themselves.
_SPECIAL: Final = re.compile(
    r"[\\`*\[\]<>&|~!#@$^]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE
)


def escaped(text: str) -> str:
    """Return text as Markdown shows it: on one line, no part of it mark-up, HTML or a link."""
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return _SPECIAL.sub(r"\\\g<0>", shown)
