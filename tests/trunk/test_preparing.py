"""What a method keeps of each image: made once, in chunks, and dealt to the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from methods import Arrays
from methods.clip.adapter import load_backbone
from platform.config import parse_config
from platform.data.cache import cached_rows as stored
from platform.data.loading import load_task_data
from platform.data.preparing import (
    CHUNK,
    cached_encoders,
    plain_encoders,
    prepared_arrays,
    prepared_batch,
)
from platform.errors import ConfigError
from platform.experiment.dealing import deal_examples
from tests.trunk._encoders import cache_of, files


@dataclass
class Keeping:
    """Keeps the mean of the tokens; counts what it is given."""

    needs: frozenset[str] = frozenset({"tokens"})
    seen: list[tuple[tuple[str, ...], int]] = field(default_factory=list)

    def prepare(self, arrays: Arrays) -> Arrays:
        self.seen.append((tuple(sorted(arrays)), len(next(iter(arrays.values())))))
        return {"kept": arrays["tokens"].mean(axis=1)}


@dataclass
class Plain:
    needs: frozenset[str] = frozenset({"features", "domains"})

    def prepare(self, arrays: Arrays) -> Arrays:
        return arrays


def tokens_of(kind, images, rows):
    assert kind == "tokens"
    return images[rows].reshape(len(rows), -1, 3).astype(np.float32)


def features_of(kind, images, rows):
    assert kind == "features"
    return images[rows].mean(axis=(1, 2)).astype(np.float32)


def nothing_of(kind, images, rows):
    raise AssertionError("nobody needs this")


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)


def prepared(method, images, encoders):
    return prepared_arrays(method, images, np.arange(len(images)), encoders)


def test_each_image_is_prepared_once_in_chunks_and_only_those_that_are_asked_for():
    method, images = Keeping(), pictures(2 * CHUNK + 5)
    kept = prepared(method, images, tokens_of)
    # Two of the first chunk's images once more, each alone.
    assert [rows for _, rows in method.seen] == [CHUNK, 1, 1, CHUNK, 5]
    assert {names for names, _ in method.seen} == {("tokens",)}
    assert list(kept) == ["kept"]
    np.testing.assert_allclose(kept["kept"], images.mean(axis=(1, 2)), rtol=1e-6)
    rows = np.asarray([1, 4, 5])
    few = prepared_arrays(method, images, rows, tokens_of)["kept"]
    np.testing.assert_allclose(few, images[rows].mean(axis=(1, 2)), rtol=1e-6)
    batch = prepared_batch(method, images[:3], tokens_of)["kept"]
    np.testing.assert_allclose(batch, images[:3].mean(axis=(1, 2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("needs", "source"), [("features", "files"), ("pixels", "array"), ("tokens", "files")]
)
def test_cached_and_plain_encoders_agree(tmp_path, source, needs):
    images, backbone, told = pictures(70), load_backbone("sotto-tiny"), []
    given = images if source == "array" else files(tmp_path / "images", images)
    rows = np.asarray([69, 3, 3, 40])
    cached = cached_encoders(backbone, cache_of(tmp_path), lambda *what: told.append(what))
    plain = plain_encoders(backbone)(needs, given, rows)
    method = Plain(frozenset({needs}))
    for _ in range(2):
        kept = prepared_arrays(method, given, rows, cached)[needs]
        assert (kept.shape, kept.dtype) == (plain.shape, plain.dtype)
        np.testing.assert_allclose(kept[:], plain, atol=1e-6)
    # What is in memory already is not kept a second time.
    is_kept = needs != "pixels" or source == "files"
    assert told == [(f"image {needs}", 0, 4), (f"image {needs}", 4, 4)] * 2 * is_kept
    assert bool(stored(tmp_path / "cache")) == is_kept


@dataclass
class Making:
    """Keeps what it is told to make of the one array that it needs."""

    make: Callable[[Any], Any]
    needs: frozenset[str] = frozenset({"text"})

    def prepare(self, arrays: Arrays) -> Arrays:
        return {"kept": self.make(*arrays.values())}


def test_rows_that_do_not_match_and_an_example_that_is_another_in_company_are_refused():
    less = Making(lambda tokens: tokens[1:], Keeping.needs)
    with pytest.raises(ConfigError, match="made 4 rows"):
        prepared(less, pictures(5), tokens_of)
    # Under dp_sgd one record would be in every row.
    mixed = Making(lambda tokens: tokens - tokens.mean(axis=0), Keeping.needs)
    with pytest.raises(ConfigError, match="another 'kept' of"):
        prepared(mixed, pictures(5), tokens_of)


TREE = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
LEFT_OUT = (
    *("task.domains=[real, sketch, clipart]", "task.partition.kind=domain", "task.shots=2"),
    *("task.held_out_domain=sketch", "evaluation.protocol=leave_one_domain_out"),
    *("task.clients=2", "task.test_per_class=3"),
)


def test_clients_get_what_the_method_kept_of_their_images():
    data, method = load_task_data(parse_config(TREE, LEFT_OUT)), Keeping()
    train, evaluation = deal_examples(data, method, tokens_of, "leave_one_domain_out")
    # The held-out domain's training images are nobody's, so nobody looks at them.
    images = int((data.dataset.train.domains != 1).sum()) + len(data.dataset.test.labels)
    # Of either split two images once more, each alone.
    assert sum(rows for _, rows in method.seen) == images + 4
    for (name, examples), indices in zip(train.items(), data.clients, strict=True):
        assert set(examples.arrays) == {"kept", "labels"}
        own = data.dataset.train.images[indices.train]
        np.testing.assert_allclose(examples.arrays["kept"], own.mean(axis=(1, 2)), rtol=1e-5)
        labels = data.dataset.train.labels[indices.train]
        np.testing.assert_array_equal(examples.arrays["labels"], labels)
        tested = evaluation.own[name].arrays
        shown = data.dataset.test.images[indices.test]
        np.testing.assert_allclose(tested["kept"], shown.mean(axis=(1, 2)), rtol=1e-5)
    target = evaluation.common["target"].examples.arrays
    held_out = data.dataset.test.images[data.dataset.test.domains == 1]
    np.testing.assert_allclose(target["kept"], held_out.mean(axis=(1, 2)), rtol=1e-5)


def test_domains_are_counted_among_those_that_are_dealt_and_only_in_training():
    """Real, sketch and clipart without sketch: clipart is the second of what the task knows."""
    data = load_task_data(parse_config(TREE, LEFT_OUT))
    train, evaluation = deal_examples(data, Plain(), features_of, "leave_one_domain_out")
    domains = [set(examples.arrays["domains"].tolist()) for examples in train.values()]
    assert domains == [{0}, {1}]
    assert all(examples.arrays["domains"].dtype == np.int64 for examples in train.values())
    tests = [*evaluation.own.values(), evaluation.common["target"].examples]
    assert all(set(test.arrays) == {"features", "labels"} for test in tests)


def test_a_longer_text_of_a_later_chunk_is_not_cut_off():
    texts = ("short",) * CHUNK + ("a text that is longer than all before",)
    upper = Making(np.char.upper)
    kept = prepared_arrays(upper, texts, np.arange(len(texts)), nothing_of)["kept"]
    assert kept[-1] == texts[-1].upper() and kept[0] == "SHORT"
    assert prepared_batch(upper, ("a", "bc"), nothing_of)["kept"].tolist() == ["A", "BC"]


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: np.char.add(rows, str(len(rows))),
        # As many columns as the longest text of its company has letters.
        lambda rows: np.zeros((len(rows), max(len(row) for row in rows)), np.int64),
        # Numbers of words that differ by little are other words.
        lambda rows: np.full(len(rows), 1_000_000 + len(rows)),
    ],
    ids=["texts", "padding", "numbers"],
)
def test_a_text_that_is_prepared_by_its_company_is_refused(make):
    texts = ("a", "a longer one", "b")
    with pytest.raises(ConfigError, match="one example alone"):
        prepared_arrays(Making(make), texts, np.arange(3), nothing_of)
