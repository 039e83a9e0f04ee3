"""Heads, proofs and exports of a log, checked by a program that shares no code with ours."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.cli.auditing import followed
from platform.disk.log_files import known_key
from storage import LogBroken, open_database
from tests.trunk._runs import Command, Finished
from tests.trunk._tampering import execute

ROOT = Path(__file__).resolve().parents[2]
VERIFIER = ROOT / "docs" / "records" / "verify_log.py"


def stranger(*arguments: object) -> tuple[int, str]:
    """What the independent program says, run where nothing of ours can be imported."""
    answer = subprocess.run(
        [sys.executable, "-I", VERIFIER, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    return answer.returncode, answer.stdout + answer.stderr


def key_of(run: Finished) -> str:
    found = known_key(run.storage.file)
    assert found is not None
    return found.encode()


def proof(sotto: Command, run: Finished, event: str) -> dict[str, Any]:
    answer = sotto("audit", "prove", event, "--storage", run.storage.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    return dict(answer.document)


def test_a_strangers_program_checks_a_proof(
    sotto: Command, noised_run: Finished, tmp_path: Path
) -> None:
    found = proof(sotto, noised_run, "latest:3")
    (tmp_path / "proof").write_text(json.dumps(found))
    code, said = stranger("proof", tmp_path / "proof", key_of(noised_run))
    assert code == 0
    assert f"VERIFIED: leaf {found['leaf']} of {found['size']} says sotto-audit-v1" in said
    assert noised_run.run_id in said
    by_leaf = proof(sotto, noised_run, str(found["leaf"]))
    assert by_leaf == found


def test_a_strangers_program_refuses_a_spoilt_proof(
    sotto: Command, noised_run: Finished, tmp_path: Path
) -> None:
    found, key = proof(sotto, noised_run, "latest:3"), key_of(noised_run)
    other = proof(sotto, noised_run, "latest:4")
    lie = base64.b64encode(base64.b64decode(found["data"]).replace(b"r", b"s", 1)).decode()
    attacks = {
        "data": dict(found, data=lie),
        "place": dict(found, leaf=found["leaf"] + 1),
        "step": dict(found, proof=other["proof"]),
        "short": dict(found, proof=found["proof"][:-1]),
        "long": dict(found, proof=[*found["proof"], found["proof"][0]]),
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


def test_a_strangers_program_checks_an_export(
    sotto: Command, own_copy: Finished, tmp_path: Path
) -> None:
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
    assert (code, said) == (
        0,
        f"VERIFIED: {found['size']} leaves, root {found['root']}, 1 kept heads are on the way\n",
    )
    file = tmp_path / "log" / "tile/entries/001"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert "the hashes of tile 1 are not" in stranger("export", tmp_path / "log", key)[1]


def test_a_fork_is_seen_by_whoever_kept_a_head(
    sotto: Command, own_copy: Finished, tmp_path: Path
) -> None:
    """Two continuations of one log: each holds in itself, and neither beside the other's head."""
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
    assert "are not those of a kept head" in said


@pytest.mark.parametrize("event", ["latest:99", "nobody:1", "99999", ""])
def test_there_is_no_proof_of_what_is_not_there(
    sotto: Command, noised_run: Finished, event: str
) -> None:
    answer = sotto("audit", "prove", event, "--storage", noised_run.storage.url)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


def test_a_row_that_was_changed_is_neither_proven_nor_exported(
    sotto: Command, own_copy: Finished, tmp_path: Path
) -> None:
    execute(own_copy.storage.file, "UPDATE audit SET actor = 'x' WHERE sequence = 2")
    answer = sotto("audit", "prove", "latest:2", "--storage", own_copy.storage.url)
    assert (answer.code, answer.out) == (3, "")
    assert "is not what was logged" in answer.err
    folder = tmp_path / "log"
    answer = sotto("audit", "export", str(folder), "--storage", own_copy.storage.url)
    assert answer.code == 3 and "the log is broken at leaf" in answer.err
    assert not (folder / "checkpoint").exists()


def test_events_are_followed(own_copy: Finished) -> None:
    """What comes is shown, charges too; what is changed behind the reader's back is named."""
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
    with pytest.raises(LogBroken, match="others than before"):
        next(looks)
