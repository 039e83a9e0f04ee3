"""What a client's labels say of it: how much of its data is of each class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def label_shares(labels: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """Return the share of each class (C,) among labels (n,); zeros without labels.

    It is a statistic of records that no noised step returns.

    Args:
        labels: Classes (n,), each below C.
        classes: C.
    """
    return (np.bincount(labels, minlength=classes) / max(len(labels), 1)).astype(np.float32)
