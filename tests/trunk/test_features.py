"""Every image is encoded once, never mistaken for another, and never all at once."""

from __future__ import annotations

import os
import signal
import time
import tracemalloc
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from methods.clip import adapter
from methods.clip.adapter import load_backbone
from platform.config.sections import ModelConfig
from platform.data import cache as cache_module
from platform.data import preparing
from platform.data.cache import cached_rows, find_segments
from platform.data.preparing import BATCH, FEWEST, Squares, frozen_model
from platform.errors import ConfigError
from tests._forking import forked
from tests.trunk._encoders import CountingEncoder, cache_of, expected, files, get, pictures
from tests.trunk._runs import slow

KINDS = ("features", "tokens", "pixels")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["array", "files"])
def test_rows_are_what_the_encoder_makes(tmp_path, kind, source):
    images = pictures(BATCH + 7, side=6)
    given_ = images if source == "array" else files(tmp_path / "images", images)
    for _ in range(2):
        got = get(CountingEncoder(), given_, cache_of(tmp_path), kind=kind)
        np.testing.assert_allclose(got[:], expected(images, kind), rtol=1e-6)
        assert got.dtype == (np.uint8 if kind == "pixels" else np.float32)


def test_nobody_may_write_to_what_all_share(tmp_path, monkeypatch):
    for most in (2**20, 0):
        monkeypatch.setattr(cache_module, "MEMORY_BYTES", most)
        # Once where they lie one after another, once where they are gathered.
        for chosen in (range(40), [3, 3, *range(38)]):
            rows = get(CountingEncoder(), pictures(40), cache_of(tmp_path), chosen)
            assert most == 0 or not rows[:5].flags.writeable
        assert rows[np.arange(5)].flags.writeable


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 199), min_size=1, max_size=150), min_size=1, max_size=4))
def test_any_requests_are_right_and_encode_an_image_once(tmp_path_factory, requests):
    cache, images = cache_of(tmp_path_factory.mktemp("any")), pictures(200)
    # Twenty images that come twice, under another number.
    images[180:] = images[:20]
    distinct: set[int] = set()
    for rows in requests:
        encoder = CountingEncoder()
        got = get(encoder, images, cache, rows)
        np.testing.assert_allclose(got[:], expected(images[rows], "features"), rtol=1e-6)
        new = {row % 180 for row in rows} - distinct
        full, rest = divmod(len(new), BATCH)
        assert encoder.seen == [BATCH] * full + [max(rest, FEWEST)] * (rest > 0)
        distinct |= new
    assert sum(holding.images for holding in cached_rows(cache.path)) == len(distinct)


def test_an_image_is_the_same_row_in_any_company(tmp_path):
    """Which images are new is chance, and must not show in the last bits of a run's result."""
    backbone, images = load_backbone("sotto-tiny"), pictures(70, side=32)
    together = get(backbone, images, cache_of(tmp_path / "together"))
    apart = cache_of(tmp_path / "apart")
    for rows in ([3], [69, 1], range(40, 70), range(70)):
        got = get(backbone, images, apart, rows)
        np.testing.assert_array_equal(got[:], together[np.asarray(rows)])


def test_another_model_transform_or_version_is_encoded_anew(tmp_path, monkeypatch):
    encoder, cache = CountingEncoder(), cache_of(tmp_path)
    get(encoder, pictures(40), cache)
    for other in (
        *({"fingerprint": "other weights"}, {"name": "other model"}, {"device": "cuda:0"}),
        {"fingerprint": "weightstransform", "transform_digest": ""},
    ):
        encoder.seen.clear()
        get(replace(encoder, **other), pictures(40), cache)
        assert encoder.seen == [40]
    # So are other versions, but not another device of the same kind.
    before = preparing.computation(encoder)
    for change, other in (("version", lambda name: f"0 of {name}"), ("DECODING_VERSION", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(preparing, change, other)
            assert preparing.computation(encoder) != before
    first, second = (replace(encoder, device=f"cuda:{number}") for number in range(2))
    assert preparing.computation(first) == preparing.computation(second)


def test_a_changed_file_is_encoded_anew(tmp_path):
    encoder, cache, images = CountingEncoder(), cache_of(tmp_path), pictures(50)
    for folder in ("images", "elsewhere"):
        get(encoder, files(tmp_path / folder, images), cache)
    images[7, 3, 3, 2] ^= 1
    got = get(encoder, files(tmp_path / "images", images), cache)
    assert encoder.seen == [50, FEWEST]
    np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)


@dataclass(frozen=True)
class WideEncoder(CountingEncoder):
    """Tokens of 48 KiB an image."""

    def encode_tokens(self, images):
        self.seen.append(len(images))
        return np.repeat(images.reshape(len(images), -1, 1).astype(np.float32), 256, axis=2)


@pytest.mark.slow
def test_memory_is_bounded_by_a_batch_and_a_segment(tmp_path, monkeypatch):
    """Three hundred images of 0.2 MB, and 14 MiB of tokens, in two thirds of the latter."""
    monkeypatch.setattr(cache_module, "SEGMENT_BYTES", 2**20)
    monkeypatch.setattr(cache_module, "MEMORY_BYTES", 2**20)
    few = files(tmp_path / "images", pictures(40, side=256))
    for number in range(300):
        # Bytes behind a picture's end are no part of it, but of what the file is known by.
        data = few.bytes_of(number % 40) + number.to_bytes(4, "big")
        (few.root / f"n{number}.png").write_bytes(data)
    many = replace(few, paths=tuple(f"n{number}.png" for number in range(300)))
    encoder, cache = WideEncoder(), cache_of(tmp_path)
    tracemalloc.start()
    try:
        rows = get(encoder, many, cache, kind="tokens")
        for start in range(0, 300, 50):
            rows[start : start + 50]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (max(encoder.seen), rows.shape) == (BATCH, (300, 48, 256))
    # A batch of tokens is 3 MiB; a decoded picture is 0.2 MB.
    assert peak < 9 * 2**20
    np.testing.assert_array_equal(rows[np.asarray([279, 40, 0])][1:], rows[np.asarray([40, 0])])


def by_pillow(image: np.ndarray, side: int) -> np.ndarray:
    """The shorter side to `side`, then the middle of the longer one, in Pillow's own words."""
    height, width = image.shape[:2]
    short = min(height, width)
    size = (int(side * width / short), int(side * height / short))
    shown = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return np.asarray(shown.crop((left, top, left + side, top + side)))


@pytest.mark.parametrize(
    ("shape", "side"), [((40, 64), 28), ((100, 60), 32), ((9, 9), 64), ((28, 28), 28)]
)
def test_an_image_is_resized_and_cropped_in_the_middle(shape, side):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    (fitted,) = Squares(side).fit([image])
    assert (fitted.shape, fitted.dtype) == ((side, side, 3), np.uint8)
    np.testing.assert_array_equal(fitted, by_pillow(image, side))


def test_at_the_model_s_own_size_it_is_what_the_model_does():
    backbone = load_backbone("sotto-tiny")
    images = pictures(3, side=50)
    np.testing.assert_array_equal(Squares(backbone.image_size).fit(images), backbone.fit(images))


def test_runs_share_a_model_whose_name_says_all_and_read_files_again(monkeypatch):
    loads = []

    def load(name, *_):
        loads.append(name)
        return object()

    monkeypatch.setattr(preparing, "_kept", cache(preparing._loaded))
    monkeypatch.setattr(adapter, "load_backbone", load)
    shipped, local = ModelConfig(name="sotto-tiny"), ModelConfig(name="local-dir:somewhere")
    assert frozen_model(shipped, "cpu") is frozen_model(shipped, "cpu")
    assert frozen_model(local, "cpu") is not frozen_model(local, "cpu")
    assert loads == ["sotto-tiny", *["local-dir:somewhere"] * 2]


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
