"""Shamir's t-of-n secret sharing of 32-byte secrets (Shamir 1979).

The field is the integers modulo 2^257 - 93, the largest prime below 2^257: every 32-byte secret is
an element, a share takes 33 bytes, and a random 257-bit number is rejected with probability below
2^-250, so that coefficients are exactly uniform at the cost of one draw. Fewer than t shares then
say nothing at all about the secret.

Share indices are small, which both halves use: Horner's rule multiplies by the index without
reducing until the end, and Lagrange coefficients are computed once for a set of indices and used
for every secret of the round. Nothing here runs in constant time.

`decode` finds the secret, and the wrong shares, where a few of them are wrong. The m shares of a
secret are a Reed-Solomon codeword: the values, at m places, of one polynomial of degree below t. As
long as at most (m - t) / 2 of them are wrong there is one such polynomial that fits all the others,
and the extended Euclidean algorithm finds it (Gao 2003, "A New Algorithm for Decoding Reed-Solomon
Codes"): with g0 = prod (x - x_i) and g1 through all points, stop at the first remainder of degree
below (m + t) / 2; divided by its cofactor it is the polynomial. Wrong places are zeros of the
cofactor, whose degree is at most (m - t) / 2, so more of them never pass. It takes O(m^2)
operations, and only a round in which something is wrong pays for it.

Polynomials are lists of coefficients modulo PRIME, lowest first, without leading zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from privacy.errors import InvalidShare
from privacy.randomness import Entropy, draw

PRIME = 2**257 - 93
SECRET_BYTES = 32
SHARE_BYTES = 33

_DRAWS = 8


def draw_coefficients(count: int, *, entropy: Entropy) -> tuple[int, ...]:
    """Draw `count` uniform field elements, in [0, PRIME), by rejection.

    `ValueError` if the source gives too few bytes, or eight out-of-range numbers in a row, which a
    working source does with probability below 2^-1900.
    """
    return tuple(_draw_element(entropy) for _ in range(count))


def _draw_element(entropy: Entropy) -> int:
    for _ in range(_DRAWS):
        element = int.from_bytes(draw(entropy, SHARE_BYTES), "little") & (2**257 - 1)
        if element < PRIME:
            return element
    raise ValueError("entropy does not give random bytes")


def deal(secret: bytes, *, coefficients: Sequence[int], indices: Sequence[int]) -> list[bytes]:
    """Evaluate secret + a1 x + ... + a(t-1) x^(t-1) at every index, in 33 little-endian bytes each.

    The secret is 32 bytes, read as a little-endian integer; the t - 1 coefficients are uniform in
    [0, PRIME). `ValueError` if the secret does not have 32 bytes or an index is below 1.
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
    """Return the weights that turn shares at exactly t indices into the secret.

    They are prod(x_j) / prod(x_j - x_i) over j != i modulo PRIME, in order. `ValueError` if an
    index is repeated or below 1.
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
    """Rebuild a secret of 32 bytes from exactly t shares, in the order of their coefficients.

    `InvalidShare` if the result is no 32-byte secret, so that some share is wrong. Wrong shares
    often combine to a well-formed secret: the caller must check what it got.
    """
    total = sum(
        int.from_bytes(share, "little") * coefficient
        for share, coefficient in zip(shares, coefficients, strict=True)
    )
    secret = total % PRIME
    if secret >= 1 << 8 * SECRET_BYTES:
        raise InvalidShare("the shares do not combine to a secret")
    return secret.to_bytes(SECRET_BYTES, "little")


_Polynomial = list[int]


def decode(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, frozenset[int]] | None:
    """Rebuild a secret from at least t shares, some of them wrong.

    `shares` has by share index, each at least 1, a field element in 33 bytes. The result is the
    secret, and the indices of the shares that do not fit it, at most (m - t) / 2 of m; None if more
    than that are wrong and nothing fits.
    """
    values = {index: int.from_bytes(share, "little") for index, share in shares.items()}
    polynomial = _decode(values, threshold)
    if polynomial is None:
        return None
    secret = polynomial[0] if polynomial else 0
    wrong = frozenset(i for i, value in values.items() if _value_at(polynomial, i) != value)
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


def _value_at(polynomial: _Polynomial, place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value
