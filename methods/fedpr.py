"""FedPR: one prompt for all; local steps are projected away from the span of the global prompt.

Feng et al. 2023, "Learning Federated Visual Prompt in Null Space for MRI Reconstruction" (CVPR), by
its published code (github.com/chunmeifeng/FedPR at f5c3e67), as the paper's text was not available.
There a regression loss trains deep prompts of a Swin transformer; pFedMoAP and FedPGP name the
method for CLIP without saying how. Here it is the context of CoOp, p (l, w), by cross-entropy.

After each averaging, with B the eigenvectors of p^T p (w, w) except those of its k largest
eigenvalues,

    T = B B^T / ||B B^T||_F,

and u T replaces every finished step u (l, w) of the local optimiser, after moments and decay. Round
1 has no T, as nothing has been learned. k is the whole part of (1 - share) w. T's norm makes steps
shorter by sqrt(w - k), which that code's learning rate makes up for; `normalise: false` takes B B^T
itself.

Three decisions are ours. Directions along which p is zero have equal eigenvalues, so the machine's
arithmetic decides their order. So we remove at most as many directions as p has, and T is the same
on every machine. If (1 - share) w is whole, that code loses one direction by rounding; ours does
not. Our optimiser starts anew in each round, where that code's continues: its moments
would be a state that depends on records.

T follows from the broadcast alone. So the correction sees no data, comes after clipping and noise,
and costs nothing: every mechanism is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from methods.interface import method as m
from methods.networks.layers import Parameters
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, as_tensor

LEARNED = "learned"
"""Whether a round has been averaged: 0 or 1, broadcast beside the prompt."""

READING = "its prompts are a Swin transformer's, for MRI images; that they are CoOp's here is ours"
VARIANTS = ({"share": 0.5, "normalise": False},)


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        share: rho, the share of directions that steps may take; 1 is PromptFL with shorter steps.
        normalise: Whether the projection is divided by its Frobenius norm.
    """

    share: Annotated[float, Ge(0.0), Le(1.0)] = 0.8
    normalise: bool = True


class FedPR(PromptMethod):
    """A shared prompt whose steps are projected."""

    config: Config
    has_public_jacobian = False
    anchored = True

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context, before anything has been learned."""
        return {**super().init_server(rng), LEARNED: np.zeros(1, np.float32)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the broadcast prompt by projected steps, and upload its change."""
        start = view.broadcast[CONTEXT]
        correction = self.correction(start) if view.broadcast[LEARNED].any() else None
        groups = (m.ParameterGroup((CONTEXT,)),)
        return self.train(view, data, trainer, rng, groups=groups, after_step=correction)

    def correction(self, start: NDArray[Any]) -> Callable[[Parameters], None]:
        """Return the correction that replaces each step u from a start (l, w) by u T."""
        matrix = projection(start, self.config.share, normalise=self.config.normalise)
        allowed = as_tensor(matrix.astype(start.dtype), self.encoder.backbone)
        before = as_tensor(start, self.encoder.backbone)

        def correct(trained: Parameters) -> None:
            context = trained[CONTEXT]
            context.copy_(before + (context - before) @ allowed)
            before.copy_(context)

        return correct

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change, and note that something has been learned."""
        after = super().server_update(state, aggregate, pool, rng)
        return {**after, LEARNED: np.ones(1, np.float32)}


def projection(
    context: NDArray[Any], share: float, *, normalise: bool = True
) -> NDArray[np.float64]:
    """Return T (w, w) of a context p (l, w), for the share rho of the w directions.

    Normalised, T has a Frobenius norm of one, or of zero if no direction is left.
    """
    prompt = np.asarray(context, np.float64)
    width = prompt.shape[1]
    # Rows of the last factor are the eigenvectors of p^T p, the largest eigenvalue first.
    _, spread, directions = np.linalg.svd(prompt, full_matrices=False)
    spanned = int((spread > spread.max(initial=0.0) * max(prompt.shape) * 1e-7).sum())
    # Computed from the written decimal: in binary, 1 - 0.8 is a little less than a fifth.
    most = int((1 - Fraction(str(share))) * width)
    taken = directions[: min(most, spanned)]
    allowed: NDArray[np.float64] = np.eye(width) - taken.T @ taken
    if normalise:
        allowed /= np.sqrt(max(width - len(taken), 1))
    return allowed


build = FedPR.built
