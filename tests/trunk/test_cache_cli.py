"""`cache list` and `cache clear`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from platform.data.cache import cached_rows
from tests.trunk._encoders import CountingEncoder, cache_of, get, pictures
from tests.trunk._runs import Command, Storage
from tests.trunk.test_cli_errors import require_one_sentence

USED = 1_700_000_000
"""2023-11-14 22:13:20 in Greenwich."""


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    """A database's folder whose cache knows two models, "alpha" and "beta"."""
    cache = cache_of(tmp_path)
    for name in ("alpha", "beta"):
        get(CountingEncoder(name=name, fingerprint=f"{name}-weights"), pictures(40), cache)
    alpha = CountingEncoder(name="alpha", fingerprint="alpha-weights")
    get(alpha, pictures(3), cache, kind="tokens")
    with closing(sqlite3.connect(cache.path / "rows.db")) as connection, connection:
        connection.execute("UPDATE batches SET used = ?", (USED,))
    return Storage(tmp_path)


def cached(place: Storage) -> list[tuple[str, str, int]]:
    return [(h.model, h.kind, h.images) for h in cached_rows(place.folder / "cache")]


def test_list_shows_models_kinds_images_and_sizes(sotto: Command, place: Storage) -> None:
    answer = sotto("cache", "list", "--storage", place.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    size = 40 * 3 * 4
    found = [(one["model"], one["kind"], one["images"], one["bytes"]) for one in answer.document]
    assert found == [
        ("alpha", "features", 40, size),
        ("alpha", "tokens", 3, 3 * 4 * 3 * 4),
        ("beta", "features", 40, size),
    ]
    assert {one["last_used"] for one in answer.document} == {"2023-11-14T22:13:20Z"}


def test_clear_removes_one_model(sotto: Command, place: Storage) -> None:
    answer = sotto("cache", "clear", "--model", "alpha-we", "--storage", place.url, "--json")
    assert answer.document == {"images": 43, "bytes": 40 * 12 + 3 * 48}
    assert cached(place) == [("beta", "features", 40)]


def test_clear_removes_everything_that_is_the_caches(sotto: Command, place: Storage) -> None:
    mine = place.folder / "cache" / "mine.npy"
    mine.write_text("mine")
    # A damaged description hides rows from the list alone.
    with closing(sqlite3.connect(place.folder / "cache" / "rows.db")) as connection, connection:
        connection.execute("UPDATE batches SET shape = '[5' WHERE kind = 'tokens'")
    assert cached(place) == [("alpha", "features", 40), ("beta", "features", 40)]
    answer = sotto("cache", "clear", "--all", "--storage", place.url)
    assert answer.code == 0 and "80 images" in answer.out
    assert list((place.folder / "cache").iterdir()) == [mine]


def test_a_link_is_not_followed(sotto: Command, place: Storage) -> None:
    cache = place.folder / "cache"
    cache.rename(place.folder / "elsewhere")
    cache.symlink_to(place.folder / "elsewhere", target_is_directory=True)
    before = cached(place)
    answer = sotto("cache", "clear", "--all", "--storage", place.url)
    require_one_sentence(answer, "is a link")
    assert cached(place) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--model: is missing"),
        (("--all", "--model", "alpha"), "--all: given beside"),
        # Too short to be meant as a fingerprint.
        (("--model", "alpha-w"), "nothing of 'alpha-w'"),
    ],
)
def test_what_is_not_clear_deletes_nothing(sotto, place, arguments, expected):
    before = cached(place)
    require_one_sentence(sotto("cache", "clear", *arguments, "--storage", place.url), expected)
    assert cached(place) == before
