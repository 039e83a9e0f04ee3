"""A conditional generator of features: noise and a class go in, what an extractor would give out.

Zhu, Hong & Zhou 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning"
(ICML, arXiv 2105.10056): one hidden layer with ReLU on noise beside the class as a one-hot vector.
Its published code has batch normalisation behind the hidden layer; here there is none, so that a
generated feature is made of its own noise and class alone, at the server as at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.networks.layers import Layers, Parameters, linear, linear_layers

HIDDEN, OUTPUT = "generator.hidden", "generator.output"


@dataclass(frozen=True)
class Generator:
    """The network, without its arrays.

    Attributes:
        classes: C.
        noise_width: E.
        hidden_width: Width of the hidden layer.
        width: D, the width of the features.
        noise: Standard normal, or uniform from 0 to 1.
    """

    classes: int
    noise_width: int
    hidden_width: int
    width: int
    noise: Literal["gaussian", "uniform"]

    @property
    def layers(self) -> Layers:
        """Both layers."""
        return {
            **linear_layers(HIDDEN, self.noise_width + self.classes, self.hidden_width),
            **linear_layers(OUTPUT, self.hidden_width, self.width),
        }

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Return noise (count, E)."""
        shape = (count, self.noise_width)
        if self.noise == "gaussian":
            return rng.standard_normal(shape, np.float32)
        return rng.random(shape, np.float32)

    def features(self, parameters: Parameters, noise: Tensor, labels: Tensor) -> Tensor:
        """Return features (B, D) of noise (B, E) and classes (B,)."""
        hot = functional.one_hot(labels, self.classes).to(noise.dtype)
        hidden = functional.relu(linear(parameters, HIDDEN, torch.cat((noise, hot), dim=1)))
        return linear(parameters, OUTPUT, hidden)


def likeness(noise: Tensor, features: Tensor) -> Tensor:
    """Return the term that asks for different features where noise differs, shape ().

    As in the paper's published code, after Mao et al. 2019: exp(-mean_ij n_ij f_ij), n_ij being
    the mean squared difference of two rows of noise and f_ij the mean absolute difference of what
    is made of them. 1 where all features are alike, and less the more they differ.

    Args:
        noise: Noise (B, E).
        features: Features (B, D).
    """
    squares = noise.square().sum(1)
    apart = (squares[:, None] + squares[None, :] - 2.0 * noise @ noise.T) / noise.shape[1]
    differences = torch.cdist(features, features, p=1.0) / features.shape[1]
    return torch.exp(-(apart * differences).mean())
