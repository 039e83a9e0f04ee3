"""Every image is encoded once, never mistaken for another, and never all at once."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import tracemalloc
from contextlib import closing, nullcontext
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
from platform.data.cache import cached_rows, clear
from platform.data.preparing import BATCH, FEWEST, Squares, frozen_model
from platform.errors import ConfigError
from storage.files import alone_in, remove_database
from tests._forking import ended, forked, started
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
        # Once encoded, once found; once in memory, once in a file.
        for _ in range(2):
            rows = get(CountingEncoder(), pictures(40), cache_of(tmp_path), [3, 3, *range(38)])
            assert not rows[:5].flags.writeable
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
def test_memory_is_bounded_by_a_batch(tmp_path, monkeypatch):
    """Three hundred images of 0.2 MB, and 14 MiB of tokens, in two thirds of the latter."""
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


def database(cache):
    return cache.path / "rows.db"


def opened(cache):
    """A connection like another process's, which also keeps the log of the next writer."""
    connection = sqlite3.connect(database(cache))
    connection.execute("SELECT count(*) FROM rows").fetchone()
    return closing(connection)


def held(cache):
    return sum(holding.images for holding in cached_rows(cache.path))


def dying_writer(folder, at):
    """Is killed before its SQL statement with this number."""
    numbers, connect = itertools.count(1), sqlite3.connect

    def traced(path):
        connection = connect(path)
        connection.set_trace_callback(
            lambda _: os.kill(os.getpid(), signal.SIGKILL) if next(numbers) == at else None
        )
        return connection

    cache_module.sqlite3.connect = traced
    get(CountingEncoder(), pictures(150), cache_of(folder))
    return 0


@pytest.mark.parametrize("step", [71, slow(7)])
def test_a_killed_writer_leaves_whole_batches(tmp_path, step):
    ends = []
    for at in range(1, 600, step):
        cache, encoder = cache_of(tmp_path / str(at)), CountingEncoder()
        ends.append(forked(lambda at=at, cache=cache: dying_writer(cache.path.parent, at))[0])
        kept = held(cache)
        assert kept in (0, BATCH, 2 * BATCH, 150)
        got = get(encoder, pictures(150), cache)
        np.testing.assert_allclose(got[:], expected(pictures(150), "features"), rtol=1e-6)
        full, rest = divmod(150 - kept, BATCH)
        assert encoder.seen == [BATCH] * full + [max(rest, FEWEST)] * (rest > 0)
    assert ends[0] == -signal.SIGKILL and ends[-1] == 0


DAMAGES = {
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[:40],
    "half": lambda data: data[: len(data) // 2],
    "no database": lambda data: b"\x80\x04N." * 20_000,
    "zeros behind the header": lambda data: data[:100] + bytes(len(data) - 100),
    "read-only, says its header": lambda data: data[:18] + b"\x03" + data[19:],
    "another schema": lambda data: data.replace(b"batches", b"bitches"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_made_again(tmp_path, damage):
    encoder, cache, images = CountingEncoder(), cache_of(tmp_path), pictures(40)
    get(encoder, images, cache)
    database(cache).write_bytes(damage(database(cache).read_bytes()))
    for _ in range(2):
        got = get(encoder, images, cache)
        np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)
    assert encoder.seen == [40, 40] and held(cache) == 40


@pytest.mark.parametrize("count", [15, slow(200)])
@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_flipped_bit_changes_no_row(tmp_path, monkeypatch, ending, count):
    monkeypatch.setattr(cache_module, "PRAGMAS", (*cache_module.PRAGMAS, "synchronous=OFF"))
    cache, images, harmless, late = cache_of(tmp_path), pictures(40), 0, 0
    get(CountingEncoder(), images[:5], cache)
    with opened(cache):
        before = get(CountingEncoder(), images, cache)
        kept = {end: Path(f"{database(cache)}{end}").read_bytes() for end in ("", "-wal")}
    if not ending:
        kept = {"": database(cache).read_bytes()}
    used = np.flatnonzero(np.frombuffer(kept[ending], np.uint8))
    for number in np.random.default_rng(7).choice(8 * len(used), count).tolist():
        remove_database(database(cache))
        flipped = bytearray(kept[ending])
        flipped[used[number // 8]] ^= 1 << number % 8
        for end, data in (kept | {ending: flipped}).items():
            Path(f"{database(cache)}{end}").write_bytes(data)
        encoders = [CountingEncoder() for _ in range(3)]
        for encoder in encoders:
            np.testing.assert_array_equal(get(encoder, images, cache)[:], before)
            cached_rows(cache.path)
        harmless += encoders[0].seen == []
        late += encoders[-1].seen != []
    # Damage to an index may last a few requests longer.
    assert harmless < count * 0.8 and late <= 1 + count // 50


def test_a_row_under_another_name_is_no_row(tmp_path):
    """What a damaged index would find: the row of another image, model or kind."""
    cache, images = cache_of(tmp_path), pictures(40)
    for encoder in (CountingEncoder(), CountingEncoder(fingerprint="other")):
        get(encoder, images, cache)
    with opened(cache) as connection, connection:
        names = [name for (name,) in connection.execute("SELECT name FROM rows ORDER BY rowid")]
        connection.execute("UPDATE rows SET name = rowid")
        turned = [(name, row) for row, name in enumerate(names[::-1], start=1)]
        connection.executemany("UPDATE rows SET name = ? WHERE rowid = ?", turned)
    for seen in ([40], []):
        encoder = CountingEncoder()
        got = get(encoder, images, cache)
        np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)
        assert encoder.seen == seen


def writer(folder, number):
    images = pictures(400)
    for turn in range(3):
        rows = np.random.default_rng([number, turn]).permutation(400)[:300]
        got = get(CountingEncoder(), images, cache_of(folder), rows)
        np.testing.assert_allclose(got[:], expected(images[rows], "features"), rtol=1e-6)
    return 0


def spoiler(folder):
    cache = cache_of(folder)
    for turn in range(30):
        cached_rows(cache.path)
        clear(cache.path, None)
        if turn % 3 == 0 and database(cache).exists():
            with alone_in(cache.path):
                remove_database(database(cache))
    return 0


@pytest.mark.parametrize("spoils", [False, True])
def test_processes_write_clear_and_remove_at_once(tmp_path, spoils):
    works = [lambda number=number: writer(tmp_path, number) for number in range(2)]
    works += [lambda: spoiler(tmp_path)] * spoils
    with (tmp_path / "printed").open("w+b") as printed:
        children = [started(work, printed.fileno()) for work in works]
        codes = [ended(child) for child in children]
    assert codes == [0] * len(works), (tmp_path / "printed").read_text()
    encoder = CountingEncoder()
    get(encoder, pictures(400), cache_of(tmp_path))
    assert held(cache_of(tmp_path)) == 400
    assert spoils or sum(encoder.seen) <= BATCH


@pytest.mark.parametrize(("model", "kept"), [("fake", 200 - 100 - BATCH), (None, 0)])
def test_rows_stay_readable_when_the_cache_is_cleared(tmp_path, monkeypatch, model, kept):
    monkeypatch.setattr(cache_module, "MEMORY_BYTES", 0)
    cache, images = cache_of(tmp_path), pictures(200)

    class Clearing(CountingEncoder):
        def encode_images(self, images):
            clear(cache.path, model)
            return super().encode_images(images)

    get(CountingEncoder(), images, cache, range(100))
    got = get(Clearing(), images, cache)
    assert held(cache) == kept
    clear(cache.path, None)
    np.testing.assert_allclose(got[:], expected(images, "features"), rtol=1e-6)


def test_what_is_cleared_is_in_no_file(tmp_path):
    cache, rows = cache_of(tmp_path), {}
    for seed, name in enumerate("ab"):
        rows[name] = get(CountingEncoder(name=name), pictures(500, seed), cache)

    def found(name):
        everything = b"".join(path.read_bytes() for path in cache.path.iterdir())
        return sum(row.tobytes() in everything for row in rows[name])

    with opened(cache):
        before = database(cache).stat().st_size
        clear(cache.path, "a")
        # SQLite leaves a copy where rows of both shared a page.
        assert found("a") <= 2 and found("b") == 500
        assert database(cache).stat().st_size < before


def models(cache):
    return [holding.model for holding in cached_rows(cache.path)]


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache = cache_of(tmp_path)

    def use(name, cache, **more):
        return get(WideEncoder(name=name), pictures(40, **more), cache, kind="tokens")

    for name in "abc":
        use(name, cache)
    # Using it makes it the newest, and removes nothing.
    use("a", replace(cache, limit=1920 * 2**10))
    assert models(cache) == ["a", "b", "c"]
    bounded = replace(cache, limit=int(1.1 * database(cache).stat().st_size))
    use("d", bounded)
    assert models(cache) == ["a", "c", "d"]
    use("d", bounded, seed=1)
    assert models(cache) == ["a", "d"]
    assert database(cache).stat().st_size <= bounded.limit


def test_a_request_that_is_more_than_the_bound_is_refused_at_once(tmp_path):
    """96 different images, of 12 bytes each; four of a hundred come twice."""
    cache, encoder = cache_of(tmp_path, 96 * 12 - 1), CountingEncoder()
    images = np.concatenate([pictures(4), pictures(96)])
    with pytest.raises(ConfigError, match=r"storage\.cache_gib: 1\.07195e-06"):
        get(encoder, images, cache)
    assert encoder.seen == [BATCH] and held(cache) == 0
    assert len(get(encoder, images, cache_of(tmp_path, 96 * 12))) == 100


def link(cache):
    database(cache).rename(cache.path / "elsewhere")
    database(cache).symlink_to("elsewhere")


def put_in_the_way(cache):
    database(cache).unlink()
    database(cache).mkdir()


PRAGMAS = cache_module.PRAGMAS


@pytest.mark.parametrize(
    ("spoil", "name", "value", "reason"),
    [
        (None, "PRAGMAS", (*PRAGMAS, "max_page_count=9"), "full"),
        # Linux allocates no file of 2^62 bytes on any disk.
        (None, "MEMORY_BYTES", -1, "too large"),
        (None, "PRAGMAS", (*PRAGMAS, "query_only=ON"), "readonly"),
        (link, "BUSY_SECONDS", 1, "is a link"),
        (put_in_the_way, "BUSY_SECONDS", 1, "unable to open"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, spoil, name, value, reason):
    cache = cache_of(tmp_path)
    get(CountingEncoder(), pictures(40), cache)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        patch.setattr(cache_module, name, value)
        allocate = os.posix_fallocate
        patch.setattr(os, "posix_fallocate", lambda file, at, _: allocate(file, at, 2**62))
        if spoil:
            spoil(cache)
        with pytest.raises(ConfigError, match=rf"^storage\.url: .*\(.*{reason}.*\); valid is"):
            get(WideEncoder(), pictures(40), cache, kind="tokens")
    if not spoil:
        get(encoder := CountingEncoder(), pictures(40), cache)
        assert encoder.seen == []


def test_all_is_cleared_also_where_the_database_cannot_be_opened(tmp_path, monkeypatch):
    """A full disk has no room for its log."""
    cache = cache_of(tmp_path)
    get(CountingEncoder(), pictures(40), cache)
    error = sqlite3.OperationalError("full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(*_):
        raise error

    monkeypatch.setattr(cache_module.sqlite3, "connect", fail)
    for model, left in (("fake", [database(cache)]), (None, [])):
        with pytest.raises(ConfigError) if model else nullcontext():
            clear(cache.path, model)
        assert list(cache.path.iterdir()) == left
