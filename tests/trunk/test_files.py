"""Files of a run: for their owner only, and on the disk before they get their name."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from PIL import Image

from platform.disk.files import write_bytes, write_text
from tests.trunk._runs import NONE, Storage


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_file_that_others_could_read_is_so_no_more(tmp_path, open_umask):
    path = tmp_path / "summary.json"
    path.write_text("before")
    path.chmod(0o644)
    write_text(path, "after ü")
    assert path.read_bytes() == "after ü".encode()
    assert mode(path) == 0o600


def test_what_cannot_be_finished_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_text(path, "before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"after")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_contents_are_synced_before_the_name_and_the_folder_after_it(tmp_path, monkeypatch):
    """What a power cut leaves is the old file or the new one, never an empty one."""
    path, events = tmp_path / "summary.json", []
    sync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("folder" if is_folder else f"file of {os.fstat(descriptor).st_size}")
        sync(descriptor)

    def note_rename(old: str, new: str) -> None:
        events.append("name")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    write_text(path, "four")
    assert events == ["file of 4", "name", "folder"]
    assert path.read_text() == "four"


def test_two_writers_of_one_file_do_not_meet(tmp_path, monkeypatch):
    path, names = tmp_path / "summary.json", []
    replace = Path.replace

    def replace_later(part: Path, target: Path) -> Path:
        names.append(part.name)
        if len(names) == 1:
            write_text(path, "second")
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", replace_later)
    write_text(path, "first")
    assert len(set(names)) == 2
    assert path.read_text() == "first"


def test_every_file_of_a_run_is_its_owners(tmp_path, open_umask):
    tmp_path.chmod(0o755)
    place = Storage(tmp_path / "runs")
    place.run(NONE, "rounds=1")
    assert mode(tmp_path) == 0o755
    made = [path for path in (place.folder, *place.folder.rglob("*")) if not path.is_symlink()]
    kinds = {path.suffix for path in made if path.is_file()}
    assert place.folder / "cache" / "rows.db" in made
    assert {".db", ".json", ".csv", ".yaml", ".lock"} <= kinds
    assert not [p for p in made if mode(p) != (0o700 if p.is_dir() else 0o600)]


COMMANDS = (
    ("runs",),
    ("report", "latest"),
    ("audit", "query"),
    ("audit", "verify"),
    ("predict", "latest", "image.png", "--client", "0"),
)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below, with when it was changed last; the cache notes its last use."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
        if path != folder / "cache" and path.parent != folder / "cache"
    }


def test_reading_commands_write_nothing(sotto, plain_run, tmp_path, monkeypatch):
    alone = shutil.copytree(plain_run.storage.folder, tmp_path / "runs")
    Image.new("RGB", (32, 32), (200, 30, 40)).save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    before = contents(alone)
    for command in COMMANDS:
        answer = sotto(*command, "--storage", f"sqlite:///{alone}/sotto.db")
        assert (answer.code, answer.err) == (0, ""), command
        assert contents(alone) == before, command
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.png", "runs"]
