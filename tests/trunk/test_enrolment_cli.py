"""`enrolment` and `secagg-plan`, and runs that are secure against an active server, end to end."""

from __future__ import annotations

import json
import re
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
from privacy.secure_aggregation import Enrolment, Identity, fingerprint, plan
from tests.trunk._runs import FIXED, NO_POOL, Answer, Command, Finished, Storage
from tests.trunk.test_cli_errors import require_one_sentence

PUBLIC = Identity(b"\x05" * 32).public.hex()
OTHER = Identity(b"\x06" * 32).public.hex()
DEVELOPMENT = "create-for-development"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "enrolment.json"


def secrets_of(folder: Path) -> list[str]:
    return [path.read_text().strip() for path in folder.glob("*.key")]


def require_silent_about(answer: Answer, folder: Path) -> None:
    for secret in secrets_of(folder):
        assert secret not in answer.out + answer.err


# --- keys -----------------------------------------------------------------------------------------


def test_create_makes_a_key_for_every_client_and_shows_none(sotto: Command, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "3", "--json")
    assert (answer.code, answer.err) == (0, "")
    known = read_enrolment(folder / "enrolment.json")
    assert answer.document == {
        "serial": 3,
        "fingerprint": known.fingerprint,
        "members": [
            {"name": name, "fingerprint": fingerprint(key), "node": None, "retired_keys": 0}
            for key, name in sorted(known.names.items(), key=lambda item: item[1])
        ],
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"{name}.key" for name in client_names(3)),
        "enrolment.json",
    ]
    for name in client_names(3):
        path = key_path(folder / "enrolment.json", name)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert known.names[Identity(bytes.fromhex(path.read_text())).public] == name
    assert len(set(secrets_of(folder))) == 3
    require_silent_about(answer, folder)


def test_create_changes_nothing_that_is_there(sotto: Command, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    require_one_sentence(answer, "FOLDER", "exists already", "another folder")
    (folder / "enrolment.json").unlink()
    answer = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "2")
    require_one_sentence(answer, "KEY", "exists already; keys are never replaced")
    after = {path: path.read_bytes() for path in folder.iterdir()}
    assert after.items() <= before.items()
    require_silent_about(answer, folder)


def test_no_command_makes_keys_of_several_clients_but_the_one_for_development(
    sotto: Command,
) -> None:
    """A client makes its own, where it stays: `python -m platform.client keys create`."""
    shown = sotto("enrolment", "--help").out
    commands = re.findall(r"^  ([a-z-]+)  ", shown.partition("Commands:")[2], re.MULTILINE)
    assert commands == [DEVELOPMENT, "show", "add", "rotate", "revoke", "bind", "node"]
    for gone in ("create", "key"):
        assert sotto("enrolment", gone, "x").code == 2


def test_a_place_where_nothing_can_be_written_is_one_sentence(
    sotto: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "x"
    create = sotto("enrolment", DEVELOPMENT, str(inside), "--clients", "2")
    require_one_sentence(create, "KEY", "cannot be written")
    added = sotto("enrolment", "add", str(inside), "a", PUBLIC)
    require_one_sentence(added, "FILE", "cannot be written")


# --- the enrolment --------------------------------------------------------------------------------


def test_a_life_of_a_name(sotto: Command, file: Path) -> None:
    added = sotto("enrolment", "add", str(file), "clinic", PUBLIC, "--json")
    assert added.document["serial"] == 1
    assert added.document["members"] == [
        {
            "name": "clinic",
            "fingerprint": fingerprint(bytes.fromhex(PUBLIC)),
            "node": None,
            "retired_keys": 0,
        }
    ]
    rotated = sotto("enrolment", "rotate", str(file), "clinic", OTHER, "--json").document
    assert rotated["members"][0]["fingerprint"] == fingerprint(bytes.fromhex(OTHER))
    assert (rotated["serial"], rotated["members"][0]["retired_keys"]) == (2, 1)
    revoked = sotto("enrolment", "revoke", str(file), "clinic", "--json").document
    assert revoked["members"] == [
        {"name": "clinic", "fingerprint": "-", "node": None, "retired_keys": 2}
    ]
    shown = sotto("enrolment", "show", str(file), "--json")
    assert shown.document == revoked
    assert shown.document["fingerprint"] == read_enrolment(file).fingerprint
    plain = sotto("enrolment", "show", str(file))
    assert "serial 3" in plain.out and "compare the fingerprint" in plain.out


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


def test_no_two_names_have_one_node(sotto: Command, file: Path) -> None:
    sotto("enrolment", "add", str(file), "clinic", PUBLIC)
    sotto("enrolment", "add", str(file), "other", OTHER)
    sotto("enrolment", "bind", str(file), "clinic", NODE)
    before = file.read_bytes()
    require_one_sentence(sotto("enrolment", "bind", str(file), "other", NODE), "the same node")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bind", "other", NODE], ["'other' is not enrolled"]),
        (["bind", "clinic", NODE.replace("ed25519", "rsa")], ["no public key as OpenSSH"]),
        (["bind", "clinic", NODE[:-1] + "="], ["no public key as OpenSSH"]),
        (["bind", "clinic", "ssh-ed25519"], ["no public key as OpenSSH"]),
        (["bind", "clinic", PUBLIC], ["no public key as OpenSSH"]),
        (["add", "clinic", OTHER], ["'clinic' is enrolled already"]),
        (["add", "other", PUBLIC], ["a key occurs twice"]),
        (["add", "../other", OTHER], ["'../other' is no name"]),
        (["add", "other", "zz"], ["PUBLIC: 'zz'", "64 hex digits"]),
        (["add", "other", "abcd"], ["32 bytes"]),
        (["rotate", "clinic", PUBLIC], ["a key occurs twice"]),
        (["rotate", "other", OTHER], ["'other' is not enrolled"]),
        (["revoke", "other"], ["'other' is not enrolled"]),
    ],
    ids=lambda value: " ".join(value)[:24],
)
def test_a_change_that_is_not_possible_changes_nothing(
    sotto: Command, file: Path, arguments: list[str], words: list[str]
) -> None:
    sotto("enrolment", "add", str(file), "clinic", PUBLIC)
    before = file.read_bytes()
    command, *rest = arguments
    require_one_sentence(sotto("enrolment", command, str(file), *rest), *words)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"[]", b"\xff", b'{"members":{},"serial":0,"version":1}']
)
@pytest.mark.parametrize("command", ["show", "add"])
def test_a_file_that_is_no_enrolment_is_refused(
    sotto: Command, file: Path, command: str, content: bytes | None
) -> None:
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    rest = ["clinic", PUBLIC] if command == "add" else []
    answer = sotto("enrolment", command, str(file), *rest)
    require_one_sentence(answer, "secure_aggregation.enrolment: ", str(file))
    assert content is None or file.read_bytes() == content


def test_a_missing_enrolment_says_how_to_make_one(sotto: Command, file: Path) -> None:
    answer = sotto("enrolment", "show", str(file))
    require_one_sentence(answer, "cannot be read", "valid: a file that `enrolment` made")


@pytest.mark.parametrize("clients", ["1", "0", "-3", "many"])
@pytest.mark.parametrize("command", [["enrolment", DEVELOPMENT, "x"], ["secagg-plan"]])
def test_too_few_clients(sotto: Command, command: list[str], clients: str) -> None:
    answer = sotto(*command, "--clients", clients)
    assert (answer.code, answer.out) == (2, "")
    assert "Traceback" not in answer.err


# --- secagg-plan ----------------------------------------------------------------------------------


def test_the_plan_is_that_of_the_library(sotto: Command) -> None:
    answer = sotto("secagg-plan", "--clients", "100", "--json")
    assert (answer.code, answer.err) == (0, "")
    shown = {(d["adversary"], d["graph"]): d for d in answer.document}
    assert set(shown) == {
        ("semi_honest", "complete"),
        ("semi_honest", "k_regular"),
        ("active", "complete"),
    }
    found = plan(100, corrupt_rate=0.05, dropout_rate=0.1)
    regular = shown["semi_honest", "k_regular"]
    assert regular["neighbours"] == found.degree
    assert regular["threshold"] == found.threshold
    assert (regular["corrupt"], regular["smallest_sum"]) == (5, 90)
    # Ten are lost and no client has more than 22 neighbours: none can lose too many.
    assert regular["security_bits"] >= 40 and regular["correctness_bits"] is None
    assert [d["chosen"] for d in answer.document] == [False, True, True]
    # 2t > n + c, so at least 53 of 100 with 5 corrupt.
    assert shown["active", "complete"]["threshold"] >= 53
    assert all(d["refused"] is None for d in answer.document)


def test_what_cannot_be_is_refused_with_its_reason(sotto: Command) -> None:
    document = sotto("secagg-plan", "--clients", "5", "--json").document
    (regular,) = [d for d in document if d["graph"] == "k_regular"]
    assert regular["refused"] and not regular["chosen"]
    assert regular["threshold"] is None
    plain = sotto("secagg-plan", "--clients", "5")
    assert plain.code == 0 and regular["refused"] in plain.out
    assert "secure aggregation of 5 clients" in plain.out


def test_bytes_follow_the_vector(sotto: Command) -> None:
    sizes = []
    for length in ("8", "80008"):
        options = ["--clients", "10", "--length", length, "--ring-bits", "24", "--json"]
        sizes.append([d.get("bytes_up") for d in sotto("secagg-plan", *options).document])
    for small, large in zip(*sizes, strict=True):
        assert (small is None) == (large is None)
        assert small is None or large - small == 80_000 * 24 // 8


@pytest.mark.parametrize("option", ["--corrupt-rate", "--dropout-rate"])
@pytest.mark.parametrize("value", ["-0.1", "1", "1.5", "nan", "inf"])
def test_a_rate_out_of_range_is_one_sentence(sotto: Command, option: str, value: str) -> None:
    name = option.strip("-").replace("-", "_")
    answer = sotto("secagg-plan", "--clients", "10", option, value)
    require_one_sentence(answer, f"secagg-plan: {name} is", "valid are 0 up to")


# --- runs -----------------------------------------------------------------------------------------


def active(folder: Path) -> tuple[str, ...]:
    return (
        "secure_aggregation.adversary=active",
        "secure_aggregation.corrupt=1",
        "secure_aggregation.threshold=4",
        f"secure_aggregation.enrolment={folder / 'enrolment.json'}",
    )


SMALL_RUN = (*NO_POOL, *FIXED, "rounds=2")


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
    assert any("also against an active server" in w for w in secure.summary["warnings"])
    assert any("at most 1 collude with it" in w for w in secure.summary["warnings"])
    assert not any("semi-honest server" in w for w in secure.summary["warnings"])
    assert any("an active one is not covered" in w for w in plain.summary["warnings"])
    # Signatures and commitments.
    assert secure.summary["rounds"][0]["bytes_up"] > plain.summary["rounds"][0]["bytes_up"]
    require_no_key_in(secure, keys)


def require_no_key_in(finished: Finished, keys: Path) -> None:
    secrets = [secret.encode() for secret in secrets_of(keys)]
    raw = [bytes.fromhex(secret.decode()) for secret in secrets]
    paths = [p for p in finished.storage.folder.rglob("*") if p.is_file()]
    for path in paths:
        content = path.read_bytes()
        assert not any(secret in content for secret in (*secrets, *raw)), path


def refused(storage: Storage, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        storage.create(*SMALL_RUN, *overrides).database.close()
    assert str(error.value).startswith("secure_aggregation.")
    return str(error.value)


def test_without_an_enrolment_nothing_starts(storage: Storage, tmp_path: Path) -> None:
    without = "secure_aggregation.enrolment=null"
    assert "is missing" in refused(storage, *active(tmp_path), without)
    assert "cannot be read" in refused(storage, *active(tmp_path))


def change(keys: Path, enrolment: Enrolment) -> None:
    write_enrolment(keys / "enrolment.json", enrolment)


@pytest.mark.parametrize("how", ["revoked", "rotated", "never enrolled", "swapped", "no key"])
def test_a_client_whose_key_is_not_enrolled_keeps_the_run_from_starting(
    storage: Storage, keys: Path, how: str
) -> None:
    known, (first, second, *_) = read_enrolment(keys / "enrolment.json"), client_names(5)
    paths = [key_path(keys / "enrolment.json", name) for name in (first, second)]
    if how == "revoked":
        change(keys, known.revoke(second))
    elif how == "rotated":
        change(keys, known.rotate(second, bytes.fromhex(PUBLIC)))
    elif how == "never enrolled":
        paths[1].unlink()
        paths[1].write_text("07" * 32 + "\n")
    elif how == "swapped":
        texts = [path.read_text() for path in paths]
        for path, text in zip(paths, reversed(texts), strict=True):
            path.write_text(text)
    else:
        paths[1].unlink()
    said = refused(storage, *active(keys))
    expected = "holds no private key" if how == "no key" else "is not enrolled under that name"
    assert expected in said
    assert (first if how == "swapped" else second) in said
    assert not any(secret in said for secret in secrets_of(keys))


def test_an_enrolment_that_somebody_edited_is_refused(storage: Storage, keys: Path) -> None:
    path = keys / "enrolment.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert "not in its canonical form" in refused(storage, *active(keys))


def test_a_client_revoked_since_keeps_a_run_from_going_on(storage: Storage, keys: Path) -> None:
    simulation = storage.create(*SMALL_RUN, *active(keys))
    simulation.database.close()
    known = read_enrolment(keys / "enrolment.json")
    change(keys, known.revoke(client_names(5)[3]))
    with pytest.raises(RunStopped, match="put that file back or start a new run"):
        storage.reopen(simulation.run_id)


def test_a_run_is_resumed_from_another_folder_than_it_was_started_in(
    storage: Storage, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(keys.parent)
    simulation = storage.create(*SMALL_RUN, *active(Path(keys.name)))
    simulation.database.close()
    monkeypatch.chdir("/")
    storage.reopen(simulation.run_id).database.close()


@pytest.mark.slow
def test_the_quickstart_against_an_active_server(
    sotto: Command, storage: Storage, tmp_path: Path
) -> None:
    folder = tmp_path / "keys"
    made = sotto("enrolment", DEVELOPMENT, str(folder), "--clients", "50")
    assert made.code == 0
    options = [
        *("secure_aggregation.adversary=active", "secure_aggregation.corrupt=2", "rounds=2"),
        f"secure_aggregation.enrolment={folder / 'enrolment.json'}",
    ]
    sets = [text for option in options for text in ("--set", option)]
    answer = sotto("run", "quickstart", *sets, "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    summary = answer.document
    assert [r["round"] for r in summary["rounds"]] == [1, 2]
    assert summary["final"]["epsilon"]["server"] <= 8.0
    report = sotto("report", "latest", "--storage", storage.url)
    told = " ".join(report.out.split())
    assert "also against an active server" in told and "at most 2 collude with it" in told
    assert sotto("audit", "verify", "--storage", storage.url).code == 0
