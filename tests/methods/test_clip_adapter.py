"""The frozen CLIP adapter against plain open_clip."""

from __future__ import annotations

import json
import pickle

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from methods.clip import tiny as _tiny
from methods.clip.adapter import load_backbone
from methods.errors import BackboneError, MethodError
from tests.methods._models import MODELS, TEXT, VIT, make_model, some_quick, write_folder

TEXTS = ["a photo of a circle.", "a heart.", "", "a sketch of an hourglass on old paper."]


KINDS = some_quick(["sotto-tiny", *MODELS], "sotto-tiny", "resnet-gelu", "eos-pool")


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """An adapter, the plain model behind it, and its tokenizer."""
    if request.param == "sotto-tiny":
        return load_backbone("sotto-tiny"), _tiny.load().eval(), _tiny.tokenizer()
    model = make_model(MODELS[request.param])
    name = write_folder(tmp_path_factory.mktemp("model"), MODELS[request.param], model)
    return load_backbone(name), model, open_clip.get_tokenizer(name)


@pytest.fixture(scope="module")
def tiny():
    return load_backbone("sotto-tiny")


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


def test_text_features_are_open_clips(pair):
    backbone, model, tokenizer = pair
    with torch.no_grad():
        expected = model.encode_text(tokenizer(TEXTS), normalize=True)
    torch.testing.assert_close(backbone.encode_texts(TEXTS), expected, atol=1e-6, rtol=0)


def test_image_features_are_open_clips(pair, images):
    backbone, model, _ = pair
    settings = {"size": backbone.image_size}
    if backbone.name == "sotto-tiny":
        settings |= {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    transform = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    with torch.no_grad():
        batch = torch.stack([transform(Image.fromarray(image)) for image in images])
        expected = model.encode_image(batch, normalize=True).numpy()
    np.testing.assert_allclose(backbone.encode_images(images), expected, atol=1e-6, rtol=0)


def test_gradients_are_those_of_the_whole_uncut_sequence(pair):
    backbone, model, tokenizer = pair
    ids = tokenizer(TEXTS)
    source = getattr(model, "text", model)
    taken = {}
    hook = source.token_embedding.register_forward_hook(
        lambda module, inputs, output: (
            taken.update(x=output.detach().requires_grad_()) or taken["x"]
        )
    )
    weights = torch.randn((len(TEXTS), backbone.embed_dim), generator=torch.manual_seed(1))
    (model.encode_text(ids, normalize=True) * weights).sum().backward()
    hook.remove()
    tokens = backbone.embed_tokens(TEXTS)
    ours = tokens.embeddings.requires_grad_()
    (backbone.encode_embeddings(ours, tokens.end_of_text) * weights).sum().backward()
    scale = taken["x"].grad.abs().max()
    cut = ours.shape[1]
    torch.testing.assert_close(
        ours.grad / scale, taken["x"].grad[:, :cut] / scale, atol=2e-6, rtol=0
    )
    assert not taken["x"].grad[:, cut:].any()


@pytest.mark.parametrize("shared", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_each_of_several_prefixes_is_as_if_alone(pair, shared):
    """One pass for all prefixes against whole sequences, values and gradients of both parts."""
    backbone, _, _ = pair
    tokens = backbone.embed_tokens(["x x x circle.", "x x x old house.", "x x x star."])
    noise = torch.randn((4, shared, backbone.token_dim), generator=torch.manual_seed(3))
    prefixes = (tokens.embeddings[0, :shared] + 0.1 * noise).requires_grad_()
    suffixes = tokens.embeddings[:, shared:].clone().requires_grad_()
    following = backbone.follow(shared, suffixes, tokens.end_of_text)
    together = backbone.encode_behind(prefixes, following)
    # What follows is prepared once, for any number of passes.
    assert torch.equal(backbone.encode_behind(prefixes, following), together)
    whole = [torch.cat((p.expand(3, -1, -1), suffixes), dim=1) for p in prefixes]
    alone = torch.stack([backbone.encode_embeddings(w, tokens.end_of_text) for w in whole])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    assert float((alone[0] - alone[1]).detach().abs().max()) > 1e-4
    weights = torch.randn(together.shape, generator=torch.manual_seed(2))
    ours, theirs = (
        torch.autograd.grad((result * weights).sum(), (prefixes, suffixes))
        for result in (together, alone)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=4e-6 * float(other.abs().max()), rtol=0)


def plain_local_features(model, pixels):
    """Each patch's feature as open_clip's own modules give it."""
    visual = model.visual
    if isinstance(visual, open_clip.transformer.VisionTransformer):
        visual.output_tokens = True
        tokens = visual(pixels)[1]
        visual.output_tokens = False
        # open_clip leaves these tokens unnormed where the norm comes after the pooling.
        return (visual.ln_post(tokens) if visual.final_ln_after_pool else tokens) @ visual.proj
    x, pool = visual.stem(pixels), visual.attnpool
    for layer in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
        x = layer(x)
    x = x.flatten(2).permute(2, 0, 1)
    x = torch.cat((x.mean(0, keepdim=True), x)) + pool.positional_embedding[:, None]
    biases = [pool.q_proj.bias, pool.k_proj.bias, pool.v_proj.bias]
    attended, _ = functional.multi_head_attention_forward(
        query=x,
        key=x,
        value=x,
        embed_dim_to_check=x.shape[-1],
        num_heads=pool.num_heads,
        in_proj_weight=None,
        in_proj_bias=torch.cat(biases),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=pool.c_proj.weight,
        out_proj_bias=pool.c_proj.bias,
        training=False,
        need_weights=False,
        use_separate_proj_weight=True,
        q_proj_weight=pool.q_proj.weight,
        k_proj_weight=pool.k_proj.weight,
        v_proj_weight=pool.v_proj.weight,
    )
    return attended[1:].permute(1, 0, 2)


def test_projected_tokens_are_open_clips_local_features(pair, images):
    backbone, model, _ = pair
    local = backbone.project_tokens(backbone.encode_tokens(images))
    with torch.no_grad():
        expected = plain_local_features(model, backbone.to_pixels(images))
    np.testing.assert_allclose(local, functional.normalize(expected, dim=-1), atol=1e-6, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(local, axis=2), 1, atol=1e-6)
    assert local.shape[2] == backbone.embed_dim
    assert local.shape[1] > 1


def test_a_text_that_would_be_cut_is_refused(tiny):
    with pytest.raises(BackboneError, match=r"25 tokens.*at most 24"):
        tiny.embed_tokens(["x " * 23])
    tiny.embed_tokens(["x " * 22])
    with pytest.raises(BackboneError, match="25 tokens"):
        tiny.follow(5, torch.zeros((1, 20, 128)), torch.tensor([24]))


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A name that open_clip knows, with a small architecture, and a model of it."""
    path = tmp_path_factory.mktemp("config") / "sotto-test-vit.json"
    path.write_text(json.dumps({"embed_dim": 48, **MODELS["vit-gelu"]}))
    open_clip.add_model_config(path)
    return path.stem, make_model(MODELS["vit-gelu"])


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_named_model_takes_a_local_checkpoint(registered, tmp_path, suffix):
    name, model = registered
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(model.state_dict(), path)
    backbone = load_backbone(name, str(path))
    tokens = open_clip.get_tokenizer(name)(TEXTS)
    with torch.no_grad():
        expected = model.encode_text(tokens, normalize=True)
    torch.testing.assert_close(backbone.encode_texts(TEXTS), expected, atol=1e-6, rtol=0)


class Evil:
    """What a hostile checkpoint could hold: code that runs while it is read."""

    ran = False

    @classmethod
    def run(cls):
        cls.ran = True

    def __reduce__(self):
        return (Evil.run, ())


def test_a_checkpoint_never_runs_code(registered, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": Evil()}, path, pickle_module=pickle)
    with pytest.raises(BackboneError, match="cannot be loaded"):
        load_backbone(registered[0], str(path))
    assert not Evil.ran


def test_a_checkpoint_of_another_architecture_is_refused(registered, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(make_model(MODELS["one-layer"]).state_dict(), path)
    with pytest.raises(BackboneError, match="of this architecture"):
        load_backbone(registered[0], str(path))


@pytest.mark.parametrize(
    ("name", "pretrained", "words"),
    [
        ("vit-of-nobody", None, ["task.model.name", "vit-of-nobody", "sotto-tiny", "ViT-B-16"]),
        ("ViT-B-32", "no-such-tag", ["task.model.pretrained", "no-such-tag", "openai"]),
        ("ViT-B-32", "no/such/file.pt", ["no/such/file.pt", "local checkpoint"]),
        ("local-dir:no/such/folder", None, ["local-dir:no/such/folder", "cannot be loaded"]),
    ],
)
def test_what_does_not_exist_is_one_sentence(name, pretrained, words):
    with pytest.raises(MethodError) as error:
        load_backbone(name, pretrained)
    message = str(error.value)
    assert all(word in message for word in words)
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", [{"no_causal_mask": True}, {"pool_type": "last"}, {"embed_cls": True}]
)
def test_text_towers_that_cannot_be_cut_are_refused(tmp_path, text):
    config = {"vision_cfg": VIT, "text_cfg": {**TEXT, **text}, "custom_text": True}
    name = write_folder(tmp_path, config, make_model(config))
    with pytest.raises(BackboneError, match="text tower"):
        load_backbone(name)


def test_the_fingerprint_is_of_the_weights_and_the_digest_of_the_transform(tmp_path):
    model, folders = make_model(MODELS["vit-gelu"]), []
    for index in range(3):
        (tmp_path / str(index)).mkdir()
        mean = [0.4 if index == 1 else 0.5] * 3
        if index == 2:
            model.visual.conv1.weight.data[0, 0, 0, 0] += 1e-3
        folders.append(write_folder(tmp_path / str(index), MODELS["vit-gelu"], model, mean=mean))
    plain, other_transform, other_weights = map(load_backbone, folders)
    assert plain.fingerprint == load_backbone(folders[0]).fingerprint
    assert plain.fingerprint == other_transform.fingerprint != other_weights.fingerprint
    assert plain.transform_digest == other_weights.transform_digest
    assert plain.transform_digest != other_transform.transform_digest


def test_untrained_rows_are_the_same_on_every_version_of_numpy():
    rows = _tiny.untrained_token_rows(0)
    # Raw output of PCG64(0): 11749869230777074271, 4976686463289251617; the upper 24 bits over
    # 2^24 less one half, times 0.02 sqrt(12).
    expected = [(11749869230777074271 >> 40) / 2**24, (4976686463289251617 >> 40) / 2**24]
    np.testing.assert_allclose(rows[0, :2], (np.array(expected) - 0.5) * 0.02 * 12**0.5, rtol=1e-5)
    assert rows.shape == (49408, 128)
    assert rows.std() == pytest.approx(0.02, rel=1e-3)


def test_weights_of_another_activation_are_refused():
    """open_clip loads them and only warns; every feature would be wrong."""
    with pytest.raises(BackboneError, match=r"activation .*openai.*'RN50-quickgelu'"):
        load_backbone("RN50", "openai")


@pytest.mark.parametrize(
    "other",
    [
        {**MODELS["vit-gelu"], "quick_gelu": True},
        {**MODELS["vit-gelu"], "vision_cfg": {**VIT, "head_width": VIT["width"]}},
        {**MODELS["vit-gelu"], "text_cfg": {**TEXT, "heads": 1}},
    ],
    ids=["activation", "image heads", "text heads"],
)
def test_shared_weights_of_another_architecture_have_another_fingerprint(tmp_path, other):
    model, found = make_model(MODELS["vit-gelu"]), []
    for number, config in enumerate((MODELS["vit-gelu"], other)):
        (tmp_path / str(number)).mkdir()
        name = write_folder(tmp_path / str(number), config, model)
        found.append(load_backbone(name))
    assert found[0].fingerprint != found[1].fingerprint
    assert found[0].transform_digest == found[1].transform_digest
