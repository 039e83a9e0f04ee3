"""FedMaPLe: prompts in the first layers of both towers, coupled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, Task, fedmaple, promptfl
from methods.clip.adapter import load_backbone
from methods.fedmaple import BIAS, CONTEXTS, PATCHES, WEIGHT, Config
from methods.prompts.prompt import CONTEXT
from tests.methods._models import TEXT, VIT, make_model, write_folder
from tests.methods._training import rng

DEEP = {"vision_cfg": {**VIT, "layers": 3}, "text_cfg": {**TEXT, "layers": 4}}


def build(task: Task, **options):
    return fedmaple.build(Config(**options), task)


@pytest.fixture(scope="module")
def deep_backbone(tmp_path_factory):
    """Three layers of images, four of text, so that some see prompts of their own, some do not."""
    folder = tmp_path_factory.mktemp("deep")
    return load_backbone(write_folder(folder, DEEP, make_model(DEEP)))


@pytest.fixture
def deep_task(deep_backbone, task) -> Task:
    return Task(task.classes, task.domains, 4, deep_backbone)


def draw(method, count: int = 6) -> Examples:
    """Images at random, as `prepare` leaves them, and labels."""
    side = method.text.backbone.image_size
    pixels = rng(5).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = rng(6).integers(0, len(method.classes), count)
    return Examples({**method.prepare({"pixels": pixels}), "labels": labels})


def test_the_coupling_by_hand(deep_task):
    """Q_k = W_k P_k + b_k: every prompt of layer k goes through the same map.

    P_1 has ones in the first two columns, P_2 in the third. W_1 adds up columns 1 and 2 times 3,
    W_2 takes column 3 times -1; b_1 is 0.5 and b_2 is 0.
    """
    method = build(deep_task, depth=2)
    spec = method.shared_spec()
    arrays = {name: torch.zeros(spec[name].shape) for name in spec}
    arrays[CONTEXTS][0, 0, :2] = 1.0
    arrays[CONTEXTS][0, 1, :2] = 2.0
    arrays[CONTEXTS][1, :, 2] = 1.0
    arrays[WEIGHT][0, 5, :2] = 3.0
    arrays[WEIGHT][1, 6, 2] = -1.0
    arrays[BIAS][0] = 0.5
    prompts = method.training_objective().encode(arrays)["prompts"]
    expected = np.zeros((2, 2, 64))
    expected[0] = 0.5
    expected[0, 0, 5], expected[0, 1, 5] = 6.5, 12.5
    expected[1, :, 6] = -1.0
    np.testing.assert_allclose(prompts, expected)


def test_a_prediction_is_the_cosine_of_both_towers(deep_task):
    """Oracle: torch's linear layers for the coupling, the towers one by one, then the cosine."""
    method = build(deep_task)
    data, state = draw(method), method.init_server(rng(1))
    logits = method.predict(ClientView(state), data.arrays, deep_task.classes)
    layers = [torch.nn.Linear(32, 64) for _ in range(3)]
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.weight.copy_(torch.tensor(state[WEIGHT][index]))
            layer.bias.copy_(torch.tensor(state[BIAS][index]))
        contexts = torch.tensor(state[CONTEXTS])
        prompts = torch.stack([f(p) for f, p in zip(layers, contexts, strict=True)])
        image = method.image.image_features(torch.tensor(data.arrays[PATCHES]), prompts)
        text = method.text.text_features(contexts, deep_task.classes)
    expected = deep_task.backbone.logit_scale * image.numpy() @ text.numpy().T
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    # Each of the six layers' prompts matters to the prediction.
    for index, name in ((0, CONTEXTS), (1, CONTEXTS), (2, CONTEXTS), (0, BIAS), (2, BIAS)):
        changed = {n: v.copy() for n, v in state.items()}
        changed[name][index] += rng(7).normal(0, 1, changed[name][index].shape)
        other = method.predict(ClientView(changed), data.arrays, deep_task.classes)
        assert np.abs(other - logits).max() > 1e-4


def test_without_vision_prompts_and_below_the_first_layer_it_is_promptfl(deep_task):
    """Depth 1; the image tower is fed no prompt, so images are CLIP's."""
    method = build(deep_task, depth=1, context_init=None)
    plain = promptfl.build(promptfl.Config(2), deep_task)
    state = method.init_server(rng(1))
    pixels = rng(5).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    features = {"features": deep_task.backbone.encode_images(pixels)}
    expected = plain.predict(ClientView({CONTEXT: state[CONTEXTS][0]}), features, deep_task.classes)
    objective = method.training_objective()
    with torch.no_grad():
        encoded = objective.encode({n: torch.tensor(v) for n, v in state.items()})
        none = {**encoded, "prompts": encoded["prompts"][:, :0]}
        patches = torch.tensor(method.prepare({"pixels": pixels})[PATCHES])
        np.testing.assert_allclose(method.logits(none, patches), expected, atol=1e-4)


def test_the_paper_s_depth_of_nine_or_the_shallower_tower(deep_task, task, tmp_path):
    assert build(deep_task).depth == 3
    config = {"vision_cfg": {**VIT, "layers": 10}, "text_cfg": {**TEXT, "layers": 11}}
    large = load_backbone(write_folder(tmp_path, config, make_model(config)))
    assert build(Task(task.classes, (), 4, large)).depth == 9
