"""`sotto.secure_sum`, and the two sides for real parties."""

from __future__ import annotations

import numpy as np
import pytest

import sotto
from sotto.sums import BITS

NAMES = tuple(f"c{number}" for number in range(6))


@pytest.fixture
def vectors():
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=8) / 10 for name in NAMES}


def rounding(count, clipping_norm=1.0):
    """Half a step of the grid for each vector."""
    return count * clipping_norm / (2**BITS - 1)


@pytest.mark.parametrize("lost", [set(), {"c3"}])
def test_the_sum_is_that_of_the_vectors_that_came(vectors, lost):
    total = sotto.secure_sum(vectors, lost=lost, clipping_norm=1.0)
    expected = sum(vector for name, vector in vectors.items() if name not in lost)
    assert total == pytest.approx(expected, abs=rounding(6))


def test_a_long_vector_is_scaled_to_the_norm():
    total = sotto.secure_sum({"a": [3.0, 4.0], "b": [0.0, 0.0]}, clipping_norm=1.0)
    assert total == pytest.approx([0.6, 0.8], abs=1e-6)


def test_too_few_left_open_no_sum(vectors):
    with pytest.raises(sotto.Error, match="masked_input"):
        sotto.secure_sum(vectors, lost={"c1", "c2"}, clipping_norm=1.0)
    # With fewer to answer it opens.
    sotto.secure_sum(vectors, lost={"c1", "c2"}, threshold=3, clipping_norm=1.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"clipping_norm": float("nan")}, "clipping_norm"),
        ({"lost": {"nobody"}}, "lost"),
        ({"corrupt": 6}, "corrupt"),
        ({"corrupt": 3, "threshold": 3}, "threshold"),
        ({"threshold": 7}, "threshold"),
        ({"vectors": [[1.0], [2.0]]}, "vectors"),
        ({"vectors": {1: [1.0], "b": [2.0]}}, "names"),
    ],
)
def test_what_is_not_valid_is_refused(vectors, changes, field):
    with pytest.raises(sotto.Error) as caught:
        sotto.secure_sum(**{"vectors": vectors, "clipping_norm": 1.0, **changes})
    assert caught.value.field == field and str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("vector", [[1.0], [[1.0] * 8], ["x"] * 8])
def test_a_vector_of_another_kind_is_named(vectors, vector):
    with pytest.raises(sotto.Error) as caught:
        sotto.secure_sum({**vectors, "c1": vector}, clipping_norm=1.0)
    assert caught.value.field == "vectors['c1']"


def test_no_number_of_a_client_is_in_an_error(vectors):
    with pytest.raises(sotto.Error) as caught:
        sotto.secure_sum({**vectors, "c1": [float("inf"), *([0.123456] * 7)]}, clipping_norm=1.0)
    assert "0.123" not in str(caught.value) and caught.value.value is None


def exchanged(agreed, clients):
    """A sum of real parties: nothing but names and bytes goes between them."""
    server = sotto.SecureSumServer(agreed)
    answers = {name: client.hello for name, client in clients.items()}
    while not server.done:
        sent = server.step(answers)
        answers = {name: clients[name].answer(message) for name, message in sent.items()}
    return server


def test_real_parties_exchange_bytes(vectors):
    agreed = sotto.SecureSum(NAMES, 8, 1.0, corrupt=1)
    clients = {n: sotto.SecureSumClient(agreed, n, vectors[n]) for n in NAMES}
    server = exchanged(agreed, clients)
    assert server.names == NAMES and all(client.done for client in clients.values())
    assert server.total == pytest.approx(sum(vectors.values()), abs=rounding(6))


def test_another_message_is_refused_and_the_right_one_still_taken(vectors):
    agreed = sotto.SecureSum(NAMES, 8, 1.0)
    clients = {n: sotto.SecureSumClient(agreed, n, vectors[n]) for n in NAMES}
    server = sotto.SecureSumServer(agreed)
    sent = server.step({name: client.hello for name, client in clients.items()})
    for wrong in (b"", sent["c1"], sent["c0"][:-1] + bytes([sent["c0"][-1] ^ 1])):
        with pytest.raises(sotto.Error):
            clients["c0"].answer(wrong)
    assert clients["c0"].answer(sent["c0"])
    with pytest.raises(sotto.Error, match="not there yet"):
        _ = server.total


@pytest.mark.parametrize(
    "other",
    [
        {"clipping_norm": 2.0},
        {"size": 9},
        {"corrupt": 2},
        {"name": "another"},
        {"names": (*NAMES, "c7")},
    ],
)
def test_parties_that_agreed_on_something_else_refuse_each_other(vectors, other):
    agreed = {"names": NAMES, "size": 8, "clipping_norm": 1.0}
    mine, theirs = sotto.SecureSum(**agreed), sotto.SecureSum(**{**agreed, **other})
    clients = {n: sotto.SecureSumClient(mine, n, vectors[n]) for n in NAMES}
    with pytest.raises(sotto.Error):
        sotto.SecureSumServer(theirs).step({n: c.hello for n, c in clients.items()})
