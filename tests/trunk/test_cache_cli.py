"""`cache list` and `cache clear`."""

from __future__ import annotations

import os
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
    for path in cache.path.rglob("*.digests"):
        os.utime(path, (USED, USED))
    return Storage(tmp_path)


def cached(place: Storage) -> list[tuple[str, str, int]]:
    found = cached_rows(place.folder / "cache")
    return [("" if h.about is None else h.about.model, h.kind, h.images) for h in found]


def files_of(place: Storage) -> list[Path]:
    return [path for path in (place.folder / "cache").rglob("*") if path.is_file()]


def test_list_shows_models_kinds_images_and_sizes(sotto: Command, place: Storage) -> None:
    answer = sotto("cache", "list", "--storage", place.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    size = 128 + 40 * (3 * 4 + 64)
    found = [(one["model"], one["kind"], one["images"], one["bytes"]) for one in answer.document]
    assert found == [
        ("alpha", "features", 40, size),
        ("alpha", "tokens", 3, 128 + 3 * (4 * 3 * 4 + 64)),
        ("beta", "features", 40, size),
    ]
    assert {one["last_used"] for one in answer.document} == {"2023-11-14T22:13:20Z"}


def test_clear_removes_one_model(sotto: Command, place: Storage) -> None:
    answer = sotto("cache", "clear", "--model", "alpha-we", "--storage", place.url, "--json")
    assert answer.document == {"images": 43, "bytes": 2 * 128 + 40 * 76 + 3 * 112}
    assert cached(place) == [("beta", "features", 40)]
    assert not (place.folder / "cache" / "tokens").exists()


def test_clear_removes_everything_that_is_the_caches(sotto: Command, place: Storage) -> None:
    cache = place.folder / "cache"
    (folder,) = (path for path in (cache / "tokens").iterdir())
    mine = [cache / "mine.npy", cache / "features" / "mine.npy", folder / "notes.txt"]
    for path in mine:
        path.write_text("mine")
    (folder / "0123.npy.part").write_text("left by a writer that died")
    (cache / "features" / "mine").mkdir()
    outside = place.folder / "outside"
    outside.mkdir()
    (outside / "0123.npy").write_text("mine")
    (cache / "pixels").mkdir()
    (cache / "pixels" / ("0" * 32)).symlink_to(outside)
    answer = sotto("cache", "clear", "--all", "--storage", place.url)
    assert answer.code == 0 and "83 images" in answer.out
    left = {path for path in files_of(place) if not path.is_symlink()}
    assert left == set(mine) and (outside / "0123.npy").exists()


def test_a_link_is_not_followed(sotto: Command, place: Storage) -> None:
    cache = place.folder / "cache"
    cache.rename(place.folder / "elsewhere")
    cache.symlink_to(place.folder / "elsewhere", target_is_directory=True)
    before = len(files_of(Storage(place.folder)))
    answer = sotto("cache", "clear", "--all", "--storage", place.url)
    require_one_sentence(answer, "is a link")
    assert len(files_of(Storage(place.folder))) == before


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
