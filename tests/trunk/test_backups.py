"""Backups of coordinators and data holders: what comes back, what is refused, what dies."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from platform.agreement import backups
from platform.cli.auditing import audited
from platform.errors import ConfigError, UnknownRun
from platform.experiment.finishing import execute
from platform.holder.settings import load_holder
from platform.holder.store import back_up_store, may_hold, restore_store
from platform.parties.client import Client
from platform.rounds.observing import SilentObserver
from storage import DatabaseDamaged, open_client_store
from tests.storage._kept_versions import CLIENT, kept, unpack
from tests.trunk._dying import Plan, die
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._runs import (
    NO_POOL,
    NONE,
    Command,
    Finished,
    Storage,
    comparable,
    crashed,
    opened,
    stores_of,
    warnings_of,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory, noised_run):
    file = tmp_path_factory.mktemp("backup") / "new" / "sotto.backup"
    backups.back_up(noised_run.storage.url, file, NOW)
    return file, noised_run


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_finished_run_comes_back_as_it_was(backed_up, tmp_path, sotto):
    file, run = backed_up
    place = Storage(tmp_path / "back")
    answer = sotto("restore", str(file), "--storage", place.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert sotto("audit", "verify", "--storage", place.url).code == 0
    report = sotto("report", run.run_id, "--storage", place.url, "--json")
    assert report.document == run.summary
    back = Finished(place, run.run_id, run.summary)
    assert back.personal_parts() == run.personal_parts()
    assert back.identities() == run.identities()
    found = {path.name for path in place.folder.iterdir()}
    assert found == {"sotto.db", "sotto.audit.heads", run.run_id}
    assert all(path.stat().st_mode & 0o077 == 0 for path in place.folder.rglob("*"))
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


@pytest.mark.slow
def test_a_run_goes_on_from_its_backup_and_says_so_for_good(
    storage, tmp_path, monkeypatch, plain_run
):
    run_id = crashed(monkeypatch, storage.create(NONE), Client, "_train", 7, after=True)
    backups.back_up(storage.url, tmp_path / "file", NOW)
    place = Storage(tmp_path / "back")
    backups.restore(tmp_path / "file", place.url, NOW)
    query = "SELECT run_id, detail FROM audit WHERE action = 'database.restored'"
    assert place.rows(query) == [(run_id, '{"made":"2026-11-22T12:00:00+00:00"}')]
    assert audited(place.url)["problems"] == []
    resumed = place.resume(run_id)
    assert comparable(resumed.summary)["rounds"] == comparable(plain_run.summary)["rounds"]
    assert audited(place.url, run_id)["runs"][0]["problems"] == []
    assert any("came back from a backup" in text for text in warnings_of(resumed.summary))


@pytest.mark.slow
def test_a_backup_while_a_run_commits_is_of_one_moment(storage: Storage, tmp_path: Path) -> None:
    with opened(storage.create(NONE, *NO_POOL, "rounds=12")) as simulation:
        worker = threading.Thread(target=lambda: execute(simulation, SilentObserver()))
        worker.start()
        made = []
        while worker.is_alive() and len(made) < 40:
            made.append(tmp_path / f"{len(made)}.backup")
            backups.back_up(storage.url, made[-1], NOW)
        worker.join()
    assert len(made) >= 5
    rounds = set()
    for file in made:
        place = Storage(tmp_path / f"back-{file.stem}")
        backups.restore(file, place.url, NOW)
        found = audited(place.url)
        assert found["problems"] == []
        assert [run["problems"] for run in found["runs"]] == [[]]
        rounds.add(place.rows("SELECT count(*) FROM rounds")[0])
    assert len(rounds) >= 3
    assert place.resume(simulation.run_id).summary["rounds"][-1]["round"] == 12


def test_the_same_records_make_the_same_file(backed_up, tmp_path):
    file, run = backed_up
    backups.back_up(run.storage.url, tmp_path / "again", NOW)
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        backups.back_up(run.storage.url, file, NOW)
    with pytest.raises(UnknownRun, match="no database"):
        backups.back_up(f"sqlite:///{file.parent}/none.db", file.parent / "none", NOW)


def test_nothing_is_restored_over_anything(backed_up, own_copy, sotto):
    before = contents(own_copy.storage.folder)
    answer = sotto("restore", str(backed_up[0]), "--storage", own_copy.storage.url)
    assert answer.code == 2 and "never overwrites files" in answer.err
    assert contents(own_copy.storage.folder) == before


def test_one_flipped_bit_or_a_cut_anywhere_is_named(backed_up, tmp_path):
    whole, dice = backed_up[0].read_bytes(), random.Random(5)
    size = len(whole)
    places = [*range(0, 60, 7), *range(size - 200, size, 11)]
    places += [dice.randrange(size) for _ in range(60)]
    for place in places:
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << dice.randrange(8)
        # Every second one is cut there instead.
        (tmp_path / "file").write_bytes(spoilt if place % 2 else whole[:place])
        with pytest.raises(ConfigError, match="damaged or no"):
            backups.restore(tmp_path / "file", f"sqlite:///{tmp_path}/back/sotto.db", NOW)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


HOSTILE = (
    *("../outside", "/etc/outside", "runs/../../outside/config.yaml", "runs/./config.yaml"),
    *("runs/x/outside", "runs/x/clients/../../stores.db", "clients/../stores.db", ".", ""),
    *("database.db/", "runs//config.yaml", "clients/0123456789abcdeg/stores.db", "DATABASE.DB"),
    *("runs/x/config.yaml\n", "runs\\x\\config.yaml", "runs/x\0/config.yaml"),
)


def test_members_of_another_name_are_refused() -> None:
    assert [name for name in HOSTILE if backups.may_hold(name)] == []
    of_holders = ("../client.db", "offers/../x.offer", "offers/.x.offer", "offers/x", "key")
    assert [name for name in (*of_holders, "offers/a/b.offer") if may_hold(name)] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": {"../outside": b"mine"}}, "does not belong"),
        ({"more": {"/etc/outside": b"mine"}}, "does not belong"),
        ({"more": {"runs/another/config.yaml": b"mine"}}, "database does not know"),
        ({"manifest": {"version": 2}}, "of version 2"),
        ({"manifest": {"kind": "client"}}, "of a 'client'"),
        ({"manifest": {"format": "other"}}, "no backup of Sotto"),
        ({"manifest": {"facts": {}}}, "names other runs"),
        ({"manifest": {"facts": []}}, "of another type"),
        ({"manifest": {"digests": {}}}, "members are not"),
        ({"manifest": {"more": 1}}, "does not hold"),
        # A member that grows when it is read, or one that shadows another.
        ({"how": "compressed"}, "does not belong|not those that"),
        ({"how": "twice"}, "does not belong|not those that"),
    ],
)
def test_an_archive_made_by_hand_is_refused_whole(backed_up, tmp_path, change, said):
    """One whose digests all hold: whoever writes an archive writes them too."""
    spoil(backed_up[0], tmp_path / "file", **change)
    with pytest.raises(ConfigError, match=said):
        backups.restore(tmp_path / "file", f"sqlite:///{tmp_path}/back/sotto.db", NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def spoil(
    source: Path,
    target: Path,
    *,
    manifest: dict[str, Any] | None = None,
    more: dict[str, bytes] | None = None,
    how: str = "",
) -> None:
    """Writes an archive whose outer digest holds, with something else in it."""
    found = members(source) | (more or {})
    document = json.loads(found.pop("manifest.json"))
    document["digests"] |= {k: hashlib.sha256(v).hexdigest() for k, v in (more or {}).items()}
    found = {"manifest.json": json.dumps(document | (manifest or {})).encode()} | found
    packing = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w", packing) as archive:
        for name, data in found.items():
            archive.writestr(name, data)
        if how == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("database.db", b"other")
        archive.comment = b"0" * 64
    whole = target.read_bytes()[:-64]
    target.write_bytes(whole + hashlib.sha256(whole).hexdigest().encode())


DAMAGES = {
    "stores": "UPDATE ledger SET standard_deviation = 99.0",
    "database": "UPDATE rounds SET attempt = 9",
    "audit": "DROP TRIGGER audit_no_update; UPDATE audit SET actor = 'nobody' WHERE sequence = 3",
}


@pytest.mark.parametrize("where", DAMAGES)
def test_what_is_damaged_is_not_backed_up(own_copy: Finished, tmp_path: Path, where: str) -> None:
    path = stores_of(own_copy.folder) if where == "stores" else own_copy.storage.file
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DAMAGES[where])
    with pytest.raises(DatabaseDamaged):
        backups.back_up(own_copy.storage.url, tmp_path / "file", NOW)
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / ".file.part").exists()


STEPS = ("os:fsync", "pathlib:Path.rename", "shutil:rmtree", "os:close")


@pytest.mark.slow
@pytest.mark.parametrize("target", STEPS)
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_backup_or_a_restoring_that_was_killed_left_nothing_or_all(
    backed_up, own_copy, tmp_path, command, target
):
    before, place = contents(own_copy.storage.folder), Storage(tmp_path / "out" / "back")
    file, is_backup = tmp_path / "out" / "file", command == "backup"
    asked = (file, own_copy.storage.url) if is_backup else (backed_up[0], place.url)
    for nth in range(1, 200):
        plan = Plan(target, nth, after=False, number=signal.SIGKILL)
        code, _ = die(plan, command, str(asked[0]), "--storage", asked[1])
        if is_backup and file.exists():
            backups.restore(file, place.url, NOW)
            file.unlink()
        if place.folder.exists():
            assert audited(place.url)["problems"] == []
            shutil.rmtree(place.folder)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0 and nth > 1
    assert list(file.parent.iterdir()) == []
    assert contents(own_copy.storage.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_full_disk_is_named_and_leaves_nothing(backed_up, tmp_path, sotto, command):
    file, run = backed_up
    original, failed = os.fsync, 0

    def full_at(nth: int) -> Callable[[int], None]:
        calls = iter(range(1, 10_000))

        def fsync(descriptor: int) -> None:
            if next(calls) == nth:
                raise OSError(28, "No space left on device")
            original(descriptor)

        return fsync

    for nth in range(1, 100):
        target = tmp_path / f"{nth}"
        where = run.storage.url if command == "backup" else f"sqlite:///{target}/sotto.db"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full_at(nth))
            place = str(target if command == "backup" else file)
            answer = sotto(command, place, "--storage", where)
        if answer.code == 0:
            break
        failed += 1
        assert answer.code == 1 and "No space left" in answer.err
        # After its last rename it is there, and only not known to be on the disk.
        assert len(list(tmp_path.iterdir())) <= 1
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert answer.code == 0 and failed >= 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held")
    holders = Holders.written(folder)
    hold(federation(folder, "rounds=1"), within(holders.handlers()))
    return folder


@pytest.fixture
def held(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "fed")
    return tmp_path / "fed"


def test_backup_restore_and_catch_up(held: Path, client: Command, sotto: Command) -> None:
    config, file, charges = str(held / "south/client.yaml"), held / "file", held / "charges.json"
    kept_offers = sorted(path.name for path in (held / "south/store/offers").iterdir())
    answer = client("backup", config, str(file), "--json")
    assert (answer.code, answer.err) == (0, "")
    pseudonym = answer.document["pseudonym"]
    assert answer.document["members"] == ["client.db", *(f"offers/{name}" for name in kept_offers)]
    refused = client("restore", config, str(file))
    assert refused.code == 2 and "never overwrites files" in refused.err
    shutil.rmtree(held / "south/store")
    answer = client("restore", config, str(file))
    assert (answer.code, answer.err) == (0, "")
    assert f"charges {pseudonym} FILE" in answer.out
    assert client("check", config).code == 2
    url = f"sqlite:///{held}/sotto.db"
    answer = sotto("charges", pseudonym, str(charges), "--storage", url, "--json")
    assert (answer.code, list(answer.document["charges"].values())) == (0, [1])
    assert client("catch-up", config, str(charges), "--json").document["added"] == 0
    assert client("check", config).code == 0
    assert sorted(path.name for path in (held / "south/store/offers").iterdir()) == kept_offers
    assert all(p.stat().st_mode & 0o077 == 0 for p in (held / "south/store").rglob("*"))


def test_the_key_is_in_no_backup(held: Path, client: Command) -> None:
    key = held / "south" / "store" / "key"
    assert client("keys", "create", str(key)).code == 0
    assert client("backup", str(held / "south/client.yaml"), str(held / "file")).code == 0
    assert key.read_bytes().strip() not in (held / "file").read_bytes()
    assert not [name for name in members(held / "file") if "key" in name]


def test_another_clients_charges_are_refused(held: Path, client: Command, sotto: Command) -> None:
    config, file = str(held / "south/client.yaml"), held / "file"
    client("backup", config, str(file))
    shutil.rmtree(held / "south/store")
    client("restore", config, str(file))
    with closing(sqlite3.connect(held / "east/store/client.db")) as connection:
        ((other,),) = connection.execute("SELECT pseudonym FROM identity")
    url = f"sqlite:///{held}/sotto.db"
    assert sotto("charges", other, str(held / "east.json"), "--storage", url).code == 0
    answer = client("catch-up", config, str(held / "east.json"))
    assert answer.code == 2 and f"of client '{other}'" in answer.err
    unknown = sotto("charges", "nobody", str(held / "nobody.json"), "--storage", url)
    assert unknown.code == 2 and "'nobody' has no row" in unknown.err


def test_a_backup_of_an_older_store_is_migrated_when_it_comes_back(held: Path) -> None:
    settings = load_holder(held / "south" / "client.yaml")
    unpack(kept(CLIENT)[0], settings.store_file)
    before = settings.store_file.read_bytes()
    assert back_up_store(settings, held / "file", NOW).schema == "0.1.0"
    assert settings.store_file.read_bytes() == before
    shutil.rmtree(settings.storage)
    with pytest.raises(ConfigError, match="no store at"):
        back_up_store(settings, held / "none", NOW)
    restore_store(held / "file", settings, NOW)
    store = open_client_store(settings.store_file, read_only=True)
    store.verify_integrity()
    assert len(store.rows("r")) == 4
    assert store.restoring.pending_since() is not None
