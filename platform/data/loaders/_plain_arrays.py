"""NumPy arrays out of the parts that a pickle holds of them, each part checked before it is used.

The array is a view of the bytes that were read, so that no pickle becomes larger than its file.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_AXES: Final = 8
MOST_EMPTY: Final = 1_000_000
_DTYPES: Final = re.compile(r"b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,5}|O8?")
_LAST_CHARACTER: Final = 0x10FFFF


class NotPlainError(ValueError):
    """What a pickle holds beside plain data, in words that continue a sentence."""


def dtype_of(text: object, state: object) -> np.dtype[Any]:
    """Return a type of numbers, truth values, bytes, texts, or of objects that have to be texts.

    Args:
        text: Kind and size, such as `u1` or `U10`.
        state: What NumPy's pickles put beside it: a version, the byte order, and nothing else.

    Raises:
        NotPlainError: If it is another type, such as one with fields.
    """
    match state:
        case (3, "<" | ">" | "|" | "=" as order, None, None, None, int(), int(), int()):
            pass
        case _:
            raise NotPlainError("it holds an array of a structured or unknown type")
    if not isinstance(text, str) or _DTYPES.fullmatch(text) is None:
        raise NotPlainError(f"it holds an array of type {str(text)[:20]!r}")
    return np.dtype(text if text.startswith("O") else order + text)


def array_of(dtype: np.dtype[Any], shape: object, content: object, *, order: str) -> NDArray[Any]:
    """Return the array, read-only.

    Args:
        dtype: From `dtype_of`.
        shape: A tuple of sizes.
        content: Its bytes, as a text of Latin-1 where Python 2 wrote them; of objects a list.
        order: `C` or `F`.

    Raises:
        NotPlainError: If the parts do not fit each other.
    """
    sizes = _sizes(shape)
    if dtype.kind == "O":
        flat = _texts(content)
    else:
        flat = _numbers(dtype, content)
    if math.prod(sizes) != flat.size:
        raise NotPlainError(f"it holds an array of shape {sizes} with {flat.size} elements")
    made = flat.reshape(sizes, order="F" if order == "F" else "C")
    made.flags.writeable = False
    return made


def _sizes(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES:
        raise NotPlainError("it holds an array without a shape")
    for size in shape:
        if type(size) is not int or not 0 <= size < 2**40:
            raise NotPlainError("it holds an array of an impossible shape")
    # Nothing times a billion takes no bytes, but whoever lists it makes a billion empty lists.
    if not math.prod(shape) and math.prod(max(size, 1) for size in shape) > MOST_EMPTY:
        raise NotPlainError("it holds an empty array of an impossible shape")
    return shape


def _texts(content: object) -> NDArray[Any]:
    if not isinstance(content, list) or any(type(item) is not str for item in content):
        raise NotPlainError("it holds an array of objects that are no texts")
    flat = np.empty(len(content), object)
    flat[:] = content
    return flat


def _numbers(dtype: np.dtype[Any], content: object) -> NDArray[Any]:
    if isinstance(content, str):
        content = content.encode("latin-1")
    if not isinstance(content, bytes) or len(content) % dtype.itemsize:
        raise NotPlainError(f"it holds an array whose content is none of type {dtype.str!r}")
    if dtype.kind == "U" and len(content):
        # A number that is no character would only be noticed when the text is used.
        codes = np.frombuffer(content, f"{dtype.byteorder.replace('|', '=')}u4")
        if codes.max() > _LAST_CHARACTER:
            raise NotPlainError("it holds a text of impossible characters")
    return np.frombuffer(content, dtype)
