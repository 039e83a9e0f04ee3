"""Heads that are kept outside the database: what they show, and changes of the key."""

from __future__ import annotations

import json
import shutil
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
    open_change,
    sign_checkpoint,
)
from storage import TreeHead, open_database
from tests.trunk._runs import Command, Finished
from tests.trunk._tampering import execute_and_rehash

HEADS = [TreeHead(size, bytes([size]) * 32) for size in range(1, 7)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a database would lie."""
    return tmp_path / "runs.db"


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


@pytest.mark.parametrize(
    "line",
    ["[]", '{"note":"a"}', "\x00\xff", "x" * (3 << 20)],
    ids=["a list", "no note", "bytes", "too long"],
)
def test_a_spoilt_line_is_named(database: Path, line: str) -> None:
    """Those that were changed at random are in `test_view_mutations.py`."""
    keep(database, *HEADS[:3])
    lines = heads_file(database).read_text().splitlines()
    heads_file(database).write_text("\n".join([line, *lines[1:], ""]), encoding="latin-1")
    with pytest.raises(Authentication, match=r"runs\.audit\.heads: line 1"):
        kept_heads(database, known_key(database))


@pytest.mark.parametrize("text", ["", "[]", '{"origin": "a b", "private": "00"}'])
def test_what_is_no_key_is_refused(database: Path, text: str) -> None:
    key_file(database).write_text(text)
    with pytest.raises(ConfigError, match="is no key of a log"):
        keep_head(database, HEADS[0])
    assert not heads_file(database).exists()


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


# --- a run's own ----------------------------------------------------------------------------------


def verified(sotto: Command, run: Finished, *arguments: str) -> tuple[int, Any]:
    answer = sotto("audit", "verify", *arguments, "--storage", run.storage.url, "--json")
    return answer.code, answer.document


def test_a_database_that_was_rolled_back(sotto: Command, own_copy: Finished) -> None:
    """The file of before the last run, with every record in it agreeing."""
    before = own_copy.storage.file.read_bytes()
    other = own_copy.storage.run("privacy.mechanism=none", "rounds=1")
    own_copy.storage.file.write_bytes(before)
    shutil.rmtree(other.folder)
    code, found = verified(sotto, own_copy)
    assert code == 3
    assert any("a kept head says that there are" in problem for problem in found["problems"])


def test_a_log_whose_key_was_replaced(sotto: Command, own_copy: Finished) -> None:
    """Named until somebody gives the new key, of which they have heard in another way."""
    file = own_copy.storage.file
    trusted = known_key(file)
    assert trusted is not None
    key_file(file).unlink()
    own_copy.storage.run("privacy.mechanism=none", "rounds=1")
    code, found = verified(sotto, own_copy)
    assert code == 3
    assert "a new key took the log over" in found["problems"][0]
    code, found = verified(sotto, own_copy, "--key", trusted.encode())
    assert code == 3
    assert "hands the log over to" in found["problems"][0]
    new = known_key(file)
    assert new is not None
    assert verified(sotto, own_copy, "--key", new.encode())[0] == 0


def test_a_forged_event_with_a_chain_and_a_tree_computed_anew(
    sotto: Command, own_copy: Finished
) -> None:
    """All hashes of the database are the forger's; the heads are not."""
    execute_and_rehash(
        own_copy.storage.file, "UPDATE audit SET actor = 'somebody' WHERE sequence = 2"
    )
    code, found = verified(sotto, own_copy)
    assert code == 3
    assert any("the log is broken at leaf" in problem for problem in found["problems"])


def test_the_key_is_changed_by_a_command(sotto: Command, own_copy: Finished) -> None:
    url = own_copy.storage.url
    shown = sotto("audit", "change-key", "--storage", url)
    new = known_key(own_copy.storage.file)
    assert new is not None
    assert (shown.code, shown.out) == (0, f"key {new.encode()}\n")
    code, found = verified(sotto, own_copy)
    assert (code, found["log"]["key"]) == (0, new.encode())
    # Set up, started, and for each of three rounds that it was opened and committed, and the end.
    assert found["log"]["heads"] == 2 + 3 * 2 + 1
    answer = sotto("audit", "verify", "--key", "x+y", "--storage", url)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "--key: 'x+y' is not valid" in answer.err


def test_without_the_key_signatures_are_not_checked_and_that_is_said(
    sotto: Command, own_copy: Finished
) -> None:
    """As an auditor has it who was given a copy of the database and its heads."""
    key_file(own_copy.storage.file).unlink()
    shown = sotto("audit", "verify", "--storage", own_copy.storage.url)
    assert shown.code == 0
    assert "their signatures unchecked as no key is known" in shown.out.replace("\n", " ")
    for command in ("head", "prove"):
        more = ("1",) if command == "prove" else ()
        answer = sotto("audit", command, *more, "--storage", own_copy.storage.url)
        assert answer.code == 2 and "nothing can be signed" in answer.err
    assert not key_file(own_copy.storage.file).exists()


def test_a_head_is_kept_where_a_reader_is_in_the_way(own_copy: Finished) -> None:
    """Somebody reads on while a round is written: the log has grown, and so have its heads."""
    before = len(kept_heads(own_copy.storage.file, None).heads)
    with open_database(own_copy.storage.url, busy_timeout=0.05) as opened:
        with opened.unit_of_work(read_only=True) as reader:
            assert reader.runs.list()
            with transaction(opened) as unit:
                unit.audit.append(own_copy.run_id, actor="coordinator", action="run.resumed")
        heads = kept_heads(own_copy.storage.file, None).heads
        assert len(heads) == before + 1
        assert opened.verify_log(heads).size == heads[-1].size
