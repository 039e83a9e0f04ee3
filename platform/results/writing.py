"""Pictures as files in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from platform.disk.files import write_bytes
from platform.pictures.canvas import SUFFIXES, Picture, encoded

__all__ = ["SUFFIXES", "Picture", "files_of", "write_pictures"]


def files_of(
    pictures: Iterable[Picture], folder: Path, suffixes: Sequence[str] = SUFFIXES
) -> list[tuple[Picture, Path]]:
    """Return which picture goes into which files of a folder."""
    return [(one, folder / f"{one.name}{suffix}") for one in pictures for suffix in suffixes]


def write_pictures(files: Iterable[tuple[Picture, Path]], source: str = "") -> list[Path]:
    """Write pictures; return the files.

    Raises:
        Unwritable: If one cannot be written; those before it are there.
    """
    # All are drawn before the first is written.
    drawn = [(path, encoded(picture, path.suffix, source)) for picture, path in files]
    for path, data in drawn:
        write_bytes(path, data)
    return [path for path, _ in drawn]
