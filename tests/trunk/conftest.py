"""Runs that many tests read, and a command line in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform.cli.client_app import main as client_main
from platform.contract.driving import quick_folder
from tests._sharing import one_shipped_model
from tests.trunk._runs import NONE, TWINS, Command, Finished, Storage, command_line

MakeStorage = Callable[[str], Storage]


@pytest.fixture(autouse=True, scope="session")
def shared_model() -> Iterator[None]:
    with one_shipped_model():
        yield


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of image features that all small runs share; it holds nothing of any run."""
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="session")
def make_storage(tmp_path_factory: pytest.TempPathFactory, features: Path) -> MakeStorage:
    def make(name: str) -> Storage:
        folder = tmp_path_factory.mktemp(name)
        (folder / "cache").symlink_to(features, target_is_directory=True)
        return Storage(folder)

    return make


@pytest.fixture
def storage(tmp_path: Path, features: Path) -> Storage:
    """A place of the test's own."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "cache").symlink_to(features, target_is_directory=True)
    return Storage(folder)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path that is short enough for sockets."""
    return tmp_path_factory.mktemp("in")


@pytest.fixture
def stores() -> Iterator[Path]:
    """A folder for clients' stores that is quick, and gone after the test."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def plain_run(make_storage: MakeStorage) -> Finished:
    """Mechanism `none`; for reading only."""
    return make_storage("plain").run(NONE, TWINS)


@pytest.fixture(scope="session")
def noised_run(make_storage: MakeStorage) -> Finished:
    """`upload_noise` from a seed, calibrated to epsilon 8; for reading only."""
    return make_storage("noised").run(TWINS)


@pytest.fixture
def own_copy(noised_run: Finished, tmp_path: Path) -> Finished:
    """A copy of the noised run that a test may damage."""
    copy = noised_run.storage.copied(tmp_path / "copy")
    return Finished(copy, noised_run.run_id, noised_run.summary)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for every sentence on one line; `test_widths.py` sees to narrower places."""
    monkeypatch.setenv("COLUMNS", "2000")


@pytest.fixture
def sotto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command: `sotto("runs", "--json")`."""
    return command_line(monkeypatch, capsys)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command of the data holder: `client("check", path)`."""
    return command_line(monkeypatch, capsys, client_main)


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """The environment of a process that runs this checkout from any folder."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def narrow_environment(child_environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process that is told no width."""
    return {name: value for name, value in child_environment.items() if name != "COLUMNS"}
