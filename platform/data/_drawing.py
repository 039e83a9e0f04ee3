"""How each domain draws a shape.

The domains are named after DomainNet's (Peng et al. 2019, "Moment Matching for Multi-Source Domain
Adaptation") and differ in the same ways: what surface, tool and clutter make of the same object.
All functions draw a whole batch and take their randomness from the given generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.data._geometry import Field, signed_distance, smooth_noise

Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How far shapes may be moved, turned and scaled in a domain.

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


def draw(
    rng: Generator, outlines: Sequence[str], domain: str, *, image_size: int
) -> NDArray[np.uint8]:
    """Draw one image per outline.

    Args:
        rng: Source of position, size, rotation, colours and noise.
        outlines: The shape of each image, names of `platform.data._geometry.OUTLINES`.
        domain: One of `DOMAINS`.
        image_size: Side of an image in pixels.

    Returns:
        RGB images, uint8 (len(outlines), image_size, image_size, 3).
    """
    return draw_with_distance(rng, outlines, domain, image_size=image_size)[0]


def draw_with_distance(
    rng: Generator, outlines: Sequence[str], domain: str, *, image_size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw one image per outline, and say where its outline is.

    The arguments are those of `draw`.

    Returns:
        The images as from `draw`, and signed distances of their pixels to the outline, in halves of
        the image, float32 (len(outlines), image_size, image_size).
    """
    placement, paint = _STYLES[domain]
    distance = _place(rng, outlines, placement, image_size)
    pixels = paint(rng, distance)
    return (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8), distance.astype(np.float32)


def _place(rng: Generator, outlines: Sequence[str], placement: Placement, image_size: int) -> Field:
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
    return distance * scale


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
