"""Statements about a log that strangers' tools can check: signed notes, checkpoints, cosignatures.

The formats are those of C2SP (signed-note, tlog-checkpoint, tlog-cosignature, tlog-tiles), version
1.0; what a log holds, and its tree, are not known here.
"""

from __future__ import annotations

from privacy.transparency.checkpoints import (
    LOG_KEY,
    WITNESS_KEY,
    Checkpoint,
    KeyChange,
    NoteKey,
    NoteSigner,
    SignedNote,
    Tile,
    cosign,
    decode_checkpoint,
    hand_over,
    is_change,
    open_change,
    open_checkpoint,
    read_note,
    read_signature,
    require_cosigned,
    sign_checkpoint,
    state_lost,
    tile_paths,
)

__all__ = [
    "LOG_KEY",
    "WITNESS_KEY",
    "Checkpoint",
    "KeyChange",
    "NoteKey",
    "NoteSigner",
    "SignedNote",
    "Tile",
    "cosign",
    "decode_checkpoint",
    "hand_over",
    "is_change",
    "open_change",
    "open_checkpoint",
    "read_note",
    "read_signature",
    "require_cosigned",
    "sign_checkpoint",
    "state_lost",
    "tile_paths",
]
