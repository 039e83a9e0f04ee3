"""SWAD: the valley's bookkeeping by hand and against queues, and segments that are averaged."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods import ClientView, fedavg, swad
from methods.swad import Config, Swad, count_segments, held_out
from tests.methods._tiny_networks import some_examples, tiny
from tests.methods._training import rng, trainer

DEEP = (0.9, 0.7, 0.6, 0.6, 0.5, 0.6, 0.7, 0.66, *(0.9 for _ in range(6)))


def mean_of(counts, values) -> float:
    return sum(n * v for n, v in zip(counts, values, strict=True)) / sum(counts)


def patience(optimum: int, overfit: int, **options) -> Config:
    return Config(optimum_patience=optimum, overfit_patience=overfit, **options)


def test_segments_three_to_five_and_not_two_to_five():
    """Begins with .5, threshold .6 x 1.3 = .78, over at the third .9: (3 + 4 + 5) / 3."""
    losses = (0.9, 0.5, 0.6, 0.7, 0.66, 0.9, 0.9, 0.9)
    found = count_segments(losses, patience(3, 3))
    assert found.first == 1
    assert mean_of(found.final, range(1, 9)) == 4.0
    plain = count_segments(losses, patience(3, 3, bookkeeping="plain"))
    # With the segment that the copy was made of: (2 + 3 + 4 + 5) / 4.
    assert mean_of(plain.final, range(1, 9)) == 3.5


def test_a_segment_that_counts_twice():
    """(3 + 4 + 5 + 5 + 6 + 7 + 8) / 7; the plain valley is 5 to 8."""
    found = count_segments(DEEP, patience(3, 6))
    assert mean_of(found.final, range(1, 15)) == pytest.approx(38 / 7)
    assert found.final == found.settled
    plain = count_segments(DEEP, patience(3, 6, bookkeeping="plain"))
    assert plain.final == (0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0)


def by_queues(losses, optimum: int, overfit: int, tolerance: float) -> float:
    """Segments 1, 2, 3, ... averaged with two queues and a running mean, step by step."""
    converge, smooth = deque(maxlen=optimum), deque(maxlen=overfit)
    average = None

    def add(value: float) -> None:
        nonlocal average
        mean, count = average
        average = (value, 1) if count == 0 else (mean + (value - mean) / (count + 1), count + 1)

    for value, loss in enumerate(losses, start=1):
        converge.append((value, loss))
        smooth.append((value, loss))
        if average is None:
            if len(converge) < optimum or np.argmin([one[1] for one in converge]) != 0:
                continue
            first, average = converge[0][0], (converge[0][0], 0)
            threshold = np.mean([one[1] for one in converge]) * (1 + tolerance)
            for place in range(optimum - overfit):
                add(converge[1 + place][0])
            if overfit > optimum:
                queue = list(smooth)[: overfit - optimum + 1]
                high = [place + 1 for place, one in enumerate(queue) if one[1] > threshold]
                for one in queue[max(high, default=0) + 1 :]:
                    add(one[0])
        elif smooth[0][0] >= first:
            if min(one[1] for one in smooth) > threshold:
                return average[0]
            add(smooth[0][0])
    if average is None:
        return len(losses)
    smooth.popleft()
    while smooth and min(one[1] for one in smooth) <= threshold:
        add(smooth.popleft()[0])
    return average[0]


class Segments:
    """A trainer whose segment t has weights t at every step, whatever it is asked to train."""

    def __init__(self) -> None:
        self.now = 0

    def fit(self, objective, parameters, examples, *, groups, rng, **options):
        self.now += 1
        return {name: np.full_like(value, self.now) for name, value in parameters.items()}


class Told(Swad):
    """A method that is told its losses."""

    losses = ()

    def _loss(self, network, arrays):
        return self.losses[int(network["head.bias"][0]) - 1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 6))
def test_what_is_kept_gives_the_average_of_the_queues(losses, optimum, overfit):
    """After every round, from a sum and the last segments alone."""
    method = tiny(Told, swad, optimum_patience=optimum, overfit_patience=overfit)
    object.__setattr__(method, "losses", losses)
    personal, segments = method.init_client(rng(1), rng(2)), Segments()
    for end in range(1, len(losses) + 1):
        view = ClientView({}, personal=personal)
        personal = method.client_update(view, some_examples(6, 1), segments, rng()).personal
        expected = by_queues(losses[:end], optimum, overfit, 0.3)
        got = method.average(personal)["head.bias"][0]
        assert got == pytest.approx(expected, rel=1e-6)


def test_a_segment_is_the_mean_over_its_steps():
    """Of plain training on the same examples by one step, by two and by three."""
    method, plain = tiny(Swad, swad, 3, 4), tiny(fedavg.FedAvg, fedavg, 3, 4)
    personal, data = method.init_client(rng(1), rng(2)), some_examples(12, 3)
    start = {name: personal[name] for name in method.personal_layers}
    held = held_out(data.arrays["labels"], 0.2, int(personal[swad.SPLIT]))
    seen = type(data)({name: array[~held] for name, array in data.arrays.items()})
    after = [
        plain.client_update(ClientView(start), seen, trainer(steps=steps), rng(5)).update
        for steps in (1, 2, 3)
    ]
    result = method.client_update(ClientView({}, personal=personal), data, trainer(steps=3), rng(5))
    assert dict(result.update) == {}
    averaged = method.average(result.personal)
    for name, value in start.items():
        expected = value + sum(one[name] for one in after) / 3
        np.testing.assert_allclose(averaged[name], expected, atol=1e-6)
        np.testing.assert_allclose(result.personal[name], value + after[-1][name], atol=1e-6)


def test_examples_that_are_held_out():
    """Of 6, 2 and 1: two (1.2, rounded up), one, and none, as it is the last of its class."""
    labels = np.array([0, 1, 0, 2, 0, 0, 1, 0, 0])
    held = held_out(labels, 0.2, 7)
    assert [held[labels == label].sum() for label in range(3)] == [2, 1, 0]
    assert np.array_equal(held, held_out(labels, 0.2, 7))
    assert any(not np.array_equal(held, held_out(labels, 0.2, seed)) for seed in range(8))
