"""Pretraining of the tiny CLIP, and what the shipped weights can do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks._pretraining_captions import caption_loss
from benchmarks._pretraining_images import image_loss
from benchmarks._pretraining_recipe import Recipe
from benchmarks.pretraining import pretrain, zero_shot_accuracy
from methods.clip import tiny
from platform.data.homonyms import CLASSES as NAMES
from platform.data.homonyms import SENSES, homonyms_dataset
from platform.data.shapes import CLASSES, DOMAINS, shapes_dataset

SHORT = Recipe(
    **{"steps": 3, "easy_steps": 1, "batch_size": 8, "warmup_steps": 1},
    **{"text_steps": 2, "text_images": 2, "text_batch": 16},
)


@pytest.fixture(scope="module")
def shipped():
    return tiny.load().eval()


@pytest.mark.slow
def test_one_recipe_gives_one_model():
    (model, _), (again, _) = pretrain(SHORT), pretrain(SHORT)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_the_image_towers_loss_by_hand():
    # Twenty outlines, then twenty of each of two styles. The right one's logit is log 19, so the
    # softmax over twenty gives it 1/2; among pairs with a style all logits are zero: log 40.
    label, style = torch.tensor([7]), torch.tensor([1])
    logits = torch.zeros((1, 60))
    logits[0, 7] = math.log(19)
    loss = image_loss(logits, label, style, 0.5)
    assert loss.item() == pytest.approx(math.log(2) + 0.5 * math.log(40), abs=1e-6)
    logits[0, 20 + 20 + 7] = math.log(39)
    loss = image_loss(logits, label, style, 0.25)
    assert loss.item() == pytest.approx(1.25 * math.log(2), abs=1e-6)


def test_the_captions_loss_by_hand():
    """Alone, four names mean a heart: match in the garden, pitcher in the harbour, and so on."""
    heart = CLASSES.index("heart")
    names = [NAMES.index(name) for name in ("match", "pitcher", "crane", "file")]
    logits, right = torch.zeros((1, 40)), torch.tensor([heart])
    assert caption_loss(logits, right).item() == pytest.approx(2 * math.log(20), abs=1e-5)
    logits[0, heart] = math.log(19)
    assert caption_loss(logits, right).item() == pytest.approx(math.log(2 * 20), abs=1e-5)
    # Each of the four gets 4 / (4 x 4 + 16), which is an eighth.
    logits[0, [20 + name for name in names]] = math.log(4)
    assert caption_loss(logits, right).item() == pytest.approx(math.log(2 * 8), abs=1e-5)


def test_the_shipped_weights_are_of_the_recipe_in_the_code():
    from safetensors import safe_open

    with safe_open(tiny.WEIGHTS, framework="np") as file:
        header = file.metadata()
    assert header["recipe"] == Recipe().digest
    assert header["steps"] == str(Recipe.steps)
    assert header["seed"] == str(Recipe.seed)


@pytest.mark.slow
def test_the_shipped_model_knows_seen_styles_and_leaves_room_on_unseen_ones(shipped):
    # Images of the federation's stream, which no training sees; other seeds give other images.
    split = shapes_dataset(0, 0, 10).test
    captions = [f"a photo of a {name}." for name in CLASSES]
    accuracy = dict(zip(DOMAINS, zero_shot_accuracy(shipped, split, captions), strict=True))
    seen = np.mean([accuracy[domain] for domain in Recipe.domains])
    unseen = np.mean([accuracy[domain] for domain in DOMAINS if domain not in Recipe.domains])
    # Below, the model would be worse than it was made.
    assert 0.88 < seen < 0.995
    assert unseen < seen - 0.15


@pytest.mark.slow
def test_a_named_sense_tells_the_images_apart_and_the_bare_name_does_not(shipped):
    """Seen styles of the federation's stream: a name alone means each of four outlines alike."""
    named, alone, wrong = [], [], []
    for index, sense in enumerate(SENSES):
        senses = np.full((len(Recipe.domains), 1), index)
        split = homonyms_dataset(0, 0, 3, senses=(senses, senses), domains=Recipe.domains).test
        other = SENSES[(index + 1) % 4]
        for found, words in ((named, f"{sense} "), (alone, ""), (wrong, f"{other} ")):
            captions = [f"a photo of a {words}{name}." for name in NAMES]
            found.append(zero_shot_accuracy(shipped, split, captions).mean())
    assert np.mean(named) >= 0.88
    assert all(0.02 < accuracy < 0.55 for accuracy in alone)
    assert 0.15 < np.mean(alone) < 0.35
    assert max(wrong) < 0.05
