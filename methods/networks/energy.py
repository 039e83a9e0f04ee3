"""Energy-based denoising: which experts are too unlike the client's own to be listened to.

Feng et al. 2025 (PM-MoE, WWW), section "Energy-based Personalized Modules Denoising". Its published
code has none of it. What the paper leaves open is decided so:

- T has no value in it: it is an option, 1 by default.
- The score is of one pair of outputs, so of one example: experts are dropped example by example.
- "The bottom gamma-proportion of experts" is out of the others, k != j, rounded down; the client's
  own is the anchor and stays.
- An output of length zero has no direction: its product with any other is taken as zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

ROUNDING = 1e-9
"""So that 0.29 of 100 is 29, whatever the product is in binary."""


def confidence(own: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Return negative Helmholtz free energy H of experts' outputs beside the own one.

    H^k = T log sum_d exp(v^k_d / T) with v^k = (h^k * h^j) / (|h^k| |h^j|), coordinate by
    coordinate; the coordinates of v^k add up to the cosine of the two.

    Args:
        own: h^j (..., H).
        others: h^k (..., E, H).
        temperature: T, positive.

    Returns:
        Scores (..., E), high where the outputs agree.
    """
    # In double precision: T log H is alike for all experts and would drown what tells them apart.
    there, here = others.to(torch.float64), own.to(torch.float64)
    product = functional.normalize(there, dim=-1) * functional.normalize(here, dim=-1).unsqueeze(-2)
    score: Tensor = temperature * torch.logsumexp(product / temperature, dim=-1)
    return score


def number_dropped(gamma: float, experts: int) -> int:
    """Return how many of so many experts, the own one included, are dropped.

    Floor(gamma (E - 1)).
    """
    return math.floor(gamma * (experts - 1) + ROUNDING)


def kept_experts(outputs: Tensor, own: int, gamma: float, temperature: float) -> Tensor:
    """Return which experts are left for each example.

    Args:
        outputs: Outputs (B, E, H) of all experts.
        own: Which of them is the client's own.
        gamma: Share of the others that is dropped, in [0, 1).
        temperature: T.

    Returns:
        (B, E) bool, True for the own one and for all but the floor(gamma (E - 1)) others of lowest
        confidence; among equal ones the first in the order of experts go.
    """
    kept = torch.ones(outputs.shape[:2], dtype=torch.bool, device=outputs.device)
    dropped = number_dropped(gamma, outputs.shape[1])
    if dropped:
        scores = confidence(outputs[:, own], outputs, temperature)
        scores[:, own] = torch.inf
        worst = scores.sort(dim=1, stable=True).indices[:, :dropped]
        kept.scatter_(1, worst, False)
    return kept
