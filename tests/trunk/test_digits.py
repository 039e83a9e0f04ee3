"""The handwritten digits: the real scans, enlarged and split."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from platform.data.catalogue import DataRequest, load_dataset
from platform.data.loaders.embedded import (
    PAPERS,
    TOPICS,
    digits_dataset,
    headlines,
    headlines_dataset,
)
from tests.drawn.arrays import write_ag_news


def test_the_split_keeps_every_scan_once_and_every_class_in_proportion():
    data = digits_dataset(0)
    train, test = (np.bincount(part.labels) for part in (data.train, data.test))
    whole = np.bincount(load_digits().target)
    np.testing.assert_array_equal(train + test, whole)
    np.testing.assert_allclose(test / whole, 0.25, atol=0.003)
    assert (digits_dataset(5).test.images[:400] != data.test.images[:400]).any()


def test_at_the_scans_own_size_the_images_are_the_scans():
    data = digits_dataset(0, image_size=8)
    images = np.concatenate([data.train.images, data.test.images])
    assert (images == images[..., :1]).all()
    ours = np.sort(images[..., 0].reshape(len(images), -1).astype(int), axis=0)
    # 16 is full ink: 255; half ink is 127.5, rounded to the even 128.
    scans = np.round(load_digits().images * 15.9375).astype(int).reshape(len(images), -1)
    np.testing.assert_array_equal(ours, np.sort(scans, axis=0))


def test_the_loader_of_ag_news_reads_the_very_same_texts(tmp_path):
    data, parts = headlines_dataset(7, 30, 11), headlines(7, 30, 11)
    pairs = [[(one.title, one.description) for one in part] for part in parts]
    labels = [split.labels.tolist() for split in (data.train, data.test)]
    root = write_ag_news(tmp_path, train=(pairs[0], labels[0]), test=(pairs[1], labels[1]))
    read = load_dataset("ag_news", DataRequest(root=root))
    for ours, theirs in ((data.train, read.train), (data.test, read.test)):
        assert ours.texts == theirs.texts
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_array_equal(ours.domains, theirs.domains)
    assert (TOPICS, PAPERS) == (read.classes, read.domains)
    # Commas and quotes are what the layout has trouble with.
    assert all(any(mark in text for text in data.train.texts or ()) for mark in ',"')


def test_the_seed_decides_and_the_sizes_do_not():
    few, many, other = (headlines(*s) for s in ((3, 2, 4), (3, 5, 9), (4, 2, 4)))
    for each, more, part in ((2, 5, 0), (4, 9, 1)):
        for label in range(4):
            first = few[part][label * each : (label + 1) * each]
            assert first == many[part][label * more : label * more + each]
            assert not {one.text for one in first} & {one.text for one in other[part]}
    assert headlines(3, 2, 4) == few
    train, test = headlines(0, 500, 500)
    assert len({one.text for one in (*train, *test)}) == 4000
