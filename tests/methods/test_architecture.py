"""Equal weights in models that compute something else are told apart."""

from __future__ import annotations

import pytest

from methods.clip.adapter import architecture_of, load_backbone
from tests.methods._models import MODELS, TEXT, VIT, make_model, write_folder

CONFIG = MODELS["vit-gelu"]


@pytest.mark.parametrize(
    "other",
    [
        {**CONFIG, "quick_gelu": not CONFIG.get("quick_gelu", False)},
        {**CONFIG, "vision_cfg": {**VIT, "head_width": VIT["width"]}},
        {**CONFIG, "text_cfg": {**TEXT, "heads": 1}},
    ],
    ids=["activation", "image heads", "text heads"],
)
def test_shared_weights_of_another_architecture_have_another_fingerprint(tmp_path, other):
    model, found = make_model(CONFIG), []
    for number, config in enumerate((CONFIG, other)):
        (tmp_path / str(number)).mkdir()
        name = write_folder(tmp_path / str(number), config, model)
        found.append(load_backbone(name))
    assert found[0].fingerprint != found[1].fingerprint
    assert found[0].transform_digest == found[1].transform_digest


def test_the_same_architecture_has_the_same_description():
    first, second = make_model(CONFIG), make_model(CONFIG)
    second.train()
    assert architecture_of(first.eval()) == architecture_of(second)
