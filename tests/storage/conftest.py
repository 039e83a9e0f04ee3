"""Databases that are closed again, a clock that ticks by itself, and ledger rows to vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import storage
from tests.storage._filling import COHORT, INTEGER_NOISE, ROW, SAMPLED, fill_database, fill_store
from tests.storage._raw import raw_file

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """One second later at each call, from START."""
    ticks = iter(range(10**9))
    return lambda: START + timedelta(seconds=next(ticks))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database's file."""
    return tmp_path / "runs" / "sotto.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The files of databases that are made once and copied; `store` is filled, `new` is not."""
    folder = tmp_path_factory.mktemp("made-once")
    facts = {"config_json": "{}", "config_digest": "d", "versions_json": "{}"}
    with storage.open_database(f"sqlite:///{folder}/runs") as opened:
        with opened.unit_of_work() as unit:
            for run_id in ("r", "s"):
                unit.runs.create(run_id, name="quickstart", created=START, **facts)
            unit.commit()
    fill_database(folder / "filled")
    fill_store(folder / "store")
    storage.open_client_store(folder / "new")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def filled(tmp_path: Path, made_once: Mapping[str, bytes]) -> Path:
    """A coordinator's database with rows in every table."""
    return written(tmp_path / "sotto.db", made_once["filled"])


@pytest.fixture
def filled_store(tmp_path: Path, made_once: Mapping[str, bytes]) -> Path:
    """A client's store with rows in every table."""
    return written(tmp_path / "client.db", made_once["store"])


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def database(
    path: Path, clock: Callable[[], datetime], made_once: Mapping[str, bytes]
) -> Iterator[storage.Database]:
    """An open database that knows the runs ``r`` and ``s``."""
    written(path, made_once["runs"])
    with storage.open_database(f"sqlite:///{path}", now=clock, busy_timeout=1.0) as opened:
        yield opened


@pytest.fixture
def raw(path: Path) -> Callable[[], Any]:
    """A connection past our code, as an attacker or a reader would have it."""
    return partial(raw_file, path)


@pytest.fixture
def full() -> dict[str, Any]:
    """A value for every fact that a plain row leaves at its default."""
    return INTEGER_NOISE | COHORT | SAMPLED


@pytest.fixture
def make_row() -> Callable[..., storage.LedgerRow]:
    return lambda **changes: replace(ROW, **{"attempt": 0, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A client's store."""
    return tmp_path / "clients" / "c.db"


@pytest.fixture
def store(file: Path, made_once: Mapping[str, bytes]) -> storage.ClientStore:
    return storage.open_client_store(written(file, made_once["new"]))
