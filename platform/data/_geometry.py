"""Outlines of the shapes as signed distances, and the smooth random fields that bend them.

A signed distance is negative inside, zero on the outline and positive outside, in units of the
shape's own coordinates, where every shape fills about the disc of radius one. The y axis points
down, as rows do. Polygons' distances are exact; the formula for the polygon is the usual minimum
over edges with the sign by crossing parity (even-odd rule).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]
Distance = Callable[[Field, Field], Field]
Vertices = tuple[tuple[float, float], ...]


def _disc(x: Field, y: Field) -> Field:
    return np.asarray(np.hypot(x, y) - np.float32(0.9))


def _ring(x: Field, y: Field) -> Field:
    return np.asarray(np.abs(np.hypot(x, y) - np.float32(0.68)) - np.float32(0.24))


def _oval(x: Field, y: Field) -> Field:
    # First-order distance of an ellipse: the implicit function over its gradient's length.
    a, b = np.float32(1.0), np.float32(0.52)
    level = np.hypot(x / a, y / b)
    slope = np.hypot(x / (a * a), y / (b * b)) + np.float32(1e-6)
    return np.asarray(level * (level - 1) / slope)


def _semicircle(x: Field, y: Field) -> Field:
    return np.asarray(np.maximum(np.hypot(x, y - np.float32(0.4)) - 1, y - np.float32(0.4)))


def _crescent(x: Field, y: Field) -> Field:
    outer = np.hypot(x, y) - np.float32(0.95)
    return np.asarray(np.maximum(outer, np.float32(0.8) - np.hypot(x - np.float32(0.45), y)))


def _heart(x: Field, y: Field) -> Field:
    # Two discs over a square that stands on its corner; they overlap, else a seam shows inside.
    side = np.abs(x) - np.float32(0.44)
    lobes = np.hypot(side, y + np.float32(0.32)) - np.float32(0.5)
    slant = (np.abs(x) + y) * np.float32(0.7071) - np.float32(0.634)
    wedge = np.maximum(slant, -y - np.float32(0.35))
    return np.asarray(np.minimum(lobes, np.maximum(wedge, np.abs(x) - np.float32(0.9))))


def _drop(x: Field, y: Field) -> Field:
    low = y - np.float32(0.35)
    ball = np.hypot(x, low) - np.float32(0.6)
    # Tangent lines from the tip to the ball: sin(angle) = radius / distance of the tip.
    sine = np.float32(0.6 / 1.35)
    cosine = np.sqrt(1 - sine * sine)
    cone = np.abs(x) * cosine - (y + 1) * sine
    return np.asarray(np.minimum(ball, np.maximum(cone, low + sine * np.float32(0.6))))


def _flower(x: Field, y: Field) -> Field:
    radius = np.hypot(x, y)
    edge = np.float32(0.68) + np.float32(0.27) * np.cos(5 * np.arctan2(y, x))
    return np.asarray((radius - edge) * np.float32(0.7))


def _regular(corners: int, *, inner: float | None = None) -> Vertices:
    count = corners if inner is None else 2 * corners
    angles = 2 * np.pi * np.arange(count) / count - np.pi / 2
    radii = np.where(np.arange(count) % 2 == 0, 1.0, 1.0 if inner is None else inner)
    xs, ys = (radii * np.cos(angles)).tolist(), (radii * np.sin(angles)).tolist()
    return tuple(zip(xs, ys, strict=True))


_POLYGONS: Final[Mapping[str, Vertices]] = {
    "triangle": _regular(3),
    "square": ((-0.75, -0.75), (0.75, -0.75), (0.75, 0.75), (-0.75, 0.75)),
    "hexagon": _regular(6),
    "star": _regular(5, inner=0.42),
    "cross": (
        *((-0.3, -0.95), (0.3, -0.95), (0.3, -0.3), (0.95, -0.3), (0.95, 0.3), (0.3, 0.3)),
        *((0.3, 0.95), (-0.3, 0.95), (-0.3, 0.3), (-0.95, 0.3), (-0.95, -0.3), (-0.3, -0.3)),
    ),
    "arrow": (
        *((-1.0, -0.25), (0.1, -0.25), (0.1, -0.75), (1.0, 0.0)),
        *((0.1, 0.75), (0.1, 0.25), (-1.0, 0.25)),
    ),
    "diamond": ((0.0, -1.0), (0.58, 0.0), (0.0, 1.0), (-0.58, 0.0)),
    "trapezoid": ((-0.45, -0.55), (0.45, -0.55), (1.0, 0.55), (-1.0, 0.55)),
    "lightning": (
        *((0.2, -1.0), (-0.6, 0.15), (-0.05, 0.15)),
        *((-0.3, 1.0), (0.6, -0.25), (0.05, -0.25)),
    ),
    "house": (
        *((0.0, -1.0), (0.85, -0.2), (0.62, -0.2), (0.62, 0.8)),
        *((-0.62, 0.8), (-0.62, -0.2), (-0.85, -0.2)),
    ),
    "hourglass": ((-0.7, -0.9), (0.7, -0.9), (0.1, 0.0), (0.7, 0.9), (-0.7, 0.9), (-0.1, 0.0)),
    "chevron": ((-0.6, -0.9), (0.1, -0.9), (0.8, 0.0), (0.1, 0.9), (-0.6, 0.9), (0.1, 0.0)),
}

_CURVES: Final[Mapping[str, Distance]] = {
    "circle": _disc,
    "ring": _ring,
    "heart": _heart,
    "crescent": _crescent,
    "oval": _oval,
    "semicircle": _semicircle,
    "drop": _drop,
    "flower": _flower,
}

OUTLINES: Final = frozenset(_POLYGONS) | frozenset(_CURVES)


def signed_distance(outline: str, x: Field, y: Field) -> Field:
    """Return distance of points to a shape's outline.

    Args:
        outline: One of `OUTLINES`.
        x: Horizontal coordinates, float32 of any shape.
        y: Vertical coordinates, of the same shape, growing downwards.

    Returns:
        Signed distances, negative inside, of the same shape.

    Raises:
        KeyError: There is no such outline.
    """
    if outline in _CURVES:
        return _CURVES[outline](x, y)
    return _polygon_distance(_POLYGONS[outline], x, y)


def _polygon_distance(vertices: Vertices, x: Field, y: Field) -> Field:
    corners = np.array(vertices, dtype=np.float32)
    nearest = np.full(x.shape, np.inf, dtype=np.float32)
    inside = np.zeros(x.shape, dtype=np.bool_)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        ex, ey = bx - ax, by - ay
        px, py = x - ax, y - ay
        along = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
        nearest = np.minimum(nearest, (px - along * ex) ** 2 + (py - along * ey) ** 2)
        if ey != 0:
            inside ^= ((ay <= y) != (by <= y)) & (px < ex / ey * py)
    distance = np.sqrt(nearest)
    return np.asarray(np.where(inside, -distance, distance))


@cache
def _interpolation(size: int, knots: int) -> Field:
    # Linear interpolation from knots, at both ends of the axis, to pixels, as a matrix.
    position = np.linspace(0, knots - 1, size, dtype=np.float32)
    away = np.abs(position[:, None] - np.arange(knots, dtype=np.float32))
    return np.asarray(np.maximum(0, 1 - away))


def smooth_noise(
    rng: np.random.Generator, count: int, size: int, *, rows: int, columns: int
) -> Field:
    """Draw smooth random fields: independent uniform knots, joined linearly.

    Args:
        rng: Source of the knots.
        count: Number of fields.
        size: Side of a field in pixels.
        rows: Number of knots along the vertical axis; fewer is smoother.
        columns: Number of knots along the horizontal axis.

    Returns:
        Values in [-1, 1], float32 (count, size, size).
    """
    knots = rng.random((count, rows, columns), dtype=np.float32) * 2 - 1
    field: Field = _interpolation(size, rows) @ knots @ _interpolation(size, columns).T
    return field
