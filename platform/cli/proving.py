"""`audit head`, `prove`, `export` (files that strangers' tools read) and `watch`."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from platform.cli.access import resolved
from platform.cli.output import console, print_json, printable
from platform.disk.files import write_bytes
from platform.disk.log_files import change_key, existing_signer
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from privacy.transparency import Checkpoint, NoteSigner, Tile, sign_checkpoint, tile_paths
from storage import Database, Leaf, LogBroken, NotFound, TreeHead, UnitOfWork
from storage.files import make_folder
from storage.log import shown
from storage.merkle import MerkleTree, root_from_inclusion

_LONGEST: Final = (1 << 16) - 1
"""What the length before an entry can state."""
ENTRIES: Final = "entries"
SALTS: Final = "salts.jsonl"
CHECKPOINT: Final = "checkpoint"


def print_head(storage: str, *, as_json: bool) -> None:
    """Print the log's head as a signed checkpoint.

    Raises:
        UnknownRun: If there is no database.
    """
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        with database.unit_of_work(read_only=True) as uow:
            tree = uow.log.tree()
            root = tree.root()
    note = sign_checkpoint(Checkpoint(signer.name, tree.size, root), signer)
    if as_json:
        print_json(
            {
                "origin": signer.name,
                "size": tree.size,
                "root": root.hex(),
                "key": signer.key.encode(),
                "checkpoint": note,
            }
        )
        return
    _write(f"key {signer.key.encode()}\n\n{note}")


def print_proof(event: str, storage: str, *, as_json: bool) -> None:
    """Print what proves that an event or a charge is in the log.

    Raises:
        ConfigError: If the text names nothing that is in it.
        UnknownRun: If there is no such run, or no database.
        LogBroken: If the log does not hold there; nothing is printed.
    """
    with closing(open_existing(storage)) as database:
        signer = existing_signer(database.path)
        with database.unit_of_work(read_only=True) as uow:
            leaf = _leaf(database, uow, event, storage)
            found = proof_of(uow, leaf, signer)
    if as_json:
        print_json(found)
        return
    _write(_sentence(found))


def proof_of(uow: UnitOfWork, leaf: Leaf, signer: NoteSigner) -> dict[str, Any]:
    """Return what proves that a leaf is in the log as it is now.

    Raises:
        LogBroken: If the leaf does not fit its row, or the proof does not hold.
    """
    tree = uow.log.tree()
    data, root = uow.log.data(leaf), tree.root()
    proof = _checked_proof(tree, leaf, root)
    return {
        "leaf": leaf.position,
        "kind": leaf.kind,
        "run": leaf.run_id,
        "data": base64.b64encode(shown(leaf, data)).decode("ascii"),
        "says": data.decode("ascii"),
        "salt": None if leaf.salt is None else leaf.salt.hex(),
        "hash": leaf.hash.hex(),
        "proof": [base64.b64encode(step).decode("ascii") for step in proof],
        "size": tree.size,
        "root": root.hex(),
        "key": signer.key.encode(),
        "checkpoint": sign_checkpoint(Checkpoint(signer.name, tree.size, root), signer),
    }


def _checked_proof(tree: MerkleTree, leaf: Leaf, root: bytes) -> tuple[bytes, ...]:
    proof = tree.inclusion_proof(leaf.position)
    if root_from_inclusion(leaf.hash, leaf.position, tree.size, proof) != root:
        raise LogBroken(leaf.position, "its proof does not lead to the root")
    return proof


def _leaf(database: Database, uow: UnitOfWork, event: str, storage: str) -> Leaf:
    run, _, number = event.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        raise ConfigError(
            f"EVENT: {event!r} is not valid; it must be RUN:NUMBER of an event, or a leaf's number"
        )
    try:
        if run:
            return uow.log.of_event(resolved(database, run, storage), int(number))
        return uow.log.leaf(int(number))
    except NotFound as error:
        raise ConfigError(f"EVENT: {event!r}: {error}") from error


def change_log_key(storage: str) -> None:
    """Print the new public key of the log, to which the old one has handed over.

    Raises:
        ConfigError: If there is no key yet.
        UnknownRun: If there is no database.
    """
    with closing(open_existing(storage)) as database:
        key = change_key(database.path)
    _write(f"key {key.encode()}\n")


def _write(text: str) -> None:
    """Print lines as they are: a note that was folded could not be checked any more."""
    lines = map(printable, text.split("\n"))
    sys.stdout.write("\n".join(lines))


def _sentence(found: Mapping[str, Any]) -> str:
    steps = "\n".join(f"  {step}" for step in found["proof"]) or "  none, as it is the only leaf"
    return (
        f"leaf {found['leaf']} of {found['size']}, {found['kind']} of run {found['run']}:\n"
        f"{printable(found['says'])}\n\nhash {found['hash']}\nproof, from the leaf up:\n{steps}\n"
        f"key {found['key']}\n\n{found['checkpoint']}"
    )


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


def follow_log(storage: str, seconds: float, *, as_json: bool) -> None:
    """Print what is added to the log, from now on, until it is interrupted.

    Raises:
        UnknownRun: If there is no database.
        LogBroken: If what was there before is no longer the beginning of the log.
    """
    out = console()
    for entry in followed(storage, lambda: time.sleep(seconds)):
        if as_json:
            sys.stdout.write(json.dumps(entry, sort_keys=True) + "\n")
            sys.stdout.flush()
        else:
            out.print(printable(_line(entry)))


def followed(storage: str, pause: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield what is added to the log, look by look.

    Each look is a transaction of its own, so that no writer waits for a reader.

    Args:
        storage: The coordinator's database.
        pause: Waits between two looks.

    Raises:
        LogBroken: If what was there before is no longer the beginning of the log.
    """
    with (
        # As one of those that write: reading beside them is then possible at any time.
        closing(open_existing(storage, read_only=False)) as database
    ):
        with database.unit_of_work(read_only=True) as uow:
            seen = _head(uow)
        while True:
            pause()
            with database.unit_of_work(read_only=True) as uow:
                now, new = _head(uow), _added(uow, seen)
            yield from new
            seen = now


def _head(uow: UnitOfWork) -> TreeHead:
    tree = uow.log.tree()
    return TreeHead(tree.size, tree.root())


def _added(uow: UnitOfWork, seen: TreeHead) -> list[dict[str, Any]]:
    size = uow.log.size()
    if size < seen.size:
        raise LogBroken(size, f"it had {seen.size} leaves before")
    if uow.log.tree(seen.size).root() != seen.root:
        raise LogBroken(
            max(seen.size - 1, 0), f"its first {seen.size} leaves are others than before"
        )
    found = []
    for leaf in uow.log.leaves(seen.size, size):
        _, text = uow.log.data(leaf).split(b"\n", 1)
        found.append({"leaf": leaf.position, "kind": leaf.kind, "says": json.loads(text)})
    return found


def _line(entry: dict[str, Any]) -> str:
    says = entry["says"]
    if entry["kind"] == "event":
        _, sequence, run, actor, action, number, channel, moment, detail = says
        where = "" if number is None else f" round {number}"
        what = f"{action}{where}{'' if channel is None else f' {channel}'} {detail}"
        return f"{moment[:19]}Z {run} {sequence} {actor} {what}"
    status = says.get("status", "reserved")
    where = f"round {says['round_number']} {says['channel']}"
    return f"{'':20} {says['run_id']} {says['pseudonym']} charge.{status} {where}"
