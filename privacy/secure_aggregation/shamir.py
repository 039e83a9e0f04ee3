"""Shamir's t-of-n secret sharing of 32-byte secrets (Shamir 1979).

The field is the integers modulo 2^257 - 93, the largest prime below 2^257: every 32-byte secret is
an element, a share takes 33 bytes, and a random 257-bit number is rejected with probability below
2^-250, so that coefficients are exactly uniform at the cost of one draw. Fewer than t shares then
say nothing at all about the secret.

Share indices are small, which both halves use: Horner's rule multiplies by the index without
reducing until the end, and Lagrange coefficients are computed once for a set of indices and used
for every secret of the round. Nothing here runs in constant time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from privacy.errors import InvalidShare
from privacy.secure_aggregation.entropy import Entropy, draw

PRIME = 2**257 - 93
SECRET_BYTES = 32
SHARE_BYTES = 33

_DRAWS = 8


def draw_coefficients(count: int, *, entropy: Entropy) -> tuple[int, ...]:
    """Draw uniform field elements by rejection.

    Args:
        count: How many.
        entropy: Source of random bytes, such as `os.urandom`.

    Returns:
        `count` integers in [0, PRIME).

    Raises:
        ValueError: If the source gives too few bytes, or eight out-of-range numbers in a row,
            which a working source does with probability below 2^-1900.
    """
    return tuple(_draw_element(entropy) for _ in range(count))


def _draw_element(entropy: Entropy) -> int:
    for _ in range(_DRAWS):
        element = int.from_bytes(draw(entropy, SHARE_BYTES), "little") & (2**257 - 1)
        if element < PRIME:
            return element
    raise ValueError("entropy does not give random bytes")


def deal(secret: bytes, *, coefficients: Sequence[int], indices: Sequence[int]) -> list[bytes]:
    """Evaluate secret + a1 x + ... + a(t-1) x^(t-1) at every index.

    Args:
        secret: 32 bytes, read as a little-endian integer.
        coefficients: The t - 1 values a1 to a(t-1), uniform in [0, PRIME).
        indices: Share indices, each at least 1.

    Returns:
        One share of 33 little-endian bytes for each index, in their order.

    Raises:
        ValueError: If the secret does not have 32 bytes or an index is below 1.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"secret has {len(secret)} bytes; valid is {SECRET_BYTES}")
    if any(index < 1 for index in indices):
        raise ValueError("share indices start at 1; index 0 would be the secret")
    polynomial = (*reversed(coefficients), int.from_bytes(secret, "little"))
    return [_evaluate(polynomial, index) for index in indices]


def _evaluate(polynomial: Sequence[int], index: int) -> bytes:
    value = 0
    for coefficient in polynomial:
        value = value * index + coefficient
    return (value % PRIME).to_bytes(SHARE_BYTES, "little")


def lagrange_at_zero(indices: Sequence[int]) -> tuple[int, ...]:
    """Return the weights that turn shares at these indices into the secret.

    Args:
        indices: Exactly t distinct share indices, each at least 1.

    Returns:
        The coefficients prod(x_j) / prod(x_j - x_i) over j != i modulo PRIME, in order.

    Raises:
        ValueError: If an index is repeated or below 1.
    """
    if len(set(indices)) != len(indices) or any(index < 1 for index in indices):
        raise ValueError("share indices must be distinct and at least 1")
    product = math.prod(indices)
    denominators = [
        own * math.prod([other - own for other in indices if other != own]) % PRIME
        for own in indices
    ]
    return tuple(product * inverse % PRIME for inverse in invert_all(denominators))


def invert_all(values: Sequence[int]) -> list[int]:
    """Invert field elements, none of them 0, with one inversion (Montgomery's trick)."""
    prefixes = list(itertools.accumulate(values, lambda a, b: a * b % PRIME, initial=1))
    running = pow(prefixes.pop(), -1, PRIME)
    inverses = []
    for value, prefix in zip(reversed(values), reversed(prefixes), strict=True):
        inverses.append(running * prefix % PRIME)
        running = running * value % PRIME
    return inverses[::-1]


def is_share(share: bytes) -> bool:
    """Tell whether the bytes are the one encoding of a field element."""
    return len(share) == SHARE_BYTES and int.from_bytes(share, "little") < PRIME


def combine(shares: Sequence[bytes], coefficients: Sequence[int]) -> bytes:
    """Rebuild a secret from exactly t shares.

    Args:
        shares: The shares, in the order of the indices that gave the coefficients.
        coefficients: From `lagrange_at_zero`.

    Returns:
        The secret, 32 bytes.

    Raises:
        InvalidShare: If the result is no 32-byte secret, so that some share is wrong. Wrong
            shares often combine to a well-formed secret: the caller must check what it got.
    """
    total = sum(
        int.from_bytes(share, "little") * coefficient
        for share, coefficient in zip(shares, coefficients, strict=True)
    )
    secret = total % PRIME
    if secret >= 1 << 8 * SECRET_BYTES:
        raise InvalidShare("the shares do not combine to a secret")
    return secret.to_bytes(SECRET_BYTES, "little")
