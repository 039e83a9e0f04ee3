"""Words as numbers without a vocabulary: each word is hashed to a row of an embedding table."""

from __future__ import annotations

import re
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LONGEST: Final = 200
"""Words of a text that are read; the published code pads and cuts AG News at this length."""
_WORD: Final = re.compile(r"\w+")


def word_numbers(texts: NDArray[Any], buckets: int) -> NDArray[np.int64]:
    """Return the words of each text as row numbers.

    Words are runs of letters, digits and underscores, in small letters; CRC-32 of their UTF-8 says
    which row is theirs, so two words share a row by chance.

    Args:
        texts: Texts (n,).
        buckets: Rows of the table, row 0 being for padding.

    Returns:
        Numbers (n, 200) from 1 to `buckets - 1`, 0 behind a text's last word.
    """
    numbers = np.zeros((len(texts), LONGEST), np.int64)
    for row, text in enumerate(texts):
        words = _WORD.findall(str(text).lower())[:LONGEST]
        codes = [zlib.crc32(word.encode()) for word in words]
        numbers[row, : len(codes)] = np.asarray(codes, np.int64) % (buckets - 1) + 1
    return numbers
