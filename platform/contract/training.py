"""A client's and a server's step outside of any round, on drawn examples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from methods import Aggregate, Arrays, ClientView, LocalResult, Method, Visibility, Weighting
from platform.contract.driving import local_trainer
from platform.contract.examples import POPULATION, draw_examples, draw_experts, frozen
from privacy.training import LocalTrainer, TrainingPlan


def rng(seed: int = 3) -> np.random.Generator:
    """Return a fresh generator."""
    return np.random.default_rng(seed)


def start(method: Method) -> tuple[Arrays, Arrays]:
    """Return what a client is sent first, and its first personal state; all read-only."""
    state = frozen(method.init_server(rng(1)))
    return frozen(method.broadcast(state, "one")), frozen(method.init_client(rng(1), rng(2)))


def train(
    method: Method, *, experts: int | None = None, clipping: float | None = None, data: int = 0
) -> LocalResult:
    """Return what a client returns in its first round.

    Args:
        method: The method.
        experts: How many it is handed; None for as many as it asks for.
        clipping: Of each example's gradient, if at all.
        data: Seed of its examples.
    """
    broadcast, personal = start(method)
    return method.client_update(
        ClientView(broadcast, draw_experts(method, experts), personal),
        draw_examples(method, data),
        local_trainer(clipping=clipping),
        rng(),
    )


def epochs(count: int, rate: float) -> LocalTrainer:
    """Return a trainer over so many epochs of batches of three."""
    return LocalTrainer(TrainingPlan(local_epochs=count, batch_size=3, learning_rate=rate))


def server_update(method: Method, state: Arrays, results: Mapping[str, LocalResult]) -> Arrays:
    """Return the server's next state, after the named clients returned these results."""
    sums = {
        name: np.asarray(
            sum(result.update[name] for result in results.values())
            / (1 if spec.weighting is Weighting.SUM else len(results))
        )
        for name, spec in method.shared_spec().items()
    }
    individual = {key: frozen(dict(result.update)) for key, result in results.items()}
    pool = [result.pool_entry for result in results.values() if result.pool_entry is not None]
    shown = individual if method.visibility is Visibility.PER_CLIENT else None
    aggregate = Aggregate(frozen(sums), 16.0, len(results), POPULATION, shown)
    return method.server_update(frozen(state), aggregate, pool, rng(9))


def same_arrays(one: Arrays, other: Arrays) -> bool:
    """Whether two mappings hold the same names and, bit for bit, the same values."""
    return set(one) == set(other) and all(np.array_equal(one[n], other[n]) for n in one)


def same_results(one: LocalResult, other: LocalResult) -> bool:
    """Whether two clients returned the same, personal part and metrics included."""
    return (
        same_arrays(one.update, other.update)
        and same_arrays(one.pool_entry or {}, other.pool_entry or {})
        and same_arrays(one.personal, other.personal)
        and one.metrics == other.metrics
    )
