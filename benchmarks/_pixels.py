"""Handwriting without a frozen model: a pooled network as the ceiling; noised sums of pixels."""

from __future__ import annotations

import numpy as np
import torch
from _scores import mu_of
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torchvision.transforms import v2

from platform.config import RunConfig
from platform.data.dataset import Split
from platform.data.loading import load_task_data

EPOCHS = 20


def _grey(split: Split, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, H, W) in [0, 1] and labels (n,)."""
    images = torch.from_numpy(np.asarray(split.images[rows])[..., 0].copy())
    return images[:, None].float() / 255, torch.from_numpy(split.labels[rows])


def pooled_network(config: RunConfig, *, epochs: int = EPOCHS) -> float:
    """Accuracy in percent of a convolutional network on all clients' images together.

    Two layers of two convolutions, batch norm, dropout, shifts and turns, Adam with one cycle: what
    an expert would take for a few thousand digits. No privacy.
    """
    torch.manual_seed(config.seed)
    data = load_task_data(config)
    rows = np.concatenate([client.train for client in data.clients])
    images, labels = _grey(data.dataset.train, rows)
    tests, truths = _grey(data.dataset.test, np.arange(data.dataset.test.num_examples))
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        for before in (inputs, outputs):
            layers += [nn.Conv2d(before, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    side = images.shape[-1] // 4
    layers += [nn.Flatten(), nn.Linear(32 * side * side, 128), nn.ReLU(), nn.Dropout(0.5)]
    network = nn.Sequential(*layers, nn.Linear(128, len(data.classes)))
    moved = v2.RandomAffine(degrees=12, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=10)
    batch, optimizer = 64, torch.optim.Adam(network.parameters())
    steps = epochs * -(-len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            drawn = torch.cat([moved(few) for few in images[chosen].split(8)])
            loss = functional.cross_entropy(network(drawn), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        return 100 * float((network(tests).argmax(dim=1) == truths).double().mean())


def class_sums(config: RunConfig, epsilon: float) -> float:
    """Accuracy in percent of nearest means by cosine, of noised class sums of unit pixel vectors.

    A client's sums have norm at most 1 as a whole; replacing it moves their total by at most 2.
    """
    data, rng = load_task_data(config), np.random.default_rng()
    total = np.zeros(())
    for client in data.clients:
        images, labels = _grey(data.dataset.train, client.train)
        rows = functional.normalize(images.flatten(1).double(), dim=1).numpy()
        sums = np.eye(len(data.classes))[labels.numpy()].T @ rows
        total = total + sums / max(1.0, float(np.linalg.norm(sums)))
    total = total + 2.0 / mu_of(epsilon) * rng.standard_normal(total.shape)
    tests, truths = _grey(data.dataset.test, np.arange(data.dataset.test.num_examples))
    scores = (
        tests.flatten(1).double().numpy() @ (total / np.linalg.norm(total, axis=1, keepdims=True)).T
    )
    return 100 * float((scores.argmax(axis=1) == truths.numpy()).mean())
