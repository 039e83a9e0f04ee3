"""What an audit's canaries show of a run's epsilon, once its last round is over.

Looked at is what the observer has: how the model has moved from its start to its end. A server that
adds mean changes has added up the sums of all rounds there, divided by the clients that count; a
canary has sent the same in each of them, so nothing that single rounds would show is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from platform.experiment.simulation import Simulation
from platform.protection.charging import as_releases
from platform.rounds.documents import in_rounds
from platform.rounds.run import Progress, Run
from platform.rounds.spending import Spending
from platform.wire.layout import flatten
from privacy import Release
from privacy.auditing import Canaries, CanaryBound, canary_bound, mu_of

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Verdict:
    """What canaries showed.

    Attributes:
        key: Theirs, from which coins and directions follow; no secret any more.
        document: What they showed, as the summary states it.
    """

    key: bytes
    document: Mapping[str, Any]


def judge_canaries(
    simulation: Simulation, progress: Progress, documents: Sequence[Mapping[str, Any]]
) -> Verdict | None:
    """Open the coins and bound epsilon by what the model shows.

    Args:
        simulation: The run, with its canaries.
        progress: After its last round.
        documents: Its committed rounds, as stored.

    Returns:
        The verdict; None without canaries, or where no round had a result.
    """
    canaries, run = simulation.canaries, simulation.run
    rounds = sum(bool(document["survivors"]) for document in in_rounds(documents))
    if canaries is None or not rounds:
        return None
    spec, counted = run.terms.protection.layout.spec, run.terms.config.cohort_size
    before = run.terms.initial_state()
    moved = flatten({n: np.subtract(progress.state[n], before[n], dtype=float) for n in spec}, spec)
    norm = run.terms.config.privacy.clipping_norm or 0.0
    claimed, delta = Spending(run=run).price().observer, run.terms.budget.delta
    charged = _charged(run)
    deviation = max(row.standard_deviation for row in charged)
    claimed_mu = min(_mu(charged), mu_of(claimed, delta))
    bound = canary_bound(
        canaries,
        # A mean is over all who are not canaries.
        moved * counted,
        claimed_mu=claimed_mu,
        delta=delta,
        sent=rounds * norm,
    )
    document = _document(canaries, bound, claimed=claimed, delta=delta)
    document["claimed_mu"] = claimed_mu
    document["seen_deviation"] = bound.deviation / (deviation * math.sqrt(rounds))
    noise = deviation * math.sqrt(rounds * canaries.dimension)
    document["share_of_noise"] = bound.length * norm * rounds / noise
    document["pseudonyms"] = sorted(run.roll.pseudonyms[n] for n in run.terms.config.canary_names)
    return Verdict(canaries.key, document)


def _charged(run: Run) -> list[Release]:
    """Return what one canary was charged, as everybody was."""
    pseudonym = run.roll.pseudonyms[run.terms.config.canary_names[0]]
    with run.records.read() as uow:
        rows = [row for row in uow.ledger.rows(run.run_id) if row.pseudonym == pseudonym]
    charged = [row for row in rows if row.status != "aborted"]
    return as_releases(charged, run.terms.config.mechanisms)


def _mu(charged: Sequence[Release]) -> float:
    """Return the root of the summed squares of sensitivity over standard deviation."""
    factors = {"replace_one": 2.0, "add_or_remove_one": 1.0}
    ratios = (factors[row.relation] * row.clipping_norm / row.standard_deviation for row in charged)
    return math.sqrt(sum(ratio * ratio for ratio in ratios))


def _document(
    canaries: Canaries, bound: CanaryBound, *, claimed: float, delta: float
) -> dict[str, Any]:
    return {
        "canaries": canaries.number,
        "directions": canaries.directions,
        "dimension": canaries.dimension,
        "relation": canaries.relation,
        "confidence": CONFIDENCE,
        "delta": delta,
        "lower_bound": bound.epsilon,
        "claimed": claimed,
        "share": bound.epsilon / claimed,
        "ceiling": bound.ceiling,
        "guessed_lower_bound": bound.guessed,
        "seen_mu": bound.estimate,
        "is_above_claim": bound.epsilon > claimed,
        "is_refuted": bound.is_refuted,
        "is_blind": bound.is_blind,
    }
