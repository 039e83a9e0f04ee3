"""Shamir's scheme against polynomials worked by hand, and its two promises."""

from __future__ import annotations

import itertools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import isprime

from privacy.errors import InvalidShare
from privacy.secure_aggregation import shamir


def encode(value, size):
    return value.to_bytes(size, "little")


def test_the_modulus_is_the_largest_prime_below_2_to_the_257():
    assert isprime(shamir.PRIME)
    assert not any(isprime(candidate) for candidate in range(shamir.PRIME + 1, 2**257))
    assert shamir.PRIME > 2**256


def test_a_line_and_a_parabola_by_hand():
    # 7 + 3x at 1, 2, 5; 1 + 2x + 3x^2 at 1, 2, 10.
    line = shamir.deal(encode(7, 32), coefficients=(3,), indices=(1, 2, 5))
    assert line == [encode(value, 33) for value in (10, 13, 22)]
    parabola = shamir.deal(encode(1, 32), coefficients=(2, 3), indices=(1, 2, 10))
    assert parabola == [encode(value, 33) for value in (6, 17, 321)]


def test_lagrange_coefficients_by_hand():
    # At 1 and 2 the line through them has the value 2 f(1) - f(2) at zero.
    assert shamir.lagrange_at_zero((1, 2)) == (2, shamir.PRIME - 1)
    # At 1, 2, 3: 3 f(1) - 3 f(2) + f(3).
    assert shamir.lagrange_at_zero((1, 2, 3)) == (3, shamir.PRIME - 3, 1)
    # At 2 and 5: 5/3 f(2) - 2/3 f(5).
    third = pow(3, -1, shamir.PRIME)
    assert shamir.lagrange_at_zero((2, 5)) == (5 * third % shamir.PRIME, -2 * third % shamir.PRIME)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(2, 12), data=st.data())
def test_any_t_of_n_rebuild_any_secret(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    indices = tuple(range(1, count + 1))
    coefficients = shamir.draw_coefficients(threshold - 1, entropy=os.urandom)
    shares = shamir.deal(secret, coefficients=coefficients, indices=indices)
    chosen = data.draw(st.permutations(indices))[:threshold]
    weights = shamir.lagrange_at_zero(chosen)
    assert shamir.combine([shares[index - 1] for index in chosen], weights) == secret


def test_fewer_than_t_shares_fit_every_secret_equally():
    # Perfect secrecy: for two shares of a 3-of-n secret, every other secret has exactly one
    # polynomial that gives the same two shares, found here by solving for its coefficients.
    prime = shamir.PRIME
    shares = shamir.deal(encode(7, 32), coefficients=(11, 13), indices=(1, 2))
    one, two = (int.from_bytes(share, "little") for share in shares)
    for other in (0, 1, 8, 2**256 - 1):
        # a + b = one - other and 2a + 4b = two - other.
        second = (two - other - 2 * (one - other)) * pow(2, -1, prime) % prime
        first = (one - other - second) % prime
        again = shamir.deal(encode(other, 32), coefficients=(first, second), indices=(1, 2))
        assert again == shares


def test_numbers_outside_the_field_are_drawn_again():
    draws = iter([b"\xff" * 33, encode(shamir.PRIME, 33), encode(5, 33)])
    assert shamir.draw_coefficients(1, entropy=lambda size: next(draws)) == (5,)
    with pytest.raises(ValueError, match="entropy"):
        shamir.draw_coefficients(1, entropy=lambda size: b"\xff" * size)
    with pytest.raises(ValueError, match="entropy"):
        shamir.draw_coefficients(1, entropy=lambda size: b"\0" * (size - 1))


def test_shares_have_one_encoding():
    for share in (bytes(33), encode(shamir.PRIME - 1, 33)):
        assert shamir.is_share(share)
    for other in (encode(shamir.PRIME, 33), bytes(32), bytes(34), b""):
        assert not shamir.is_share(other)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="32"):
        shamir.deal(bytes(31), coefficients=(), indices=(1,))
    for indices in ((0, 1), (1, 1), (-1, 2)):
        with pytest.raises(ValueError, match="indices"):
            shamir.lagrange_at_zero(indices)
    with pytest.raises(ValueError, match="index 0"):
        shamir.deal(bytes(32), coefficients=(1,), indices=(0, 1))
    with pytest.raises(ValueError):
        shamir.combine([bytes(33)], (1, 2))


def value_at(shares, chosen, place):
    """Lagrange's formula, term by term, at any place."""
    total = 0
    for i in chosen:
        term = int.from_bytes(shares[i], "little")
        for j in chosen:
            if j != i:
                term = term * (place - j) * pow(i - j, -1, shamir.PRIME) % shamir.PRIME
        total += term
    return total % shamir.PRIME


def searched(shares, threshold):
    """Through every t shares a polynomial; the one with few enough shares off it, if any."""
    allowed = (len(shares) - threshold) // 2
    for chosen in itertools.combinations(shares, threshold):
        wrong = {
            i for i in shares if value_at(shares, chosen, i) != int.from_bytes(shares[i], "little")
        }
        secret = value_at(shares, chosen, 0)
        if len(wrong) <= allowed and secret < 2**256:
            return secret.to_bytes(32, "little"), frozenset(wrong)
    return None


@pytest.mark.parametrize("count", range(2, 8))
def test_the_search_finds_the_same(count):
    rng = random.Random(count)
    indices = sorted(rng.sample(range(1, 2**32), count))
    for threshold in range(2, count + 1):
        for wrong in range(count - threshold + 1):
            secret = rng.randbytes(32)
            coefficients = [rng.randrange(shamir.PRIME) for _ in range(threshold - 1)]
            dealt = shamir.deal(secret, coefficients=coefficients, indices=indices)
            shares = dict(zip(indices, dealt, strict=True))
            places = rng.sample(indices, wrong)
            for i in places:
                off = rng.randrange(1, shamir.PRIME)
                shares[i] = encode((int.from_bytes(shares[i], "little") + off) % shamir.PRIME, 33)
            found = shamir.decode(shares, threshold)
            assert found == searched(shares, threshold)
            if 2 * wrong <= count - threshold:
                assert found == (secret, frozenset(places))


def test_the_zero_secret_and_what_is_no_secret():
    indices = (1, 2, 3, 4)
    zeros = dict.fromkeys(indices, bytes(33))
    assert shamir.decode(zeros | {3: b"\1" + bytes(32)}, 2) == (bytes(32), frozenset({3}))
    # A constant of 2^256 fits all shares and is no 32-byte secret.
    large = dict.fromkeys(indices, (2**256).to_bytes(33, "little"))
    assert shamir.decode(large, 2) is None
    with pytest.raises(InvalidShare):
        shamir.combine([large[1], large[2]], shamir.lagrange_at_zero((1, 2)))
