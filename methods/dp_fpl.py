"""DP-FPL: a shared and a personal prompt, the personal one stepped by gradients of its factors.

Tran, Sun, Patterson and Milanova 2025, "Privacy-Preserving Personalized Federated Prompt Learning
for Multimodal Large Language Models" (ICLR), Algorithm 1. A client's prompt is p_G + p_L, both of
shape (l, w). In every step p_L is factored anew by one power iteration with a Gaussian Omega (w,
k),

    u = orth(p_L Omega) (l, k),    v = orth(p_L^T u)^T (k, w),    r = p_L - u v,

the gradients by p_G, u and v at p_G + u v + r are clipped and noised, and p_L takes a step along

    nabla_u v + u nabla_v - u u^T nabla_u v                                            (Eq. 4).

For any factors u v + r equals p_L, so the factors shape only the gradient: with G the gradient by
p_L, nabla_u is G v^T and nabla_v is u^T G. So here p_L itself is trained, and every finished step
of the optimiser takes the place of -G in Eq. 4. The server averages the changes of p_G with equal
weights; p_L stays with its client. The published code (linhhtran/DP-FPL at cce74b4) adds the third
term in place of subtracting it, and divides the sum by ten (`sign: published`). The paper has one
step a round; with more, p_G moves on in between.

**Its epsilon and ours.** The paper clips gradients of whole batches to C = 10 and noises those of
the factors by (10 / batch) sqrt(T ln(1/delta)) / epsilon, T being rounds. Without a bound on each
example's gradient, replacing one example may move a batch's clipped gradient by 2C and not by C /
batch. docs/methods.md has the epsilon by exact accounting:
59.8 for a stated 0.4 in 100 steps. Sotto does not add noise in this way. Under `dp_sgd` each
example's gradient by p_G and p_L is clipped as one and both are noised, where the paper clips and
noises those of the factors; noise is calibrated, charged and reported as for any method. Factors
follow from p_L, so Eq. 4 is post-processing. Other mechanisms protect what is sent; p_L is not
sent.

The paper leaves the start of p_L open: here N(0, 0.02^2), each client's own, as CoOp's prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from methods.errors import MethodError
from methods.interface import method as m
from methods.networks.layers import Parameters
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, PromptObjective, as_tensor

LOCAL = "local"
PUBLISHED_SHARE = 0.1
"""The published code's factor of the local gradient."""

VARIANTS = ({"sign": "published"},)


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        rank: k, of the factors; at most the number of context tokens.
        sign: The local gradient of Eq. 4, or that of the published code.
    """

    rank: Annotated[int, Ge(1), Le(1024)] = 8
    sign: Literal["paper", "published"] = "paper"


class DPFPL(PromptMethod):
    """A shared prompt and a personal one with low-rank steps."""

    config: Config
    has_personal_state = True
    has_public_jacobian = False

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return p_G; all clients have the same weight."""
        return {CONTEXT: m.TensorSpec(self.encoder.spec.shape, weighting=m.Weighting.UNIFORM)}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the client's own p_L."""
        return {LOCAL: self.encoder.init_context(client_rng, None)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train both prompts together; upload the change of the shared one."""
        own = {LOCAL: view.personal[LOCAL]}
        correct = self.correction(own[LOCAL], rng)
        return self.train(view, data, trainer, rng, own=own, after_step=correct)

    def training_objective(self) -> m.Objective:
        """Return cross-entropy of the prediction with p_G + p_L."""
        return PromptObjective(
            self.encoder,
            self.classes,
            frozenset({CONTEXT, LOCAL}),
            lambda parameters: parameters[CONTEXT] + parameters[LOCAL],
        )

    def correction(self, start: NDArray[Any], rng: m.Rng) -> Callable[[Parameters], None]:
        """Return the correction that uses each step of p_L from a start (l, w) as -G in Eq. 4."""
        # A generator of its own, so that it does not change how batches are drawn.
        draws = np.random.default_rng(rng.integers(2**63))
        before = as_tensor(start, self.encoder.backbone)
        shape = (start.shape[1], self.config.rank)

        def correct(trained: Parameters) -> None:
            own = trained[LOCAL]
            left, right = factors(before, torch.tensor(draws.normal(size=shape)).to(before))
            step = own - before
            gradients = step @ right.T, left.T @ step
            own.copy_(before + local_gradient(left, right, gradients, self.config.sign))
            before.copy_(own)

        return correct

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under p_G + p_L; under p_G before there is p_L."""
        own = view.personal.get(LOCAL, np.float32(0.0))
        return self.prompt_logits(view.broadcast[CONTEXT] + own, batch, classes)


def factors(prompt: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return u (l, k) and v (k, w) by one power iteration of p_L (l, w) with Omega (w, k)."""
    left = torch.linalg.qr(prompt @ drawn).Q
    right = torch.linalg.qr(prompt.T @ left).Q.T
    return left.contiguous(), right.contiguous()


def local_gradient(
    left: Tensor, right: Tensor, gradients: tuple[Tensor, Tensor], sign: str
) -> Tensor:
    """Return the local gradient (l, w) of Eq. 4; linear in the factors' gradients.

    `left` is u (l, k), `right` is v (k, w), and `gradients` are nabla_u (l, k) and nabla_v (k, w),
    or any multiple of both. `sign` is `paper`, or `published` for that code's gradient.
    """
    by_left, by_right = gradients
    tangent, within = by_left @ right + left @ by_right, left @ (left.T @ by_left) @ right
    return tangent - within if sign == "paper" else PUBLISHED_SHARE * (tangent + within)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse more factors than context tokens."""
    method = DPFPL.built(config, task)
    tokens, width = method.encoder.spec.shape
    most = min(tokens, width)
    if config.rank > most:
        raise MethodError(
            f"method.rank: {config.rank} is more than a prompt of shape {tokens} x {width} has; "
            f"valid: 1 to {most}"
        )
    return method
