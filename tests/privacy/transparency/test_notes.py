"""Signed notes, checkpoints, cosignatures and tiles against published examples, and attacks."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy import Authentication
from privacy.transparency import (
    WITNESS_KEY,
    Checkpoint,
    NoteKey,
    NoteSigner,
    SignedNote,
    Tile,
    cosign,
    open_checkpoint,
    read_note,
    require_cosigned,
    sign_checkpoint,
    tile_paths,
)
from privacy.transparency.checkpoints import open_note

# From the documentation of Go's note package.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
QUOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
NOTE = (
    f"{QUOTE}\n\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
    "KvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

LOG = NoteSigner("sotto/log", bytes(range(32)))
WITNESS = NoteSigner("north", bytes(32), WITNESS_KEY)
HEAD = Checkpoint("sotto/log", 7, bytes(range(32)))


def test_a_published_note_is_opened_and_a_private_key_is_not_shown():
    key = NoteKey.decode(PETER)
    assert (key.name, key.encode()) == ("PeterNeumann", PETER)
    assert open_note(NOTE, [key]).text == QUOTE
    assert read_note(NOTE).encode() == NOTE
    assert key.key_id.hex() == "c74f20a3"
    assert "private" not in repr(LOG)
    assert str(bytes(range(32))) not in repr(LOG)


@pytest.mark.parametrize("at", range(0, len(QUOTE), 9))
def test_a_changed_text_is_refused(at):
    changed = NOTE[:at] + chr(ord(NOTE[at]) ^ 1) + NOTE[at + 1 :]
    with pytest.raises(Authentication):
        open_note(changed, [NoteKey.decode(PETER)])


@pytest.mark.parametrize(
    "text",
    [
        *("", "PeterNeumann", PETER[:-4], PETER.replace("c74f20a3", "c74f20a4")),
        *(PETER.replace("Peter", "Eve"), PETER + "=", "a b" + PETER, PETER.replace("+AR", "+BR")),
    ],
)
def test_what_is_no_key(text):
    with pytest.raises(ValueError, match="key of a note"):
        NoteKey.decode(text)


@pytest.mark.parametrize(
    "note",
    [
        *("", QUOTE, NOTE[:-1], NOTE + "\n", NOTE.replace("\n\n", "\n")),
        *(NOTE.replace("\u2014", "-"), NOTE.replace("x08g", "!!!!"), QUOTE + "\n\u2014 a AAAA\n"),
        *(NOTE.replace("answer", "ans\x1bwer"), QUOTE + "\n" + "\u2014 a AAAAAAAA\n" * 2001),
    ],
)
def test_what_is_no_note(note):
    with pytest.raises(Authentication):
        open_note(note, [NoteKey.decode(PETER)])


def test_signatures_of_others_do_not_matter_and_ours_must_hold():
    note = read_note(NOTE)
    other = LOG.sign(QUOTE)
    both = note.with_signatures(other.signatures)
    assert open_note(both.encode(), [NoteKey.decode(PETER)]) == both
    with pytest.raises(Authentication, match="none of 'sotto/log'"):
        open_note(NOTE, [LOG.key])
    false = LOG.sign("Another text.\n").signatures
    spoilt = note.with_signatures(false).encode()
    with pytest.raises(Authentication, match="'sotto/log' does not"):
        open_note(spoilt, [NoteKey.decode(PETER), LOG.key])


def test_a_checkpoint_is_three_lines():
    note = sign_checkpoint(HEAD, LOG)
    root = base64.b64encode(bytes(range(32))).decode()
    assert note.startswith(f"sotto/log\n7\n{root}\n\n\u2014 sotto/log ")
    assert open_checkpoint(note, [LOG.key]) == HEAD
    extended = LOG.sign(HEAD.encode() + "more\n").encode()
    assert open_checkpoint(extended, [LOG.key]) == HEAD


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a\n",
            "a\n1\n",
            "a\n-1\n" + "A" * 43 + "=\n",
            "a\n01\n" + "A" * 43 + "=\n",
            "a\n1\nAAAA\n",
        ),
        *("a b\n1\n" + "A" * 43 + "=\n", "a\n1\n!\n", "\n1\n" + "A" * 43 + "=\n"),
    ],
)
def test_what_is_no_checkpoint(text):
    with pytest.raises(Authentication, match="no checkpoint"):
        open_checkpoint(LOG.sign(text).encode(), [LOG.key])


def test_a_cosignature_is_over_time_and_checkpoint():
    """The message by hand, at the time of the example in tlog-cosignature."""
    note = read_note(sign_checkpoint(HEAD, LOG))
    line = cosign(note, WITNESS, 1_679_315_147)
    assert line.signature[:8].hex() == "00000000641850cb"
    message = f"cosignature/v1\ntime 1679315147\n{note.text}".encode()
    WITNESS.key.verify(message, line.signature[8:])
    witnessed = note.with_signatures([line])
    assert require_cosigned(witnessed, WITNESS.key) == 1_679_315_147
    # The log's own signature goes on to hold.
    assert open_checkpoint(witnessed.encode(), [LOG.key]) == HEAD


def test_a_cosignature_is_of_one_witness_one_time_and_one_checkpoint():
    note = read_note(sign_checkpoint(HEAD, LOG))
    line = cosign(note, WITNESS, 5)
    other = read_note(sign_checkpoint(Checkpoint("sotto/log", 8, bytes(32)), LOG))
    later = line._replace(signature=(6).to_bytes(8, "big") + line.signature[8:])
    short = line._replace(signature=line.signature[:-1])
    for spoilt in (
        note,
        other.with_signatures([line]),
        note.with_signatures([later]),
        note.with_signatures([short]),
    ):
        with pytest.raises(Authentication, match="'north'"):
            require_cosigned(spoilt, WITNESS.key)
    stranger = NoteSigner("north", bytes([1]) * 32, WITNESS_KEY)
    with pytest.raises(Authentication, match="cosigned by 'north'"):
        require_cosigned(note.with_signatures([line]), stranger.key)


def test_a_log_key_is_no_witness_key():
    """Key IDs differ in kind, so what is signed as one is never taken for the other."""
    note = read_note(sign_checkpoint(HEAD, LOG))
    with pytest.raises(ValueError, match="witness keys"):
        cosign(note, LOG, 1)
    twin = NoteSigner(LOG.name, LOG.private, WITNESS_KEY)
    assert twin.key.key_id != LOG.key.key_id


def test_paths_of_tiles():
    """The examples of tlog-tiles."""
    assert Tile(0, 1234067, 256).path() == "tile/0/x001/x234/067"
    assert Tile(0, 273, 112).path() == "tile/0/273.p/112"
    assert Tile(0, 273, 112).path("entries") == "tile/entries/273.p/112"
    # A tree of 70,000 leaves: 273 full tiles and one of 112, one full of those and one of 17, and
    # one of the full one alone.
    found = [tile.path() for tile in tile_paths(70_000)]
    assert len(found) == 274 + 2 + 1
    assert found[273:] == ["tile/0/273.p/112", "tile/1/000", "tile/1/001.p/17", "tile/2/000.p/1"]
    assert list(tile_paths(0)) == []


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text):
    for note in (text, f"{text}\n\n\u2014 {text} AAAAAAAA\n"):
        try:
            found = read_note(note)
        except Authentication:
            continue
        assert isinstance(found, SignedNote)
        assert found.encode() == note
