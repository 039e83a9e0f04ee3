"""A disk that is full at any stage: one sentence, nothing half-done, and the run goes on later."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from platform.agreement.checking import faults_of
from platform.cli import serving
from platform.cli.running import FederationLines, FederationScreen
from platform.disk.files import write_bytes
from platform.disk.opening import open_existing
from platform.errors import PlatformError, Unwritable
from platform.experiment.federating import Reaching
from platform.wire.transport import InProcessTransport
from storage import StorageError, open_client_store
from tests.faults._federation import state_of
from tests.faults._processes import rows_of
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold, within, write_holder

SIZE = 64 << 20
"""Bytes of a disk."""


@dataclass(frozen=True)
class Disk:
    """A file system of its own, as large as it is."""

    folder: Path

    def fill(self, spare: int) -> None:
        """Leaves so many bytes free, about."""
        found = os.statvfs(self.folder)
        with (self.folder / "ballast").open("wb") as file:
            file.write(bytes(max(0, found.f_bavail * found.f_frsize - spare)))

    def free(self) -> None:
        """Makes room again."""
        (self.folder / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Whether this user may."""
    if os.geteuid() != 0:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """A small disk as long as the context lasts."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


needs_root = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
EXCHANGES = 6
"""Of a run of two rounds until its last commit: offer, roll call, and two each."""
Handlers = Mapping[str, Callable[[bytes], bytes]]
CAN_FAIL = (PlatformError, StorageError)


@pytest.fixture
def disk(tmp_path_factory) -> Iterator[Disk]:
    with mounted(tmp_path_factory.mktemp("d") / "disk") as disk:
        yield disk


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("f")


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("at", range(EXCHANGES + 1))
def test_a_coordinator_whose_disk_is_full_goes_on_when_there_is_room(folder, disk, at):
    """The disk fills before the run is set up, or before any of its exchanges."""
    holders, database = Holders.written(folder), disk.folder / "run" / "sotto.db"
    config, handlers = federation(database.parent), holders.handlers()
    if not at:
        disk.fill(0)
    with pytest.raises(CAN_FAIL) as failed:
        hold(config, filling(handlers, disk, at))
    assert "\n" not in str(failed.value) and str(disk.folder) in str(failed.value)
    runs = [name for (name,) in rows_of(database, "SELECT run_id FROM runs ORDER BY rowid")]
    assert bool(runs) == bool(at)
    if runs:
        with open_existing(config.storage.url) as opened:
            assert faults_of(opened, runs[0])[1] == []
    disk.free()
    again = go_on(runs[0], config.storage.url, within(handlers)) if runs else None
    summary = again or hold(config, within(handlers))
    assert [document["round"] for document in summary["rounds"]] == [1, 2]
    # Of each attempt there is one row, on both sides, and the numbers are those of any other run.
    for name in NAMES:
        own = open_client_store(folder / name / "store" / "client.db", read_only=True)
        assert [r.round_number for r in own.rows(summary["run_id"])] == [1, 2]
    undisturbed = federation(folder)
    expected = state_of(folder, hold(undisturbed, within(handlers))["run_id"])
    found = state_of(database.parent, summary["run_id"])
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def filling(handlers: Handlers, disk: Disk, at: int) -> Reaching:
    """Reaches holders in this process, and has a disk full from the n-th exchange on."""

    class Filling(InProcessTransport):
        def exchange(self, stage, messages, deadline):
            asked.append(stage)
            if len(asked) == at:
                disk.fill(0)
            return super().exchange(stage, messages, deadline)

    asked: list[str] = []
    return lambda section: nullcontext(Filling(handlers=handlers, losses=lambda *_: frozenset()))


def test_a_file_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("before")
    with pytest.raises(Unwritable) as failed:
        write_bytes(tmp_path / ("x" * 300), b"")
    assert f"{tmp_path}/{'x' * 300} " in str(failed.value)
    assert isinstance(failed.value, OSError) and "\n" not in str(failed.value)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


class Full(io.StringIO):
    """What standard output and error are where a log's disk is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_clients_log_that_cannot_be_written_ends_nothing(folder, monkeypatch):
    settings = write_holder(folder, "north")
    told = threading.Event()

    def serve(settings, surroundings, tell, ended) -> None:
        tell("north listens")
        told.set()

    monkeypatch.setattr(serving, "serve_holder", serve)
    monkeypatch.setattr(sys, "stdout", Full())
    serving.serve_command(settings, as_json=False)
    assert told.is_set()


@pytest.mark.parametrize("kind", [FederationScreen, FederationLines])
def test_a_coordinators_screen_that_cannot_be_written_hangs_up_on_nobody(kind, monkeypatch):
    screen = kind(quiet=True)
    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(sys, "stderr", Full())
    screen.connected("north", True)
    screen.waiting("train", frozenset({"north"}))
