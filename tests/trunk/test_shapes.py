"""The rendered shapes: determinism, disjoint streams, geometry, and what tells domains apart."""

from __future__ import annotations

import numpy as np
import pytest

from platform.data.shapes import CLASSES, DOMAINS, OUTLINES, Stream, shapes_dataset, signed_distance


def test_every_class_of_every_domain_has_its_images():
    data = shapes_dataset(3, 2, 1)
    assert data.train.images.shape == (6 * 20 * 2, 32, 32, 3)
    assert data.test.images.shape == (6 * 20, 32, 32, 3)
    assert np.bincount(data.train.labels).tolist() == [12] * 20
    assert np.bincount(data.train.domains).tolist() == [40] * 6
    assert (data.classes, data.domains) == (CLASSES, DOMAINS)


def test_a_domains_images_do_not_depend_on_the_others():
    whole = shapes_dataset(5, 2, 0).train
    np.testing.assert_array_equal(whole.images, shapes_dataset(5, 2, 0).train.images)
    alone = shapes_dataset(5, 2, 0, domains=["sketch"])
    rows = whole.domains == DOMAINS.index("sketch")
    np.testing.assert_array_equal(whole.images[rows], alone.train.images)
    assert alone.domains == ("sketch",)
    assert set(alone.train.domains.tolist()) == {0}


def test_no_two_streams_share_an_image_even_under_one_seed():
    made = [shapes_dataset(20, 4, 2, stream=stream) for stream in Stream]
    images = [image for data in made for part in (data.train, data.test) for image in part.images]
    assert len({image.tobytes() for image in images}) == len(images)


def test_stream_numbers_never_change():
    # Other numbers would silently give other data under the same seed.
    assert [int(stream) for stream in Stream] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("outline", "point", "distance"),
    [
        ("circle", (0.0, 0.0), -0.9),
        ("ring", (0.68, 0.0), -0.24),
        ("square", (0.0, 0.0), -0.75),
        ("square", (1.75, 0.0), 1.0),
        ("square", (1.05, 1.15), 0.5),  # 3-4-5 from the corner (0.75, 0.75)
        ("triangle", (0.0, -1.5), 0.5),
        ("hexagon", (0.0, 0.0), -np.sqrt(3) / 2),
        ("cross", (0.0, 0.6), -0.3),
        ("diamond", (0.0, 1.25), 0.25),
        ("semicircle", (0.0, 0.9), 0.5),
        ("oval", (1.0, 0.0), 0.0),
        ("drop", (0.0, 0.95), 0.0),
    ],
)
def test_signed_distance_by_hand(outline, point, distance):
    x, y = (np.full((1,), value, dtype=np.float32) for value in point)
    assert signed_distance(outline, x, y)[0] == pytest.approx(distance, abs=2e-6)


@pytest.mark.parametrize("outline", sorted(OUTLINES))
def test_every_outline_fits_its_disc_and_is_no_dot(outline):
    axis = np.linspace(-1.5, 1.5, 151, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    inside = signed_distance(outline, x, y) < 0
    assert np.hypot(x, y)[inside].max() < 1.13
    assert 0.1 < inside.mean() * 9 / np.pi < 1
