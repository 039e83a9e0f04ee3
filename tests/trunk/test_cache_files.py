"""The cache's files: written by several, damaged, too many, and never torn."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from platform.data import cache as cache_module
from platform.data.cache import cached_rows, find_segments
from platform.data.preparing import BATCH
from platform.errors import ConfigError
from tests._forking import forked
from tests.trunk._encoders import CountingEncoder, cache_of, expected, get, pictures
from tests.trunk._runs import slow


def stored(cache):
    return sorted(path for path in cache.path.rglob("*") if path.is_file())


def segments(cache):
    return [s for holding in cached_rows(cache.path) for s in find_segments(holding.folder)]


@dataclass(frozen=True)
class FailingEncoder(CountingEncoder):
    """Fails on its third batch."""

    def encode_images(self, images):
        if len(self.seen) == 2:
            raise RuntimeError("out of memory")
        return super().encode_images(images)


def dying_writer(folder, at):
    """Writes rows, then digests, and is killed before the first or the second file has its name."""
    original, calls = Path.replace, []

    def replace(self, target):
        calls.append(target)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, target)

    Path.replace = replace
    get(CountingEncoder(), pictures(40), cache_of(folder))
    return 0


@pytest.mark.parametrize(("at", "suffixes"), [(1, [".part", ".part"]), (2, [".npy", ".part"])])
def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path, at, suffixes):
    code, _ = forked(lambda: dying_writer(tmp_path, at))
    assert code == -signal.SIGKILL
    cache, encoder = cache_of(tmp_path), CountingEncoder()
    left = stored(cache)
    assert sorted(path.suffix for path in left) == suffixes
    get(encoder, pictures(40), cache)
    assert encoder.seen == [40]
    # They may be another writer's that is at work, until they are a day old.
    assert set(left) <= set(stored(cache))
    for path in left:
        os.utime(path, times=(time.time() - 90_000,) * 2)
    get(encoder, pictures(40), cache)
    assert not set(left) & set(stored(cache))
    assert sorted(path.suffix for path in stored(cache)) == [".digests", ".json", ".npy"]


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


DAMAGES = {
    "cut in the header": lambda segment: cut(segment.rows_path, 40),
    "cut rows": lambda segment: cut(segment.rows_path, -8),
    "no array": lambda segment: segment.rows_path.write_bytes(b"\x80\x04N." * 200),
    "half a digest": lambda segment: cut(segment.digests_path, -7),
    "a digest less": lambda segment: cut(segment.digests_path, -32),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_segment_is_dropped_and_its_images_encoded_anew(tmp_path, damage):
    encoder, cache, images = CountingEncoder(), cache_of(tmp_path), pictures(80)
    get(encoder, images, cache, range(40))
    (damaged,) = segments(cache)
    damage(damaged)
    get(encoder, images, cache, range(40, 80))
    assert encoder.seen == [40, 40]
    got = get(encoder, images, cache)
    assert encoder.seen == [40, 40, 40]
    np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)
    assert damaged not in segments(cache)
    assert not damaged.rows_path.exists()
    get(encoder, images, cache)
    assert encoder.seen == [40, 40, 40]


@pytest.mark.parametrize("count", [12, slow(300)])
@pytest.mark.parametrize("kind", ["features", slow("pixels")])
@pytest.mark.parametrize(
    ("which", "is_mapped"),
    [
        ("rows_path", True),
        ("digests_path", False),
        slow("rows_path", False),
        slow("digests_path", True),
    ],
)
def test_a_flipped_bit_changes_no_row(tmp_path, monkeypatch, which, kind, is_mapped, count):
    if is_mapped:
        monkeypatch.setattr(cache_module, "SMALL_BYTES", 0)
    cache, images = cache_of(tmp_path), pictures(40)
    before = get(CountingEncoder(), images, cache, kind=kind)[:].copy()
    (segment,) = segments(cache)
    kept = [(one, one.read_bytes()) for one in (segment.rows_path, segment.digests_path)]
    harmless = 0
    path, whole = getattr(segment, which), getattr(segment, which).read_bytes()
    for bit in np.random.default_rng(7).choice(8 * len(whole), count, replace=False).tolist():
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        for turn in (1, -1):
            encoder = CountingEncoder()
            got = get(encoder, images[::turn], cache, kind=kind)
            np.testing.assert_array_equal(got[:], before[::turn])
            harmless += turn == 1 and segment.digests_path.exists()
        again = CountingEncoder()
        get(again, images, cache, kind=kind)
        assert again.seen == []
        for other in segments(cache):
            other.rows_path.unlink()
            other.digests_path.unlink()
        for one, held in kept:
            one.write_bytes(held)
    # White space of the header, at most; or a digest of an image that nobody has.
    assert harmless <= count // (2 if which == "digests_path" else 4)


def aged(cache, ages):
    """Three models' rows, the oldest used so many seconds ago."""
    for name, age in ages.items():
        get(CountingEncoder(name=name, fingerprint=name), pictures(40), cache)
        (holding,) = (h for h in cached_rows(cache.path) if h.about.model == name)
        (segment,) = find_segments(holding.folder)
        os.utime(segment.digests_path, times=(time.time() - age,) * 2)
    return segment.num_bytes()


def models(cache):
    return [holding.about.model for holding in cached_rows(cache.path) if holding.images]


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache = cache_of(tmp_path)
    size = aged(cache, {"a": 300, "b": 200, "c": 100})
    # Using it makes it the newest, and removes nothing.
    get(CountingEncoder(name="a", fingerprint="a"), pictures(40), replace(cache, limit=1))
    bounded = replace(cache, limit=3 * size)
    get(CountingEncoder(name="d", fingerprint="d"), pictures(40), bounded)
    assert models(cache) == ["a", "c", "d"]
    get(CountingEncoder(name="d", fingerprint="d"), pictures(40, seed=1), bounded)
    assert models(cache) == ["a", "d"]


def test_a_request_that_is_more_than_the_bound_is_refused_at_once(tmp_path):
    """96 different images, of 12 bytes each; four of a hundred come twice."""
    cache, encoder = cache_of(tmp_path, 96 * 12 - 1), CountingEncoder()
    images = np.concatenate([pictures(4), pictures(96)])
    with pytest.raises(ConfigError, match=r"storage\.cache_gib: 1\.07195e-06"):
        get(encoder, images, cache)
    assert encoder.seen == [BATCH] and not cache.path.exists()
    assert len(get(encoder, images, cache_of(tmp_path, 96 * 12))) == 100


def test_an_error_at_saving_does_not_hide_why_it_ended(tmp_path):
    cache, images = cache_of(tmp_path), pictures(4 * BATCH)
    cache.path.mkdir()
    (cache.path / "features").write_text("in the way")
    with pytest.raises(RuntimeError, match="out of memory"):
        get(FailingEncoder(), images, cache)
    with pytest.raises(ConfigError, match=r"cannot be written"):
        get(CountingEncoder(), images, cache)
