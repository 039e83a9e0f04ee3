"""Backing up and restoring a folder's records: whole or not at all, and never over anything.

What is not finished lies in a folder of its own beside the target, under a name that nobody takes
for it, and the next one that is made there removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from platform.disk.archives import Archive, Manifest, opened_archive, write_archive
from platform.disk.files import make_folder, sync_folder
from platform.errors import ConfigError
from storage import StorageFull
from storage.files import alone_in

Build = Callable[[Path], tuple[Manifest, Mapping[str, Path]]]
MayHold = Callable[[str], bool]


def make_backup(file: Path, build: Build, may_hold: MayHold) -> Manifest:
    """Write a backup and look at it once more before it gets its name.

    Args:
        file: The backup; nothing may be there.
        build: Fills an empty folder with copies that it has examined; returns what is to be said of
            them, and which is which member.
        may_hold: Whether a member may have this name.

    Raises:
        ConfigError: If the file is there.
        StorageFull: If it cannot be written; nothing is left of it.
    """
    with _written_to(file), _alone_beside(file):
        if file.exists() or file.is_symlink():
            raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
        with _unfinished(file) as folder:
            manifest, members = build(folder)
            archive = folder / "archive"
            manifest = write_archive(archive, manifest, members)
            with opened_archive(archive, manifest.kind, may_hold):
                archive.rename(file)
            sync_folder(file.parent)
    return manifest


def restore_backup(
    file: Path,
    folder: Path,
    *,
    kind: str,
    lay_out: Callable[[Archive, Path], None],
    may_hold: MayHold,
) -> Manifest:
    """Bring back what a backup holds, in a folder that appears when all of it is there.

    Args:
        file: The backup.
        folder: What becomes of it; it may be there if it is empty.
        kind: What the backup must be of.
        lay_out: Fills an empty folder from an archive, and examines what it wrote.
        may_hold: Whether a member may have this name.

    Raises:
        ConfigError: If the folder holds anything, or the backup is none that is whole.
        StorageFull: If it cannot be written; nothing is left of it.
    """
    folder = folder.absolute()
    with opened_archive(file, kind, may_hold) as archive:
        with _written_to(folder), _alone_beside(folder):
            _require_room(folder)
            with _unfinished(folder) as place:
                whole = place / "whole"
                make_folder(whole)
                lay_out(archive, whole)
                _sync(whole)
                whole.rename(folder)
                sync_folder(folder.parent)
        return archive.manifest


def _require_room(folder: Path) -> None:
    is_link, is_here = folder.is_symlink(), folder == Path.cwd()
    if is_link or is_here or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(
            f"--storage: {str(folder)!r} is there, and nothing is restored over anything; valid is "
            "a folder that is empty or missing"
        )


def _sync(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)


@contextmanager
def _alone_beside(target: Path) -> Iterator[None]:
    make_folder(target.absolute().parent)
    with alone_in(target.absolute().parent):
        yield


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Return an empty folder for what may become the target; it is gone after the block."""
    folder = target.with_name(f".{target.name}.part")
    # Of a process that was killed in here.
    _remove(folder)
    make_folder(folder)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def _written_to(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # By its name, and without what was to be written.
        raise StorageFull(f"{str(target)!r} cannot be written: {error.strerror}") from error
