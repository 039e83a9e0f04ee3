"""Numbers of an example and a step: the published generator, their law, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import vmap

from methods.networks.draws import MARK, Draws, marked, mixed, normals, uniforms
from tests.methods._training import rng

GOLDEN = 0x9E3779B97F4A7C15


def test_the_mixer_is_the_published_generator():
    """SplitMix64 from the seed 1234567, as its test vectors are published."""
    states = [(1234567 + k * GOLDEN) % 2**64 for k in (1, 2, 3)]
    signed = torch.tensor([s - 2**64 if s >= 2**63 else s for s in states])
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(word) % 2**64 for word in mixed(signed)] == expected


@pytest.fixture(scope="module")
def marks() -> torch.Tensor:
    return torch.from_numpy(rng().integers(-(2**63), 2**63, 2_000))


def test_the_law_of_the_numbers(marks: torch.Tensor):
    """200,000 of them: a share of p is off by 0.0006 for p = 0.025 at most seven times in 10^14."""
    drawn = normals(marks, 5, 100).numpy()
    assert drawn.mean() == pytest.approx(0.0, abs=7 / 200_000**0.5)
    assert drawn.std() == pytest.approx(1.0, abs=7 / 400_000**0.5)
    for quantile, share in ((-1.959964, 0.025), (-0.674490, 0.25), (0.0, 0.5), (1.281552, 0.9)):
        deviation = (share * (1 - share) / 200_000) ** 0.5
        assert np.mean(drawn < quantile) == pytest.approx(share, abs=7 * deviation)
    flat = uniforms(marks, 5, 100)
    assert 0.0 < flat.min() < 1e-4
    assert 1.0 - 1e-4 < flat.max() < 1.0


def test_an_example_has_its_own_numbers_in_any_company(marks: torch.Tensor):
    whole = normals(marks[:8], 5, 3)
    assert torch.equal(normals(marks[2:3], 5, 3)[0], whole[2])
    assert torch.equal(vmap(lambda mark: normals(mark[None], 5, 3)[0])(marks[:8]), whole)


def test_a_mark_is_of_the_content():
    arrays = {"a": np.array([[1.0], [1.0], [2.0]]), "b": np.array([[3], [3], [3]])}
    first, second, third = marked(arrays)[MARK]
    assert first == second != third
    assert marked({n: v[2:] for n, v in arrays.items()})[MARK] == [third]


def test_keys_go_step_by_step_and_leave_the_batches_alone():
    mine, plain = rng(1), rng(1)
    draws = Draws(mine)
    first = draws.key
    assert draws.key == first
    draws.advance({})
    second = draws.key
    assert second != first
    assert mine.random() == plain.random()
    # Two trainings in a row, as one: the second begins where the first has ended.
    again = rng(1)
    one, other = Draws(again), Draws(again)
    assert [one.key, other.key] == [first, second]
