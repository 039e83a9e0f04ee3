"""Styles of feature maps: their statistics, and maps that take on others'.

A style is what a map has as mean and standard deviation of each channel, over its positions.
`methods/stablefdg.py` has the source and says where each step is used.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import Arrays

MEAN, MEAN_DEVIATION = "style.mean", "style.mean_deviation"
SPREAD, SPREAD_DEVIATION = "style.spread", "style.spread_deviation"
"""Names of an entry's arrays, (W,) each."""
EPSILON: Final = 1e-6


def style_of(found: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of maps (B, W, h, w): (B, W, 1, 1)."""
    spread = (found.var((-2, -1), keepdim=True) + EPSILON).sqrt()
    return found.mean((-2, -1), keepdim=True), spread


def shared(
    found: Tensor, *, rows: Tensor, count: int, other: Arrays, rng: np.random.Generator
) -> Tensor:
    """Return maps in styles that are the client's own for one half and another's for the rest.

    Args:
        found: Maps (N, W, h, w), the first `count` of them different.
        rows: Which of those each is, (N,).
        count: B.
        other: Mean and deviation of another client's styles, which may carry noise.
        rng: Draws.

    Returns:
        (N, W, h, w).
    """
    found = found[:count]
    mean, spread = (part.detach() for part in style_of(found))
    own = torch.cat((mean, spread), dim=1).flatten(1).cpu().double().numpy()
    drawn = count // 2
    centres = centres_of(own, count - drawn, rng)
    width = len(other[MEAN])
    means = rng.normal(other[MEAN], np.maximum(other[MEAN_DEVIATION], 0.0), (drawn, width))
    spreads = rng.normal(other[SPREAD], np.maximum(other[SPREAD_DEVIATION], 0.0), (drawn, width))
    styles = np.concatenate((centres, np.hstack((means, np.maximum(spreads, 0.0)))))
    there = torch.from_numpy(styles).to(found)[..., None, None]
    return ((found - mean) / spread * there[:, width:] + there[:, :width])[rows]


def centres_of(
    styles: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return centres (count, 2 W) of styles (n, 2 W): k-means++ and one step of k-means.

    Seeding is that of Arthur and Vassilvitskii 2007: each further centre is a style drawn in
    proportion to its squared distance from the nearest one.
    """
    first = int(rng.integers(len(styles)))
    centres = styles[[first]]
    while len(centres) < count:
        distances = _squares(styles, centres).min(1)
        total = distances.sum()
        # Where each style is a centre already, further ones repeat it.
        weights = distances / total if total else np.full(len(styles), 1.0 / len(styles))
        centres = np.vstack((centres, styles[rng.choice(len(styles), p=weights)]))
    nearest = _squares(styles, centres).argmin(1)
    found = [styles[nearest == at] for at in range(count)]
    means = [part.mean(0) if len(part) else centres[at] for at, part in enumerate(found)]
    return np.stack(means)


def _squares(styles: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = ((styles[:, None] - centres) ** 2).sum(-1)
    return squares


def beyond(part: Tensor, count: int, extrapolation: float) -> Tensor:
    """Return means or deviations (N, W, 1, 1), from `count` on further from the others' mean."""
    added = part[count:]
    return torch.cat((part[:count], added + extrapolation * (added - part[:count].mean(0))))
