"""Schedules of faults over each engine, which itself is killed, stopped and cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines._flare import MISSING
from tests.engines._tormented import FLOWER, Reached, hold, tormented_flare, tormented_flower

SEEDS = range(3)
"""One of each setup."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flower(tmp_path_factory) -> Iterator[Reached]:
    with tormented_flower(tmp_path_factory.mktemp("fl")) as reached:
        yield reached


@pytest.fixture(scope="module")
def flare(tmp_path_factory) -> Iterator[Reached]:
    with tormented_flare(tmp_path_factory.mktemp("nv")) as reached:
        yield reached


@pytest.mark.skipif(not FLOWER.exists(), reason="Flower is not installed: `make flower`")
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_over_flower_survives_a_schedule(tmp_path_factory, flower, seed):
    hold(tmp_path_factory.mktemp("s"), seed, flower)


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.xdist_group("nvflare")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_over_flare_survives_a_schedule(tmp_path_factory, flare, seed):
    hold(tmp_path_factory.mktemp("s"), seed, flare)
