"""The record's game under `dp_sgd`: one chosen record, and all results of the training.

A game is a client's whole training in one round, with the run's own method, trainer and noise. It
looks at the update, the pool entry, and the personal state (later releases start from it): each by
itself, and all tensors together, because the bound on one record covers them together.

The canary is chosen by its effect. Each candidate has made-up features, long enough to be clipped,
and trains once without noise. The candidate (under replace_one: the pair) that moves the tensors
furthest, in units of their noise, is the canary with its neighbour. A training is projected on
their difference. A bad choice only costs power.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, count, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, ClientView, Examples
from platform.config.randomness import stream
from platform.experiment.privacy_auditing.outcome import (
    ChannelAudit,
    ChannelGame,
    Progress,
    Vector,
    problems_of,
    standardise,
)
from platform.experiment.simulation import trainer_factory
from platform.parties.profile import TrainerFactory, first_state, noise_of
from platform.parties.totality import train
from privacy import DpSgd
from privacy.auditing import (
    RECORD_THRESHOLD,
    calibration_runs,
    claim_of,
    judge_record_unit,
    play_record_unit,
    verify_independence,
)

CHANNEL = "training"
TOGETHER = "everything"
OTHERS = 3
"""Number of records beside the canary, from the client's own data."""

NOISE_RUNS = 12
"""Number of trainings on no data, whose noise is compared between rounds."""

SCALE_RUNS = 4
LENGTHS = (1.0, 10.0, 100.0)
"""Norms of made-up features; features of images have norm 1."""

CANDIDATES = 8
"""Number of made-up records of each length."""

EXPERT_SPREAD = 0.05
_LITTLE = 1e-9
"""The assumed noise of a tensor without noise."""

Tensors = Mapping[str, Vector]
_Setting = tuple[TrainerFactory, ClientView]
"""Makes the trainer of every training; the client's broadcast, experts and personal state."""


@dataclass(frozen=True, kw_only=True)
class RecordGame(ChannelGame):
    """One client's training under audit; `mechanism` is what the training is charged as."""

    mechanism: DpSgd


@dataclass(frozen=True)
class _Canary:
    """The canary and its neighbour.

    Attributes:
        present: Data with the canary.
        absent: Data without the canary, or with its neighbour in its place.
        difference: The expected effect of the canary on each tensor.
        scale: Standard deviation of each tensor's noise.
    """

    present: Examples
    absent: Examples
    difference: Tensors
    scale: Mapping[str, float]


def audit_training(game: RecordGame, tell: Progress) -> ChannelAudit:
    """Play the game on a client's training and compare its noise between rounds."""
    config, setting, rounds = game.run.terms.config, _setting(game), count(1)
    claim = claim_of(game.charge, config.privacy.target_delta, config.privacy.accountant)
    canary = _choose(game, setting, rounds)
    total = game.canaries + calibration_runs(game.canaries)
    # A sampled record counts as in the usual number of batches, but in at least one: with fewer, no
    # threshold tells it from noise.
    often = max(game.mechanism.sampling_probability, 1.0 / game.mechanism.steps)
    arrays = _arrays(canary.difference, canary.scale)
    directions = {name: often * vector for name, vector in arrays.items() if vector.any()}
    first = next(rounds)

    def released(is_in: bool, _: np.random.Generator) -> Tensors:
        number = next(rounds)
        data = canary.present if is_in else canary.absent
        tell(CHANNEL, number - first, total)
        seen = _arrays(_train(game, setting, data, number), canary.scale)
        return {name: seen[name] for name in directions}

    scores = play_record_unit(
        released,
        directions=directions,
        canaries=game.canaries,
        rng=stream(config.seed, "audit", CHANNEL),
    )
    error = game.error / 2.0
    result = judge_record_unit(scores, claim, family_wise_error=error)
    shown = scores.scores[:, scores.arrays.index(result.array or TOGETHER)]
    return ChannelAudit(
        channel=CHANNEL,
        mechanism=config.privacy.mechanism,
        result=result,
        scores=standardise(shown, threshold=RECORD_THRESHOLD, distance=1.0, mu=claim.mu),
        included=scores.included,
        problems=_noise_problems(game, setting, rounds, error),
    )


def _setting(game: RecordGame) -> _Setting:
    config, method, profile = game.run.terms.config, game.profile.method, game.profile
    rng = stream(config.seed, "audit's experts")
    broadcast = method.broadcast(method.init_server(rng), profile.name)
    policy = method.pool_policy()
    entries: list[Arrays] = []
    for _ in range(0 if policy is None or policy.closes else policy.k):
        entries.append(
            {
                name: broadcast.get(name, np.zeros(tensor.shape, np.float32))
                + EXPERT_SPREAD * rng.standard_normal(tensor.shape, np.float32)
                for name, tensor in (policy.spec if policy is not None else {}).items()
            }
        )
    # The game plays more rounds than the run has, and all must be alike.
    training = config.training.model_copy(update={"schedule": None})
    config = config.model_copy(update={"training": training})
    make_trainer = trainer_factory(config, game.run.learning.device, profile.protection)
    return make_trainer, ClientView(broadcast, tuple(entries), first_state(profile))


def _train(
    game: RecordGame, setting: _Setting, data: Examples, round_number: int
) -> dict[str, Vector]:
    """Return every resulting tensor of one training, flat, by its purpose and name."""
    profile = dataclasses.replace(game.profile, data=data)
    noise = noise_of(profile, round_number)
    result = train(profile, *setting, round_number=round_number, noise=noise)
    parts = {
        "update": result.update,
        "pool entry": result.pool_entry or {},
        "personal state": result.personal,
    }
    return {
        f"{part}/{name}": np.asarray(array, np.float64).ravel()
        for part, arrays in parts.items()
        for name, array in sorted(arrays.items())
    }


def _without_noise(game: RecordGame) -> tuple[RecordGame, _Setting]:
    """Return the same training without noise, with every record in every batch."""
    mechanism = dataclasses.replace(game.mechanism, noise_multiplier=0.0, sampling_probability=1.0)
    protection = dataclasses.replace(game.profile.protection, training=mechanism)
    profile = dataclasses.replace(game.profile, protection=protection)
    bare = dataclasses.replace(game, profile=profile, mechanism=mechanism)
    return bare, _setting(bare)


def _choose(game: RecordGame, setting: _Setting, rounds: Iterator[int]) -> _Canary:
    """Return the candidate or pair that moves the tensors furthest, in units of their noise."""
    bare, quiet = _without_noise(game)
    data = game.profile.data
    others = _rows(data, slice(0, OTHERS))
    runs = [_train(game, setting, others, next(rounds)) for _ in range(SCALE_RUNS)]
    # The standard deviation of each tensor's noise.
    scale = {
        name: float(np.sqrt(np.stack([run[name] for run in runs]).var(axis=0, ddof=1).mean()))
        for name in runs[0]
    }
    sets, own = [others], others.arrays
    for made in _candidates(game):
        sets.append(Examples({n: np.concatenate([a, made[n]]) for n, a in own.items()}))
    trained = [_train(bare, quiet, examples, next(rounds)) for examples in sets]
    pairs: Iterator[tuple[int, int]] = iter((i, 0) for i in range(1, len(sets)))
    if game.mechanism.relation == "replace_one":
        pairs = combinations(range(1, len(sets)), 2)
    differences = {pair: _minus(trained[pair[0]], trained[pair[1]]) for pair in pairs}
    lengths = {
        pair: float(np.linalg.norm(_arrays(difference, scale)[TOGETHER]))
        for pair, difference in differences.items()
    }
    best = max(lengths, key=lambda pair: lengths[pair])
    return _Canary(sets[best[0]], sets[best[1]], differences[best], scale)


def _candidates(game: RecordGame) -> Iterator[Arrays]:
    """Yield made-up records: rows of some norm, or of integers in the range of the data's."""
    rng = stream(game.run.terms.config.seed, "audit's candidates")
    classes, own = len(game.run.learning.classes), game.profile.data.arrays
    for length, _ in product(LENGTHS, range(CANDIDATES)):
        made: dict[str, NDArray[Any]] = {}
        for name, array in own.items():
            shape = (1, *array.shape[1:])
            if name == "labels":
                row = np.array([rng.integers(classes)])
            elif array.dtype.kind != "f":
                row = rng.integers(array.min(), array.max(), shape, endpoint=True)
            else:
                direction = rng.standard_normal(shape)
                row = length * direction / np.linalg.norm(direction)
            made[name] = np.asarray(row).astype(array.dtype)
        yield made


def _arrays(tensors: Tensors, scale: Mapping[str, float]) -> dict[str, Vector]:
    """Return tensors in units of their noise: joined by release, and all together.

    A tensor without noise counts as having a little, so its difference becomes large.
    """
    scaled = {name: vector / (scale[name] or _LITTLE) for name, vector in tensors.items()}
    joined: dict[str, list[Vector]] = {}
    own: dict[str, Vector] = {}
    for name, vector in scaled.items():
        part, _, tensor = name.partition("/")
        joined.setdefault(part, []).append(vector)
        # The prompt is update, entry and personal state at once, with one draw of noise.
        own.setdefault(tensor, vector)
    arrays = {part: np.concatenate(vectors) for part, vectors in joined.items()}
    return {**arrays, TOGETHER: np.concatenate(list(own.values()))}


def _noise_problems(
    game: RecordGame, setting: _Setting, rounds: Iterator[int], alpha: float
) -> tuple[str, ...]:
    """Return a problem if two rounds share noise; trainings on no data move by noise alone."""
    bare, quiet = _without_noise(game)
    nothing = _rows(game.profile.data, slice(0, 0))
    still = _train(bare, quiet, nothing, next(rounds))
    scale = dict.fromkeys(still, 1.0)
    drawn = []
    for _ in range(NOISE_RUNS):
        moved = _train(game, setting, nothing, next(rounds))
        drawn.append(_arrays(_minus(moved, still), scale)[TOGETHER])
    return problems_of((partial(verify_independence, np.stack(drawn), alpha),))


def _minus(first: Tensors, second: Tensors) -> dict[str, Vector]:
    return {name: vector - second[name] for name, vector in first.items()}


def _rows(data: Examples, rows: slice) -> Examples:
    return Examples({name: array[rows] for name, array in data.arrays.items()})
