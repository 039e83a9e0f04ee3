"""The cache's files beside other processes and users: nothing whole is lost, nothing shown."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

import numpy as np
import pytest

from platform.data import cache as cache_module
from platform.data.cache import clear
from platform.data.preparing import BATCH
from platform.errors import ConfigError
from tests.trunk._encoders import CountingEncoder, cache_of, expected, get, pictures
from tests.trunk.test_cache_files import FailingEncoder, stored

# --- what is no damage ----------------------------------------------------------------------------


@pytest.fixture
def few_open_files():
    """No more than twelve files can be opened in addition."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    for number in taken[-12:]:
        os.close(number)
    yield
    for number in taken[:-12]:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def thirty(tmp_path):
    """A cache with a segment for each of thirty images."""
    cache, images = cache_of(tmp_path), pictures(30)
    for row in range(len(images)):
        get(CountingEncoder(), images, cache, [row])
    return cache, images, stored(cache)


def test_small_segments_keep_no_file_open(thirty, few_open_files):
    cache, images, before = thirty
    encoder = CountingEncoder()
    got = get(encoder, images, cache)
    assert (encoder.seen, stored(cache)) == ([], before)
    np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)


def test_too_many_open_files_destroy_nothing(thirty, monkeypatch, few_open_files):
    cache, images, before = thirty
    monkeypatch.setattr(cache_module, "SMALL_BYTES", 0)
    with pytest.raises(ConfigError, match=r"\(Too many open files\); valid is a higher limit"):
        get(CountingEncoder(), images, cache)
    assert stored(cache) == before


def test_an_error_at_saving_does_not_hide_why_it_ended(tmp_path):
    cache, images = cache_of(tmp_path), pictures(4 * BATCH)
    cache.path.mkdir()
    (cache.path / "features").write_text("in the way")
    with pytest.raises(RuntimeError, match="out of memory"):
        get(FailingEncoder(), images, cache)
    with pytest.raises(ConfigError, match=r"^storage.url: its cache folder '.*' cannot be written"):
        get(CountingEncoder(), images, cache)


# --- several at once, and others' eyes ------------------------------------------------------------


def test_one_file_that_stays_does_not_keep_the_others(tmp_path, monkeypatch):
    cache = cache_of(tmp_path)
    for name in ("a", "b"):
        get(CountingEncoder(name=name), pictures(3), cache)
    first, unlink = stored(cache)[0], os.unlink

    def failing(path, **more):
        if os.fspath(path) == os.fspath(first):
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(ConfigError, match="Operation not permitted"):
        clear(cache.path, None)
    assert stored(cache) == [first]


def test_nobody_else_may_look_into_it(tmp_path):
    before = os.umask(0)
    try:
        cache = cache_of(tmp_path)
        get(CountingEncoder(), pictures(3), cache)
    finally:
        os.umask(before)
    made = [cache.path, *cache.path.rglob("*")]
    assert len(made) == 6
    for path in made:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
