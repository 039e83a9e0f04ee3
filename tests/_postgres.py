"""A PostgreSQL server of the tests' own, from Debian's packages: a socket in a folder, no network.

It runs as its own user, as PostgreSQL refuses to run as root. Where its programs are not there, or
may not be run, the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

OWNER = "sotto"


@dataclass
class Server:
    """A server that runs; the folder of its socket is its name."""

    folder: Path
    binaries: Path
    prefix: tuple[str, ...]
    databases: Iterator[int] = field(default_factory=count)

    def new_database(self, template: str | None = None) -> str:
        """The name of a new one, empty or a copy of another to which nobody is connected."""
        name = f"sotto_{next(self.databases)}"
        of = "" if template is None else f" TEMPLATE {template}"
        self.ask("postgres", f"CREATE DATABASE {name} OWNER {OWNER}{of}")
        return name

    def drop(self, name: str) -> None:
        """Delete one, whoever is connected to it."""
        self.ask("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, name: str, folder: Path) -> str:
        return f"postgresql+psycopg://{OWNER}@/{name}?host={self.folder}&folder={folder}"

    def connect(self, name: str, user: str = OWNER) -> Any:
        """A connection past our code, each of whose statements is its own transaction."""
        import psycopg

        return psycopg.connect(dbname=name, user=user, host=str(self.folder), autocommit=True)

    def ask(self, name: str, statement: str) -> list[Any]:
        """What a statement answers that the server's own superuser makes."""
        with self.connect(name, "postgres") as connection:
            cursor = connection.execute(statement)
            return [] if cursor.description is None else cursor.fetchall()

    def control(self, *words: str) -> None:
        """Start, stop or restart it, and wait until that is so."""
        command = [str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-s"]
        self.run([*command, "-l", str(self.folder / "log"), *words])

    def run(self, command: Sequence[str]) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(
            [*self.prefix, *command], check=True, cwd=self.folder, stdin=quiet, stdout=quiet
        )


def reason_against() -> str | None:
    """Why no server can be started here, None if one can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install -e '.[postgres]')"
    if _binaries() is None:
        return "PostgreSQL's server is not installed (apt-get install postgresql)"
    if os.getuid() == 0 and (_owner() is None or shutil.which("setpriv") is None):
        return "PostgreSQL does not run as root, and there is no user postgres, or no setpriv"
    return None


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: len(p.parts))
    if found:
        return max(found, key=lambda path: int(path.parts[-3])).parent
    place = shutil.which("initdb")
    return None if place is None else Path(place).resolve().parent


def _owner() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


@contextmanager
def started() -> Iterator[Server]:
    """A new server, gone with all that is in it after the block."""
    binaries, owner = _binaries(), _owner()
    assert binaries is not None
    prefix: tuple[str, ...] = ()
    # Short, as the name of a socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if os.getuid() == 0:
        assert owner is not None
        prefix = ("setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    server = Server(folder, binaries, prefix)
    try:
        server.run(
            [
                str(binaries / "initdb"),
                *("-D", str(folder / "data"), "-U", "postgres", "--auth=trust", "--no-sync"),
                *("--encoding=UTF8", "--locale=C.UTF-8"),
            ]
        )
        with open(folder / "data" / "postgresql.conf", "a", encoding="ascii") as settings:
            settings.write(
                f"listen_addresses=''\nunix_socket_directories='{folder}'\n"
                "shared_buffers=16MB\nmax_connections=40\nautovacuum=off\n"
            )
        server.control("start")
        try:
            server.ask("postgres", f"CREATE ROLE {OWNER} LOGIN")
            yield server
        finally:
            server.control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
