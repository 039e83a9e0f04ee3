"""Opacus' `DPOptimizer` with noise from a `NoiseSource`.

Opacus draws its noise from a torch generator, which is seeded and predictable unless a package is
installed that its secure mode needs. Everything else is Opacus' own: clipping all parameters
jointly, adding up, dividing by the expected batch size, stepping.
"""

from __future__ import annotations

import numpy as np
import torch
from opacus.optimizers.optimizer import DPOptimizer

from privacy.noise_laws import GAUSSIAN
from privacy.randomness import NoiseSource
from privacy.record_level import DpSgd


class NoisyOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus carries no types
    """Opacus' optimiser, noise excepted."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, mechanism: DpSgd, noise: NoiseSource
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=mechanism.clipping_norm,
            expected_batch_size=mechanism.expected_batch_size,
            loss_reduction="mean",
        )
        self._source = noise

    def add_noise(self) -> None:
        """Set each `p.grad` to the clipped sum plus fresh noise, one draw over all parameters."""
        sizes = [p.numel() for p in self.params]
        scale = self.noise_multiplier * self.max_grad_norm
        draw = self._source.draw(GAUSSIAN, scale, sum(sizes))
        for p, piece in zip(self.params, np.split(draw, np.cumsum(sizes)[:-1]), strict=True):
            noise = torch.from_numpy(piece).to(dtype=p.dtype).to(p.device)
            p.grad = p.summed_grad.view_as(p) + noise.view_as(p)
