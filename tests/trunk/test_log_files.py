"""Heads that are kept outside the database: what they show, and changes of the key."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.cli.auditing import followed
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
from privacy.transparency import Checkpoint, open_change, sign_checkpoint
from storage import LogBroken, TreeHead, open_database
from tests.trunk._runs import Command, Finished
from tests.trunk._tampering import execute

HEADS = [TreeHead(size, bytes([size]) * 32) for size in range(1, 7)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def keep(database: Path, *heads: TreeHead) -> None:
    for head in heads:
        keep_head(database, head)


def test_heads_are_kept_in_order_and_for_their_owner_only(database):
    keep(database, *HEADS)
    kept = kept_heads(database, known_key(database))
    assert kept.heads == tuple(HEADS)
    assert (kept.key, kept.lost) == (known_key(database), ())
    assert not [p for p in (heads_file(database), key_file(database)) if p.stat().st_mode & 0o077]
    private = json.loads(key_file(database).read_text())["private"]
    assert private not in heads_file(database).read_text()


def test_a_line_that_was_not_finished_is_no_head(database):
    keep(database, *HEADS[:2])
    whole = heads_file(database).read_bytes()
    heads_file(database).write_bytes(whole[:-20])
    assert kept_heads(database, known_key(database)).heads == tuple(HEADS[:1])


def test_what_is_no_key_is_refused(database):
    for text in ("", "[]", '{"origin": "a b", "private": "00"}'):
        key_file(database).write_text(text)
        with pytest.raises(ConfigError, match="no key"):
            keep_head(database, HEADS[0])
        assert not heads_file(database).exists()


def test_a_key_hands_over_and_its_changes_are_read_on_from_where_they_were_read(database):
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
    third = change_key(database)
    assert [open_change(c).old for c in changes.all()] == [first, second]
    keep(database, *HEADS[3:])
    assert len({first, second, third}) == 3
    assert {key.name for key in (first, second, third) if key} == {log_signer(database).name}
    kept = kept_heads(database, third)
    assert (kept.heads, kept.lost) == (tuple(HEADS), ())
    for old in (first, second):
        with pytest.raises(Authentication, match="hands the log"):
            kept_heads(database, old)
    file.write_bytes(file.read_bytes() + b"{}\n")
    with pytest.raises(Authentication, match="line 9"):
        changes.all()


def test_an_old_key_signs_nothing_any_more(database):
    keep(database, HEADS[0])
    old = log_signer(database)
    change_key(database)
    add_note(database, sign_checkpoint(Checkpoint(old.name, 2, bytes(32)), old))
    with pytest.raises(Authentication, match="line 3"):
        kept_heads(database, known_key(database))


@pytest.mark.parametrize("died_at", ["add_note", "_finish_change"])
def test_a_change_of_the_key_survives_its_process(database, died_at, monkeypatch):
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


def test_a_lost_key_is_survived_and_said(database):
    keep(database, *HEADS[:2])
    key_file(database).unlink()
    keep(database, *HEADS[2:])
    kept = kept_heads(database, known_key(database))
    assert (kept.heads, kept.lost) == (tuple(HEADS), (3,))


def test_who_takes_a_log_over_cannot_hide_it(database):
    """A thief with another key, who says that it was lost, or removes that line."""
    keep(database, *HEADS[:2])
    honest = known_key(database)
    key_file(database).unlink()
    keep(database, HEADS[2])
    with pytest.raises(Authentication, match="hands the log"):
        kept_heads(database, honest)
    lines = heads_file(database).read_text().splitlines(keepends=True)
    heads_file(database).write_text("".join([*lines[:2], *lines[3:]]))
    for key in (honest, known_key(database)):
        with pytest.raises(Authentication, match="signed by none"):
            kept_heads(database, key)


def verified(sotto: Command, run: Finished, *arguments: str) -> tuple[int, Any]:
    answer = sotto("audit", "verify", *arguments, "--storage", run.storage.url, "--json")
    return answer.code, answer.document


def test_a_log_whose_key_was_replaced(sotto, own_copy):
    file = own_copy.storage.file
    trusted = known_key(file)
    key_file(file).unlink()
    with open_database(own_copy.storage.url) as opened, transaction(opened) as unit:
        unit.audit.append(own_copy.run_id, actor="coordinator", action="model.exported")
    code, found = verified(sotto, own_copy)
    assert code == 3
    assert "a new key" in found["problems"][0]
    code, found = verified(sotto, own_copy, "--key", trusted.encode())
    assert code == 3
    assert "hands the log" in found["problems"][0]
    assert verified(sotto, own_copy, "--key", known_key(file).encode())[0] == 0


def test_the_key_is_changed_by_a_command(sotto, own_copy):
    url = own_copy.storage.url
    shown = sotto("audit", "change-key", "--storage", url)
    new = known_key(own_copy.storage.file)
    assert (shown.code, shown.out) == (0, f"key {new.encode()}\n")
    code, found = verified(sotto, own_copy)
    assert (code, found["log"]["key"]) == (0, new.encode())
    # Set up, started, and for each of three rounds that it was opened and committed, and the end.
    assert found["log"]["heads"] == 2 + 3 * 2 + 1
    answer = sotto("audit", "verify", "--key", "x+y", "--storage", url)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "--key: 'x+y'" in answer.err


def test_without_the_key_signatures_are_not_checked_and_that_is_said(sotto, own_copy):
    key_file(own_copy.storage.file).unlink()
    shown = sotto("audit", "verify", "--storage", own_copy.storage.url)
    assert shown.code == 0
    assert "signatures unchecked" in shown.out.replace("\n", " ")
    for command in ("head", "prove"):
        more = ("1",) if command == "prove" else ()
        answer = sotto("audit", command, *more, "--storage", own_copy.storage.url)
        assert answer.code == 2 and "can be signed" in answer.err
    assert not key_file(own_copy.storage.file).exists()


def test_a_head_is_kept_where_a_reader_is_in_the_way(own_copy):
    before = len(kept_heads(own_copy.storage.file, None).heads)
    with open_database(own_copy.storage.url, busy_timeout=0.05) as opened:
        with opened.unit_of_work(read_only=True) as reader:
            assert reader.runs.list()
            with transaction(opened) as unit:
                unit.audit.append(own_copy.run_id, actor="coordinator", action="run.resumed")
        heads = kept_heads(own_copy.storage.file, None).heads
        assert len(heads) == before + 1
        assert opened.verify_log(heads).size == heads[-1].size


ROOT = Path(__file__).resolve().parents[2]
VERIFIER = ROOT / "docs" / "records" / "verify_log.py"


def stranger(*arguments: object) -> tuple[int, str]:
    """What the independent program says, run where nothing of ours can be imported."""
    command = [sys.executable, "-I", VERIFIER, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return answer.returncode, answer.stdout + answer.stderr


def key_of(run: Finished) -> str:
    return known_key(run.storage.file).encode()


def proof(sotto: Command, run: Finished, event: str) -> dict[str, Any]:
    answer = sotto("audit", "prove", event, "--storage", run.storage.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    return dict(answer.document)


def test_a_strangers_program_checks_a_proof_and_refuses_a_spoilt_one(sotto, noised_run, tmp_path):
    found, key = proof(sotto, noised_run, "latest:3"), key_of(noised_run)
    assert proof(sotto, noised_run, str(found["leaf"])) == found
    (tmp_path / "proof").write_text(json.dumps(found))
    code, said = stranger("proof", tmp_path / "proof", key)
    assert code == 0
    assert f"leaf {found['leaf']} of" in said and "sotto-audit-v1" in said
    assert noised_run.run_id in said
    other = proof(sotto, noised_run, "latest:4")
    lie = base64.b64encode(base64.b64decode(found["data"]).replace(b"r", b"s", 1)).decode()
    attacks = {
        "data": dict(found, data=lie),
        "place": dict(found, leaf=found["leaf"] + 1),
        "step": dict(found, proof=other["proof"]),
        "short": dict(found, proof=found["proof"][:-1]),
        "note": dict(found, checkpoint=found["checkpoint"].replace("sotto/", "sotto0", 1)),
        "size": dict(found, checkpoint=found["checkpoint"].replace("\n", "\n1", 1)),
    }
    for attack, changed in attacks.items():
        (tmp_path / "proof").write_text(json.dumps(changed))
        code, said = stranger("proof", tmp_path / "proof", key)
        assert code == 1, attack
        assert "NOT VERIFIED" in said, attack
    (tmp_path / "proof").write_text(json.dumps(found))
    assert stranger("proof", tmp_path / "proof", key[:-8] + "AAAAAAA=")[0] == 1


def exported(sotto: Command, run: Finished, folder: Path, *more: str) -> dict[str, Any]:
    answer = sotto("audit", "export", str(folder), *more, "--storage", run.storage.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    return dict(answer.document)


def kept(sotto: Command, run: Finished, file: Path) -> Path:
    document = sotto("audit", "head", "--storage", run.storage.url, "--json").document
    file.write_text(document["checkpoint"], "utf-8")
    return file


def test_a_strangers_program_checks_an_export(sotto, own_copy, tmp_path):
    """Of a log that grew past a full tile since somebody kept a head of it."""
    head, key = kept(sotto, own_copy, tmp_path / "head"), key_of(own_copy)
    with open_database(own_copy.storage.url) as database, database.unit_of_work() as unit:
        for number in range(600):
            unit.audit.append(own_copy.run_id, actor="x", action="y", round=number)
        unit.commit()
    found = exported(sotto, own_copy, tmp_path / "log")
    assert {"tile/0/000", "tile/0/001", "tile/entries/001"} <= set(found["files"])
    assert any(name.startswith("tile/1/000.p/") for name in found["files"])
    code, said = stranger("export", tmp_path / "log", key, head)
    assert code == 0 and f"VERIFIED: {found['size']} leaves, root {found['root']}" in said
    file = tmp_path / "log" / "tile/entries/001"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert "tile 1" in stranger("export", tmp_path / "log", key)[1]


@pytest.mark.slow
def test_a_fork_is_seen_by_whoever_kept_a_head(sotto, own_copy, tmp_path):
    before = own_copy.storage.file.read_bytes()
    heads = []
    for name in ("a", "b"):
        own_copy.storage.file.write_bytes(before)
        with open_database(own_copy.storage.url) as database, database.unit_of_work() as unit:
            unit.audit.append(own_copy.run_id, actor=name, action="y")
            unit.commit()
        heads.append(kept(sotto, own_copy, tmp_path / f"head-{name}"))
        exported(sotto, own_copy, tmp_path / name)
    key = key_of(own_copy)
    assert stranger("export", tmp_path / "b", key, heads[1])[0] == 0
    code, said = stranger("export", tmp_path / "b", key, heads[0])
    assert code == 1
    assert "a kept head" in said


def test_there_is_no_proof_of_what_is_not_there(sotto, noised_run):
    for event in ("latest:99", "nobody:1", "99999", ""):
        answer = sotto("audit", "prove", event, "--storage", noised_run.storage.url)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


def test_a_row_that_was_changed_is_neither_proven_nor_exported(sotto, own_copy, tmp_path):
    execute(own_copy.storage.file, "UPDATE audit SET actor = 'x' WHERE sequence = 2")
    answer = sotto("audit", "prove", "latest:2", "--storage", own_copy.storage.url)
    assert (answer.code, answer.out) == (3, "")
    assert "not what was" in answer.err
    folder = tmp_path / "log"
    answer = sotto("audit", "export", str(folder), "--storage", own_copy.storage.url)
    assert answer.code == 3 and "broken at leaf" in answer.err
    assert not (folder / "checkpoint").exists()


def test_events_are_followed(own_copy):
    url = own_copy.storage.url

    def more() -> None:
        with open_database(url) as database, database.unit_of_work() as unit:
            unit.audit.append(own_copy.run_id, actor="x", action="y")
            unit.commit()

    looks = followed(url, more)
    first = next(looks)
    assert (first["kind"], first["says"][3:5]) == ("event", ["x", "y"])
    assert next(looks)["leaf"] == first["leaf"] + 1
    swap = "UPDATE leaves SET position = {} WHERE position = {}"
    execute(own_copy.storage.file, *(swap.format(*p) for p in ((-1, 0), (0, 1), (1, -1))))
    with pytest.raises(LogBroken, match="those of before"):
        next(looks)
