"""A data holder's backup, restoring and catching up, as its owner does them at the command line."""

from __future__ import annotations

import shutil
import sqlite3
import zipfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

import storage
from platform.cli.client_app import main
from platform.errors import ConfigError
from platform.holder.settings import load_holder
from platform.holder.store import back_up_store, may_hold, restore_store
from tests.storage._kept_versions import CLIENT, kept, unpack
from tests.trunk._federations import Holders, federation, hold, within
from tests.trunk._runs import Command, command_line

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The data holder's command line in this process."""
    return command_line(monkeypatch, capsys, main)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation's folder after a run of two rounds."""
    folder = tmp_path_factory.mktemp("held")
    holders = Holders.written(folder)
    hold(federation(folder), within(holders.handlers()))
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
    assert refused.code == 2
    assert "nothing is restored over anything" in refused.err
    shutil.rmtree(held / "south/store")
    answer = client("restore", config, str(file))
    assert (answer.code, answer.err) == (0, "")
    assert f"charges {pseudonym} FILE" in answer.out
    assert client("check", config).code == 2
    url = f"sqlite:///{held}/sotto.db"
    answer = sotto("charges", pseudonym, str(charges), "--storage", url, "--json")
    assert (answer.code, list(answer.document["charges"].values())) == (0, [2])
    assert client("catch-up", config, str(charges), "--json").document["added"] == 0
    assert client("check", config).code == 0
    assert sorted(path.name for path in (held / "south/store/offers").iterdir()) == kept_offers
    assert all(p.stat().st_mode & 0o077 == 0 for p in (held / "south/store").rglob("*"))


def test_the_key_is_in_no_backup(held: Path, client: Command) -> None:
    key = held / "south" / "store" / "key"
    assert client("keys", "create", str(key)).code == 0
    assert client("backup", str(held / "south/client.yaml"), str(held / "file")).code == 0
    assert key.read_bytes().strip() not in (held / "file").read_bytes()
    with zipfile.ZipFile(held / "file") as archive:
        assert not [name for name in archive.namelist() if "key" in name]


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
    assert answer.code == 2
    assert f"they are of client '{other}'" in answer.err
    unknown = sotto("charges", "nobody", str(held / "nobody.json"), "--storage", url)
    assert unknown.code == 2
    assert "'nobody' has no row in the ledger" in unknown.err


def test_a_backup_of_an_older_store_is_migrated_when_it_comes_back(held: Path) -> None:
    settings = load_holder(held / "south" / "client.yaml")
    unpack(kept(CLIENT)[0], settings.store_file)
    before = settings.store_file.read_bytes()
    assert back_up_store(settings, held / "file", NOW).schema == "0.1.0"
    assert settings.store_file.read_bytes() == before
    shutil.rmtree(settings.storage)
    with pytest.raises(ConfigError, match="there is no store at"):
        back_up_store(settings, held / "none", NOW)
    restore_store(held / "file", settings, NOW)
    store = storage.open_client_store(settings.store_file, read_only=True)
    store.verify_integrity()
    assert len(store.rows("r")) == 4
    assert store.restoring.pending_since() is not None


def test_members_of_another_name_are_refused() -> None:
    names = ("../client.db", "offers/../x.offer", "offers/.x.offer", "offers/x", "key")
    assert [name for name in (*names, "offers/a/b.offer") if may_hold(name)] == []
