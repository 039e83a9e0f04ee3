"""From images to what a method sees of them: encode what it needs, let it keep what it wants.

Both are done once per image, in chunks, so that what a method needs may be far larger than the
memory (300 KB of tokens an image) as long as what it keeps is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Method
from platform.data.images import Images, Indices
from platform.data.rows import Rows
from platform.errors import ConfigError

Encoding = Callable[[Images, Indices], Rows]
CHUNK: Final = 256
"""Images that a method prepares at once."""


@dataclass(frozen=True)
class Encoders:
    """How images become arrays: given all of them and the rows that are asked for.

    Only what a method needs is called.

    Attributes:
        features: To features (n, d).
        tokens: To tokens (n, T, w).
        pixels: To images of the model's own size, uint8 (n, S, S, 3).
    """

    features: Encoding
    tokens: Encoding
    pixels: Encoding


def prepared_arrays(
    method: Method, images: Images, rows: Indices, encoders: Encoders
) -> Mapping[str, Rows]:
    """What a method keeps of images, row i of each being of the image of `rows[i]`.

    What it keeps as it was given stays where it lies, and is read when it is asked for.

    Args:
        method: Says what it needs, and makes of it what it keeps.
        images: All images.
        rows: Which of them, at least one.
        encoders: From images to arrays.

    Raises:
        ConfigError: If the method keeps another number of rows than it was given, or makes
            something else of an example alone than in company.
    """
    inputs: dict[str, Rows] = {}
    if "features" in method.needs:
        inputs["features"] = encoders.features(images, rows)
    if "tokens" in method.needs:
        inputs["tokens"] = encoders.tokens(images, rows)
    if "pixels" in method.needs:
        inputs["pixels"] = encoders.pixels(images, rows)
    if not inputs:
        return {}
    first = {name: array[:CHUNK] for name, array in inputs.items()}
    kept = method.prepare(first)
    _require_rows(kept, len(rows[:CHUNK]))
    _require_alone(method, first, kept)
    if _is_same(first, kept):
        # Nothing is made of it, so what lies on the disk can stay there.
        return inputs
    # Written into place: two copies of all of it might not fit into the memory.
    made = {n: np.empty((len(rows), *a.shape[1:]), a.dtype) for n, a in kept.items()}
    for start in range(0, len(rows), CHUNK):
        block = slice(start, start + CHUNK)
        if start:
            kept = method.prepare({name: array[block] for name, array in inputs.items()})
            _require_rows(kept, len(rows[block]))
        for name, array in kept.items():
            made[name][block] = array
    return made


def prepared_batch(method: Method, images: NDArray[np.uint8], encoders: Encoders) -> Arrays:
    """What a method predicts from, of a few images (n, H, W, 3).

    Raises:
        ConfigError: As for `prepared_arrays`.
    """
    rows = np.arange(len(images))
    kept = prepared_arrays(method, images, rows, encoders)
    return {name: array[rows] for name, array in kept.items()}


def _require_rows(kept: Arrays, rows: int) -> None:
    for name, array in kept.items():
        if len(array) != rows:
            raise ConfigError(
                f"method.name: its prepare made {len(array)} rows of {name!r} out of {rows} "
                f"examples; valid: {rows}"
            )


def _require_alone(method: Method, given: Arrays, kept: Arrays) -> None:
    """A record must stay one record: what is kept of it may not depend on the others."""
    for row in {0, len(next(iter(given.values()))) - 1}:
        rows = slice(row, row + 1)
        alone = method.prepare({name: array[rows] for name, array in given.items()})
        for name, array in kept.items():
            if not np.allclose(alone[name], array[rows], rtol=1e-3, atol=1e-4):
                raise ConfigError(
                    f"method.name: its prepare makes another {name!r} of an example alone than in "
                    "company; valid is one that looks at each example by itself"
                )


def _is_same(given: Arrays, kept: Arrays) -> bool:
    return given.keys() == kept.keys() and all(kept[name] is given[name] for name in given)
