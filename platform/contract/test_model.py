"""Models from outside: frozen, the same each time, each image by itself, and trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from methods.clip.adapter import Backbone
from methods.errors import BackboneError
from methods.interface.registry import BUILT_IN_METHODS
from platform.config import ModelConfig
from platform.contract.cases import Case, Plugin
from platform.contract.driving import train
from platform.contract.examples import draw_examples, small_task
from platform.data.preparing import frozen_model

KIND = "model"
ON_FEATURES = {"network": "features", "feature_width": 8}


def loaded(plugin: Plugin) -> Backbone:
    """Return the model as a run loads it."""
    found = frozen_model(ModelConfig(name=plugin.name), "cpu", plugin.plugins)
    assert found is not None
    return found


@pytest.fixture
def model(plugin: Plugin) -> Backbone:
    """Return the model under test."""
    return loaded(plugin)


@pytest.fixture
def images(model: Backbone) -> NDArray[np.uint8]:
    """Six random images, of another size than the model's, all different."""
    side = model.image_size + 5
    return np.random.default_rng(4).integers(0, 256, (6, side, side, 3), dtype=np.uint8)


def test_features_are_finite_and_of_length_one(model: Backbone, images: NDArray[np.uint8]) -> None:
    """Features are float32 (n, D), finite, and brought to length one."""
    found = model.encode_images(images)
    assert found.shape == (6, model.embed_dim)
    assert found.dtype == np.float32
    lengths = np.linalg.norm(found, axis=1)
    assert np.allclose(lengths, 1.0, atol=1e-4), f"the features have the lengths {lengths}"


def test_an_image_is_encoded_by_itself(model: Backbone, images: NDArray[np.uint8]) -> None:
    """An image has the same features alone as in a batch."""
    together, alone = model.encode_images(images), model.encode_images(images[2:3])
    moved = np.abs(together[2] - alone[0]).max()
    assert moved <= 1e-4, f"beside other images an image's features move by {moved:.2g}"


def test_images_differ(model: Backbone, images: NDArray[np.uint8]) -> None:
    """Different images have different features."""
    found = model.encode_images(images)
    assert np.abs(found[0] - found[1]).max() > 1e-6, "two images have the same features"


def test_it_is_the_same_each_time(
    plugin: Plugin, model: Backbone, images: NDArray[np.uint8]
) -> None:
    """A model that is loaded again has the same weights and gives the same features."""
    first, again = model.encode_images(images), loaded(plugin)
    assert np.array_equal(first, model.encode_images(images)), "the second features are others"
    assert again.fingerprint == model.fingerprint, "load gives other weights the second time"
    assert np.allclose(again.encode_images(images), first, atol=1e-5), "loaded again, it differs"


def test_it_is_frozen(model: Backbone) -> None:
    """No parameter of the model is trained."""
    assert not any(parameter.requires_grad for parameter in model.image_parameters.values())


def test_a_method_on_features_trains_with_it(model: Backbone, images: NDArray[np.uint8]) -> None:
    """A method that needs features alone trains and predicts on the model's features."""
    case = Case("fedper", "fedper", BUILT_IN_METHODS, ON_FEATURES)
    method = case.registry.build(case.method, case.config(), small_task(model))
    data = draw_examples(method, 0)
    features = np.concatenate([model.encode_images(images)] * 2)[: len(data.arrays["labels"])]
    data = replace(data, arrays={**data.arrays, "features": features})
    assert any(value.any() for value in train(method, data=data).update.values())


def test_a_method_with_texts_is_refused(model: Backbone) -> None:
    """A method that needs texts is refused in one sentence that names the model."""
    case = Case("promptfl", "promptfl", BUILT_IN_METHODS, {"context_tokens": 2})
    with pytest.raises(BackboneError, match=r"^task\.model\.name: ") as refused:
        method = case.registry.build(case.method, case.config(), small_task(model))
        train(method)
    assert "; valid: " in str(refused.value)
    assert "\n" not in str(refused.value)
