"""Numbers as people read them: never rounded to the side that would flatter."""

from __future__ import annotations

import math
from typing import Final

_MOST_DIGITS: Final = 12


def epsilon_text(value: float | str | None) -> str:
    """Return an epsilon, rounded up so that no less is stated than was spent."""
    if value is None:
        return "not known"
    if isinstance(value, str) or math.isinf(value):
        return "infinite"
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    if value < 100.0:
        return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"
    return f"{math.ceil(value - 1e-4):d}"


def left_text(value: float) -> str:
    """Return what is left of a budget, no more than there is."""
    return f"{math.floor(100 * value) / 100:.2f}"


def of_a_hundred(share: float) -> str:
    """Return how many of a hundred, rounded up, with as many digits as keep it from reading 100.

    Args:
        share: From 0 to 1; where it is so near to 1 that twelve digits do not tell, 100.
    """
    hundred = 100.0 * share
    for digits in range(2, _MOST_DIGITS + 1):
        scale = 10**digits
        # Down by the last bit, as 75.00000000000001 is 75.
        rounded = math.ceil(hundred * scale * (1.0 - 4e-16)) / scale
        if rounded < 100.0:
            return f"{rounded:.{digits}f}".rstrip("0").rstrip(".")
    return "100"


def share_text(value: float | None) -> str:
    """Return a share in percent."""
    return "not measured" if value is None else f"{100 * value:.1f}%"


def points_text(value: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * value:+.1f} points"


def ranges(numbers: list[int]) -> str:
    """Return whole numbers in words, runs of them as such: 1 to 3, 5."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found)
