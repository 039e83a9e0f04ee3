"""Heads that are kept outside the database: what they show, and changes of the key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.disk import log_files
from platform.disk.log_files import (
    KeptChanges,
    add_note,
    change_key,
    heads_file,
    keep_head,
    kept_heads,
    key_file,
    known_key,
    log_signer,
)
from platform.disk.opening import transaction
from platform.errors import ConfigError
from privacy import Authentication
from privacy.transparency import (
    Checkpoint,
    NoteSigner,
    open_change,
    sign_checkpoint,
    state_lost,
)
from storage import TreeHead, open_database
from tests.trunk._runs import Command, Finished
from tests.trunk._tampering import execute

HEADS = [TreeHead(size, bytes([size]) * 32) for size in range(1, 7)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a database would lie."""
    return tmp_path / "runs.db"


@pytest.fixture
def copied(own_copy: Finished) -> Finished:
    """A run with its folder's log files."""
    assert heads_file(own_copy.storage.file).is_file()
    return own_copy


def keep(database: Path, *heads: TreeHead) -> None:
    for head in heads:
        keep_head(database, head)


def test_heads_are_kept_in_order_and_for_their_owner_only(database: Path) -> None:
    keep(database, *HEADS)
    kept = kept_heads(database, known_key(database))
    assert kept.heads == tuple(HEADS)
    assert (kept.key, kept.lost) == (known_key(database), ())
    for file in (heads_file(database), key_file(database)):
        assert file.stat().st_mode & 0o077 == 0
    private = json.loads(key_file(database).read_text())["private"]
    assert private not in heads_file(database).read_text()


def test_a_line_that_was_not_finished_is_no_head(database: Path) -> None:
    keep(database, *HEADS[:2])
    whole = heads_file(database).read_bytes()
    heads_file(database).write_bytes(whole[:-20])
    assert kept_heads(database, known_key(database)).heads == tuple(HEADS[:1])


SPOILT: dict[str, Callable[[list[str]], list[str]]] = {
    "no JSON": lambda lines: ["{", *lines[1:]],
    "no note": lambda lines: ['{"note":"a"}', *lines[1:]],
    "a list": lambda lines: ["[]", *lines[1:]],
    "another size": lambda lines: [lines[0].replace("\\n1\\n", "\\n2\\n"), *lines[1:]],
    "a changed signature": lambda lines: [lines[0][:-9] + "AAAA" + lines[0][-5:], *lines[1:]],
    "an empty line": lambda lines: ["", *lines],
    "bytes": lambda lines: ["\x00\xff", *lines[1:]],
    "too long": lambda lines: ["x" * (3 << 20), *lines],
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_line_is_named(database: Path, spoilt: str) -> None:
    keep(database, *HEADS[:3])
    lines = heads_file(database).read_text().splitlines()
    heads_file(database).write_text("\n".join([*SPOILT[spoilt](lines), ""]), encoding="latin-1")
    with pytest.raises(Authentication, match=r"runs\.audit\.heads: line 1"):
        kept_heads(database, known_key(database))


def test_a_head_by_another_key_is_named(database: Path) -> None:
    keep(database, *HEADS[:2])
    stranger = NoteSigner(log_signer(database).name, bytes(32))
    add_note(database, sign_checkpoint(Checkpoint(stranger.name, 9, bytes(32)), stranger))
    with pytest.raises(Authentication, match="line 3: the note is signed by none"):
        kept_heads(database, known_key(database))


def test_changes_of_the_key_are_read_on_from_where_they_were_read(database: Path) -> None:
    changes = KeptChanges(database)
    assert changes.all() == ()
    keep(database, *HEADS[:2])
    first = known_key(database)
    second = change_key(database)
    ((old, new),) = [(c.old, c.new) for c in map(open_change, changes.all())]
    assert (old, new) == (first, second)
    file = heads_file(database)
    whole = file.read_bytes()
    # A line without its end is none yet; what was read before is not read again.
    file.write_bytes(b"x" * len(whole) + b'{"note": ')
    assert len(changes.all()) == 1
    file.write_bytes(whole)
    keep(database, HEADS[2])
    change_key(database)
    assert [open_change(c).old for c in changes.all()] == [first, second]
    file.write_bytes(file.read_bytes() + b"{}\n")
    with pytest.raises(Authentication, match="line 6 is no head"):
        changes.all()


def test_a_key_hands_over(database: Path) -> None:
    keep(database, *HEADS[:2])
    first = known_key(database)
    second = change_key(database)
    keep(database, HEADS[2])
    third = change_key(database)
    keep(database, *HEADS[3:])
    assert len({first, second, third}) == 3
    assert {key.name for key in (first, second, third) if key} == {log_signer(database).name}
    kept = kept_heads(database, third)
    assert (kept.heads, kept.lost) == (tuple(HEADS), ())
    for old in (first, second):
        with pytest.raises(Authentication, match="hands the log over to"):
            kept_heads(database, old)


def test_an_old_key_signs_nothing_any_more(database: Path) -> None:
    keep(database, HEADS[0])
    old = log_signer(database)
    change_key(database)
    add_note(database, sign_checkpoint(Checkpoint(old.name, 2, bytes(32)), old))
    with pytest.raises(Authentication, match="line 3: the note is signed by none"):
        kept_heads(database, known_key(database))


@pytest.mark.parametrize("died_at", ["add_note", "_finish_change"])
def test_a_change_of_the_key_survives_its_process(
    database: Path, died_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(database, *HEADS[:2])
    before = known_key(database)
    with monkeypatch.context() as patch:
        patch.setattr(log_files, died_at, crash)
        with pytest.raises(KeyboardInterrupt):
            change_key(database)
    keep(database, *HEADS[2:])
    after = known_key(database)
    assert (after == before) == (died_at == "add_note")
    assert kept_heads(database, after).heads == tuple(HEADS)
    assert {p.name for p in database.parent.iterdir()} == {"runs.audit.heads", "runs.audit.key"}


def crash(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_lost_key_is_survived_and_said(database: Path) -> None:
    keep(database, *HEADS[:2])
    key_file(database).unlink()
    keep(database, *HEADS[2:])
    kept = kept_heads(database, known_key(database))
    assert (kept.heads, kept.lost) == (tuple(HEADS), (3,))


def test_who_takes_a_log_over_cannot_hide_it(database: Path) -> None:
    """A thief with another key, who says that it was lost, or removes that line."""
    keep(database, *HEADS[:2])
    honest = known_key(database)
    key_file(database).unlink()
    keep(database, HEADS[2])
    with pytest.raises(Authentication, match="hands the log over to"):
        kept_heads(database, honest)
    lines = heads_file(database).read_text().splitlines(keepends=True)
    heads_file(database).write_text("".join([*lines[:2], *lines[3:]]))
    for key in (honest, known_key(database)):
        with pytest.raises(Authentication, match="signed by none"):
            kept_heads(database, key)


def test_a_false_hand_over_is_named(database: Path) -> None:
    keep(database, HEADS[0])
    stranger = NoteSigner(log_signer(database).name, bytes(32))
    add_note(database, state_lost(stranger).replace("lost", "last"))
    with pytest.raises(Authentication, match="line 2"):
        kept_heads(database, known_key(database))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"origin": "a b", "private": "00"}', "\x00"])
def test_what_is_no_key_is_refused_without_being_shown(database: Path, text: str) -> None:
    key_file(database).write_text(text)
    with pytest.raises(ConfigError, match="is no key of a log"):
        keep_head(database, HEADS[0])
    assert not heads_file(database).exists()


# --- a run's own ----------------------------------------------------------------------------------


def verified(sotto: Command, run: Finished, *arguments: str) -> tuple[int, Any]:
    answer = sotto("audit", "verify", *arguments, "--storage", run.storage.url, "--json")
    return answer.code, answer.document


def test_a_run_keeps_a_head_for_every_step(sotto: Command, copied: Finished) -> None:
    code, found = verified(sotto, copied)
    assert (code, found["problems"]) == (0, [])
    # Set up, started, and for each of three rounds that it was opened and committed, and the end.
    assert found["log"]["heads"] == 2 + 3 * 2 + 1
    known = known_key(copied.storage.file)
    assert known is not None
    assert found["log"]["key"] == known.encode()


def test_a_database_that_was_rolled_back(sotto: Command, copied: Finished) -> None:
    """The file of before the last run, with every record in it agreeing."""
    before = copied.storage.file.read_bytes()
    other = copied.storage.run("privacy.mechanism=none", "rounds=1")
    copied.storage.file.write_bytes(before)
    shutil.rmtree(other.folder)
    code, found = verified(sotto, copied)
    assert code == 3
    assert any("a kept head says that there are" in problem for problem in found["problems"])


def test_heads_that_are_gone(sotto: Command, copied: Finished) -> None:
    heads_file(copied.storage.file).unlink()
    code, found = verified(sotto, copied)
    assert code == 3
    assert found["problems"] == ["sotto.audit.heads: no head is there, as there must be"]


def test_a_log_whose_key_was_replaced(sotto: Command, copied: Finished) -> None:
    """Named until somebody gives the new key, of which they have heard in another way."""
    file = copied.storage.file
    trusted = known_key(file)
    assert trusted is not None
    key_file(file).unlink()
    copied.storage.run("privacy.mechanism=none", "rounds=1")
    code, found = verified(sotto, copied)
    assert code == 3
    assert "a new key took the log over" in found["problems"][0]
    code, found = verified(sotto, copied, "--key", trusted.encode())
    assert code == 3
    assert "hands the log over to" in found["problems"][0]
    new = known_key(file)
    assert new is not None
    assert verified(sotto, copied, "--key", new.encode())[0] == 0


def test_a_forged_event_with_a_chain_and_a_tree_computed_anew(
    sotto: Command, copied: Finished
) -> None:
    """All hashes of the database are the forger's; the heads are not."""
    from tests.trunk._tampering import execute_and_rehash

    execute_and_rehash(
        copied.storage.file, "UPDATE audit SET actor = 'somebody' WHERE sequence = 2"
    )
    code, found = verified(sotto, copied)
    assert code == 3
    assert any("the log is broken at leaf" in problem for problem in found["problems"])


def test_the_key_is_changed_by_a_command(sotto: Command, copied: Finished) -> None:
    url = copied.storage.url
    shown = sotto("audit", "change-key", "--storage", url)
    new = known_key(copied.storage.file)
    assert new is not None
    assert (shown.code, shown.out) == (0, f"key {new.encode()}\n")
    code, found = verified(sotto, copied)
    assert (code, found["log"]["key"]) == (0, new.encode())
    answer = sotto("audit", "verify", "--key", "x+y", "--storage", url)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "--key: 'x+y' is not valid" in answer.err


def test_without_the_key_signatures_are_not_checked_and_that_is_said(
    sotto: Command, copied: Finished
) -> None:
    """As an auditor has it who was given a copy of the database and its heads."""
    key_file(copied.storage.file).unlink()
    shown = sotto("audit", "verify", "--storage", copied.storage.url)
    assert shown.code == 0
    assert "their signatures unchecked as no key is known" in shown.out.replace("\n", " ")
    for command in ("head", "prove"):
        more = ("1",) if command == "prove" else ()
        answer = sotto("audit", command, *more, "--storage", copied.storage.url)
        assert answer.code == 2 and "nothing can be signed" in answer.err
    assert not key_file(copied.storage.file).exists()


def test_a_full_disk_beside_a_sound_database(copied: Finished) -> None:
    """What stands in the way of a head is named, and what was committed stays."""
    execute(copied.storage.file, "UPDATE runs SET status = 'interrupted'")
    path = heads_file(copied.storage.file)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"sotto\.audit\.heads"):
        keep_head(copied.storage.file, HEADS[0])


def test_a_head_is_kept_where_a_reader_is_in_the_way(copied: Finished) -> None:
    """Somebody reads on while a round is written: the log has grown, and so have its heads."""
    before = len(kept_heads(copied.storage.file, None).heads)
    with open_database(copied.storage.url, busy_timeout=0.05) as opened:
        with opened.unit_of_work(read_only=True) as reader:
            assert reader.runs.list()
            with transaction(opened) as unit:
                unit.audit.append(copied.run_id, actor="coordinator", action="run.resumed")
        heads = kept_heads(copied.storage.file, None).heads
        assert len(heads) == before + 1
        assert opened.verify_log(heads).size == heads[-1].size
