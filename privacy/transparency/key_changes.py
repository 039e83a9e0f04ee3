"""How the key of a log changes: handed over by the old one, or lost and replaced.

A hand-over is a note that both keys sign. Of a lost key nothing can be signed, so the new one says
so alone, and whoever followed the log has to hear from its operator, over another channel, that
this is so; anybody who took the log's place could say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from privacy.errors import Authentication
from privacy.transparency.notes import NoteKey, NoteSigner, SignedNote, open_note, read_note

_HANDED_OVER: Final = "sotto/log-key-handed-over/v1"
_LOST: Final = "sotto/log-key-lost/v1"


@dataclass(frozen=True)
class KeyChange:
    """A change of a log's key.

    Attributes:
        old: The key until then; None where it was lost.
        new: The key from then on.
    """

    old: NoteKey | None
    new: NoteKey


def hand_over(old: NoteSigner, new: NoteSigner) -> str:
    """Return the note by which one key hands over to another."""
    note = old.sign(f"{_HANDED_OVER}\n{old.key.encode()}\n{new.key.encode()}\n")
    return note.with_signatures(new.sign(note.text).signatures).encode()


def state_lost(new: NoteSigner) -> str:
    """Return the note by which a new key says that the one before it is lost."""
    return new.sign(f"{_LOST}\n{new.key.encode()}\n").encode()


def open_change(text: str) -> KeyChange:
    """Return the change that a note states, signed by the keys that it names.

    Raises:
        Authentication: It is none, or not signed by all of them.
    """
    note = read_note(text)
    kind, *stated = note.text.rstrip("\n").split("\n")
    try:
        keys = [NoteKey.decode(key) for key in stated]
    except ValueError:
        keys = []
    if (kind, len(keys)) not in ((_HANDED_OVER, 2), (_LOST, 1)):
        raise Authentication("the note is no change of a log's key")
    for key in keys:
        open_note(text, [key])
    return KeyChange(keys[0] if len(keys) == 2 else None, keys[-1])


def is_change(note: SignedNote) -> bool:
    """Return whether a note says to be a change of a log's key."""
    return note.text.startswith((f"{_HANDED_OVER}\n", f"{_LOST}\n"))
