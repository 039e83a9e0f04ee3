"""Reading commands write nothing: neither into a file that is there nor beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trunk._runs import Command, Finished

COMMANDS = (
    ("runs",),
    ("report", "latest"),
    ("audit", "query"),
    ("audit", "verify"),
    ("predict", "latest", "image.png", "--client", "0"),
    ("datasets",),
)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below, with when it was changed last.

    Of cached features not when: they are marked as used, which is not needed and may fail.
    """
    return {
        str(path.relative_to(folder)): (
            0 if path.suffix == ".digests" else path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def alone(plain_run: Finished, tmp_path: Path) -> Path:
    """A copy of the run with a cache of its own."""
    folder = tmp_path / "runs"
    shutil.copytree(plain_run.storage.folder, folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_reading_commands_write_nothing(
    sotto: Command,
    alone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32), (200, 30, 40)).save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    before = contents(alone)
    storage = () if command == ("datasets",) else ("--storage", f"sqlite:///{alone}/sotto.db")
    answer = sotto(*command, *storage)
    assert (answer.code, answer.err) == (0, "")
    assert contents(alone) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.png", "runs"]
