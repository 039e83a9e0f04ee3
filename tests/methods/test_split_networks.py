"""The small networks against torch's own layers, and what all methods on them have in common."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from torch import nn

from methods import ClientView, Task, fedavg
from methods.networks.extractors import LONGEST, NetworkConfig, build_extractor, word_numbers
from methods.networks.layers import start
from methods.networks.method import blocks, label_shares
from platform.contract.examples import draw_examples
from tests.methods._training import rng, tensors, trainer

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 4)


@pytest.mark.parametrize(("size", "flat"), [(28, 1024), (32, 1600), (64, 10816)])
def test_the_cnn_is_the_published_one_at_each_size(size: int, flat: int):
    """Flat widths of MNIST, CIFAR and 64x64 as published; logits as torch's own modules give."""
    method = fedavg.build(fedavg.Config(image_size=size), TASK)
    oracle = nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, 4)),
    )
    names = [f"extractor.{part}" for part in ("conv1", "conv2", "fc")] + ["head"]
    layers = [m for m in oracle if isinstance(m, nn.Conv2d | nn.Linear)]
    arrays = {}
    for name, layer in zip(names, layers, strict=True):
        arrays[f"{name}.weight"] = layer.weight.detach().numpy()
        arrays[f"{name}.bias"] = layer.bias.detach().numpy()
    assert {n: s.shape for n, s in method.shared_spec().items()} == {
        n: a.shape for n, a in arrays.items()
    }
    pixels = rng(3).integers(0, 256, (4, size, size, 3), dtype=np.uint8)
    with torch.no_grad():
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255.0 * 2.0 - 1.0
        expected = oracle(scaled).numpy()
    logits = method.predict(ClientView(arrays), method.prepare({"pixels": pixels}), CLASSES)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_words_are_hashed_to_rows_without_a_vocabulary():
    texts = np.array(["Oil prices, up AGAIN", "", "again"])
    numbers = word_numbers(texts, 1000)
    assert numbers.shape == (3, LONGEST)
    words = ("oil", "prices", "up", "again")
    expected = [zlib.crc32(word.encode()) % 999 + 1 for word in words]
    assert numbers[0].tolist() == expected + [0] * (LONGEST - 4)
    assert not numbers[1].any()
    assert numbers[2, 0] == expected[3]
    long = word_numbers(np.array(["word " * (LONGEST + 7)]), 50)
    assert (long > 0).all()


def test_fasttext_is_the_mean_of_its_words_embeddings():
    """Against torch's EmbeddingBag; padding counts for nothing, and no words give zero."""
    extractor = build_extractor(NetworkConfig(network="fasttext", buckets=40), TASK)
    parameters = tensors(start(extractor.layers, rng(3)))
    texts = np.array(["one two three two", "three", ""])
    words = torch.from_numpy(word_numbers(texts, 40))
    flat = extractor.flat(parameters, words)
    for row, count in enumerate((4, 1)):
        table = parameters["extractor.embedding"]
        alone = words[row, :count].unsqueeze(0)
        expected = nn.functional.embedding_bag(alone, table, mode="mean")[0]
        torch.testing.assert_close(flat[row], expected)
    assert not flat[2].any()
    layer = nn.Linear(32, 32)
    with torch.no_grad():
        layer.weight.copy_(parameters["extractor.fc.weight"])
        layer.bias.copy_(parameters["extractor.fc.bias"])
        torch.testing.assert_close(extractor.features(parameters, words), layer(flat))


def test_fasttext_as_published_by_hand():
    """Two words of 200 places: (2 + 4)/200 and (6 + 2)/200; then x and -x, and log-softmax."""
    config = NetworkConfig(network="fasttext", buckets=3, feature_width=2, fasttext="published")
    extractor = build_extractor(config, TASK)
    words = torch.zeros(1, 200, dtype=torch.int64)
    words[0, :2] = torch.tensor([1, 2])
    parameters = {
        # Row 0 is for padding: whatever is in it counts as zero.
        "extractor.embedding": torch.tensor([[9.0, 9.0], [2.0, 6.0], [4.0, 2.0]]),
        "extractor.fc.weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
        "extractor.fc.bias": torch.tensor([0.47, -0.47]),
    }
    torch.testing.assert_close(extractor.flat(parameters, words), torch.tensor([[0.03, 0.04]]))
    # x = 0.03 + 0.47 = 0.5: -log(1 + e^-1) and -1 more.
    expected = torch.tensor([[-0.313262, -1.313262]])
    torch.testing.assert_close(extractor.features(parameters, words), expected, atol=1e-5, rtol=0.0)
    plain = build_extractor(NetworkConfig(network="fasttext", buckets=3, feature_width=2), TASK)
    torch.testing.assert_close(plain.flat(parameters, words), torch.tensor([[3.0, 4.0]]))


def test_fedavg_by_hand():
    """One step of gradient descent on all of it, weights averaged by number of examples."""
    config = fedavg.Config(network="fasttext", buckets=20, feature_width=2)
    method = fedavg.build(config, TASK)
    state = method.init_server(rng(3))
    data, learner = draw_examples(method, 0), trainer(steps=1, batch_size=8)
    update = method.client_update(ClientView(state), data, learner, rng(3)).update
    leaves = {n: t.requires_grad_() for n, t in tensors(state).items()}
    batch = tensors(data.arrays)
    words = leaves["extractor.embedding"][batch["words"]]
    known = (batch["words"] > 0).float()[..., None]
    mean = (words * known).sum(1) / known.sum(1)
    hidden = mean @ leaves["extractor.fc.weight"].T + leaves["extractor.fc.bias"]
    logits = hidden @ leaves["head.weight"].T + leaves["head.bias"]
    loss = nn.functional.cross_entropy(logits, batch["labels"])
    for name, gradient in zip(
        leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True
    ):
        np.testing.assert_allclose(update[name], -0.5 * gradient.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("count", "rows", "sizes"),
    [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 9, [3]), (1, 1, [1]), (0, 4, [0])],
)
def test_every_row_comes_once_and_in_order(count, rows, sizes):
    arrays = {"labels": np.arange(count), "pixels": np.arange(3 * count).reshape(count, 3)}
    found = list(blocks(arrays, rows))
    assert [len(block["labels"]) for block in found] == sizes
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([block[name] for block in found]), array)
        assert all(block[name].shape[1:] == array.shape[1:] for block in found)


def test_shares_of_labels():
    """Class 1 and those behind the last label that occurs have none."""
    shares = label_shares(np.array([2, 0, 2, 2]), 5)
    assert shares.tolist() == [0.25, 0.0, 0.75, 0.0, 0.0]
    assert shares.dtype == np.float32
    assert label_shares(np.array([], np.int64), 2).tolist() == [0.0, 0.0]
