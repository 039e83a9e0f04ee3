#!/usr/bin/env python3
"""Checks a log without a line of the software that wrote it.

    python verify_log.py export DIR KEY [CHECKPOINT ...]   an exported log, and heads kept earlier
    python verify_log.py proof FILE KEY [CHECKPOINT ...]   an event's proof (`audit prove --json`)

KEY is the log's public key, NAME+ID+KEY, heard from its operator in another way. Each CHECKPOINT is
a file with a head as `audit head` printed it once: the exported log must begin with what it names.
Formats: RFC 9162 (hashing), C2SP signed-note, tlog-checkpoint, tlog-tiles. Needs `cryptography`.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def fail(why):
    sys.exit(f"NOT VERIFIED: {why}")


def leaf(data):
    return hashlib.sha256(b"\x00" + data).digest()


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(hashes):
    """The root over some leaves' hashes, level by level; an odd one at the end goes up as it is."""
    while len(hashes) > 1:
        pairs = [node(*hashes[i : i + 2]) for i in range(0, len(hashes) - 1, 2)]
        hashes = pairs + (hashes[-1:] if len(hashes) % 2 else [])
    return hashes[0] if hashes else hashlib.sha256(b"").digest()


def path_root(found, position, size, path):
    """The root that an inclusion path leads to (RFC 9162, 2.1.3.2)."""
    last = size - 1
    for step in path:
        if last == 0:
            fail("the proof is too long")
        if position % 2 or position == last:
            found = node(step, found)
            while position % 2 == 0 and position:
                position, last = position // 2, last // 2
        else:
            found = node(found, step)
        position, last = position // 2, last // 2
    if last:
        fail("the proof is too short")
    return found


def checkpoint(note, key, what="the checkpoint"):
    """Size and root that a signed note states; the signature is checked."""
    name, key_id, encoded = key.split("+", 2)
    kind_and_key = base64.b64decode(encoded)
    if hashlib.sha256(name.encode() + b"\n" + kind_and_key).digest()[:4].hex() != key_id:
        fail("the key is damaged: its ID does not fit")
    text, _, below = note.rpartition("\n\n")
    text += "\n"
    for line in below.splitlines():
        signer, _, signature = line.rpartition(" ")
        raw = base64.b64decode(signature)
        if (signer, raw[:4].hex()) != (f"\u2014 {name}", key_id):
            continue
        try:
            Ed25519PublicKey.from_public_bytes(kind_and_key[1:]).verify(raw[4:], text.encode())
        except InvalidSignature:
            fail(f"{what} is not what {name} signed: it was changed")
        origin, size, root_text = text.split("\n")[:3]
        if origin != name:
            fail(f"{what} is of {origin}, not of {name}")
        return int(size), base64.b64decode(root_text)
    return fail(f"{what} is not signed by {name}")


def kept_head(file, key):
    """Size and root that a kept head states, be the file what was printed or the bare note."""
    text = Path(file).read_text("utf-8")
    if text.startswith("{"):
        text = json.loads(text)["checkpoint"]
    text = text.partition("\n\n")[2] if text.startswith("key ") else text
    return checkpoint(text, key, f"the head in {file}")


def tile_path(level, index, width):
    digits = f"{index % 1000:03d}"
    while index >= 1000:
        index //= 1000
        digits = f"x{index % 1000:03d}/{digits}"
    return f"tile/{level}/{digits}" + ("" if width == 256 else f".p/{width}")


def verify_export(folder, key, kept):
    size, stated = checkpoint((folder / "checkpoint").read_text("utf-8"), key)
    leaves = []
    for index in range(-(-size // 256)):
        width = min(256, size - index * 256)
        data = (folder / tile_path("entries", index, width)).read_bytes()
        at, entries = 0, []
        while at < len(data):
            length = int.from_bytes(data[at : at + 2], "big")
            entries.append(data[at + 2 : at + 2 + length])
            at += 2 + length
        if len(entries) != width or at != len(data):
            fail(f"tile {index} has {len(entries)} entries, not {width}")
        hashes = [leaf(entry) for entry in entries]
        if (folder / tile_path(0, index, width)).read_bytes() != b"".join(hashes):
            fail(f"the hashes of tile {index} are not those of its entries")
        leaves += hashes
    if root(leaves) != stated:
        fail("the entries do not make the tree that the checkpoint names")
    for old_size, old_root in kept:
        if old_size > size:
            fail(f"a kept head names {old_size} leaves, but there are {size}")
        if root(leaves[:old_size]) != old_root:
            fail(f"the first {old_size} leaves are not those of a kept head")
    heads = f"{len(kept)} kept heads are on the way" if kept else "no kept head to hold against it"
    print(f"VERIFIED: {size} leaves, root {stated.hex()}, {heads}")


def verify_proof(file, key, kept):
    found = json.loads(file.read_text("utf-8"))
    size, stated = checkpoint(found["checkpoint"], key)
    data = base64.b64decode(found["data"])
    path = [base64.b64decode(step) for step in found["proof"]]
    if not 0 <= found["leaf"] < size or path_root(leaf(data), found["leaf"], size, path) != stated:
        fail("the proof does not lead to the checkpoint's root")
    if any(head == (size, stated) for head in kept) or not kept:
        print(f"VERIFIED: leaf {found['leaf']} of {size} says {data.decode('ascii')}")
    else:
        fail("the checkpoint is none of the kept ones; export the log to compare them")


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("export", "proof"):
        sys.exit(__doc__)
    check = {"export": verify_export, "proof": verify_proof}[sys.argv[1]]
    try:
        check(Path(sys.argv[2]), sys.argv[3], [kept_head(n, sys.argv[3]) for n in sys.argv[4:]])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        fail(f"something cannot be read: {error}")
