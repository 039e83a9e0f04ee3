"""The handwritten digits: the real scans, enlarged and split."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from platform.data.loaders.embedded import digits_dataset


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
