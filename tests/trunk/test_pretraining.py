"""Pretraining of the tiny CLIP, and what the shipped weights can do."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from benchmarks import pretraining
from benchmarks.pretraining import DOMAIN_WORDS, Recipe, pretrain, zero_shot_accuracy
from methods.clip import tiny
from platform.data.shapes import CLASSES, DOMAINS, Stream, shapes_dataset

SHORT = Recipe(steps=3, text_steps=2, easy_steps=1, batch_size=8, images=2, warmup_steps=1)


@pytest.fixture(scope="module")
def shipped():
    return tiny.load().eval()


@pytest.fixture(scope="module")
def short():
    return pretrain(SHORT)


def test_one_recipe_gives_one_model(short):
    model, _ = short
    again, _ = pretrain(SHORT)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_training_moves_both_towers_and_the_captions_rows_only(short):
    model, token_ids = short
    before = tiny.build(SHORT.seed).state_dict()
    after = model.state_dict()
    for key in (
        "visual.conv1.weight",
        "text_projection",
        "transformer.resblocks.0.mlp.c_fc.weight",
    ):
        assert not torch.equal(before[key], after[key]), key
    changed = (before["token_embedding.weight"] != after["token_embedding.weight"]).any(dim=1)
    moved = set(changed.nonzero().flatten().tolist())
    tokenizer = tiny.tokenizer()
    classes = {row for name in CLASSES for row in tokenizer.encode(name)}
    assert classes <= moved <= set(token_ids)
    assert len(token_ids) < 100
    unseen = {w for d in ("infograph", "quickdraw") for w in tokenizer.encode(DOMAIN_WORDS[d])}
    assert not unseen & set(token_ids)


def test_the_digest_is_of_every_field():
    recipes = [
        SHORT,
        *(
            dataclasses.replace(SHORT, **{field.name: value * 2})
            for field in dataclasses.fields(Recipe)
            if (value := getattr(SHORT, field.name))
        ),
    ]
    assert len({recipe.digest for recipe in recipes}) == len(recipes)


def test_the_loss_by_hand():
    # Twenty captions of any style, then twenty of each of two styles. The right one's logit is
    # log 19, so the softmax over twenty gives it 1/2; among those that name a style all logits are
    # zero: log 40.
    label, style = torch.tensor([7]), torch.tensor([1])
    logits = torch.zeros((1, 60))
    logits[0, 7] = math.log(19)
    loss = pretraining._image_loss(logits, label, style)
    assert loss.item() == pytest.approx(math.log(2) + 0.5 * math.log(40), abs=1e-6)
    logits[0, 20 + 20 + 7] = math.log(39)
    loss = pretraining._image_loss(logits, label, style)
    assert loss.item() == pytest.approx(1.5 * math.log(2), abs=1e-6)
    alone = pretraining._image_loss(logits[:, :20], label, style)
    assert alone.item() == pytest.approx(math.log(2), abs=1e-6)


def test_accuracy_is_counted_by_domain(short, monkeypatch):
    split = shapes_dataset(0, 2, 0, domains=["real", "sketch"]).train
    model, _ = short
    # An image tower that knows the answer for `real` only.
    text = model.encode_text(tiny.tokenizer()([f"{name}." for name in CLASSES]), normalize=True)
    answers = torch.where(
        torch.from_numpy(split.domains)[:, None] == 0,
        text[torch.from_numpy(split.labels)],
        text[torch.from_numpy((split.labels + 1) % 20)],
    )
    monkeypatch.setattr(model, "encode_image", lambda block, normalize: answers, raising=True)
    np.testing.assert_array_equal(zero_shot_accuracy(model, split, "{}."), [1.0, 0.0])


def test_the_command_writes_a_model_that_loads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretraining.torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(pretraining, "Recipe", _ShortRecipe)
    monkeypatch.setattr(pretraining, "shapes_dataset", _few_images)
    path = tmp_path / "tiny.safetensors"
    assert pretraining.main(["--output", str(path), "--steps", "2"]) == 0
    assert tiny.load(path)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("zero-shot")] == list(DOMAINS)
    assert sum("(unseen)" in line for line in lines) == 2


def _few_images(seed, train, test, **options):
    return shapes_dataset(seed, train, min(test, 2), **options)


class _ShortRecipe(Recipe):
    """The recipe at a size for tests."""

    def __new__(cls, *, steps):
        return dataclasses.replace(SHORT, steps=steps)


def test_the_shipped_weights_are_of_the_recipe_in_the_code():
    from safetensors import safe_open

    with safe_open(tiny.WEIGHTS, framework="np") as file:
        header = file.metadata()
    assert header["recipe"] == Recipe().digest
    assert header["steps"] == str(Recipe.steps)
    assert header["seed"] == str(Recipe.seed)


def test_the_shipped_model_knows_seen_styles_and_leaves_room_on_unseen_ones(shipped):
    # Images of the federation's stream, which no training sees; other seeds give other images.
    split = shapes_dataset(0, 0, 10).test
    accuracy = dict(zip(DOMAINS, zero_shot_accuracy(shipped, split), strict=True))
    seen = np.mean([accuracy[domain] for domain in Recipe.domains])
    unseen = np.mean([accuracy[domain] for domain in DOMAINS if domain not in Recipe.domains])
    assert 0.70 < seen < 0.95
    assert unseen < seen - 0.15


def test_pretraining_draws_from_its_own_stream(monkeypatch):
    asked = []

    def spy(*arguments, **options):
        asked.append(options["stream"])
        return shapes_dataset(*arguments, **options)

    monkeypatch.setattr(pretraining, "shapes_dataset", spy)
    pretrain(SHORT)
    assert asked == [Stream.PRETRAINING]
