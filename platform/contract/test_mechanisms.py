"""Every method with every mechanism: real rounds are correct, or the method is refused.

Both lists are open: a new method is tested with all mechanisms, a new mechanism with all methods.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from methods import Method, Task, Weighting
from methods.interface.method import Need
from methods.interface.subspace import BASIS, InSubspace
from platform.config import RunConfig
from platform.contract.cases import Case
from platform.contract.driving import (
    RUN,
    CheckedMethod,
    aggregate_of,
    by_coordinate,
    pool_of_rounds,
)
from platform.contract.examples import draw_examples, handed_out
from platform.contract.mechanisms import (
    ASKED,
    MULTIPLIER,
    NAMES,
    NORM,
    THRESHOLD,
    Asked,
    Stage,
    admitted,
    build,
    central_noise,
    configure,
    needs_own_entry_noise,
    set_stage,
    why_refused,
)
from platform.errors import ConfigError
from platform.experiment import method_building
from platform.protection.building import protect_run
from platform.rounds.plan import RoundOutcome
from platform.rounds.runner import RoundRunner
from platform.wire.layout import flatten
from platform.wire.transport import InProcessTransport
from privacy import ReleaseKey, SeededNoise
from privacy.auditing import verify_distribution, verify_noise_variance

SIZES = (6, 9, 12)
STEP = 2 * 8.0 / (2**20 - 1)
"""Step of the grid under `none` and `dp_sgd`: 20 bits over +-8."""
GRID_STEP = NORM / 2**16
"""Largest step of the integer grids: C is 65,536 steps or more."""
SAMPLES, ALPHA = 6_000, 1e-6
"""Enough samples to tell Laplace noise of the same variance from Gaussian noise."""


@pytest.fixture(autouse=True)
def every_need_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the data layer provides every need."""
    monkeypatch.setattr(method_building, "PROVIDED_NEEDS", frozenset(get_args(Need)))


@pytest.fixture(params=ASKED, ids=lambda asked: asked.name)
def asked(request: pytest.FixtureRequest) -> Asked:
    """One way to configure privacy."""
    return cast(Asked, request.param)


def staged(config: RunConfig, method: Method, stores: Path) -> tuple[Stage, CheckedMethod]:
    """Return a federation of three clients, and the method, which keeps their results."""
    data = {n: draw_examples(method, i, SIZES[i]) for i, n in enumerate(NAMES)}
    checked = CheckedMethod(method)
    return set_stage(config, checked, data, stores), checked


def deviation_of_sum(asked: Asked) -> float:
    """Return the standard deviation of the noise on each coordinate of the sum, by formula."""
    survivors = len(NAMES)
    return {
        "none": 0.0,
        "dp_sgd": 0.0,
        "upload_noise": MULTIPLIER * NORM * math.sqrt(survivors),
        "distributed_noise": MULTIPLIER * NORM * math.sqrt(survivors / THRESHOLD),
        "central_noise": MULTIPLIER * NORM,
    }[asked.mechanism]


def clipped(vector: NDArray[Any]) -> NDArray[Any]:
    """Return the vector, clipped to the clipping norm."""
    length = float(np.linalg.norm(vector))
    return vector * min(1.0, NORM / length) if length else vector


def expected_sum(method: Method, asked: Asked, vectors: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the round's sum without noise and rounding."""
    n = len(vectors)
    total = np.zeros_like(vectors[0])
    for vector, size in zip(vectors, SIZES, strict=True):
        # Weights count examples only without a mechanism: they would reveal the number of examples.
        share = size / sum(SIZES) if asked.mechanism == "none" else 1 / n
        weights = {Weighting.EXAMPLES: share, Weighting.UNIFORM: 1 / n, Weighting.SUM: 1.0}
        mine = vector if asked.mechanism in ("none", "dp_sgd") else clipped(vector)
        total = total + by_coordinate(method, weights) * mine
    return total


def test_a_round_is_right_or_refused(
    case: Case, asked: Asked, *, task: Task, method: Method, stores: Path
) -> None:
    """With each mechanism, a round gives the right sum, entries and rows, or is refused."""
    overrides = ["pool.noise=independent"] if needs_own_entry_noise(method, asked) else []
    config = configure(case, asked, *overrides)
    in_rounds = pool_of_rounds(method) is not None
    if overrides and in_rounds and admitted(method, asked):
        # Without this refusal, every client would fail on its own and no error would appear.
        with pytest.raises(ConfigError, match=r"^pool\.noise: 'same' needs"):
            protect_run(configure(case, asked), build(case, config, task))
    reason = why_refused(case, method, asked)
    if reason is not None:
        with pytest.raises(ConfigError) as refused:
            protect_run(config, build(case, config, task))
        assert str(refused.value).startswith(reason)
        assert case.method in str(refused.value)
        assert "; valid: " in str(refused.value)
        return
    stage, checked = staged(config, build(case, config, task), stores)
    assert stage.protection.masked == (asked.masks and bool(method.shared_spec()))
    outcome = stage.play(handed_out(method))
    assert outcome.survivors == NAMES

    spec = method.shared_spec()
    vectors = [flatten(result.update, spec) for result in checked.results]
    expected = expected_sum(method, asked, vectors)
    error = np.abs(outcome.summed.vector - expected)
    # All clients' rounding may add up; noise practically never exceeds seven deviations.
    rounding = len(NAMES) * max(STEP, GRID_STEP)
    assert (error <= rounding + 7 * deviation_of_sum(asked)).all()
    if spec:
        assert np.abs(expected).max() > 4 * rounding, "the comparison would pass on nothing"
        assert stage.protection.sums.signal_to_noise(outcome.summed, 3, 3) is None or (
            asked.mechanism not in ("none", "dp_sgd")
        )
    _require_entries(stage, outcome, checked)
    _require_rows(stage, asked)
    aggregate = aggregate_of(checked, outcome)
    after = method.server_update(stage.state(), aggregate, (), np.random.default_rng(0))
    assert all(np.isfinite(value).all() for value in after.values())


@pytest.mark.parametrize("name", ["upload_noise, bare", "dp_sgd, bare"])
def test_coordinates_in_a_subspace_are_right_or_refused(
    case: Case, name: str, *, task: Task, method: Method, stores: Path
) -> None:
    """In a subspace of two directions, a round sums the updates, projected and then clipped."""
    asked = next(a for a in ASKED if a.name == name)
    if why_refused(case, method, asked) is not None:
        return
    config = configure(case, asked, "privacy.subspace=random", "privacy.rank=2")
    try:
        built = cast(InSubspace, build(case, config, task))
    except ConfigError as refused:
        assert str(refused).startswith("privacy.subspace: ")
        assert "; valid: " in str(refused)
        return
    base = CheckedMethod(built.base)
    data = {n: draw_examples(method, i, SIZES[i]) for i, n in enumerate(NAMES)}
    stage = set_stage(config, replace(built, base=cast(Method, base)), data, stores)
    outcome = stage.play(handed_out(method))
    assert outcome.survivors == NAMES
    whole, directions = built.base.shared_spec(), stage.state()[BASIS].astype(np.float64)
    vectors = [directions @ flatten(result.update, whole) for result in base.results]
    expected = expected_sum(built, asked, vectors)
    error = np.abs(outcome.summed.vector - expected)
    rounding = len(NAMES) * max(STEP, GRID_STEP)
    assert (error <= rounding + 7 * deviation_of_sum(asked)).all()
    assert np.abs(expected).max() > 4 * rounding, "the comparison would pass on nothing"


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_a_pool_that_is_made_once_is_collected(
    case: Case, asked: Asked, *, task: Task, method: Method, stores: Path
) -> None:
    """After the last round, each client uploads only its entry, protected and charged once."""
    policy = method.pool_policy()
    if policy is None or not policy.fixed or why_refused(case, method, asked) is not None:
        return
    config = configure(case, asked)
    stage, checked = staged(config, build(case, config, task), stores)
    outcome = stage.collect()
    assert outcome.survivors == NAMES
    assert outcome.summed.vector.size == 0
    assert len(outcome.entries) == len(NAMES)
    collection, base = stage.protection.collection, checked.broadcast(stage.state())
    assert collection is not None
    entries = [
        {n: value - base.get(n, 0) for n, value in (result.pool_entry or {}).items()}
        for result in checked.results
    ]
    for (_, upload), entry in zip(outcome.entries, entries, strict=True):
        opened = collection.open_entry(upload, base)
        moved = flatten({n: opened[n] - base.get(n, 0) for n in policy.spec}, policy.spec)
        sent = flatten(entry, policy.spec)
        if asked.mechanism in ("none", "dp_sgd"):
            np.testing.assert_allclose(moved, sent, atol=1e-6)
            continue
        error = np.abs(moved - clipped(sent))
        assert (error <= max(STEP, GRID_STEP) + 7 * MULTIPLIER * NORM).all()
    noisy = asked.mechanism not in ("none", "dp_sgd")
    expected = {("pool", "upload_noise" if noisy else "none", "reserved")}
    if asked.mechanism == "dp_sgd":
        expected = {("sum", "dp_sgd", "reserved")} if policy.trains else set()
    for client in stage.clients.values():
        rows = client._store.rows(RUN)
        assert {(row.channel, row.mechanism, row.status) for row in rows} == expected
        assert len(rows) == len(expected)


def _require_entries(stage: Stage, outcome: RoundOutcome, checked: CheckedMethod) -> None:
    if pool_of_rounds(stage.method) is None:
        assert outcome.entries == ()
        return
    assert outcome.entries_void is None
    assert len(outcome.entries) == len(NAMES)
    base = stage.method.broadcast(stage.state())
    for (_, upload), result in zip(outcome.entries, checked.results, strict=True):
        opened = stage.protection.open_entry(upload, base)
        assert result.pool_entry is not None
        assert set(opened) == set(result.pool_entry)
        if stage.config.privacy.mechanism in ("none", "dp_sgd"):
            assert all(np.array_equal(opened[n], v) for n, v in result.pool_entry.items())


def _require_rows(stage: Stage, asked: Asked) -> None:
    """Require one row for each release in each client's own ledger, before settlement."""
    # Even if the noise of sums comes from elsewhere, an entry carries all of its own noise.
    shared_out = asked.mechanism in ("distributed_noise", "central_noise")
    expected = {
        (c, "upload_noise" if c == "pool" and shared_out else asked.mechanism, "reserved")
        for c in stage.protection.channels
    }
    for client in stage.clients.values():
        rows = client._store.rows(RUN)
        assert {(row.channel, row.mechanism, row.status) for row in rows} == expected
        assert len(rows) == len(expected)


@pytest.mark.parametrize("bare", [True, False])
def test_central_noise_is_divided_by_the_planned_size(
    case: Case, bare: bool, *, task: Task, method: Method, stores: Path
) -> None:
    """Central noise on the sum of survivors is divided by the planned size of the cohort."""
    # One of three clients is lost: (two clipped updates + noise) / 3.
    asked = next(a for a in ASKED if a.name == ("central_noise, bare" if bare else "central_noise"))
    if why_refused(case, method, asked) is not None or not method.shared_spec():
        return
    config = configure(case, asked, "privacy.noise_multiplier=2.0")
    stage, checked = staged(config, build(case, config, task), stores)
    outcome = stage.play(handed_out(method), lost=NAMES[:1])
    assert outcome.survivors == NAMES[1:]
    spec = method.shared_spec()
    total = np.sum([clipped(flatten(r.update, spec)) for r in checked.results], axis=0)
    total = total + 2.0 * NORM * central_noise().standard_normal(len(total))
    over = {Weighting.EXAMPLES: 3.0, Weighting.UNIFORM: 3.0, Weighting.SUM: 1.0}
    expected = total / by_coordinate(method, over)
    np.testing.assert_allclose(outcome.summed.vector, expected, atol=2 * GRID_STEP)


def test_noise_is_that_of_the_ledger(
    case: Case, asked: Asked, *, task: Task, method: Method, stores: Path
) -> None:
    """Noise on an empty upload or an empty sum has the distribution that the ledger row names."""
    if why_refused(case, method, asked) is not None or not method.shared_spec():
        return
    overrides = ["pool.noise=independent"] if needs_own_entry_noise(method, asked) else []
    config = configure(case, asked, *overrides)
    stage = set_stage(config, build(case, config, task), {}, stores)
    protection, broadcast = stage.protection, stage.method.broadcast(stage.state())
    noise, layout = SeededNoise(np.random.default_rng(11)), protection.layout
    mechanism, planned = protection.mechanism, config.cohort_size
    if asked.mechanism in ("none", "dp_sgd"):
        # Noise inside training steps cannot be separated; the trainer's tests check its law.
        return
    key = ReleaseKey(run_id=RUN, round_number=1, attempt=1, pseudonym="anybody")
    rows = {row.channel: row for row in protection.releases(key)}
    deviation = mechanism.client_deviation or rows["sum"].standard_deviation
    drawn: list[NDArray[Any]] = []
    while sum(map(len, drawn)) < SAMPLES:
        if mechanism.facts.is_bare_to_server:
            nobody = InProcessTransport(handlers={}, losses=lambda *attempt: frozenset())
            runner = RoundRunner(nobody, lambda *attempt: noise)
            summed = runner.noise_alone(stage.plan()).summed
            drawn.append(summed.vector * layout.divisors(planned, planned))
        else:
            drawn.append(protection.prepare_nothing(broadcast, noise).vector)
    samples = np.concatenate(drawn)
    # On these grids, integer noise is nearly Gaussian: a share's deviation is 46 steps or more.
    verify_noise_variance(samples, deviation, ALPHA)
    verify_distribution(samples, deviation, ALPHA)
