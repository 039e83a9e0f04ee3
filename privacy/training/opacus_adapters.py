"""Adapters to Opacus: its optimiser with our noise, and its accountant.

`NoisyOptimizer` takes its noise from a `NoiseSource`. Opacus draws its noise from a torch
generator, which is seeded and predictable unless a package is installed that its secure mode needs.
Everything else is Opacus' own: clipping all parameters jointly, adding up, dividing by the expected
batch size, stepping.

`prv_epsilon` uses privacy loss random variables (Gopi, Lee and Wutschitz 2021). Convention: Opacus
knows one mechanism, the Poisson-sampled Gaussian, and one relation, a record more or less; noise is
relative to the sensitivity. Under replace_one an unsampled release is the same Gaussian with sd /
(2C); a sampled one is another mechanism, which Opacus does not have.

It is here and not beside the other adapters because Opacus brings torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV, compute_safe_domain_size
from opacus.optimizers.optimizer import DPOptimizer

from privacy.accounting.adapters import quiet
from privacy.accounting.composition import Composition
from privacy.errors import UnsupportedEvent
from privacy.events import GAUSSIAN
from privacy.mechanisms import DpSgd
from privacy.randomness import NoiseSource


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


LARGEST_GRID = 2**22
"""Points; on larger grids Opacus overflows, after minutes or gigabytes."""

EPSILON_ERROR = 0.01
"""Opacus' own default: how far the bound may be above the estimate."""


def prv_epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by the upper end of Opacus' interval, 0.01 above its estimate.

    All of the composition is noised, with at least one term. `UnsupportedEvent` if a release is
    sampled under replace_one, or the noise is too small for Opacus' grid, which then overflows.
    """
    doubled = composition.relation == "replace_one"
    if composition.integer_terms:
        raise UnsupportedEvent("Opacus' PRV knows no integer noise")
    if composition.fixed_size_terms:
        raise UnsupportedEvent("Opacus' PRV knows no cohorts of fixed size")
    if doubled and composition.is_sampled:
        raise UnsupportedEvent("Opacus' PRV knows no Poisson sampling under replace_one")
    unit = 2.0 if doubled else 1.0
    history = [
        (term.noise_to_clip / unit, term.sampling_probability, term.count)
        for term in composition.terms
    ]
    try:
        with _quiet():
            delta_error = delta / 1000.0
            counts = [count for _, _, count in history]
            half_width = compute_safe_domain_size(
                prvs=[PoissonSubsampledGaussianPRV(q, z) for z, q, _ in history],
                max_self_compositions=counts,
                eps_error=EPSILON_ERROR,
                delta_error=delta_error,
            )
            mesh = EPSILON_ERROR / math.sqrt(sum(counts) * math.log(12.0 / delta_error) / 2.0)
            if not 2.0 * half_width / mesh <= LARGEST_GRID:
                raise UnsupportedEvent("Opacus' PRV needs too large a grid for noise this small")
            accountant = PRVAccountant()
            accountant.history = history
            found = accountant.get_epsilon(delta, eps_error=EPSILON_ERROR, delta_error=delta_error)
            bound = float(found)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise UnsupportedEvent(f"Opacus' PRV fails: {error}") from error
    if not math.isfinite(bound):
        raise UnsupportedEvent("Opacus' PRV finds no finite bound for noise this small")
    return bound


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about branches that are computed and not used; NaN is an error."""
    with quiet(), warnings.catch_warnings(), np.errstate(all="ignore", invalid="raise"):
        warnings.simplefilter("ignore")
        yield
