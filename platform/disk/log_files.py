"""The files beside a database that vouch for its log: the log's key, and the log's former heads.

A person who can rewrite the database can rewrite the log in it. A head that was written elsewhere,
and seen by others, still names the old log. Heads are signed checkpoints, one a line. A coordinator
only adds lines; a change of the key that signs heads is a line too.

Digests bind records outside the log to it. All are SHA-256 in hexadecimal. Each record has only one
form to hash, so the digest before storing equals the digest after reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from platform.disk.files import named, private, write_bytes, written
from platform.errors import ConfigError, Unwritable
from privacy import Authentication
from privacy.secure_aggregation import new_identity
from privacy.transparency import (
    Checkpoint,
    NoteKey,
    NoteSigner,
    SignedNote,
    decode_checkpoint,
    hand_over,
    is_change,
    open_change,
    open_checkpoint,
    read_note,
    sign_checkpoint,
    state_lost,
)
from storage import LedgerRow, TreeHead
from storage.files import sync_folder

HEADS: Final = "audit.heads"
KEY: Final = "audit.key"
ORIGIN_PREFIX: Final = "sotto/"

_LONGEST_LINE: Final = 1 << 20


@dataclass(frozen=True)
class KeptHeads:
    """The heads of a log outside its database.

    Attributes:
        key: The key that signed the newest heads; None if it is unknown, so that no signature was
            checked.
        lost: The lines of key changes that the old key did not sign.
    """

    heads: tuple[TreeHead, ...]
    key: NoteKey | None
    lost: tuple[int, ...]


def heads_file(database: Path) -> Path:
    """Return the file of the heads of a database's log."""
    return database.with_name(f"{database.stem}.{HEADS}")


def key_file(database: Path) -> Path:
    """Return the file of the private key of a database's log."""
    return database.with_name(f"{database.stem}.{KEY}")


def log_signer(database: Path) -> NoteSigner:
    """Return the signer of the heads of a database's log; a missing key is made.

    If an older key signed heads before, the new key first states that the old key is lost.
    """
    path = key_file(database)
    _finish_change(database)
    try:
        return _read_key(path)
    except FileNotFoundError:
        fresh = NoteSigner(f"{ORIGIN_PREFIX}{secrets.token_hex(8)}", new_identity())
        if _write_key(path, fresh) and heads_file(database).exists():
            add_note(database, state_lost(_read_key(path)))
        return _read_key(path)


def existing_signer(database: Path) -> NoteSigner:
    """Return the signer of the heads of a database's log, whose key must exist (`ConfigError`)."""
    path = key_file(database)
    try:
        return _read_key(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"--storage: the log's key {str(path)!r} is not there, so nothing can be signed; valid"
            " is the database where its coordinator runs"
        ) from error


def known_key(database: Path) -> NoteKey | None:
    """Return the public key of a database's log, None if its file is missing."""
    try:
        return _read_key(key_file(database)).key
    except FileNotFoundError:
        return None


def change_key(database: Path) -> NoteKey:
    """Make a new key, to which the old key hands over, and return its public half.

    A process may be killed at any point. Until the hand-over is written the old key stays; after
    that the next process that signs puts the new key in its place.
    """
    old = existing_signer(database)
    new = NoteSigner(old.name, new_identity())
    write_bytes(_next_key(database), _encoded(new))
    add_note(database, hand_over(old, new))
    _finish_change(database)
    return new.key


def _finish_change(database: Path) -> None:
    """Put a waiting key in its place if the old key handed over to it; else delete it."""
    waiting = _next_key(database)
    if not waiting.exists():
        return
    new = _read_key(waiting).key
    changes = [note for _, note in kept_notes(database) if is_change(note)]
    if changes and open_change(changes[-1].encode()).new == new:
        with named(waiting):
            waiting.replace(key_file(database))
            sync_folder(waiting.parent)
    else:
        waiting.unlink()


def _next_key(database: Path) -> Path:
    return database.with_name(f"{database.stem}.{KEY}.next")


def keep_head(database: Path, head: TreeHead) -> str:
    """Sign a head, add it to the kept heads, and return it; see `add_note` for the errors."""
    signer = log_signer(database)
    note = sign_checkpoint(Checkpoint(signer.name, head.size, head.root), signer)
    add_note(database, note)
    return note


def add_note(database: Path, note: str) -> None:
    """Add a line to the kept heads, in one call so that lines of several processes do not mix."""
    path, line = heads_file(database), _line(note)
    with named(path), open(path, "ab", buffering=0, opener=private) as file:
        if file.write(line) != len(line):
            raise Unwritable(None, "it was not written as a whole", str(path))


def kept_notes(database: Path) -> Iterator[tuple[int, SignedNote]]:
    """Yield the kept notes, oldest first, with their line numbers; signatures are not checked.

    The last line may lack its end, if a process was killed or a disk was full; it does not count.
    `Authentication` names a line of another form.
    """
    path = heads_file(database)
    for number, line in enumerate(_lines(path), 1):
        yield number, _note(path, number, line)


@dataclass
class KeptChanges:
    """The changes of a log's key, from the kept heads; each call reads only the new lines."""

    database: Path
    _found: list[str] = field(default_factory=list, init=False)
    _lines: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    def all(self) -> tuple[str, ...]:
        """Return all changes until now, oldest first; `Authentication` for another line."""
        path = heads_file(self.database)
        for line in _lines(path, self._bytes):
            note = _note(path, self._lines + 1, line)
            if is_change(note):
                self._found.append(note.encode())
            self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
        return tuple(self._found)


def _lines(path: Path, begin: int = 0) -> Iterator[bytes]:
    """Yield the complete lines of a file of heads, after its first `begin` bytes."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if not line.endswith(b"\n"):
                if file.read(1):
                    raise Authentication(f"{path.name}: line {number} is too long")
                return
            yield line


def kept_heads(database: Path, trusted: NoteKey | None) -> KeptHeads:
    """Return the kept heads, each signed by the key that the log had at that time.

    `trusted` is the key that the log has now; None checks no signature. `Authentication` says that
    a line does not hold, or that the log's key changed to another one.
    """
    path = heads_file(database)
    parts = _parts(path, list(kept_notes(database)))
    heads: list[TreeHead] = []
    lost: list[int] = []
    keys = _keys_of(path, parts, trusted)
    for (change, notes), key in zip(parts, keys, strict=True):
        if change is not None and open_change(change[1].encode()).old is None:
            lost.append(change[0])
        heads += [_opened(path, *note, key) for note in notes]
    return KeptHeads(tuple(heads), keys[-1], tuple(lost))


_Note = tuple[int, SignedNote]
_Part = tuple[_Note | None, list[_Note]]


def _parts(path: Path, notes: Sequence[_Note]) -> list[_Part]:
    """Return the heads under each key, with the change that introduced the key."""
    parts: list[_Part] = [(None, [])]
    for number, note in notes:
        if not is_change(note):
            parts[-1][1].append((number, note))
            continue
        try:
            open_change(note.encode())
        except Authentication as error:
            raise Authentication(f"{path.name}: line {number}: {error}") from error
        parts.append(((number, note), []))
    return parts


def _keys_of(path: Path, parts: Sequence[_Part], trusted: NoteKey | None) -> list[NoteKey | None]:
    """Return the key of each part, found from the last part backwards; None if it was lost."""
    if trusted is None:
        return [None for _ in parts]
    keys: list[NoteKey | None] = [trusted]
    for change, _ in reversed(parts[1:]):
        if change is None:
            continue
        number, note = change
        stated = open_change(note.encode())
        # A lost key proves only that its lines came before.
        if keys[0] is not None and stated.new != keys[0]:
            raise Authentication(
                f"{path.name}: line {number} hands the log over to {stated.new.encode()}, not to"
                f" {keys[0].encode()}"
            )
        keys.insert(0, stated.old)
    return keys


def _opened(path: Path, number: int, note: SignedNote, key: NoteKey | None) -> TreeHead:
    try:
        found = decode_checkpoint(note) if key is None else open_checkpoint(note.encode(), [key])
    except Authentication as error:
        raise Authentication(f"{path.name}: line {number}: {error}") from error
    return TreeHead(found.size, found.root)


def copy_heads(database: Path, size: int, target: Path) -> int:
    """Copy the notes up to the time when a log had `size` leaves; return the number of lines."""
    lines = []
    for _, note in kept_notes(database):
        if not is_change(note) and decode_checkpoint(note).size > size:
            break
        lines.append(_line(note.encode()))
    write_bytes(target, b"".join(lines))
    return len(lines)


def _line(note: str) -> bytes:
    return f"{json.dumps({'note': note})}\n".encode("ascii")


def _note(path: Path, number: int, line: bytes) -> SignedNote:
    try:
        document: Any = json.loads(line)
        note = read_note(document["note"])
        if not is_change(note):
            decode_checkpoint(note)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Authentication):
        raise Authentication(f"{path.name}: line {number} is no head of a log") from None
    return note


def _read_key(path: Path) -> NoteSigner:
    try:
        document: Any = json.loads(path.read_bytes())
        signer = NoteSigner(document["origin"], bytes.fromhex(document["private"]))
        if document.keys() != {"origin", "private"} or not signer.key.name:
            raise ValueError
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The contents may be secret, so the message does not show them.
        raise ConfigError(f"{str(path)!r} is no key of a log") from None
    return signer


def _encoded(signer: NoteSigner) -> bytes:
    document = {"origin": signer.name, "private": signer.private.hex()}
    return f"{json.dumps(document)}\n".encode("ascii")


def _write_key(path: Path, signer: NoteSigner) -> bool:
    """Write a new key unless another process was faster; return whether this call wrote it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with named(path):
        try:
            with written(part) as file:
                file.write(_encoded(signer))
            # A link does not replace an existing file.
            os.link(part, path)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True


SALT: Final = "salt"
"""The field of a random text in documents on secret draws; it makes a digest a commitment."""
_WRITER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_NAMES: Final = tuple(field.name for field in fields(LedgerRow))


def bytes_digest(data: bytes) -> str:
    """Digest the bytes of a file or a blob."""
    return hashlib.sha256(data).hexdigest()


def document_digest(document: Mapping[str, Any]) -> str:
    """Digest a JSON object: keys sorted, no white space, ASCII, Python's numbers."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return bytes_digest(text.encode("ascii"))


def salted(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a random text, so that its digest cannot be guessed."""
    return {**document, SALT: secrets.token_hex(32)}


def rows_digest(rows: Iterable[LedgerRow], *, with_status: bool) -> str:
    """Digest ledger rows; their order does not matter.

    Without the status in it a row keeps its digest.
    """
    lines = []
    for row in rows:
        facts = {name: _plain(getattr(row, name)) for name in _NAMES}
        if not with_status:
            del facts["status"]
        # An unbounded clipping norm is "Infinity" here, which JSON does not have.
        lines.append(_WRITER.encode(facts))
    return bytes_digest("\n".join(sorted(lines)).encode("ascii"))


def _plain(value: object) -> object:
    """Return a number as text, the same text for equal numbers of different types.

    The storage returns 4 as 4.0.
    """
    if isinstance(value, (bool, str)) or value is None:
        return value
    return repr(float(value))  # type: ignore[arg-type]


def config_digest(text: str) -> str:
    """Return SHA-256 of an effective configuration, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
