"""What experts count in predictions, on average: a run's summary and the papers' bar charts.

Luo et al. 2025 (pFedMoAP), appendix A.4, Figure 6: for each image of a client's test set the
weights of the local and the non-local experts, the non-local ones in descending order, averaged
over the test set and over clients. Experts that all clients share (TRIP) keep their order instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from methods import ClientView, Method
from platform.parties.evaluation import EvaluationPlan, Model

# As in evaluation: a large test set at once would need the intermediate results of all its rows.
_ROWS = 512


def mean_expert_weights(
    method: Method, models: Iterable[Model], plan: EvaluationPlan
) -> list[float] | None:
    """Return weight of each expert on the clients' own test images, every client counting the same.

    Args:
        method: The method.
        models: What clients predict with, taken one by one.
        plan: Whose `own` and `classes` are used.

    Returns:
        One number for each expert, adding up to one; the client's own first where the others were
        picked from the pool. None where no client has experts.
    """
    # Fetched round by round, entries come without owners and in no meaningful order: only their
    # ranks can be averaged.
    policy = method.pool_policy()
    is_ranked = policy is not None and not policy.fixed
    found = [
        client_means(weights, is_ranked=is_ranked)
        for weights in (_client_weights(method, model, plan) for model in models)
        if weights is not None
    ]
    return over_clients(found)


def client_means(weights: NDArray[np.float32], *, is_ranked: bool) -> NDArray[np.float64]:
    """Return the mean (E,) of weights (n, E), each image's sorted from the second on."""
    values = np.asarray(weights, np.float64)
    if is_ranked:
        values = np.concatenate((values[:, :1], -np.sort(-values[:, 1:], axis=1)), axis=1)
    return np.asarray(values.mean(axis=0))


def over_clients(means: Sequence[NDArray[np.float64]]) -> list[float] | None:
    """Return unweighted mean of clients' means.

    An expert that a client does not have counts zero.
    """
    if not means:
        return None
    total = np.zeros(max(len(mean) for mean in means))
    for mean in means:
        total[: len(mean)] += mean
    return [float(value) for value in total / len(means)]


def _client_weights(
    method: Method, model: Model, plan: EvaluationPlan
) -> NDArray[np.float32] | None:
    test = plan.own[model.client].arrays
    view = ClientView(model.broadcast, model.state.experts, model.state.personal)
    blocks = []
    for start in range(0, len(test["labels"]), _ROWS):
        rows = slice(start, start + _ROWS)
        batch = {name: value[rows] for name, value in test.items() if name != "labels"}
        weights = method.expert_weights(view, batch, plan.classes)
        if weights is None:
            return None
        blocks.append(weights)
    return np.concatenate(blocks) if blocks else None
