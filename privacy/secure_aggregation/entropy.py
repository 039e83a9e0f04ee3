"""Where secret bytes come from.

Every function that needs secret bytes takes their source as an argument, and only the outermost
ones have the operating system's as default. A test that gives fixed bytes runs the real code.
"""

from __future__ import annotations

from collections.abc import Callable

Entropy = Callable[[int], bytes]
"""Called with a number of bytes, returns as many that nobody can guess, such as `os.urandom`."""


def draw(entropy: Entropy, size: int) -> bytes:
    """Draw secret bytes and refuse a source that gives another number of them.

    Args:
        entropy: The source.
        size: How many bytes are needed.

    Returns:
        Exactly `size` bytes.

    Raises:
        ValueError: If the source is broken; fewer bytes would be a weaker key.
    """
    drawn = entropy(size)
    if len(drawn) != size:
        raise ValueError(f"entropy gave {len(drawn)} bytes where {size} were asked for")
    return drawn
