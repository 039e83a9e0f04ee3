"""Databases that are closed again, a clock that ticks by itself, and ledger rows to vary."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import storage
from storage.address import address_of
from tests._postgres import Server
from tests.storage._raw import Raw, RawFile, RawServer
from tests.storage._rows import COHORT, INTEGER_NOISE, SAMPLED

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """One second later at each call, from START."""
    ticks = iter(range(10**9))
    return lambda: START + timedelta(seconds=next(ticks))


FILE, SERVER = "sqlite", "postgresql"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever opens a database holds for each kind, but what asks for the file itself."""
    if "backend" in metafunc.fixturenames:
        kinds = [FILE] if "path" in metafunc.fixturenames else [FILE, SERVER]
        metafunc.parametrize("backend", kinds, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, of a test that is about SQLite alone."""
    return tmp_path / "runs" / "sotto.db"


@pytest.fixture
def url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a database of each kind is; on a server its runs are there already."""
    if backend == FILE:
        yield f"sqlite:///{tmp_path}/runs/sotto.db"
        return
    server = request.getfixturevalue("server")
    name = server.new_database(request.getfixturevalue("with_runs"))
    (tmp_path / "runs").mkdir()
    yield server.url(name, tmp_path / "runs")
    server.drop(name)


@pytest.fixture(scope="session")
def with_runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database on the server, to be copied, that knows the runs ``r`` and ``s``."""
    name = server.new_database()
    with storage.open_database(server.url(name, tmp_path_factory.mktemp("runs"))) as opened:
        make_runs(opened)
    return name


def make_runs(opened: storage.Database) -> None:
    with opened.unit_of_work() as unit:
        for run_id in ("r", "s"):
            unit.runs.create(
                run_id,
                name="quickstart",
                config_json="{}",
                config_digest="d",
                versions_json="{}",
                created=START,
            )
        unit.commit()


@pytest.fixture
def database(url: str, backend: str, clock: Callable[[], datetime]) -> Iterator[storage.Database]:
    """An open database that knows the runs ``r`` and ``s``."""
    with storage.open_database(url, now=clock, busy_timeout=1.0) as opened:
        if backend == FILE:
            make_runs(opened)
        yield opened


@pytest.fixture
def raw(url: str, backend: str, request: pytest.FixtureRequest) -> Callable[[], Any]:
    """A connection past our code, as an attacker or a reader would have it."""

    @contextmanager
    def connect() -> Iterator[Raw]:
        address = address_of(url)
        if backend == FILE:
            with closing(sqlite3.connect(address.path, isolation_level=None)) as connection:
                yield RawFile(connection)
        else:
            server = request.getfixturevalue("server")
            with closing(server.connect(address.path.name)) as connection:
                yield RawServer(connection)

    return connect


@pytest.fixture
def full() -> dict[str, Any]:
    """A value for every fact that a plain row leaves at its default."""
    return INTEGER_NOISE | COHORT | SAMPLED


@pytest.fixture
def make_row() -> Callable[..., storage.LedgerRow]:
    row = storage.LedgerRow(
        run_id="r",
        round_number=1,
        attempt=0,
        pseudonym="alice",
        channel="sum",
        mechanism="upload_noise",
        standard_deviation=1.5,
        clipping_norm=0.3,
        relation="replace_one",
        sampling="none",
        noise_kind="gaussian",
    )
    return lambda **changes: replace(row, **changes)
