"""Cohorts and simulated losses: exact sizes, by seed, uniformly."""

from __future__ import annotations

from collections import Counter

import pytest

from platform.config import parse_config
from platform.rounds.attempts import draw_cohort, simulated_losses

NAMES = tuple(f"client-{i:02d}" for i in range(20))


def config(**cohort):
    seeds = {"cohort": cohort.pop("seed")} if "seed" in cohort else {}
    return parse_config(
        {
            "name": "c",
            "task": {"clients": 20},
            "method": {"name": "coop"},
            "training": {"local_steps": 1},
            "cohort": cohort,
            "seeds": seeds,
        }
    )


def test_the_size_is_the_configured_one():
    chosen = config(size=7)
    for number in range(1, 20):
        cohort = draw_cohort(chosen, NAMES, number)
        assert len(set(cohort)) == 7
        assert list(cohort) == sorted(cohort)
        assert set(cohort) <= set(NAMES)


def test_by_default_everybody_takes_part():
    assert draw_cohort(config(), NAMES, 1) == NAMES


def test_cohorts_differ_by_round_and_seed_and_by_nothing_else():
    chosen = config(size=7)
    cohorts = {draw_cohort(chosen, NAMES, number) for number in range(1, 30)}
    assert len(cohorts) == 29
    assert draw_cohort(chosen, NAMES, 4) == draw_cohort(config(size=7), NAMES, 4)
    assert draw_cohort(chosen, NAMES, 4) != draw_cohort(config(size=7, seed=1), NAMES, 4)


def test_everybody_is_drawn_equally_often():
    """600 rounds of 5 of 20: 150 expected, six deviations of sqrt(600/4 x 3/4) = 10.6."""
    chosen = config(size=5)
    counts = Counter(n for r in range(600) for n in draw_cohort(chosen, NAMES, r))
    assert set(counts) == set(NAMES)
    assert all(abs(count - 150) < 64 for count in counts.values())


@pytest.mark.parametrize(
    ("size", "rate", "lost"),
    [(10, 0.2, 2), (10, 0.0, 0), (10, 0.25, 2), (10, 0.35, 4), (7, 0.2, 1), (20, 0.9, 18)],
)
def test_exactly_the_rounded_share_is_lost(size, rate, lost):
    chosen = config(size=size, dropout_rate=rate)
    losses = simulated_losses(chosen)
    for number in range(1, 12):
        cohort = draw_cohort(chosen, NAMES, number)
        gone = losses(number, 1, cohort)
        assert len(gone) == lost == round(rate * size)
        assert gone <= set(cohort)


def test_losses_differ_by_round_and_attempt_and_are_the_same_again():
    losses = simulated_losses(config(dropout_rate=0.3))
    again = simulated_losses(config(dropout_rate=0.3))
    drawn = {losses(number, attempt, NAMES) for number in range(1, 6) for attempt in (1, 2)}
    assert len(drawn) == 10
    assert losses(3, 2, NAMES) == again(3, 2, NAMES)


def test_losses_of_a_secret_cohort_do_not_depend_on_who_else_was_drawn():
    """Each client is lost on a coin of its own, in every cohort alike: else no draw amplifies."""
    secret = parse_config(
        {
            "name": "c",
            "task": {"clients": 20},
            "method": {"name": "promptfl"},
            "training": {"local_steps": 1},
            "cohort": {"size": 10, "minimum": 1, "retries": 0, "dropout_rate": 0.3},
            "privacy": {
                "mechanism": "central_noise",
                "clipping_norm": 1.0,
                "noise_multiplier": 1.0,
            },
        }
    )
    losses = simulated_losses(secret)
    often = 0
    for number in range(1, 101):
        everybody = losses(number, 1, NAMES)
        often += len(everybody)
        for drawn in (NAMES[:1], NAMES[3:9], NAMES[::2]):
            assert losses(number, 1, drawn) == everybody & set(drawn)
    # 2,000 coins at 0.3: 600 expected, six deviations of sqrt(600 x 0.7) = 20.5.
    assert abs(often - 600) < 123
