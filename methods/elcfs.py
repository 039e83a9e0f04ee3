"""ELCFS: clients swap low frequencies once; a step on plain images must also suit mixed images.

Liu et al. 2021, "FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic
Learning in Continuous Frequency Space" (CVPR), by its published code (liuquande/FedDG-ELCFS, commit
0a281e4): the text was not available. With A and P the amplitude and the phase of an image's
two-dimensional Fourier transform, in each colour, and A_j another client's amplitude,

    A' = (1 - lambda) A + lambda A_j    on the (2b + 1)^2 lowest frequencies, b = floor(L min(h, w))
    x' = Re F^-1(A' e^(iP)), held within 0..255
    theta' = theta - beta clamp(grad l(x; theta), -c, c)
    loss = l(x; theta) + l(x'; theta')

to first order, as in the code: the gradient by theta' stands for the gradient by theta. Clients
weigh by number of examples.

Where this departs from the code:

- It segments, with a contrast of boundary and background in the loss. Images here have one label
  each and no boundary, so the contrast is dropped, as in CCST's port of it.
- Its clients swap whole amplitude spectra of an eighth of their images. With the phases these are
  the images; without them they are close to the images. Here each client gives one block before the
  first round (the collection, `PoolPolicy.when`): the mean over its images of the (2b + 1)^2 lowest
  frequencies, all that the method ever mixes in. Spectra of single images are refused.
- A block is of pixels in [0, 1] and divided by h w, so that its first number is a colour's mean and
  its norm is at most sqrt 3 (Parseval). Numbers that noise makes negative count as zero.
- Each image draws its client j and its lambda once a round, not once a batch.

The training code has L = 0 and lambda = 1: x' moves each colour's mean alone. `band` and `mix:
uniform` change this; the code's demonstration has L = 0.003.

`dp_sgd` is refused: theta' is a step on the whole batch, so an example's loss depends on others,
and noised steps do not cover the blocks. Without others' blocks the method is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from methods.ccst import serving
from methods.errors import MethodError
from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters
from methods.networks.method import MAPS, BatchObjective, blocks

BLOCK = "amplitude"
"""Name of an entry's array, (3, 2b + 1, 2b + 1)."""
TARGET, SHARE = "other_amplitude", "share"
COLOURS, WHITE = 3, 255.0

READING = "the authors segment, and swap spectra of single images; labels and mean blocks are ours"
VARIANTS = ({"band": 0.1, "mix": "uniform"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        network: One that takes images.
        spectrum: A client's release: `client_mean`, one block. Spectra of single images are
            refused, their lowest frequencies (`per_image`) and all of them (`full`).
        band: L, the half-width of the block as a share of an image's side.
        mix: lambda: 1 (`full`), or drawn evenly from 0 to 1 (`uniform`).
        inner_rate: beta, the rate of the step to theta'.
        inner_clip: c, the largest coordinate of that step's gradient.
    """

    network: Literal["cnn", "clip"] = "cnn"
    spectrum: Literal["client_mean", "per_image", "full"] = "client_mean"
    band: Annotated[float, Ge(0.0), Lt(0.5)] = 0.0
    mix: Literal["full", "uniform"] = "full"
    inner_rate: Annotated[float, Ge(0.0), Le(1e3)] = 1e-3
    inner_clip: Annotated[float, Gt(0.0), Le(1e6), CountsWith("inner_rate")] = 100.0


class Elcfs(FedAvg):
    """Episodic learning in frequency space, on images of one side."""

    config: Config
    couples_examples = True

    @property
    def half_width(self) -> int:
        """B, the half-width of a block."""
        backbone = self.task.backbone
        side = self.pixel_size or (0 if backbone is None else backbone.image_size)
        return math.floor(self.config.band * side)

    def pool_policy(self) -> m.PoolPolicy:
        """Return all clients' blocks, given once, before the first round."""
        width = 2 * self.half_width + 1
        spec = {BLOCK: m.TensorSpec((COLOURS, width, width))}
        return replace(serving(self.config, self.task.population), spec=spec)

    def contribute(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return the mean of the client's low frequencies."""
        images, total = data.arrays["pixels"], torch.zeros(())
        for some in blocks({"pixels": images}, MAPS):
            pixels = torch.from_numpy(np.array(some["pixels"])).to(torch.float64)
            total = total + low_amplitudes(pixels, self.half_width).sum(0)
        mean = (total / len(images)).numpy().astype(np.float32)
        return m.LocalResult({}, {BLOCK: mean}, view.personal)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network on the images, and the network after each step on mixed images."""
        arrays = dict(data.arrays)
        if view.experts:
            count = data.num_examples
            blocks = np.stack([np.maximum(expert[BLOCK], 0.0) for expert in view.experts])
            arrays[TARGET] = blocks[rng.integers(len(blocks), size=count)].astype(np.float32)
            uniform = self.config.mix == "uniform"
            shares = rng.random(count) if uniform else np.ones(count)
            arrays[SHARE] = shares.astype(np.float32)
        return self.result(view, self.train(view, m.Examples(arrays), trainer, rng))

    def objective(self, view: m.ClientView) -> m.Objective:
        """Return cross-entropy, plus that of a step on mixed images where others gave blocks."""
        return BatchObjective(self.episodic if view.experts else self.cross_entropies)

    def episodic(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,)."""
        plain = self.cross_entropies(parameters, batch)
        moving = {name: value for name, value in parameters.items() if value.requires_grad}
        # First order, so without a graph: the step is a constant, and theta' moves as theta does.
        gradients = torch.autograd.grad(
            plain.mean(),
            list(moving.values()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        rate, most = self.config.inner_rate, self.config.inner_clip
        stepped = {
            name: value - rate * gradient.clamp(-most, most)
            for (name, value), gradient in zip(moving.items(), gradients, strict=True)
        }
        mixed = {**batch, "pixels": mixed_in(batch["pixels"], batch[TARGET], batch[SHARE])}
        return plain + self.cross_entropies({**parameters, **stepped}, mixed)


def low_amplitudes(pixels: Tensor, half_width: int) -> Tensor:
    """Return amplitudes of the lowest frequencies of pixels (B, 3, h, w), 0 to 255.

    They are (B, 3, 2b + 1, 2b + 1), of pixels in [0, 1] and divided by h w; frequency 0 in the
    middle.
    """
    rows, columns = _lowest(pixels, half_width)
    spectrum = torch.fft.fft2(pixels / WHITE, norm="forward")
    lowest: Tensor = spectrum[..., rows, columns]
    return lowest.abs()


def mixed_in(pixels: Tensor, amplitudes: Tensor, shares: Tensor) -> Tensor:
    """Return images (B, 3, h, w), 0 to 255, not rounded, with others' amplitudes by shares (B,)."""
    rows, columns = _lowest(pixels, amplitudes.shape[-1] // 2)
    spectrum = torch.fft.fft2(pixels / WHITE, norm="forward")
    lowest = spectrum[..., rows, columns]
    share = shares[:, None, None, None]
    amplitude = (1.0 - share) * lowest.abs() + share * amplitudes
    spectrum[..., rows, columns] = torch.polar(amplitude.to(lowest.real.dtype), lowest.angle())
    mixed: Tensor = torch.fft.ifft2(spectrum, norm="forward").real
    return (WHITE * mixed).clamp(0.0, WHITE)


def _lowest(pixels: Tensor, half_width: int) -> tuple[Tensor, Tensor]:
    """Return the places of frequencies from -b to b in a spectrum, rows and columns."""
    near = torch.arange(-half_width, half_width + 1, device=pixels.device)
    height, width = pixels.shape[-2:]
    return (near % height)[:, None], (near % width)[None, :]


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse spectra of single images."""
    if config.spectrum != "client_mean":
        raise MethodError(
            f"method.spectrum: {config.spectrum!r} hands spectra of single images, which are close "
            "to the images, to all clients; a bound on a client's one entry does not cover a "
            "release for each image; valid: client_mean"
        )
    return Elcfs.built(config, task)
