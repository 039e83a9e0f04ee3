"""The watch of the fault schedules is watched: whatever it must notice is done, and it notices."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from platform.config import load_config
from platform.experiment.planning import Surroundings
from tests.faults._federation import NAMES, write_federation
from tests.faults._invariants import OWN, Watch
from tests.faults._processes import found_in, rows_of
from tests.trunk._federations import Holders, hold, within

COORDINATOR = Path("sotto.db")
NORTH = Path("north", "store", "client.db")
CHANGES = {
    "a client forgets all": (NORTH, "DELETE FROM ledger", "north has forgotten a charge"),
    "a client takes a charge back": (
        NORTH,
        "UPDATE ledger SET status = 'aborted' WHERE round_number = 2",
        "north has forgotten a charge",
    ),
    "a client released more": (
        NORTH,
        "UPDATE ledger SET round_number = 9 WHERE round_number = 2",
        "forgotten|released what is not charged",
    ),
    "the coordinator takes a charge back": (
        COORDINATOR,
        "UPDATE ledger SET status = 'aborted' WHERE round_number = 2",
        "was released: aborted",
    ),
    "a round is changed": (
        COORDINATOR,
        "UPDATE rounds SET document = '{}' WHERE round_number = 1",
        "a round has changed",
    ),
}


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> Path:
    """A run that is over, with its clients' stores."""
    folder = tmp_path_factory.mktemp("held")
    write_federation(folder, "noised", folder / "hub.sock")
    config = load_config(folder / "run.yaml", [f"storage.url=sqlite:///{folder}/sotto.db"])
    holders = Holders(folder, Surroundings(), {name: [] for name in NAMES})
    hold(config, within(holders.handlers()))
    return folder


@pytest.fixture
def folder(held, tmp_path) -> Path:
    """A copy of it, which a test may change."""
    return shutil.copytree(held, tmp_path / "run")


def change(database: Path, statement: str) -> int:
    """Changes rows as no code of ours does; how many."""
    with closing(sqlite3.connect(database)) as db, db:
        triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f'DROP TRIGGER "{name}"')
        return db.execute(statement).rowcount


@pytest.mark.parametrize("what", CHANGES)
def test_it_notices(folder, what):
    database, statement, sentence = CHANGES[what]
    watch = Watch(folder, NAMES)
    watch.look()
    watch.require_seen()
    assert change(folder / database, statement) > 0
    with pytest.raises(AssertionError, match=sentence):
        watch.look()


@pytest.mark.parametrize("database", [NORTH, COORDINATOR])
def test_it_notices_that_a_database_is_gone(folder, database):
    watch = Watch(folder, NAMES)
    watch.look()
    (folder / database).unlink()
    with pytest.raises(AssertionError, match=f"{database} is gone"):
        watch.look()


def test_it_does_not_pass_where_it_has_read_nothing(folder):
    watch = Watch(folder, (*NAMES, "stranger"))
    watch.look()
    with pytest.raises(AssertionError, match="ledger of stranger"):
        watch.require_seen()
    change(folder / COORDINATOR, "DELETE FROM rounds")
    watch = Watch(folder, NAMES)
    watch.look()
    with pytest.raises(AssertionError, match="coordinator's rounds"):
        watch.require_seen()


def test_a_wrong_query_raises(held):
    ambiguous = OWN.replace("identity.pseudonym", "pseudonym")
    for query in (ambiguous, OWN.replace("ledger", "ledgers")):
        for read in (found_in, rows_of):
            with pytest.raises(sqlite3.OperationalError):
                read(held / NORTH, query)
