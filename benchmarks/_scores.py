"""Shared by the pages of results: means with their spread, and the origin of the numbers."""

from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.optimize import brentq

import platform
from platform.experiment.environment import environment

OPPONENT = (
    "The opponent here is a prompt that one client trains alone, **which is not the best that a",
    "client alone can do**: zero-shot CLIP with a search over words for each name solves",
    "`homonyms` without any federation (99 percent). So no number here says what a federation",
    "gains; [handwriting](handwriting.md) compares with a client alone at its best.",
)
"""The warning of every page that compares with training alone."""


def mu_of(epsilon: float, delta: float = 1e-5) -> float:
    """Sensitivity over deviation of one Gaussian release (Balle and Wang 2018, Theorem 8)."""

    def excess(mu: float) -> float:
        lower = stats.norm.cdf(-epsilon / mu + mu / 2)
        return float(lower - np.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2) - delta)

    return float(brentq(excess, 1e-3, 50.0))


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation; a single value has 0, and no values give a dash."""
    if not values:
        return "-"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def half_width(values: Sequence[float]) -> float:
    """Half of the 95% t interval of a mean."""
    number = len(values)
    return float(stats.t.ppf(0.975, number - 1) * statistics.stdev(values) / number**0.5)


def interval(values: Sequence[float], sign: str = "") -> str:
    """Mean with its 95% t interval; `sign` is `+` for differences."""
    middle, half = statistics.mean(values), half_width(values)
    shown = (f"{value:{sign}.1f}" for value in (middle, middle - half, middle + half))
    return "{} [{}, {}]".format(*shown)


def provenance() -> list[str]:
    """Command, date, commit and versions."""
    facts = environment("cpu")
    name = Path(sys.argv[0]).name
    command = " ".join(["python", f"benchmarks/{name}", *sys.argv[1:]])
    return [
        f"- Command: `{command}`",
        f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {facts['commit']}",
        f"- Python {platform.python_version()}, torch {version('torch')}, "
        f"open_clip {version('open_clip_torch')}, numpy {version('numpy')}, CPU",
        "",
    ]
