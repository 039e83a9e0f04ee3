"""`audit head` and `audit prove`."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from platform.cli.access import resolved
from platform.cli.output import print_json, printable
from platform.disk.log_files import change_key, existing_signer
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from privacy.transparency import Checkpoint, NoteSigner, sign_checkpoint
from storage import Database, Leaf, LogBroken, NotFound, UnitOfWork
from storage.log import shown
from storage.merkle import MerkleTree, root_from_inclusion


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
