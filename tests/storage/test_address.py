"""URLs of databases: what a server's must say, and passwords, which are in none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage import InvalidRecordError, open_database
from storage.address import address_of, names_server, shown


@pytest.mark.parametrize(
    ("url", "connects", "path", "where"),
    [
        (
            "postgresql+psycopg:///sotto?host=/run/pg&folder=/srv/sotto",
            "postgresql+psycopg:///sotto?host=%2Frun%2Fpg",
            "/srv/sotto/sotto",
            "sotto on /run/pg",
        ),
        (
            "postgresql://lab@localhost:5433/x-1?folder=a%20b",
            "postgresql+psycopg://lab@localhost:5433/x-1?sslmode=prefer",
            "a b/x-1",
            "x-1 on localhost:5433",
        ),
        (
            "postgresql://db.example/x?folder=f&sslrootcert=/etc/ca.pem",
            "postgresql+psycopg://db.example/x?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
            "f/x",
            "x on db.example",
        ),
        (
            "postgresql://[2001:db8::1]/x?folder=f",
            "postgresql+psycopg://[2001:db8::1]/x?sslmode=verify-full",
            "f/x",
            "x on 2001:db8::1",
        ),
        (
            "postgresql+psycopg://u@:5433/x?host=/run/pg&folder=f",
            "postgresql+psycopg://u@/x?host=%2Frun%2Fpg&port=5433",
            "f/x",
            "x on /run/pg:5433",
        ),
    ],
)
def test_a_server(url: str, connects: str, path: str, where: str) -> None:
    found = address_of(url)
    assert found.url.render_as_string() == connects
    assert (found.path, found.where, found.is_server) == (Path(path), where, True)


def test_a_file() -> None:
    found = address_of("sqlite:///runs/a@b:c.db")
    assert (found.path, found.where, found.is_server) == (
        *(Path("runs/a@b:c.db"), "runs/a@b:c.db"),
        False,
    )


REFUSED = {
    "postgresql://db/sotto": "names no folder; it must name the one for the runs' files",
    "postgresql://db/sotto?folder=": "names no folder",
    "postgresql:///sotto?folder=f": "names no host",
    "postgresql:///sotto?host=a,b&folder=f": "names no host",
    "postgresql://a;b/sotto?folder=f": "names no host",
    "postgresql:///sotto?host=/run/pg&host=/run/other&folder=f": "has an odd host",
    "postgresql://db/sotto?folder=a%0Ab": "has an odd folder",
    "postgresql://db/so.tto?folder=f": "names database 'so.tto'",
    "postgresql://db/../x?folder=f": "names database '../x'",
    "postgresql://db/?folder=f": "names database ''",
    "postgresql://db/x'y?folder=f": "names database",
    "postgresql://db/sotto?folder=f&options=-c%20fsync=off": "has 'options'; it must have none but",
    "postgresql://db/sotto?folder=f&service=x": "has 'service'",
    "postgresql://db/sotto?folder=f&hostaddr=10.0.0.1": "has 'hostaddr'",
    "postgresql://db/sotto?folder=f&sslmode=require": "has sslmode 'require'; it must have verify",
    "postgresql://db/sotto?folder=f&sslmode=disable": "has sslmode 'disable'",
    "postgresql+asyncpg://db/sotto?folder=f": "begins with postgresql+asyncpg",
    "postgres://db/sotto?folder=f": "begins with postgres;",
    "postgresql://a b@db/sotto?folder=f": "names user 'a b'",
    "mysql://db/sotto": "must name an SQLite file",
    "sqlite:///x.db?mode=ro": "must name an SQLite file",
}


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_refused_is_named(url: str) -> None:
    with pytest.raises(InvalidRecordError, match=re.escape(REFUSED[url])):
        address_of(url)
    with pytest.raises(InvalidRecordError, match=re.escape(REFUSED[url])):
        open_database(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://lab:secret@db/sotto?folder=f",
        "postgresql://lab:se@secret/x@db/sotto?folder=f",
        "postgresql://lab:@secret@db/sotto?folder=f",
        "postgresql://:secret@db/sotto",
        "postgresql://db/sotto?folder=f&password=secret",
        "postgresql://db/sotto?PASSWORD=secret&folder=f",
        "postgresql://db/sotto?passfile=secret",
        "postgresql://db/sotto?sslpassword=secret",
        "postgres://lab:secret@db",
        "mysql://lab:secret@db/x",
        "nonsense://lab:secret@",
    ],
)
def test_no_message_holds_a_password(url: str) -> None:
    assert "secret" not in shown(url)
    with pytest.raises(InvalidRecordError, match="must not hold a password") as caught:
        address_of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://db/x?folder=f", "sqlite:///runs/a:b@c.db", "nonsense", ""]
)
def test_what_holds_none_is_shown_as_it_is(url: str) -> None:
    assert shown(url) == url


def test_which_are_servers() -> None:
    urls = ["postgresql://x", "postgresql+psycopg:///", "postgres://", "postgresql+x://"]
    assert all(map(names_server, urls))
    assert not any(map(names_server, ["sqlite:///postgresql", "mysql://x", "", "postgresqlx://"]))
