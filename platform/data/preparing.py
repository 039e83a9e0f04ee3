"""From examples to what a method sees of them: encode what it needs, let it keep what it wants.

Both are done once per example, in chunks, so that what a method needs may be far larger than the
memory (300 KB of tokens an image) as long as what it keeps is not. Texts are needed as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Method
from platform.data.images import Images, Indices
from platform.data.rows import Rows
from platform.data.texts import TextRows
from platform.errors import ConfigError

Encoding = Callable[[Images, Indices], Rows]
CHUNK: Final = 256
"""Examples that a method prepares at once."""


@dataclass(frozen=True)
class Encoders:
    """How images become arrays: given all of them and the rows that are asked for.

    Only what a method needs is called.

    Attributes:
        features: To features (n, d).
        tokens: To tokens (n, T, w).
        pixels: To images of the method's own size, or else the model's, uint8 (n, S, S, 3).
    """

    features: Encoding
    tokens: Encoding
    pixels: Encoding


def prepared_arrays(
    method: Method, examples: Images | Sequence[str], rows: Indices, encoders: Encoders
) -> Mapping[str, Rows]:
    """Return what a method keeps of examples, row i of each being of the example of `rows[i]`.

    What it keeps as it was given stays where it lies, and is read when it is asked for.

    Args:
        method: Says what it needs, and makes of it what it keeps.
        examples: All images or texts; that they are what the method looks at is checked before.
        rows: Which of them, at least one.
        encoders: From images to arrays.

    Raises:
        ConfigError: If the method keeps another number of rows than it was given, or makes
            something else of an example alone than in company.
    """
    inputs = _inputs(method, examples, rows, encoders)
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
            if not np.can_cast(array.dtype, made[name].dtype):
                # Texts of this chunk that are longer than all before would be cut off.
                wider = np.promote_types(array.dtype, made[name].dtype)
                made[name] = made[name].astype(wider)
            made[name][block] = array
    return made


def _inputs(
    method: Method, examples: Images | Sequence[str], rows: Indices, encoders: Encoders
) -> dict[str, Rows]:
    """Return what a method asks for of the examples themselves."""
    if isinstance(examples, Sequence):
        return {"text": TextRows(examples, rows)} if "text" in method.needs else {}
    inputs: dict[str, Rows] = {}
    if "features" in method.needs:
        inputs["features"] = encoders.features(examples, rows)
    if "tokens" in method.needs:
        inputs["tokens"] = encoders.tokens(examples, rows)
    if "pixels" in method.needs:
        inputs["pixels"] = encoders.pixels(examples, rows)
    return inputs


def prepared_batch(
    method: Method, examples: NDArray[np.uint8] | Sequence[str], encoders: Encoders
) -> Arrays:
    """Return what a method predicts from, of a few images (n, H, W, 3) or texts.

    Raises:
        ConfigError: As for `prepared_arrays`.
    """
    rows = np.arange(len(examples))
    kept = prepared_arrays(method, examples, rows, encoders)
    return {name: array[rows] for name, array in kept.items()}


def _require_rows(kept: Arrays, rows: int) -> None:
    for name, array in kept.items():
        if len(array) != rows:
            raise ConfigError(
                f"method.name: its prepare made {len(array)} rows of {name!r} out of {rows} "
                f"examples; valid: {rows}"
            )


def _require_alone(method: Method, given: Arrays, kept: Arrays) -> None:
    """Require that a record stays one: what is kept of it may not depend on the others."""
    for row in {0, len(next(iter(given.values()))) - 1}:
        rows = slice(row, row + 1)
        alone = method.prepare({name: array[rows] for name, array in given.items()})
        for name, array in kept.items():
            if not _is_alike(alone[name], array[rows]):
                raise ConfigError(
                    f"method.name: its prepare makes another {name!r} of an example alone than in "
                    "company; valid is one that looks at each example by itself"
                )


def _is_alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape or one.dtype.kind not in "fc":
        # Numbers of words that differ by one are other words.
        return np.array_equal(one, other)
    return np.allclose(one, other, rtol=1e-3, atol=1e-4)


def _is_same(given: Arrays, kept: Arrays) -> bool:
    return given.keys() == kept.keys() and all(kept[name] is given[name] for name in given)
