"""The data set `shapes`: 20 rendered shapes in six styles, made from a seed alone.

Outlines are signed distances: negative inside, zero on the outline and positive outside, in units
of the shape's own coordinates, where every shape fills about the disc of radius one. The y axis
points down, like the rows of an image. Polygons' distances are exact: the minimum over edges, with
the sign by crossing parity (even-odd rule). Smooth random fields bend the outlines.

The styles are named after DomainNet's domains (Peng et al. 2019, "Moment Matching for Multi-Source
Domain Adaptation") and differ in the same ways: surface, tool and clutter. All drawing functions
draw a whole batch and take their randomness from the given generator.

The images of the tiny CLIP's pretraining, of federations, and those declared public have streams of
random numbers that never meet. The spawn key of `numpy.random.SeedSequence` tells the streams
apart, so the same seed gives unrelated images in each; the same holds for training and test images,
and for the domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Dataset, Indices, Split

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
    """Return signed distances of points to one of the `OUTLINES`, negative inside."""
    if outline in _CURVES:
        return _CURVES[outline](x, y)
    corners = np.array(_POLYGONS[outline], dtype=np.float32)
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
    """Draw smooth fields in [-1, 1], float32 (count, size, size): random knots, joined linearly."""
    knots = rng.random((count, rows, columns), dtype=np.float32) * 2 - 1
    field: Field = _interpolation(size, rows) @ knots @ _interpolation(size, columns).T
    return field


Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The limits of random moves, turns and scales of shapes in a domain.

    Attributes:
        shift: Largest offset of the centre, as a part of half the image.
        turn: Largest rotation in radians, either way.
        scale: Smallest and largest radius, as a part of half the image.
        wobble: Amplitude of the outline's bending, as a part of half the image.
        knots: Number of knots of the bending per axis; more is shakier.
    """

    shift: float = 0.2
    turn: float = 0.6
    scale: tuple[float, float] = (0.5, 0.85)
    wobble: float = 0.0
    knots: int = 4


def draw_with_distance(
    rng: Generator, outlines: Sequence[str], domain: str, *, image_size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw one image per outline in one of the `DOMAINS`.

    Returns uint8 (n, S, S, 3), S being `image_size`, and the signed distances in halves of the
    image, (n, S, S).
    """
    placement, paint = _STYLES[domain]
    count = len(outlines)
    axis = (np.arange(image_size, dtype=np.float32) + 0.5) * (2 / image_size) - 1
    shift = _uniform(rng, count, -placement.shift, placement.shift)
    drop = _uniform(rng, count, -placement.shift, placement.shift)
    angle = _uniform(rng, count, -placement.turn, placement.turn)
    scale = _uniform(rng, count, *placement.scale)
    x, y = axis[None, None, :] - shift, axis[None, :, None] - drop
    if placement.wobble:
        knots = {"rows": placement.knots, "columns": placement.knots}
        x = x + placement.wobble * smooth_noise(rng, count, image_size, **knots)
        y = y + placement.wobble * smooth_noise(rng, count, image_size, **knots)
    cosine, sine = np.cos(angle) / scale, np.sin(angle) / scale
    u, v = x * cosine + y * sine, y * cosine - x * sine
    distance = np.empty((count, image_size, image_size), dtype=np.float32)
    for outline in sorted(set(outlines)):
        rows = np.flatnonzero([name == outline for name in outlines])
        distance[rows] = signed_distance(outline, u[rows], v[rows])
    scaled = distance * scale
    pixels = paint(rng, scaled)
    return (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8), scaled.astype(np.float32)


def _real(rng: Generator, distance: Field) -> Field:
    count, size = distance.shape[:2]
    ground, colour = _two_colours(rng, count, saturation=(0.1, 0.55), value=(0.25, 0.85), apart=0.3)
    texture = 0.16 * _noise(rng, distance, 4) + 0.10 * _noise(rng, distance, 14)
    light = _uniform(rng, count, -1, 1) * 0.25
    slope = np.linspace(-1, 1, size, dtype=np.float32)
    shade = (
        1 + light * slope[None, None, :] + _uniform(rng, count, 0.05, 0.3) * -slope[None, :, None]
    )
    # A dark rim inside the outline gives the body a round look.
    body = shade * (1 - 0.35 * np.exp(np.minimum(distance, 0) / 0.12))
    offset = size // 16
    shadow = 0.45 * _coverage(np.roll(distance, (offset, offset), axis=(1, 2)), soft=4)
    surface = ground * (1 + texture - shadow)[..., None]
    pixels = _over(surface, colour * (body + 0.5 * texture)[..., None], _coverage(distance))
    return pixels + rng.normal(0, 0.025, pixels.shape).astype(np.float32)


def _clipart(rng: Generator, distance: Field) -> Field:
    count = len(distance)
    paper = 1 - _uniform(rng, count, 0, 0.18)[..., None] * rng.random((count, 1, 1, 3), np.float32)
    colour = _hsv(rng, count, saturation=(0.75, 1), value=(0.75, 1))
    pixels = _over(paper, colour, _coverage(distance))
    width = _uniform(rng, count, 0.03, 0.075)
    return _over(pixels, np.float32(0.06), _coverage(np.abs(distance) - width))


def _painting(rng: Generator, distance: Field) -> Field:
    count = len(distance)
    ground, colour = _two_colours(rng, count, saturation=(0.15, 0.5), value=(0.25, 0.8), apart=0.35)
    strokes = _strokes(rng, distance)[..., None]
    hue_drift = np.stack([_noise(rng, distance, 5) for _ in range(3)], axis=-1)
    surface = ground + 0.12 * strokes + 0.08 * hue_drift
    body = colour + 0.12 * _strokes(rng, distance)[..., None] - 0.06 * hue_drift
    edge = distance + 0.04 * _noise(rng, distance, 16)
    pixels = _over(surface, body, _coverage(edge, soft=2))
    # Thick paint comes in few tones.
    return np.round(pixels * 12) / 12


def _sketch(rng: Generator, distance: Field) -> Field:
    count, size = distance.shape[:2]
    paper = _uniform(rng, count, 0.82, 0.97) + 0.05 * _noise(rng, distance, size)
    pressure = 0.75 + 0.35 * _noise(rng, distance, 7)
    stroke = _coverage(np.abs(distance) - _uniform(rng, count, 0.01, 0.04), soft=1.5) * pressure
    again = _coverage(np.abs(distance + 0.05 * _noise(rng, distance, 4)) - 0.01, soft=1.5)
    axis = np.linspace(-1, 1, size, dtype=np.float32)
    angle = _uniform(rng, count, 0, np.pi)
    phase = axis[None, None, :] * np.cos(angle) + axis[None, :, None] * np.sin(angle)
    hatch = (np.sin(phase * _uniform(rng, count, 18, 30)) > 0.2) * _coverage(distance)
    ink = _uniform(rng, count, 0.5, 0.8) * (
        stroke + 0.4 * again + _uniform(rng, count, 0, 0.45) * hatch
    )
    grain = 1 + 0.25 * _noise(rng, distance, size)
    return np.repeat((paper - np.clip(ink, 0, 0.85) * grain)[..., None], 3, axis=-1)


def _infograph(rng: Generator, distance: Field) -> Field:
    count, size = distance.shape[:2]
    paper = np.broadcast_to(
        1 - 0.3 * rng.random((count, 1, 1, 3), np.float32), (count, size, size, 3)
    )
    column, row = np.arange(size)[None, None, :], np.arange(size)[None, :, None]
    period = rng.integers(5, 9, (count, 1, 1))
    grid = ((column % period) == 0) | ((row % period) == 0)
    pixels = _over(paper, np.float32(0.7), 0.4 * grid.astype(np.float32))
    for _ in range(4):
        pixels = _over(
            pixels,
            _hsv(rng, count, saturation=(0.3, 0.9), value=(0.4, 0.95)),
            _bar(rng, count, size),
        )
    for _ in range(2):
        # Lines of text are unreadable at this size: dashes.
        line = (row == rng.integers(1, size - 1, (count, 1, 1))) & (column % 3 != 0)
        line &= column > rng.integers(0, size, (count, 1, 1))
        pixels = _over(pixels, np.float32(0.4), line.astype(np.float32))
    badge = _coverage(distance - 0.07)
    pixels = _over(pixels, np.float32(0.98), badge)
    return _over(
        pixels, _hsv(rng, count, saturation=(0.4, 1), value=(0.25, 0.75)), _coverage(distance)
    )


def _quickdraw(rng: Generator, distance: Field) -> Field:
    count = len(distance)
    ink = _coverage(np.abs(distance) - _uniform(rng, count, 0.012, 0.03))
    # The pen leaves the paper here and there.
    gaps = _noise(rng, distance, 5) < 0.62
    grey = 1 - ink * gaps * _uniform(rng, count, 0.8, 1.0)
    return np.repeat(grey[..., None], 3, axis=-1)


_STYLES: Final[Mapping[str, tuple[Placement, Callable[[Generator, Field], Field]]]] = {
    "real": (Placement(), _real),
    "clipart": (Placement(), _clipart),
    "painting": (Placement(wobble=0.06, knots=6), _painting),
    "sketch": (Placement(wobble=0.03, knots=5), _sketch),
    "infograph": (Placement(shift=0.25, scale=(0.48, 0.7)), _infograph),
    "quickdraw": (Placement(shift=0.12, scale=(0.6, 0.9), wobble=0.11, knots=5), _quickdraw),
}

DOMAINS: Final = tuple(_STYLES)


def _uniform(rng: Generator, count: int, low: float, high: float) -> Field:
    return (rng.random((count, 1, 1), dtype=np.float32) * (high - low) + low).astype(np.float32)


def _noise(rng: Generator, like: Field, knots: int) -> Field:
    return smooth_noise(rng, like.shape[0], like.shape[1], rows=knots, columns=knots)


def _strokes(rng: Generator, like: Field) -> Field:
    # Long along one axis, short along the other; half of the pictures are turned.
    field = smooth_noise(rng, like.shape[0], like.shape[1], rows=16, columns=4)
    turned = rng.random((len(like), 1, 1)) < 0.5
    return np.where(turned, field.transpose(0, 2, 1), field)


def _coverage(distance: Field, soft: float = 1.0) -> Field:
    # Area of the pixel inside the outline, to first order: antialiasing without supersampling.
    pixel = soft * 2 / distance.shape[1]
    return np.asarray(np.clip(0.5 - distance / np.float32(pixel), 0, 1))


def _over(below: Field, above: Field | np.float32, coverage: Field) -> Field:
    result: Field = below + (above - below) * coverage[..., None]
    return result


def _bar(rng: Generator, count: int, size: int) -> Field:
    left, width = rng.integers(0, size, (count, 1, 1)), rng.integers(2, 6, (count, 1, 1))
    height = rng.integers(3, size // 3, (count, 1, 1))
    column, row = np.arange(size)[None, None, :], np.arange(size)[None, :, None]
    inside = (column >= left) & (column < left + width) & (row >= size - height)
    return inside.astype(np.float32)


def _hsv(
    rng: Generator, count: int, *, saturation: tuple[float, float], value: tuple[float, float]
) -> Field:
    hue = _uniform(rng, count, 0, 6)[..., None]
    return _rgb(
        hue, _uniform(rng, count, *saturation)[..., None], _uniform(rng, count, *value)[..., None]
    )


def _rgb(hue: Field, saturation: Field, value: Field) -> Field:
    # Hue in sixths of the circle: red, green and blue are 5, 3 and 1 sixths ahead of it.
    sector = (np.array([5, 3, 1], dtype=np.float32) + hue) % 6
    ramp = np.clip(np.minimum(sector, 4 - sector), 0, 1)
    return np.asarray(value * (1 - saturation * ramp), dtype=np.float32)


def _two_colours(
    rng: Generator,
    count: int,
    *,
    saturation: tuple[float, float],
    value: tuple[float, float],
    apart: float,
) -> tuple[Field, Field]:
    """Return ground and figure whose brightness differs by at least `apart`, either way round."""
    low = _uniform(rng, count, value[0], value[1] - apart)
    high = low + apart + rng.random(low.shape, np.float32) * (value[1] - apart - low)
    swap = rng.random(low.shape) < 0.5
    values = np.where(swap, high, low), np.where(swap, low, high)
    first, second = (
        _rgb(
            _uniform(rng, count, 0, 6)[..., None],
            _uniform(rng, count, *saturation)[..., None],
            brightness[..., None].astype(np.float32),
        )
        for brightness in values
    )
    return first, second


CLASSES: Final = (
    *("circle", "ring", "triangle", "square", "hexagon", "star", "cross", "heart", "crescent"),
    *("arrow", "diamond", "oval", "semicircle", "trapezoid", "lightning", "house", "drop"),
    *("hourglass", "flower", "chevron"),
)


# Rendering in blocks keeps a block's arrays in the processor's cache.
_BLOCK: Final = 64
_SIDE: Final = 32
"""Of an image, in pixels."""


class Stream(IntEnum):
    """The purpose of images. The number is the first spawn key and must never change."""

    PRETRAINING = 1
    FEDERATION = 2
    PUBLIC = 3
    """Declared public: the directions of a subspace follow from them."""
    REHEARSAL = 4
    """For the clients of a dry run."""


class Part(IntEnum):
    """Training or test images. The number is the second spawn key and must never change."""

    TRAIN = 1
    TEST = 2


def rendered(
    name: str,
    classes: tuple[str, ...],
    counts: tuple[int, int],
    outlines: Callable[[Part, Indices], Indices],
    *,
    seed: int,
    domains: Sequence[str],
    stream: Stream,
) -> Dataset:
    """Render a data set; examples are ordered by domain, then by class.

    The counts are of training and of test images of each class in each domain. A domain's images
    do not depend on the other domains in the request, whose order is that of the domain index.
    `outlines` gives indices into `CLASSES`, of a part's labels (n,), that broadcast to (domains,
    n); place, size, turn, colours and noise of a row do not depend on its outline. An unknown
    domain or a negative seed is a ValueError.
    """
    unknown = sorted(set(domains) - set(DOMAINS))
    if unknown or not domains or seed < 0:
        valid = f"some of {', '.join(DOMAINS)}, and 0 or more"
        raise ValueError(f"domains has {unknown} and seed is {seed}; valid are {valid}.")
    sides = []
    for part, count in zip(Part, counts, strict=True):
        labels = np.repeat(np.arange(len(classes)), count)
        drawn = np.broadcast_to(outlines(part, labels), (len(domains), len(labels)))
        keys = (seed, int(stream), int(part))
        sides.append(draw_split(keys, tuple(domains), labels, drawn))
    train, test = sides
    return Dataset(name=name, classes=classes, domains=tuple(domains), train=train, test=test)


def draw_split(
    keys: tuple[int, int, int], domains: tuple[str, ...], labels: Indices, outlines: Indices
) -> Split:
    """Draw images with labels (n,), of outlines (domains, n); keys: seed, stream, part."""
    images = np.empty((*outlines.shape, _SIDE, _SIDE, 3), dtype=np.uint8)
    for index, domain in enumerate(domains):
        key = (*keys[1:], DOMAINS.index(domain))
        rng = np.random.default_rng(np.random.SeedSequence(keys[0], spawn_key=key))
        for start in range(0, len(labels), _BLOCK):
            rows = slice(start, start + _BLOCK)
            names = [CLASSES[outline] for outline in outlines[index, rows]]
            images[index, rows] = draw_with_distance(rng, names, domain, image_size=_SIDE)[0]
    return Split(
        images=images.reshape(-1, _SIDE, _SIDE, 3),
        labels=np.tile(labels, len(domains)).astype(np.int64),
        domains=np.repeat(np.arange(len(domains)), len(labels)).astype(np.int64),
    )


def shapes_dataset(
    seed: int,
    train_per_class_and_domain: int,
    test_per_class_and_domain: int,
    *,
    domains: Sequence[str] = DOMAINS,
    stream: Stream = Stream.FEDERATION,
) -> Dataset:
    """Render the data set; see `rendered`."""
    counts = (train_per_class_and_domain, test_per_class_and_domain)
    return rendered(
        *("shapes", CLASSES, counts, lambda _, labels: labels),
        seed=seed,
        domains=domains,
        stream=stream,
    )
