"""Backups that die on the way or find no room: a file counts whole, or it is not there."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from platform.agreement import backups
from platform.cli.auditing import audited
from storage import open_database
from tests.storage._kept_versions import COORDINATOR, kept, unpack
from tests.trunk._dying import Plan, die
from tests.trunk._runs import Command, Finished, Storage
from tests.trunk.test_backups import contents

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def backed_up(
    tmp_path_factory: pytest.TempPathFactory, noised_run: Finished
) -> tuple[Path, Finished]:
    """A backup of a finished run; for reading only."""
    file = tmp_path_factory.mktemp("backup") / "sotto.backup"
    backups.back_up(noised_run.storage.url, file, NOW)
    return file, noised_run


STEPS = ("os:fsync", "pathlib:Path.rename", "shutil:rmtree", "os:close")


def kills(target: str) -> Iterator[Plan]:
    for nth in range(1, 200):
        yield Plan(target, nth, after=False, number=signal.SIGKILL)


@pytest.mark.parametrize("target", STEPS)
def test_a_backup_that_was_killed_does_not_count(
    own_copy: Finished, tmp_path: Path, target: str
) -> None:
    """Killed at any step, there is no file or all of it; the next one is made all the same."""
    before, file = contents(own_copy.storage.folder), tmp_path / "out" / "file"
    for plan in kills(target):
        code, _ = die(plan, "backup", str(file), "--storage", own_copy.storage.url)
        if file.exists():
            backups.restore(file, f"sqlite:///{tmp_path}/{plan.nth}/sotto.db", NOW)
            file.unlink()
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert plan.nth > 1
    assert [path.name for path in file.parent.iterdir()] == []
    assert contents(own_copy.storage.folder) == before


@pytest.mark.parametrize("target", STEPS)
def test_a_restoring_that_was_killed_left_nothing_or_all(
    backed_up: tuple[Path, Finished], tmp_path: Path, target: str
) -> None:
    place = Storage(tmp_path / "out" / "back")
    for plan in kills(target):
        code, _ = die(plan, "restore", str(backed_up[0]), "--storage", place.url)
        if place.folder.exists():
            assert audited(place.url)["problems"] == []
            shutil.rmtree(place.folder)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert plan.nth > 1
    assert [path.name for path in place.folder.parent.iterdir()] == []


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_full_disk_is_named_and_leaves_nothing(
    backed_up: tuple[Path, Finished], tmp_path: Path, sotto: Command, command: str
) -> None:
    """Every write in turn finds no room."""
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
            answer = sotto(
                command, str(target if command == "backup" else file), "--storage", where
            )
        if answer.code == 0:
            break
        failed += 1
        assert answer.code == 1
        assert "cannot be written: No space left on device" in answer.err
        # After its last rename it is there, and only not known to be on the disk.
        assert len(list(tmp_path.iterdir())) <= 1
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert answer.code == 0
    assert failed >= 3


def test_upgrade_says_what_it_found(own_copy: Finished, sotto: Command, tmp_path: Path) -> None:
    answer = sotto("upgrade", "--storage", own_copy.storage.url, "--json")
    found = {Path(row["path"]).name: (row["before"], row["after"]) for row in answer.document}
    assert found == {"sotto.db": ("0.2.0", "0.2.0"), "stores.db": ("0.4.0", "0.4.0")}
    (tmp_path / "old").mkdir()
    unpack(kept(COORDINATOR)[0], tmp_path / "old" / "sotto.db")
    assert sotto("upgrade", "--storage", f"sqlite:///{tmp_path}/old/sotto.db").code == 0
    with open_database(f"sqlite:///{tmp_path}/old/sotto.db", read_only=True) as database:
        database.verify_integrity()
