"""Backups as single files: a zip whose last bytes are the digest of all before them.

Members are stored uncompressed. So reading needs no more space than the file, and any zip tool can
extract a member without Sotto. The caller that opens an archive says which names its members may
have, and never uses a name as a path.

A backup or a restoration is complete or absent, and never overwrites anything. Unfinished work lies
in a folder of its own beside the target, under another name than the target, and the next backup or
restoration there removes it.

Source: APPNOTE.TXT of PKWARE, 4.3.16: an archive ends with a comment, of any bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from platform.disk.files import make_folder, sync_folder, written
from platform.errors import ConfigError
from storage import StorageFull
from storage.files import alone_in

FORMAT: Final = "sotto-backup"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
_DIGITS: Final = 64
_MOST_MANIFEST: Final = 1 << 26
_MOMENT: Final = (1980, 1, 1, 0, 0, 0)
_CHUNK: Final = 1 << 20
_DAMAGED: Final = (
    *(zipfile.BadZipFile, NotImplementedError, EOFError, struct.error, RuntimeError),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError),
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest in an archive.

    Attributes:
        kind: ``coordinator`` or ``client``.
        schema: Version of the schema of its first database.
        made: When it was made, ISO 8601 in UTC.
        facts: Further facts about its contents, as plain JSON.
        digests: SHA-256 of each member by its name.
    """

    kind: str
    schema: str
    made: str
    facts: Mapping[str, Any]
    digests: Mapping[str, str] = field(default_factory=dict)


def write_archive(path: Path, manifest: Manifest, members: Mapping[str, Path]) -> Manifest:
    """Write a new archive, and return its manifest, to which it adds the members' digests."""
    digests = {name: _file_digest(file) for name, file in sorted(members.items())}
    full = replace(manifest, digests=digests)
    head = {"format": FORMAT, "version": VERSION, **asdict(full)}
    with written(path) as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_info(MANIFEST), json.dumps(head, indent=1, sort_keys=True))
            for name, file in sorted(members.items()):
                info = _info(name)
                info.file_size = file.stat().st_size
                with file.open("rb") as source, archive.open(info, "w", force_zip64=True) as to:
                    shutil.copyfileobj(source, to, _CHUNK)
            archive.comment = b"0" * _DIGITS
        out.flush()
        digest = _file_digest(path, leave=_DIGITS)
        out.seek(-_DIGITS, os.SEEK_END)
        out.write(digest.encode("ascii"))
    return full


@dataclass(frozen=True)
class Archive:
    """An archive whose digest, names and manifest hold."""

    path: Path
    manifest: Manifest
    _zip: zipfile.ZipFile

    def extract(self, name: str, target: Path) -> None:
        """Write a member into a new file; `ConfigError` if its digest is not the manifest's."""
        found = hashlib.sha256()
        try:
            with self._zip.open(name) as source, written(target) as out:
                while block := source.read(_CHUNK):
                    found.update(block)
                    out.write(block)
        except _DAMAGED as error:
            raise _damaged(self.path, f"{name} cannot be read") from error
        if found.hexdigest() != self.manifest.digests[name]:
            raise _damaged(self.path, f"{name} is not what its manifest says")


@contextmanager
def opened_archive(path: Path, kind: str, may_hold: Callable[[str], bool]) -> Iterator[Archive]:
    """Return an archive after checking it from its first byte to its last, or `ConfigError`.

    `may_hold` says whether a member may have a name.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"FILE: {str(path)!r} cannot be read ({error.strerror}); "
            "valid: a file that `backup` made"
        ) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _DIGITS))
        if file.read().decode("ascii", "replace") != _file_digest(path, leave=_DIGITS):
            raise _damaged(path, "its digest is not the one that it ends with")
        file.seek(0)
        try:
            archive = zipfile.ZipFile(file)
            with archive:
                manifest = _read_manifest(path, archive, kind)
                for info in archive.infolist():
                    is_plain = info.compress_type == zipfile.ZIP_STORED
                    if info.filename != MANIFEST and not (is_plain and may_hold(info.filename)):
                        raise _damaged(
                            path, f"it holds {info.filename!r}, which does not belong in it"
                        )
                if sorted(archive.namelist()) != sorted([MANIFEST, *manifest.digests]):
                    raise _damaged(path, "its members are not those that its manifest names")
        except _DAMAGED as error:
            raise _damaged(path, "it does not hold together") from error
        with zipfile.ZipFile(file) as archive:
            yield Archive(path, manifest, archive)


def _read_manifest(path: Path, archive: zipfile.ZipFile, kind: str) -> Manifest:
    if archive.getinfo(MANIFEST).file_size > _MOST_MANIFEST:
        raise _damaged(path, "its manifest is too long")
    document = json.loads(archive.read(MANIFEST))
    if document["format"] != FORMAT:
        raise _damaged(path, "it is no backup of Sotto")
    if document["version"] != VERSION:
        raise ConfigError(
            f"FILE: {str(path)!r} is a backup of version {document['version']!r}; valid: {VERSION}"
        )
    if document["kind"] != kind:
        raise ConfigError(
            f"FILE: {str(path)!r} is a backup of a {document['kind']!r}; valid: {kind!r}"
        )
    del document["format"], document["version"]
    manifest = Manifest(**document)
    texts = (manifest.schema, manifest.made, *manifest.digests.values())
    if not all(isinstance(text, str) for text in texts) or not isinstance(manifest.facts, dict):
        raise _damaged(path, "its manifest has a field of another type")
    return manifest


def _info(name: str) -> zipfile.ZipInfo:
    # The time is fixed, so that equal contents give equal files.
    info = zipfile.ZipInfo(name, _MOMENT)
    info.external_attr = 0o600 << 16
    return info


def _file_digest(path: Path, leave: int = 0) -> str:
    """Return SHA-256 in hex of a file without its last `leave` bytes."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - leave
        while left > 0 and (block := file.read(min(_CHUNK, left))):
            found.update(block)
            left -= len(block)
    return found.hexdigest()


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"FILE: {str(path)!r} is damaged or no backup: {what}; valid: one that is whole"
    )


Build = Callable[[Path], tuple[Manifest, Mapping[str, Path]]]
MayHold = Callable[[str], bool]


def make_backup(file: Path, build: Build, may_hold: MayHold) -> Manifest:
    """Write a new backup and check it before it gets its name; no part of it remains on failure.

    `build` fills an empty folder with copies that it has examined, and returns their manifest and
    the members by name. `may_hold` says whether a member may have a name.
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
    """Restore a backup into a folder, which appears when all of it is complete.

    The folder must be missing or empty. `lay_out` fills an empty folder from an archive, and checks
    the files that it wrote. `may_hold` says whether a member may have a name.
    """
    folder = folder.absolute()
    with opened_archive(file, kind, may_hold) as archive:
        with _written_to(folder), _alone_beside(folder):
            is_here = folder.is_symlink() or folder == Path.cwd()
            is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
            if is_here or is_taken:
                raise ConfigError(
                    f"--storage: {str(folder)!r} exists, and a restoration never overwrites files; "
                    "valid is a folder that is empty or missing"
                )
            with _unfinished(folder) as place:
                whole = place / "whole"
                make_folder(whole)
                lay_out(archive, whole)
                for path in (whole, *whole.rglob("*")):
                    if path.is_dir():
                        sync_folder(path)
                whole.rename(folder)
                sync_folder(folder.parent)
        return archive.manifest


@contextmanager
def _alone_beside(target: Path) -> Iterator[None]:
    make_folder(target.absolute().parent)
    with alone_in(target.absolute().parent):
        yield


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Return an empty folder for unfinished work; it is removed after the block."""
    folder = target.with_name(f".{target.name}.part")
    # A process that was killed in this block left it.
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
        # The message names the target, and shows none of the contents.
        raise StorageFull(f"{str(target)!r} cannot be written: {error.strerror}") from error
