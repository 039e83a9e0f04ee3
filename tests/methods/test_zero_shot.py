"""Zero-shot CLIP: open_clip's own features, and nothing learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import ClientView, MethodError, zero_shot


def test_logits_are_those_of_open_clip(task, small_backbone, examples):
    """Against open_clip's `encode_text` on whole, uncut token sequences."""
    method = zero_shot.build(zero_shot.Config("a drawing of a {}."), task)
    model, tokenize = small_backbone._model, small_backbone._tokenizer
    with torch.no_grad():
        tokens = tokenize([f"a drawing of a {name}." for name in task.classes])
        text = model.encode_text(tokens, normalize=True).numpy()
    scale = float(model.logit_scale.exp())
    expected = scale * examples.arrays["features"] @ text.T
    got = method.predict(ClientView({}), examples.arrays, task.classes)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("template", ["a photo", "{} and {}", "{0}", "{name}", ""])
def test_a_template_without_exactly_one_place_for_the_class_is_refused(task, template):
    with pytest.raises(MethodError, match=r"method\.template: .*exactly once"):
        zero_shot.build(zero_shot.Config(template), task)
