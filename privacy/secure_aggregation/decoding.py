"""Shares of one secret of which a few are wrong: find the secret and the wrong ones.

The m shares of a secret are a Reed-Solomon codeword: the values, at m places, of one polynomial of
degree below t. As long as at most (m - t) / 2 of them are wrong there is one such polynomial that
fits all the others, and the extended Euclidean algorithm finds it (Gao 2003, "A New Algorithm for
Decoding Reed-Solomon Codes"): with g0 = prod (x - x_i) and g1 through all points, stop at the first
remainder of degree below (m + t) / 2; divided by its cofactor it is the polynomial. Wrong places
are zeros of the cofactor, whose degree is at most (m - t) / 2, so more of them never pass. It takes
O(m^2) operations, and only a round in which something is wrong pays for it.

Polynomials are lists of coefficients modulo PRIME, lowest first, without leading zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from privacy.secure_aggregation.shamir import PRIME, SECRET_BYTES, invert_all

_Polynomial = list[int]


def decode(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, frozenset[int]] | None:
    """Rebuild a secret from at least t shares, some of them wrong.

    Args:
        shares: By share index, each at least 1, the share: a field element in 33 bytes.
        threshold: Number t of shares that determine the secret.

    Returns:
        The secret, 32 bytes, and the indices of the shares that do not fit it, at most
        (m - t) / 2 of m; None if more than that are wrong and nothing fits.
    """
    values = {index: int.from_bytes(share, "little") for index, share in shares.items()}
    polynomial = _decode(values, threshold)
    if polynomial is None:
        return None
    secret = polynomial[0] if polynomial else 0
    wrong = frozenset(i for i, value in values.items() if _evaluate(polynomial, i) != value)
    if secret >= 1 << 8 * SECRET_BYTES:
        return None
    return secret.to_bytes(SECRET_BYTES, "little"), wrong


def _decode(values: Mapping[int, int], threshold: int) -> _Polynomial | None:
    remainder, following = _through_zeros(list(values)), _interpolate(values)
    cofactor: _Polynomial = []
    next_cofactor: _Polynomial = [1]
    # A polynomial of degree d has d + 1 coefficients.
    while 2 * (len(following) - 1) >= len(values) + threshold:
        quotient, rest = _divide(remainder, following)
        remainder, following = following, rest
        product = _multiply(quotient, next_cofactor)
        cofactor, next_cofactor = next_cofactor, _subtract(cofactor, product)
    polynomial, rest = _divide(following, next_cofactor)
    return None if rest or len(polynomial) > threshold else polynomial


def _through_zeros(places: Sequence[int]) -> _Polynomial:
    """Return prod (x - place)."""
    product = [1]
    for place in places:
        shifted = [0, *product]
        scaled = [*(place * each for each in product), 0]
        product = [(a - b) % PRIME for a, b in zip(shifted, scaled, strict=True)]
    return product


def _interpolate(values: Mapping[int, int]) -> _Polynomial:
    """Return the polynomial of degree below m through all m points (Lagrange)."""
    whole = _through_zeros(list(values))
    differences = [
        math.prod(place - other for other in values if other != place) % PRIME for place in values
    ]
    total = [0] * len(values)
    for (place, value), inverse in zip(values.items(), invert_all(differences), strict=True):
        weight, carry = value * inverse % PRIME, 0
        # Synthetic division of the product by (x - place), highest coefficient first.
        for at in range(len(values) - 1, -1, -1):
            carry = (whole[at + 1] + carry * place) % PRIME
            total[at] += weight * carry
    return _trim([each % PRIME for each in total])


def _divide(dividend: _Polynomial, divisor: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    inverse = pow(divisor[-1], -1, PRIME)
    rest = list(dividend)
    quotient = [0] * max(0, len(dividend) - len(divisor) + 1)
    for at in range(len(quotient) - 1, -1, -1):
        factor = rest[at + len(divisor) - 1] * inverse % PRIME
        quotient[at] = factor
        for place, each in enumerate(divisor, at):
            rest[place] = (rest[place] - factor * each) % PRIME
    return _trim(quotient), _trim(rest)


def _multiply(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    product = [0] * (len(left) + len(right))
    for at, a in enumerate(left):
        for place, b in enumerate(right, at):
            product[place] += a * b
    return _trim([each % PRIME for each in product])


def _subtract(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    size = max(len(left), len(right))
    padded = ([*each, *[0] * (size - len(each))] for each in (left, right))
    return _trim([(a - b) % PRIME for a, b in zip(*padded, strict=True)])


def _trim(polynomial: _Polynomial) -> _Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial


def _evaluate(polynomial: _Polynomial, place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value
