"""Databases as each version of the schema wrote them; every later version must open them.

`python -m tests.storage._kept_versions` adds those of the newest version, where there are none: a
file that is here is never written again.
"""

from __future__ import annotations

import gzip
import random
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from storage import client_files, schema
from storage.schema import SchemaVersion
from tests.storage._filling import fill_database, fill_store

FOLDER = Path(__file__).resolve().parents[1] / "vectors" / "storage"
COORDINATOR, CLIENT = "coordinator", "client"


def kept(kind: str) -> list[Path]:
    """The files of one kind, oldest first."""
    versions = {
        file: file.name.split("-")[1].removesuffix(".db.gz")
        for file in FOLDER.glob(f"{kind}-*.db.gz")
    }
    return sorted(versions, key=lambda file: SchemaVersion.parse(versions[file]) or (0, 0, 0))


def unpack(file: Path, target: Path) -> None:
    """Writes the database that a file holds."""
    target.write_bytes(gzip.decompress(file.read_bytes()))


def write() -> None:
    """Adds the newest version's databases, each with a row in every table."""
    for kind, version, fill in (
        (COORDINATOR, schema.newest_version(), fill_database),
        (CLIENT, client_files.NEWEST, fill_store),
    ):
        place = FOLDER / f"{kind}-{version}.db.gz"
        if place.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.db"
            _filled(made, fill)
            FOLDER.mkdir(parents=True, exist_ok=True)
            place.write_bytes(gzip.compress(made.read_bytes(), 9, mtime=0))


def _filled(path: Path, fill: Callable[[Path], None]) -> None:
    """A database that is the same whenever it is written: its clock stands, its dice are fixed."""
    dice = random.Random(0)
    with (
        mock.patch("secrets.token_bytes", dice.randbytes),
        mock.patch("secrets.token_hex", lambda count: dice.randbytes(count).hex()),
        mock.patch("secrets.SystemRandom", lambda: dice),
        mock.patch("storage.database._utc_now", lambda: datetime(2026, 11, 22, tzinfo=UTC)),
    ):
        fill(path)


if __name__ == "__main__":
    write()
    for path in sorted(FOLDER.iterdir()):
        print(path.name, path.stat().st_size)
