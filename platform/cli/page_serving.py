"""`serve`: the live page, where what it needs is installed."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from platform.cli.page_records import PageRecords
from platform.disk.opening import database_file
from platform.errors import ConfigError
from storage import SchemaMismatch, StorageError


@dataclass(frozen=True, kw_only=True)
class PlaceAsked:
    """Where to serve, as `platform.page.server.Place` has it."""

    host: str
    port: int
    names: tuple[str, ...]
    token_file: Path | None
    certificate: Path | None
    key: Path | None


def page_command(asked: PlaceAsked, storage: str, socket: Path | None) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        asked: Where.
        storage: The coordinator's database, which need not be there yet.
        socket: Of a hub; None for no table of connected clients.

    Raises:
        ConfigError: If nothing can be served there, or what serves is not installed.
        SchemaMismatch: The file is of another program, or of a newer version.
    """
    database_file(storage)
    try:
        from platform.page.server import Place, serve
    except ImportError as error:
        raise ConfigError(
            f"serve: needs {error.name}, which is not installed; valid after "
            "`.venv/bin/pip install -e '.[serve]'` in the checkout"
        ) from error

    def tell(address: str) -> None:
        sys.stdout.write(f"page: {address} (Ctrl-C ends it)\n")
        sys.stdout.flush()

    records = PageRecords(storage, socket)
    try:
        records.prepare()
    except SchemaMismatch:
        # No page about a file that is another program's, or a newer version's.
        raise
    except StorageError:
        # What is damaged, or busy, the page itself says.
        pass
    serve(records, Place(**asdict(asked)), tell)
