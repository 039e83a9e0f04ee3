"""Entropic optimal transport for many small problems at once, differentiated through by nobody.

A problem moves mass from M sources, each holding at most 1/M, to N targets that get mass/N each,

    max_T  sum_mn T_mn S_mn - entropy sum_mn T_mn log T_mn
    s.t.   sum_n T_mn <= 1/M,   sum_m T_mn = mass/N,   T >= 0,

which is T = diag(u) K diag(v) with K = exp(S/entropy). Dykstra's algorithm in the Kullback-Leibler
geometry alternates its projections (Benamou et al. 2015, "Iterative Bregman Projections for
Regularized Transportation Problems", sections 3.1 and 5.2):

    u_m = min(1, 1 / (M (K v)_m)),   v_n = mass / (N (K^T u)_n).

With mass one every source must be emptied, the cap on u is not needed and this is Sinkhorn's.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_EXPONENT = -69.0
"""exp of it, 1e-30, is nothing to the plan and still no zero to divide by in float32."""


def transport_plans(similarity: Tensor, *, mass: float, entropy: float, iterations: int) -> Tensor:
    """Return plans of many problems by a fixed number of iterations.

    The number is fixed, so that no problem's plan depends on its company, and `vmap` can run it.

    Args:
        similarity: S of each problem, (N, M, ...): targets, sources, problems. That order keeps
            the long dimension innermost, which is what makes small problems fast.
        mass: What is moved in all, in (0, 1].
        entropy: Weight of the entropic term, above 0.
        iterations: Pairs of projections.

    Returns:
        T of each problem, constants of the shape of `similarity`. What targets get is exact; a
        source's bound is met as far as the iterations have converged.
    """
    # An einsum may return any strides; laid out as its shape says it is four times as fast.
    fixed = similarity.detach().contiguous()
    targets, sources = fixed.shape[:2]
    # A factor on a column of K is undone by v; without it a small entropy overflows.
    exponent = (fixed - fixed.amax(dim=1, keepdim=True)) / entropy
    kernel = exponent.clamp_min(SMALLEST_EXPONENT).exp()
    share, cap = mass / targets, 1.0 if mass < 1.0 else torch.inf
    # As if no source were exhausted: from here few iterations do, from v = 1 many.
    v = share / kernel.sum(dim=1, keepdim=True)
    u = torch.ones_like(fixed[0])
    for _ in range(iterations):
        u = (sources * (kernel * v).sum(dim=0)).reciprocal().clamp_max(cap)
        v = share / (kernel * u).sum(dim=1, keepdim=True)
    return kernel * u * v
