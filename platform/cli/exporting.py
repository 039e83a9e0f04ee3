"""`audit export`: the log as files that strangers' tools read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from platform.cli.output import console, print_json, printable
from platform.disk.files import write_bytes
from platform.disk.log_files import existing_signer
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from privacy.transparency import Checkpoint, NoteSigner, Tile, sign_checkpoint, tile_paths
from storage import Database, LogBroken, UnitOfWork
from storage.files import make_folder
from storage.log import shown

_LONGEST: Final = (1 << 16) - 1
"""What the length before an entry can state."""
ENTRIES: Final = "entries"
SALTS: Final = "salts.jsonl"
CHECKPOINT: Final = "checkpoint"


def export_log(folder: Path, storage: str, *, with_salts: bool, as_json: bool) -> None:
    """Write checkpoint, tiles of hashes and tiles of entries; the checkpoint last.

    Raises:
        ConfigError: If the folder is there.
        UnknownRun: If there is no database.
        LogBroken: If the log does not hold; there may be tiles then, but no checkpoint.
        Unwritable: If something cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"DIR: {str(folder)!r} is there already; valid is one that is not")
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        head = database.verify_log()
        make_folder(folder)
        names = []
        for name, data in _files(database, head.size, with_salts=with_salts):
            write_bytes(folder / name, data)
            names.append(name)
    _write_checkpoint(folder, Checkpoint(signer.name, head.size, head.root), signer)
    if as_json:
        print_json({"size": head.size, "root": head.root.hex(), "files": sorted(names)})
        return
    text = f"{head.size} leaves in {len(names)} files below {folder}; key {signer.key.encode()}"
    console().print(printable(text))


def _write_checkpoint(folder: Path, checkpoint: Checkpoint, signer: NoteSigner) -> None:
    write_bytes(folder / CHECKPOINT, sign_checkpoint(checkpoint, signer).encode())


def _files(database: Database, size: int, *, with_salts: bool) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents; what leaves say never changes, so each tile is read by itself."""
    for tile in tile_paths(size):
        with database.unit_of_work(read_only=True) as uow:
            hashes = uow.log.tree(size).read(tile.level, tile.position << 8, tile.width)
            entries = _entries(uow, tile) if tile.level == 0 else None
        yield tile.path(), b"".join(hashes)
        if entries is not None:
            yield tile.path(ENTRIES), entries
    if with_salts:
        yield SALTS, b"".join(_salts(database, size))


def _entries(uow: UnitOfWork, tile: Tile) -> bytes:
    start = tile.position << 8
    leaves = uow.log.leaves(start, start + tile.width)
    entries = [shown(leaf, uow.log.data(leaf)) for leaf in leaves]
    for leaf, entry in zip(leaves, entries, strict=True):
        if len(entry) > _LONGEST:
            raise LogBroken(leaf.position, f"it has {len(entry)} bytes, more than a tile can hold")
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def _salts(database: Database, size: int) -> Iterator[bytes]:
    for start in range(0, size, 256):
        with database.unit_of_work(read_only=True) as uow:
            leaves = uow.log.leaves(start, min(size, start + 256))
            said = [(leaf, uow.log.data(leaf)) for leaf in leaves if leaf.salt is not None]
        for leaf, data in said:
            line = {"leaf": leaf.position, "salt": (leaf.salt or b"").hex(), "says": data.decode()}
            yield f"{json.dumps(line)}\n".encode("ascii")
