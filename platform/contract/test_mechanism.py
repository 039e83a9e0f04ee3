"""Mechanisms from outside: an upload moves no further than is charged, under the noise that is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from methods import Task
from methods.interface.registry import BUILT_IN_METHODS
from platform.config import RunConfig, Sources
from platform.contract.cases import Case, Plugin
from platform.contract.driving import RUN
from platform.contract.examples import draw_examples
from platform.contract.mechanisms import NAMES, Asked, build, configure, set_stage
from platform.contract.test_mechanisms import ALPHA, SAMPLES
from privacy import (
    ClientMechanism,
    MechanismFacts,
    Release,
    ReleaseKey,
    SeededNoise,
    epsilons,
    protect_upload,
    release_of_upload,
)
from privacy.auditing import verify_distribution, verify_noise_variance

KIND = "mechanism"
SIZE = 512
KEY = ReleaseKey(run_id=RUN, round_number=1, attempt=1, pseudonym="anybody")
METHOD = Case("promptfl", "promptfl", BUILT_IN_METHODS, {"context_tokens": 2})


class Silent(SeededNoise):
    """Draws zeros, so that what is left is what the client's vector makes."""

    def draw(self, law: Any, deviation: float, size: int) -> NDArray[Any]:
        """Return zeros."""
        return np.zeros(size)

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(size)


@pytest.fixture
def sources(plugin: Plugin) -> Sources:
    """Return what configurations are read with."""
    return Sources.of(plugin.plugins)


@pytest.fixture
def facts(plugin: Plugin, sources: Sources) -> MechanismFacts:
    """Return what the mechanism under test declares."""
    return sources.mechanisms.facts_of(plugin.name)


def configured(facts: MechanismFacts, sources: Sources, masks: bool) -> RunConfig:
    """Return a small federation under the mechanism; `ConfigError` if it cannot be."""
    size = "per_sample_clipping_norm" if facts.is_in_steps else "clipping_norm"
    noise = {size: 0.5, "noise_multiplier": 1.5} if facts.claims else {}
    asked = Asked(facts.name, {"mechanism": facts.name, **noise}, masks)
    return configure(METHOD, asked, sources=sources)


@pytest.fixture
def upload(facts: MechanismFacts, sources: Sources, task: Task, stores: Path) -> ClientMechanism:
    """Return what protects an upload in a run."""
    config = configured(facts, sources, masks=not facts.noises_alone)
    return set_stage(config, build(METHOD, config, task), {}, stores).protection.mechanism


@pytest.fixture
def row(upload: ClientMechanism) -> Release:
    """Return what one upload is charged as."""
    return release_of_upload(upload, SIZE, KEY)


def sent(upload: ClientMechanism, vector: NDArray[Any], noise: SeededNoise) -> NDArray[Any]:
    """Return what leaves a client, as numbers."""
    grid = upload.grid(SIZE, bits=24, clients=len(NAMES))
    return np.asarray(grid.dequantise(protect_upload(vector, upload, grid, noise).levels), float)


def test_it_is_charged_under_its_name_and_has_a_price(facts: MechanismFacts, row: Release) -> None:
    """A row has the mechanism's name and facts, and an accountant prices it."""
    if facts.is_in_steps or not facts.claims:
        return
    assert row.mechanism == facts
    assert 0 < epsilons([row], 1e-5).observer < math.inf


def test_an_upload_moves_no_further_than_is_charged(
    facts: MechanismFacts, upload: ClientMechanism, row: Release
) -> None:
    """Without its noise, another vector of a client moves the upload by the charged sensitivity."""
    if facts.is_in_steps or not facts.claims:
        return
    rng = np.random.default_rng(8)
    ray = rng.normal(size=SIZE)
    rays = [ray, -ray, 1e6 * ray, -1e6 * ray, 1e-9 * ray, rng.normal(size=SIZE), np.eye(SIZE)[0]]
    quiet = [sent(upload, vector, Silent(np.random.default_rng(2))) for vector in rays]
    if row.relation == "add_or_remove_one":
        quiet = [np.zeros(SIZE), *quiet]
        moved = max(float(np.linalg.norm(one)) for one in quiet)
    else:
        moved = max(float(np.linalg.norm(a - b)) for a in quiet for b in quiet)
    said = f"without noise an upload moves by {moved:.4g}, and {row.sensitivity:.4g} is charged"
    # Rounding to the grid moves each coordinate by a step at most.
    assert moved <= row.sensitivity * (1 + 1e-3) + 1e-4, f"{said}: protect must clip to less"
    assert moved > 0.5 * row.sensitivity, f"{said}: the vectors that are compared do not reach it"


def test_its_noise_is_that_of_its_row(
    facts: MechanismFacts, upload: ClientMechanism, row: Release
) -> None:
    """Noise on an empty upload, or on an empty sum, has the deviation and the law of its row."""
    if facts.is_in_steps or not facts.claims:
        return
    noise = SeededNoise(np.random.default_rng(11))
    deviation, drawn = row.standard_deviation, list[NDArray[Any]]()
    if facts.is_shared_out:
        # A row is about a sum, and each client draws a share.
        assert deviation <= upload.noise_in_sum(len(NAMES))
        deviation = upload.client_deviation
    while sum(map(len, drawn)) < SAMPLES:
        if facts.is_bare_to_server:
            of_sum = upload.noise_for_sum(SIZE, noise, {})
            assert of_sum is not None
            grid = upload.grid(SIZE, bits=24, clients=len(NAMES))
            drawn.append(np.asarray(grid.dequantise(of_sum.steps), float))
        else:
            drawn.append(sent(upload, np.zeros(SIZE), noise))
    samples = np.concatenate(drawn)
    verify_noise_variance(samples, deviation, ALPHA)
    if row.law.name in ("gaussian", "discrete_gaussian", "skellam"):
        verify_distribution(samples, deviation, ALPHA)


def test_equal_generators_give_equal_noise(upload: ClientMechanism) -> None:
    """All noise comes from the given source: equal sources give equal bytes, others do not."""
    vector = np.full(SIZE, 1e-3)
    sources = (SeededNoise(np.random.default_rng(seed)) for seed in (5, 5, 6))
    one, same, other = (sent(upload, vector, source) for source in sources)
    assert np.array_equal(one, same)
    assert upload.client_deviation == 0 or not np.array_equal(one, other)


@pytest.mark.parametrize("masks", [True, False])
def test_a_round_under_it_is_released_and_charged(
    facts: MechanismFacts, sources: Sources, masks: bool, *, task: Task, stores: Path
) -> None:
    """A round in which a client is lost gives a finite sum, and each client has its own row."""
    if not masks and facts.is_shared_out:
        return
    config = configured(facts, sources, masks)
    data = {name: draw_examples(build(METHOD, config, task), i) for i, name in enumerate(NAMES)}
    stage = set_stage(config, build(METHOD, config, task), data, stores)
    outcome = stage.play(lost=NAMES[:1])
    assert outcome.survivors == NAMES[1:]
    assert np.isfinite(outcome.summed.vector).all()
    for name in NAMES[1:]:
        rows = stage.clients[name]._store.rows(RUN)
        assert {(one.mechanism, one.channel) for one in rows} == {(facts.name, "sum")}
        assert all(replace(one, status="reserved") == one for one in rows)
