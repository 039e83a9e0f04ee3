"""`enrolment` and `secagg-plan`, and runs that are secure against an active server, end to end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from platform.errors import ConfigError, RunStopped
from platform.parties.identities import (
    client_names,
    create_enrolment,
    key_path,
    read_enrolment,
    write_enrolment,
)
from privacy.secure_aggregation import Identity, fingerprint, plan
from tests.trunk._runs import FIXED, NO_POOL, Command, Storage, slow, warnings_of
from tests.trunk.test_cli_errors import require_one_sentence

PUBLIC = Identity(b"\x05" * 32).public.hex()
OTHER = Identity(b"\x06" * 32).public.hex()
DEVELOPMENT = "create-for-development"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "enrolment.json"


def secrets_of(folder: Path) -> list[str]:
    return [path.read_text().strip() for path in folder.glob("*.key")]


def test_create_makes_a_key_for_every_client_and_shows_none(sotto: Command, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "3", "--json")
    assert (answer.code, answer.err) == (0, "")
    known = read_enrolment(folder / "enrolment.json")
    assert (answer.document["serial"], answer.document["fingerprint"]) == (3, known.fingerprint)
    assert [m["name"] for m in answer.document["members"]] == list(client_names(3))
    for name in client_names(3):
        path = key_path(folder / "enrolment.json", name)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert known.names[Identity(bytes.fromhex(path.read_text())).public] == name
    assert len(set(secrets_of(folder))) == 3
    assert not any(secret in answer.out + answer.err for secret in secrets_of(folder))


def test_create_changes_nothing_that_is_there(sotto: Command, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    require_one_sentence(answer, "FOLDER", "exists already")
    (folder / "enrolment.json").unlink()
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    require_one_sentence(answer, "KEY", "exists already")
    (tmp_path / "file").write_text("")
    added = sotto("enrolment", "add", str(tmp_path / "file" / "x"), "a", PUBLIC)
    require_one_sentence(added, "FILE", "cannot be written")
    after = {path: path.read_bytes() for path in folder.iterdir()}
    assert after.items() <= before.items()
    assert not any(secret in answer.out + answer.err for secret in secrets_of(folder))


def test_a_life_of_a_name(sotto: Command, file: Path) -> None:
    life = (("add", PUBLIC), ("rotate", OTHER), ("revoke", None))
    for retired, (command, key) in enumerate(life):
        keys = () if key is None else (key,)
        document = sotto("enrolment", command, str(file), "clinic", *keys, "--json").document
        known = "-" if key is None else fingerprint(bytes.fromhex(key))
        assert document["serial"] == retired + 1
        about = {"fingerprint": known, "node": None, "retired_keys": retired}
        assert document["members"] == [{"name": "clinic", **about}]
    assert sotto("enrolment", "show", str(file), "--json").document == document
    assert document["fingerprint"] == read_enrolment(file).fingerprint


NODE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAS3HrTBDAalA1tWvcQzfBzmKqTM8O2kQinSVXlz92Y0"
NODE_FINGERPRINT = "SHA256:hllHPQ6ynmzcs0lEHK/eVljh+6+e4rF1h2CBFR0sFo8"
"""What `ssh-keygen -l` says of it."""


def test_a_node_is_bound_to_a_name_and_goes_with_it(sotto: Command, file: Path) -> None:
    sotto("enrolment", "add", str(file), "clinic", PUBLIC)
    bound = sotto("enrolment", "bind", str(file), "clinic", f"{NODE} root@clinic", "--json")
    assert bound.document["serial"] == 2
    assert bound.document["members"][0]["node"] == NODE
    assert sotto("enrolment", "node", str(file), "clinic").out == f"{NODE}\n"
    assert NODE_FINGERPRINT in sotto("enrolment", "show", str(file)).out
    # Another key to sign with is on the same machine; who is revoked has none.
    rotated = sotto("enrolment", "rotate", str(file), "clinic", OTHER, "--json").document
    assert rotated["members"][0]["node"] == NODE
    sotto("enrolment", "revoke", str(file), "clinic")
    require_one_sentence(sotto("enrolment", "node", str(file), "clinic"), "no node is bound")


IMPOSSIBLE = (
    (("bind", "other", NODE), "'other' is not enrolled"),
    (("bind", "clinic", NODE.replace("ed25519", "rsa")), "no public key"),
    (("bind", "clinic", NODE[:-1] + "="), "no public key"),
    (("bind", "clinic", "ssh-ed25519"), "no public key"),
    (("bind", "second", NODE), "the same node"),
    (("add", "clinic", OTHER), "'clinic' is enrolled"),
    (("add", "other", PUBLIC), "a key occurs twice"),
    (("add", "../other", OTHER), "'../other' is no name"),
    (("add", "other", "zz"), "PUBLIC: 'zz'"),
    (("add", "other", "abcd"), "32 bytes"),
    (("rotate", "clinic", PUBLIC), "a key occurs twice"),
    (("rotate", "other", OTHER), "'other' is not enrolled"),
    (("revoke", "other"), "'other' is not enrolled"),
)


def test_a_change_that_is_not_possible_changes_nothing(sotto: Command, file: Path) -> None:
    sotto("enrolment", "add", str(file), "clinic", PUBLIC)
    sotto("enrolment", "add", str(file), "second", Identity(b"\x07" * 32).public.hex())
    sotto("enrolment", "bind", str(file), "clinic", NODE)
    before = file.read_bytes()
    for (command, *rest), words in IMPOSSIBLE:
        require_one_sentence(sotto("enrolment", command, str(file), *rest), words)
        assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"\xff", b'{"members":{},"serial":0,"version":1}'])
def test_a_file_that_is_no_enrolment_is_refused(sotto: Command, file: Path, content: bytes) -> None:
    missing = sotto("enrolment", "show", str(file))
    require_one_sentence(missing, "secure_aggregation.enrolment: ", "cannot be read")
    file.write_bytes(content)
    for command in (["show", str(file)], ["add", str(file), "clinic", PUBLIC]):
        answer = sotto("enrolment", *command)
        require_one_sentence(answer, "secure_aggregation.enrolment: ", str(file))
    assert file.read_bytes() == content


def test_the_plan_is_that_of_the_library(sotto: Command) -> None:
    answer = sotto("secagg-plan", "--clients", "100", "--json")
    assert (answer.code, answer.err) == (0, "")
    shown = {(d["adversary"], d["graph"]): d for d in answer.document}
    regular = shown["semi_honest", "k_regular"]
    found = plan(100, corrupt_rate=0.05, dropout_rate=0.1)
    assert (regular["neighbours"], regular["threshold"]) == (found.degree, found.threshold)
    assert (regular["corrupt"], regular["smallest_sum"]) == (5, 90)
    # 2t > n + c, so at least 53 of 100 with 5 corrupt.
    assert shown["active", "complete"]["threshold"] >= 53
    refused = sotto("secagg-plan", "--clients", "10", "--corrupt-rate", "1")
    require_one_sentence(refused, "secagg-plan: corrupt_rate")


def active(folder: Path) -> tuple[str, ...]:
    section = {"adversary": "active", "corrupt": 1, "threshold": 4}
    section |= {"enrolment": folder / "enrolment.json"}
    return tuple(f"secure_aggregation.{key}={value}" for key, value in section.items())


SMALL_RUN = (*NO_POOL, *FIXED, "rounds=1", "task.test_per_class=1")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    create_enrolment(folder, client_names(5))
    return folder


def test_an_active_run_gives_what_a_semi_honest_one_gives(storage: Storage, keys: Path) -> None:
    """One client is lost in every round; masks cancel, so the sums are the same to the bit."""
    plain = storage.run(*SMALL_RUN)
    secure = storage.run(*SMALL_RUN, *active(keys))
    for name, value in plain.state().items():
        assert (secure.state()[name] == value).all()
    assert plain.summary["final"]["epsilon"] == secure.summary["final"]["epsilon"]
    assert "also against an active server" in " ".join(warnings_of(secure.summary))
    assert "an active one is not covered" in " ".join(warnings_of(plain.summary))
    assert secure.summary["rounds"][0]["bytes_up"] > plain.summary["rounds"][0]["bytes_up"]
    hidden = [secret.encode() for secret in secrets_of(keys)]
    hidden += [bytes.fromhex(secret) for secret in secrets_of(keys)]
    for path in storage.folder.rglob("*"):
        assert path.is_dir() or not any(secret in path.read_bytes() for secret in hidden), path


def refused(storage: Storage, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        storage.create(*SMALL_RUN, *overrides).database.close()
    assert str(error.value).startswith("secure_aggregation.")
    return str(error.value)


def test_without_an_enrolment_nothing_starts(storage: Storage, tmp_path: Path) -> None:
    without = "secure_aggregation.enrolment=null"
    assert "is missing" in refused(storage, *active(tmp_path), without)
    assert "cannot be read" in refused(storage, *active(tmp_path))


NOT_ITS = "is not enrolled"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("revoked", NOT_ITS),
        ("edited", "canonical form"),
        slow("rotated", NOT_ITS),
        slow("another's", NOT_ITS),
        slow("no key", "no private key"),
    ],
)
def test_a_client_whose_key_is_not_enrolled_keeps_the_run_from_starting(storage, keys, how, words):
    file, (first, second, *_) = keys / "enrolment.json", client_names(5)
    known, own = read_enrolment(file), key_path(file, second)
    if how == "revoked":
        write_enrolment(file, known.revoke(second))
    elif how == "rotated":
        write_enrolment(file, known.rotate(second, bytes.fromhex(PUBLIC)))
    elif how == "another's":
        own.write_text(key_path(file, first).read_text())
    elif how == "no key":
        own.unlink()
    else:
        file.write_text(json.dumps(json.loads(file.read_text())))
    said = refused(storage, *active(keys))
    assert words in said
    assert how == "edited" or second in said
    assert not any(secret in said for secret in secrets_of(keys))


def test_a_run_goes_on_from_another_folder_and_with_no_other_enrolment(storage, keys, monkeypatch):
    monkeypatch.chdir(keys.parent)
    simulation = storage.create(*SMALL_RUN, *active(Path(keys.name)))
    simulation.database.close()
    monkeypatch.chdir("/")
    storage.reopen(simulation.run_id).database.close()
    known = read_enrolment(keys / "enrolment.json")
    write_enrolment(keys / "enrolment.json", known.revoke(client_names(5)[3]))
    with pytest.raises(RunStopped, match="put that file"):
        storage.reopen(simulation.run_id)
