"""URLs of databases: an SQLite file's, and passwords, which no message repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import InvalidRecordError, open_database
from storage.homes import file_of, shown


@pytest.mark.parametrize("name", ["runs/a@b:c.db", "/srv/a b%20.db", "x"])
def test_a_file(name: str) -> None:
    assert file_of(f"sqlite:///{name}") == Path(name)


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://db/sotto", "postgresql:///sotto?host=/run/pg", "sqlite://", "sqlite:///", ""),
        *("sqlite:///x.db?mode=ro", "sqlite:///:memory:", "sqlite+pysqlite:///x.db", "x.db"),
    ],
)
def test_what_names_no_file_is_refused(url: str) -> None:
    for ask in (file_of, open_database):
        with pytest.raises(InvalidRecordError, match="it must be sqlite:/// and a file's path"):
            ask(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://lab:secret@db/sotto?folder=f",
        "postgresql://lab:se@secret/x@db/sotto?folder=f",
        "postgresql://:secret@db/sotto",
        "postgresql://db/sotto?folder=f&password=secret",
        "postgresql://db/sotto?PASSWORD=secret&folder=f",
        "postgresql://db/sotto?passfile=secret",
        "nonsense://lab:secret@",
    ],
)
def test_no_message_holds_a_password(url: str) -> None:
    assert "secret" not in shown(url)
    with pytest.raises(InvalidRecordError) as caught:
        file_of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://db/x?folder=f", "sqlite:///runs/a:b@c.db", "x", ""])
def test_what_holds_none_is_shown_as_it_is(url: str) -> None:
    assert shown(url) == url
