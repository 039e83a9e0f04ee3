"""An older copy of a database that was put back: who notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from platform.bootstrap import create_run
from platform.config import parse_config
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import Command, Storage, opened

LIFE = ("rounds=1", "privacy.lifetime_budget=30.0", "evaluation.local_twins=false")


@pytest.fixture(scope="module")
def lived(make_storage: Callable[[str], Storage]) -> tuple[Storage, Path, str]:
    """Two runs of the same clients, the folder as it was after the first, the second run's id."""
    storage = make_storage("lived")
    storage.run(*LIFE)
    older = storage.folder.with_name("older")
    shutil.copytree(storage.folder, older)
    return storage, older, storage.run(*LIFE).run_id


@pytest.fixture
def put_back(lived: tuple[Storage, Path, str], tmp_path: Path) -> tuple[Storage, str]:
    """The older database with its heads, and no trace of the second run but the clients' stores."""
    storage, older, second = lived
    copy = Storage(tmp_path / "copy")
    shutil.copytree(storage.folder, copy.folder)
    shutil.rmtree(copy.folder / second)
    for name in (copy.file.name, "sotto.audit.heads"):
        shutil.copy(older / name, copy.folder / name)
    return copy, second


def test_clients_remember_what_an_older_database_forgot(
    sotto: Command, put_back: tuple[Storage, str]
) -> None:
    storage, second = put_back
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3
    assert answer.err.count("\n") == 1
    assert f"have charges of run {second}, which the database does not know" in answer.err
    assert "an older copy of the database was put back" in answer.err


def test_a_folder_that_was_put_back_whole_is_one_story(
    sotto: Command, lived: tuple[Storage, Path, str]
) -> None:
    """What lies in one folder cannot tell; docs/records.md says who can."""
    storage, older, _ = lived
    for folder in (storage.folder, older):
        answer = sotto("audit", "verify", "--storage", f"sqlite:///{folder / storage.file.name}")
        assert (answer.code, answer.err) == (0, "")


def test_stores_that_cannot_be_read_are_named(
    sotto: Command, put_back: tuple[Storage, str]
) -> None:
    storage, second = put_back
    (store,) = (storage.folder / "clients").glob("*/stores.db")
    store.write_bytes(store.read_bytes()[:5_000])
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3
    assert f"clients' stores clients/{store.parent.name}/stores.db: " in answer.err
    assert second not in answer.err


def test_another_databases_run_in_the_same_folder_is_no_trace(
    sotto: Command, lived: tuple[Storage, Path, str], tmp_path: Path
) -> None:
    """Both share the clients; the run's own folder says whose it is."""
    folder = tmp_path / "copy"
    shutil.copytree(lived[0].folder, folder)
    other = f"sqlite:///{folder / 'other.db'}"
    tree = lived[0].config(*LIFE).model_dump(mode="json")
    config = parse_config({**tree, "storage": {"url": other}})
    with opened(create_run(config, SilentObserver(), lived[0].surroundings)) as simulation:
        execute(simulation, SilentObserver())
    known = f"sqlite:///{folder / lived[0].file.name}"
    assert sotto("audit", "verify", "--storage", known).code == 0
    (folder / simulation.run_id / "config.yaml").unlink()
    assert "have charges" in sotto("audit", "verify", "--storage", known).err
