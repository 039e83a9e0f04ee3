"""FedMaPLe: prompts in the first layers of both towers, coupled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    BackboneError,
    ClientView,
    Examples,
    MethodError,
    Task,
    fedmaple,
    promptfl,
)
from methods.clip.adapter import load_backbone
from methods.fedmaple import BIAS, CONTEXTS, PATCHES, WEIGHT, Config
from methods.prompts.prompt import CONTEXT
from privacy.training.per_sample import per_sample_gradients
from tests.methods._double import double_backbone, mean_loss, numeric_gradient, to_double
from tests.methods._models import RESNET, TEXT, VIT, make_model, write_folder
from tests.methods._training import RecordingTrainer, trainer

DEEP = {"vision_cfg": {**VIT, "layers": 3}, "text_cfg": {**TEXT, "layers": 4}}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def test_what_is_kept_of_an_image_is_what_enters_the_first_layer(deep_task):
    """Oracle: a hook on open_clip's own forward pass."""
    method, seen = build(deep_task), []
    visual = deep_task.backbone._model.visual
    hook = visual.transformer.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    pixels = rng(5).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    with torch.no_grad():
        visual(deep_task.backbone.to_pixels(pixels))
    hook.remove()
    pixels.flags.writeable = False
    kept = method.prepare({"pixels": pixels})
    assert set(kept) == {PATCHES}
    assert kept[PATCHES].shape == (2, 17, 64)
    assert kept[PATCHES].dtype == np.float32
    np.testing.assert_allclose(kept[PATCHES], seen[0], atol=1e-6)


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


def test_one_client_is_its_own_centralised_training(deep_task):
    method, batches = build(deep_task), rng(3)
    data, start = draw(method, 8), method.init_server(rng(1))
    state = start
    for _ in range(2):
        update = method.client_update(
            ClientView(state), data, trainer(epochs=1, learning_rate=0.1), batches
        ).update
        state = method.server_update(state, Aggregate(update, 8.0, 1, 1), (), rng())
    plan = trainer(epochs=2, learning_rate=0.1)
    whole = method.client_update(ClientView(start), data, plan, rng(3)).update
    for name, value in start.items():
        np.testing.assert_allclose(state[name], value + whole[name], atol=2e-6)
        assert all(np.abs(layer).max() > 1e-6 for layer in whole[name])


def test_gradients_follow_finite_differences(deep_task):
    precise = Task(deep_task.classes, (), 4, double_backbone(deep_task.backbone))
    data = draw(build(deep_task), 3)
    method = build(precise)
    state = {n: v.astype(np.float64) for n, v in method.init_server(rng(1)).items()}
    objective = method.training_objective()

    def loss(parameters):
        return mean_loss(objective, parameters, data)

    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in state.items()}
    found = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    places = {
        CONTEXTS: [(0, 0, 3), (1, 1, 30), (2, 0, 17)],
        WEIGHT: [(0, 2, 3), (1, 63, 31), (2, 20, 0)],
        BIAS: [(0, 4), (1, 11), (2, 60)],
    }
    for name, coordinates in places.items():
        slopes = numeric_gradient(loss, state, name, coordinates)
        ours = [float(found[name][place]) for place in coordinates]
        assert min(map(abs, ours)) > 1e-9
        np.testing.assert_allclose(ours, slopes, rtol=1e-4, atol=1e-9)


def test_each_examples_gradient_is_that_of_the_example_alone(deep_task):
    """What `vmap` makes of a batch in the image tower against one backward pass an example."""
    precise = Task(deep_task.classes, (), 4, double_backbone(deep_task.backbone))
    batch = to_double(draw(build(deep_task), 3).arrays)
    method = build(precise)
    objective = method.training_objective()
    parameters = to_double(method.init_server(rng(1)))
    together = per_sample_gradients(objective, parameters, batch, trained=parameters.keys())
    leaves = {n: v.clone().requires_grad_() for n, v in parameters.items()}
    for row in range(3):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        loss = objective.losses(leaves, objective.encode(leaves), one)[0]
        alone = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(leaves, alone, strict=True):
            torch.testing.assert_close(
                together.gradients[name][row], gradient, atol=1e-11, rtol=1e-9
            )


def test_the_image_towers_stem_is_not_run_in_a_step(deep_task):
    method = build(deep_task)
    data, state = draw(method), method.init_server(rng(1))
    calls = []
    hook = deep_task.backbone._model.visual.conv1.register_forward_hook(lambda *_: calls.append(1))
    method.client_update(ClientView(state), data, trainer(steps=2), rng())
    method.predict(ClientView(state), data.arrays, deep_task.classes)
    hook.remove()
    assert calls == []


def test_the_start_is_words_noise_and_linear_layers(deep_task):
    method = build(deep_task)
    state = method.init_server(rng(1))
    words = deep_task.backbone.embed_tokens(["a photo of a"]).embeddings[0, 1:3]
    np.testing.assert_array_equal(state[CONTEXTS][0], words)
    assert state[CONTEXTS][1:].std() == pytest.approx(0.02, rel=0.2)
    bound = 1 / np.sqrt(32)
    assert 0.9 * bound < np.abs(state[WEIGHT]).max() <= bound
    assert 0.9 * bound < np.abs(state[BIAS]).max() <= bound
    # Each layer's own draw.
    assert not np.array_equal(state[WEIGHT][1], state[WEIGHT][2])


def test_all_is_shared_and_trained_at_the_runs_rate(deep_task):
    method, taken = build(deep_task, context_tokens=3, depth=2), RecordingTrainer()
    state = method.init_server(rng(1))
    method.client_update(ClientView(state), draw(method), taken, rng())
    (group,) = taken.groups
    assert set(group.names) == set(state) == {CONTEXTS, WEIGHT, BIAS}
    assert group.learning_rate is None
    shapes = {name: value.shape for name, value in state.items()}
    assert shapes == {CONTEXTS: (2, 3, 32), WEIGHT: (2, 64, 32), BIAS: (2, 64)}


def test_the_paper_s_depth_or_the_shallower_tower(deep_task, task, tmp_path):
    assert Config() == Config(2, "a photo of a", None)
    assert build(deep_task).depth == 3
    assert build(deep_task, depth=1).depth == 1
    assert build(task).depth == 1
    config = {"vision_cfg": {**VIT, "layers": 10}, "text_cfg": {**TEXT, "layers": 11}}
    large = load_backbone(write_folder(tmp_path, config, make_model(config)))
    assert build(Task(task.classes, (), 4, large)).depth == 9
    assert build(Task(task.classes, (), 4, large), depth=10).depth == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 4}, r"method\.depth: 4 .*valid: 1 to 3, or null"),
        ({"context_tokens": 5}, r"method\.context_init: 'a photo of a' has 4 tokens"),
        ({"context_tokens": 30, "context_init": None}, r"tokens.*at most 20"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(deep_task, options, words):
    with pytest.raises(MethodError, match=words) as caught:
        build(deep_task, **options)
    assert "\n" not in str(caught.value)


def test_a_resnet_is_refused(task, tmp_path):
    config = {"vision_cfg": RESNET, "text_cfg": TEXT}
    resnet = load_backbone(write_folder(tmp_path, config, make_model(config)))
    with pytest.raises(BackboneError, match="image tower takes no prompts"):
        build(Task(task.classes, (), 4, resnet))


def test_large_batches_are_predicted_in_parts(deep_task, monkeypatch):
    method = build(deep_task)
    data, state = draw(method, 7), method.init_server(rng(1))
    whole = method.predict(ClientView(state), data.arrays, deep_task.classes)
    monkeypatch.setattr(fedmaple, "IMAGES_AT_ONCE", 3)
    parts = method.predict(ClientView(state), data.arrays, deep_task.classes)
    np.testing.assert_allclose(parts, whole, atol=1e-5)
    none = {name: value[:0] for name, value in data.arrays.items()}
    assert method.predict(ClientView(state), none, deep_task.classes).shape == (0, 4)
