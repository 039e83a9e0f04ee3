"""FedCoCoOp, FedMaPLe and FedTPG: prompts that are made of images, of names or for both towers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from methods import ClientView, Examples, Task, fedcocoop, fedmaple, fedtpg, promptfl
from methods.clip.adapter import load_backbone
from methods.fedcocoop import MetaNet
from methods.fedmaple import BIAS, CONTEXTS, PATCHES, WEIGHT
from methods.fedtpg import QUERIES, Config, generated, layers_of
from methods.networks.layers import norm
from methods.prompts.prompt import CONTEXT, PromptConfig, as_tensor, build_encoder
from platform.contract.examples import draw_examples
from tests.methods._models import TEXT, VIT, make_model, write_folder
from tests.methods._training import RecordingTrainer, rng, tensors, trainer


def cocoop(task: Task, **options):
    return fedcocoop.build(fedcocoop.Config(**{"context_init": None, **options}), task)


def test_the_meta_net_by_hand():
    """W1 x + b1 = (2 - 1, -1 + 0) = (1, -1), relu (1, 0), W2 gives (3, 5, 7), b2 adds 0.5."""
    parameters = {
        "meta_hidden_weight": torch.tensor([[2.0, 0.0], [-1.0, 4.0]]),
        "meta_hidden_bias": torch.tensor([-1.0, 0.0]),
        "meta_output_weight": torch.tensor([[3.0, 9.0], [5.0, 9.0], [7.0, 9.0]]),
        "meta_output_bias": torch.full((3,), 0.5),
    }
    shifts = MetaNet(2, 2, 3).shifts(parameters, torch.tensor([[1.0, 0.0]]))
    np.testing.assert_array_equal(shifts, [[3.5, 5.5, 7.5]])


def test_each_image_is_told_apart_by_prompts_of_its_own(task, examples):
    """Oracle: image by image and class by class, each text in a pass of its own."""
    method, backbone = cocoop(task), task.backbone
    state = method.init_server(rng(1))
    logits = method.predict(ClientView(state), examples.arrays, task.classes)
    expected = np.zeros_like(logits)
    for row, image in enumerate(examples.arrays["features"]):
        hidden = state["meta_hidden_weight"] @ image + state["meta_hidden_bias"]
        pi = state["meta_output_weight"] @ np.maximum(hidden, 0) + state["meta_output_bias"]
        for column, name in enumerate(task.classes):
            tokens = backbone.embed_tokens([f"x x x x {name}."])
            tokens.embeddings[0, 1:5] = as_tensor(state[CONTEXT] + pi, backbone)
            text = backbone.encode_embeddings(tokens.embeddings, tokens.end_of_text)[0]
            expected[row, column] = backbone.logit_scale * float(text @ torch.tensor(image))
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    alone = promptfl.build(promptfl.Config(4), task)
    plain = alone.predict(ClientView(state), examples.arrays, task.classes)
    assert np.abs(plain - logits).max() > 1e-3


def test_a_meta_net_that_says_nothing_is_promptfl(task, examples):
    method, plain = cocoop(task), promptfl.build(promptfl.Config(4), task)
    state = dict(method.init_server(rng(1)))
    state |= {n: np.zeros_like(v) for n, v in state.items() if n.startswith("meta_output")}
    ours, theirs = (
        m.predict(ClientView(state), examples.arrays, task.classes) for m in (method, plain)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    options = {"steps": 1, "batch_size": 10}
    moved = method.client_update(ClientView(state), examples, trainer(**options), rng(2)).update
    only = plain.client_update(
        ClientView({CONTEXT: state[CONTEXT]}), examples, trainer(**options), rng(2)
    ).update
    np.testing.assert_allclose(moved[CONTEXT], only[CONTEXT], atol=1e-6)
    # Behind a zero output layer the hidden one cannot learn yet; the output layer can.
    assert not moved["meta_hidden_weight"].any()
    assert np.abs(moved["meta_output_weight"]).max() > 1e-6


DEEP = {"vision_cfg": {**VIT, "layers": 3}, "text_cfg": {**TEXT, "layers": 4}}


def maple(task: Task, **options):
    return fedmaple.build(fedmaple.Config(**options), task)


@pytest.fixture(scope="module")
def deep_task(task, tmp_path_factory) -> Task:
    """Three layers of images, four of text, so that some see prompts of their own, some do not."""
    folder = tmp_path_factory.mktemp("deep")
    deep = load_backbone(write_folder(folder, DEEP, make_model(DEEP)))
    return Task(task.classes, task.domains, 4, deep)


def test_the_coupling_by_hand(deep_task):
    """Q_k = W_k P_k + b_k: every prompt of layer k goes through the same map.

    P_1 has ones in the first two columns, P_2 in the third. W_1 adds up columns 1 and 2 times 3,
    W_2 takes column 3 times -1; b_1 is 0.5 and b_2 is 0.
    """
    method = maple(deep_task, depth=2)
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
    method = maple(deep_task)
    data, state = draw_examples(method, 5, 6), method.init_server(rng(1))
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
    method = maple(deep_task, depth=1, context_init=None)
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
    assert maple(deep_task).depth == 3
    config = {"vision_cfg": {**VIT, "layers": 10}, "text_cfg": {**TEXT, "layers": 11}}
    large = load_backbone(write_folder(tmp_path, config, make_model(config)))
    assert maple(Task(task.classes, (), 4, large)).depth == 9


def test_the_published_size():
    """Width and features of 512, four tokens: 4,206,080 numbers."""
    layers = layers_of(Config(), 512, 512).values()
    assert sum(math.prod(layer.shape) for layer in layers) == 4_206_080


def test_the_attention_is_torchs():
    """Oracle: torch's multi-head attention, then the layers as they are written down."""
    layers = layers_of(Config(context_tokens=3), 8, 6)
    net = {n: torch.tensor(rng(i).normal(size=s.shape)) for i, (n, s) in enumerate(layers.items())}
    names = torch.tensor(rng(50).normal(size=(5, 6)))
    oracle = nn.MultiheadAttention(8, 4, kdim=6, vdim=6, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(oracle, f"{name[0]}_proj_weight").copy_(net[f"{name}.weight"])
        parts = [net[f"{name}.bias"] for name in ("query", "key", "value")]
        oracle.in_proj_bias.copy_(torch.cat(parts))
        oracle.out_proj.weight.copy_(net["out.weight"])
        oracle.out_proj.bias.copy_(net["out.bias"])
        seen = norm(net, "name_norm", names)[None]
        query = norm(net, "query_norm", net[QUERIES])[None]
        found = oracle(query, seen, seen)[0][0]
        layer = functional.layer_norm(
            found, (8,), net["forward_norm.weight"], net["forward_norm.bias"]
        )
        hidden = layer @ net["inner.weight"].T + net["inner.bias"]
        a, b = hidden[:, :32], hidden[:, 32:]
        gated = a * b * 0.5 * (1 + torch.erf(b / math.sqrt(2)))
        expected = found + gated @ net["outer.weight"].T + net["outer.bias"]
        np.testing.assert_allclose(generated(net, names, 4), expected, rtol=1e-9)


def test_layer_norm_by_hand():
    """(1, 3): mean 2, deviation 1; times 2 plus 0.5."""
    net = {"name_norm.weight": torch.full((2,), 2.0), "name_norm.bias": torch.full((2,), 0.5)}
    got = norm(net, "name_norm", torch.tensor([[1.0, 3.0]]))
    np.testing.assert_allclose(got, [[-1.5, 2.5]], atol=1e-4)


@pytest.mark.parametrize(("names", "count"), [("own", 2), ("all", 4)])
def test_whose_names(task, examples, names, count):
    """Labels 1 and 3 alone: a softmax over two classes, or over the four of the task."""
    method, recorder = fedtpg.build(Config(names=names), task), RecordingTrainer()
    arrays = {"features": examples.arrays["features"][:3], "labels": np.array([1, 3, 3])}
    view = ClientView(method.init_server(rng(1)))
    method.client_update(view, Examples(arrays), recorder, rng())
    net, batch = tensors(recorder.parameters), tensors(arrays)
    encoded = recorder.objective.encode(net)
    assert encoded["text"].shape == (count, 128)
    losses = recorder.objective.losses(net, encoded, batch)
    asked = (1, 3) if names == "own" else (0, 1, 2, 3)
    context = generated(net, method.captions.features([task.classes[i] for i in asked]), 4)
    encoder = build_encoder(PromptConfig(context_tokens=4), task)
    text = encoder.text_features(context, [task.classes[i] for i in asked])
    logits = task.backbone.logit_scale * batch["features"] @ text.T
    chances = logits.softmax(dim=1)
    wanted = [-math.log(chances[row, asked.index(label)]) for row, label in enumerate((1, 3, 3))]
    np.testing.assert_allclose(losses.detach(), wanted, rtol=1e-4)
