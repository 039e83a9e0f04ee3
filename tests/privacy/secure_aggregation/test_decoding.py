"""Wrong shares of a secret are found, checked against a search through all subsets."""

from __future__ import annotations

import itertools
import random

import pytest

from privacy.errors import InvalidShare
from privacy.secure_aggregation.shamir import PRIME, combine, deal, decode, lagrange_at_zero


def shared(rng, threshold, indices):
    secret = rng.randbytes(32)
    coefficients = [rng.randrange(PRIME) for _ in range(threshold - 1)]
    return secret, dict(
        zip(indices, deal(secret, coefficients=coefficients, indices=indices), strict=True)
    )


def spoil(rng, shares, wrong):
    others = {
        i: (int.from_bytes(shares[i], "little") + rng.randrange(1, PRIME)) % PRIME for i in wrong
    }
    return shares | {i: value.to_bytes(33, "little") for i, value in others.items()}


def value_at(shares, chosen, place):
    """Lagrange's formula, term by term, at any place."""
    total = 0
    for i in chosen:
        term = int.from_bytes(shares[i], "little")
        for j in chosen:
            if j != i:
                term = term * (place - j) * pow(i - j, -1, PRIME) % PRIME
        total += term
    return total % PRIME


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
            secret, shares = shared(rng, threshold, indices)
            spoilt = spoil(rng, shares, places := rng.sample(indices, wrong))
            found = decode(spoilt, threshold)
            assert found == searched(spoilt, threshold)
            if 2 * wrong <= count - threshold:
                assert found == (secret, frozenset(places))


def test_liars_that_agree_on_another_polynomial_are_not_believed_against_the_bound():
    # Five shares of one secret and four of another, t = 3: a majority of nine needs six.
    rng, indices = random.Random(1), list(range(1, 10))
    (_, true), (_, other) = shared(rng, 3, indices), shared(rng, 3, indices)
    assert decode({i: (true if i < 6 else other)[i] for i in indices}, 3) is None
    secret, true = shared(rng, 3, indices)
    found = decode({i: (true if i < 7 else other)[i] for i in indices}, 3)
    assert found == (secret, frozenset({7, 8, 9}))


def test_exactly_as_many_wrong_ones_as_there_is_room_for():
    rng, indices = random.Random(2), list(range(1, 101))
    secret, shares = shared(rng, 67, indices)
    places = rng.sample(indices, 17)
    assert decode(spoil(rng, shares, places[:16]), 67) == (secret, frozenset(places[:16]))
    assert decode(spoil(rng, shares, places), 67) is None
    assert decode(shares, 67) == (secret, frozenset())


def test_the_zero_secret_and_what_is_no_secret():
    indices = (1, 2, 3, 4)
    zeros = dict.fromkeys(indices, bytes(33))
    assert decode(zeros | {3: b"\1" + bytes(32)}, 2) == (bytes(32), frozenset({3}))
    # A constant of 2^256 fits all shares and is no 32-byte secret.
    large = dict.fromkeys(indices, (2**256).to_bytes(33, "little"))
    assert decode(large, 2) is None
    with pytest.raises(InvalidShare):
        combine([large[1], large[2]], lagrange_at_zero((1, 2)))
