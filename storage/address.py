"""Where the coordinator's database is, by its URL: an SQLite file.

A URL is kept with every run and is seen in lists of processes, so a message never repeats a
password that somebody wrote into one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from storage.errors import InvalidRecordError

PREFIX: Final = "sqlite:///"


def shown(url: str) -> str:
    """Return a URL as it may be said, also one that cannot be parsed: without a password."""
    if url.startswith(PREFIX):
        return url
    hidden = re.sub(r"//[^/]*:.*@", "//***@", url)
    return re.sub(r"(?i)(pass[a-z]*)=[^&]*", r"\1=***", hidden)


def file_of(url: str) -> Path:
    """Return the file that a URL names, there or not.

    Raises:
        InvalidRecordError: It names no SQLite file.
    """
    name = url.removeprefix(PREFIX)
    if name in (url, "", ":memory:") or "?" in name:
        raise InvalidRecordError(
            f"storage.url: {shown(url)!r} is not valid; it must be {PREFIX} and a file's path, "
            "such as sqlite:///runs/sotto.db"
        )
    return Path(name)
