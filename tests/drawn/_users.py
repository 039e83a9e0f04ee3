"""Tests as a user who may not read everything, also where the superuser runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
# The group stays the superuser's.
PASS = 0o011


@contextmanager
def readable_for_nobody(folder: Path) -> Iterator[None]:
    """Gives up the superuser's rights for a while; all folders above stay open to look through."""
    user = os.geteuid()
    if user != 0:
        yield
        return
    closed = [place for place in (folder, *folder.parents) if place.stat().st_mode & PASS != PASS]
    modes = [place.stat().st_mode for place in closed]
    try:
        for place, mode in zip(closed, modes, strict=True):
            place.chmod(mode | PASS)
        os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        for place, mode in zip(closed, modes, strict=True):
            place.chmod(mode)


def open_to_all(folder: Path) -> None:
    """Lets every user read all that lies below, whatever the mask of this one."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
