"""Where the coordinator's database is, by its URL: an SQLite file, or a PostgreSQL server.

A server keeps rows alone. What lies beside an SQLite file (the runs' folders, the log's key and the
heads that it has had) lies in a folder that a server's URL has to name. A URL is kept with every
run and is seen in lists of processes, so a password may not be in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from storage.errors import InvalidRecordError

SERVER: Final = "postgresql"
DRIVER: Final = "postgresql+psycopg"
FOLDER: Final = "folder"
EXAMPLE: Final = "postgresql+psycopg:///sotto?host=/run/postgresql&folder=/srv/sotto"

_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_KNOWN: Final = (FOLDER, "host", *_TLS)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+|/[^\x00-\x20\x7f,]*")
_USER: Final = re.compile(r"[A-Za-z0-9_.@-]{1,63}")
_HERE: Final = ("localhost", "127.0.0.1", "::1")
_VERIFIED: Final = "verify-full"


@dataclass(frozen=True)
class Address:
    """One database.

    Attributes:
        url: What SQLAlchemy connects to; of a server without the folder.
        path: The file; of a server a place in its folder, by which files beside it are named.
        where: What messages call it.
        is_server: Whether it is on a server.
    """

    url: URL
    path: Path
    where: str
    is_server: bool


def names_server(url: str) -> bool:
    """Return whether a URL is meant to be one of a server, valid or not."""
    return url.partition("://")[0].partition("+")[0] in (SERVER, "postgres")


def shown(url: str) -> str:
    """Return a URL as it may be said, also one that cannot be parsed: without a password."""
    if url.startswith("sqlite:///"):
        return url
    hidden = re.sub(r"//[^/]*:.*@", "//***@", url)
    return re.sub(r"(?i)(pass[a-z]*)=[^&]*", r"\1=***", hidden)


def require_no_password(url: str) -> None:
    """Require a URL that may be kept and shown.

    Raises:
        InvalidRecordError: There is a password in it.
    """
    if shown(url) != url:
        raise InvalidRecordError(
            f"storage.url is {shown(url)!r}; it must not hold a password, as it is kept with every"
            " run: valid is one without, and the password in a file that PGPASSFILE names"
        )


def address_of(url: str) -> Address:
    """Return where a database is.

    Raises:
        InvalidRecordError: The URL is none of an SQLite file or of a server, or is not all that a
            server's must say.
    """
    require_no_password(url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InvalidRecordError(
            "storage.url cannot be parsed; it must look like sqlite:///runs/sotto.db"
        ) from error
    if not names_server(url):
        return _file(parsed)
    try:
        return _server(parsed)
    except _WrongPart as error:
        raise InvalidRecordError(f"storage.url {url!r} {error}, as in {EXAMPLE}") from error


def _file(parsed: URL) -> Address:
    in_file = parsed.database and parsed.database != ":memory:"
    if parsed.get_backend_name() != "sqlite" or not in_file or parsed.query:
        raise InvalidRecordError(
            "storage.url must name an SQLite file, such as sqlite:///runs/sotto.db, or a"
            f" PostgreSQL server, such as {EXAMPLE}"
        )
    url = parsed.set(drivername="sqlite+pysqlite")
    return Address(url, Path(str(url.database)), str(url.database), is_server=False)


def _server(parsed: URL) -> Address:
    if parsed.drivername not in (SERVER, DRIVER):
        raise _invalid(f"begins with {parsed.drivername}", f"begin with {DRIVER}")
    unknown = sorted(set(parsed.query) - set(_KNOWN))
    if unknown:
        raise _invalid(f"has {', '.join(unknown)!r}", f"have none but {', '.join(_KNOWN)}")
    given: dict[str, Any] = dict(parsed.query)
    for name, value in given.items():
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise _invalid(f"has an odd {name}", f"have one {name}, which is printable")
    folder, name = given.pop(FOLDER, None), parsed.database or ""
    host = given.pop("host", None) or parsed.host
    if folder is None:
        raise _invalid(
            "names no folder", "name the one for the runs' files and the log's signed heads"
        )
    if not _NAME.fullmatch(name):
        raise _invalid(
            f"names database {name!r}", "name one by letters, digits, _ and -, 63 at most"
        )
    if host is None or not _HOST.fullmatch(host):
        raise _invalid("names no host", "name one host, or the folder of a server's socket")
    if parsed.username is not None and not _USER.fullmatch(parsed.username):
        raise _invalid(f"names user {parsed.username!r}", "name one by letters, digits, _ . @ -")
    url = URL.create(
        DRIVER,
        username=parsed.username,
        host=None if host.startswith("/") else host,
        port=None if host.startswith("/") else parsed.port,
        database=name,
        query=_query(given, host, parsed.port),
    )
    where = f"{name} on {host}" + ("" if parsed.port is None else f":{parsed.port}")
    return Address(url, Path(folder) / name, where, is_server=True)


def _query(given: dict[str, str], host: str, port: int | None) -> dict[str, str]:
    """Return what else the driver is told; what leaves the machine is encrypted to who it is for.

    Raises:
        _WrongPart: The server is on another machine, and its name is not to be verified.
    """
    if host.startswith("/"):
        # A socket has no certificate.
        return {"host": host} | ({} if port is None else {"port": str(port)})
    mode = given.setdefault("sslmode", "prefer" if host in _HERE else _VERIFIED)
    if host not in _HERE and mode != _VERIFIED:
        raise _invalid(
            f"has sslmode {mode!r}", f"have {_VERIFIED} where the server is on another machine"
        )
    return given


def _invalid(found: str, valid: str) -> _WrongPart:
    return _WrongPart(f"{found}; it must {valid}")


class _WrongPart(Exception):
    """A part of a server's URL is not valid."""
