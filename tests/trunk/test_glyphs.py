"""`sotto-glyphs`: how characters are drawn, and what the weights know of unseen fonts."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from safetensors import safe_open

from benchmarks._glyph_images import CHARACTERS, NAMES, WORDS, batches, read_faces
from benchmarks.glyphs import HELD_OUT, Recipe, accuracies, by_patches, encoded
from methods.clip import tiny
from methods.clip.adapter import load_backbone

FONTS = Path(mpl.get_data_path()) / "fonts" / "ttf"
"""Matplotlib brings DejaVu, a family that training never saw."""


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fonts")
    for name in ("DejaVuSans.ttf", "DejaVuSerif-Bold.ttf"):
        (folder / name).write_bytes((FONTS / name).read_bytes())
    # Computer Modern's symbols have other signs in the letters' places.
    return read_faces([folder])


def test_characters_have_names_and_fill_their_masks(faces):
    assert len(CHARACTERS) == len(NAMES) == len(set(NAMES)) == 62
    assert NAMES[CHARACTERS.index("7")] == "digit seven"
    assert NAMES[CHARACTERS.index("Q")] == "capital q" and NAMES[CHARACTERS.index("q")] == "small q"
    assert faces.masks.shape == (2, 62, 64, 64)
    covered = faces.masks > 127
    sides = [max(np.ptp(np.nonzero(mask)[0]), np.ptp(np.nonzero(mask)[1])) for mask in covered[0]]
    assert np.allclose(np.array(sides) + 1, 48, atol=1)


def test_a_seed_draws_the_same_images_and_words_are_visible(faces):
    first, again = (next(batches(faces, [0], 64, size=32, seed=3)) for _ in range(2))
    assert torch.equal(first.images, again.images)
    assert first.images.min() >= 0.0 and first.images.max() <= 1.0
    many = next(batches(faces, [0], 2000, size=32, seed=4))
    ink, weight = many.covered.mean(dim=(1, 2)), many.attributes[:, list(WORDS).index("weight")]
    thin, medium, thick = (float(ink[weight == index].mean()) for index in range(3))
    assert thin < medium < thick
    # A patch of 4 x 4 pixels holds exactly the pixels of its place.
    patches = by_patches(first.covered.clamp(0, 1))
    assert torch.equal(patches[0, 9].reshape(4, 4), first.covered[0, 4:8, 4:8].clamp(0, 1))


def test_the_shipped_weights_are_of_the_recipe_in_the_code():
    with safe_open(tiny.SHIPPED[tiny.GLYPHS], framework="np") as file:
        header = file.metadata()
    assert header["recipe"] == Recipe().digest
    assert "fonts-dejavu-core" in HELD_OUT


def test_the_shipped_model_reads_digits_of_a_family_that_it_never_saw(faces):
    model = tiny.load(tiny.SHIPPED[tiny.GLYPHS]).eval()
    found = accuracies(model, encoded(model, faces, [0], 500, seed=5))
    # On six families that training left out 99.7 and 83.6 were measured.
    assert found["digits"] > 0.95 and found["characters"] > 0.7
    assert load_backbone(tiny.GLYPHS).fingerprint != load_backbone(tiny.NAME).fingerprint
