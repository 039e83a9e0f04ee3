"""The record's game under `dp_sgd`: one chosen record, and everything that training hands on.

A run is a client's whole training in one round, with the run's own method, trainer and noise. What
is looked at: the update, the pool entry, and the personal state, because later releases start from
it; each on its own, and all tensors together, which is where the bound on one record lies.

The canary is chosen by what it does. Candidates with made-up features, long enough to be clipped,
are trained on once without noise; the one (under replace_one: the pair) that moves the tensors
furthest, measured in the noise that each carries, is the canary and its neighbour. The same
difference is the direction on which a run is projected. A bad choice costs power only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, count

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, ClientView, Examples
from platform.bootstrap import RunPlan
from platform.config.randomness import stream
from platform.experiment.simulation import trainer_factory
from platform.parties.profile import ClientProfile, TrainerFactory, first_state, noise_of
from platform.parties.totality import train
from platform.privacy_auditing.outcome import (
    ChannelAudit,
    Guesses,
    Progress,
    Vector,
    problems_of,
    standardise,
)
from privacy import DpSgd, Release
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
"""Records beside the canary, from the client's own data."""

NOISE_RUNS = 12
"""Trainings on no data, whose noise is compared between rounds."""

SCALE_RUNS = 4
LENGTHS = (1.0, 10.0, 100.0)
"""Norms of made-up features; those of images are 1."""

CANDIDATES = 8
"""Made-up records of each length."""

EXPERT_SPREAD = 0.05
_LITTLE = 1e-9
"""Noise that is credited to a tensor without any."""

Tensors = Mapping[str, Vector]


@dataclass(frozen=True, kw_only=True)
class RecordGame:
    """One client's training under audit.

    Attributes:
        run: The run as it was planned.
        profile: Of the client.
        mechanism: What its training is charged as.
        charge: The ledger's row for it.
        canaries: How many trainings are judged.
        error: Probability that a right build fails here.
    """

    run: RunPlan
    profile: ClientProfile
    mechanism: DpSgd
    charge: Release
    canaries: int
    error: float


@dataclass(frozen=True)
class _Setting:
    """The inputs that all trainings share: messages to the client, and its state before."""

    make_trainer: TrainerFactory
    broadcast: Arrays
    experts: tuple[Arrays, ...]
    personal: Arrays


@dataclass(frozen=True)
class _Canary:
    """The record, its neighbour, and what is expected of them.

    Attributes:
        present: Data with the canary.
        absent: Data without it, or with its neighbour in its place.
        difference: What the canary adds to each tensor.
        scale: Deviation of each tensor's noise.
    """

    present: Examples
    absent: Examples
    difference: Tensors
    scale: Mapping[str, float]


def audit_training(game: RecordGame, tell: Progress) -> ChannelAudit:
    """Play the game on a client's training and compare its noise between rounds.

    Args:
        game: What is audited.
        tell: Told of each training.
    """
    config, setting, rounds = game.run.terms.config, _setting(game), count(1)
    claim = claim_of(game.charge, config.privacy.target_delta, config.privacy.accountant)
    canary = _choose(game, setting, rounds)
    total = game.canaries + calibration_runs(game.canaries)
    first, directions = next(rounds), _directions(game, canary)

    def released(is_in: bool, _: np.random.Generator) -> Tensors:
        number = next(rounds)
        data = canary.present if is_in else canary.absent
        tell(CHANNEL, number - first, total)
        arrays = _arrays(_train(game, setting, data, number), canary.scale)
        return {name: arrays[name] for name in directions}

    scores = play_record_unit(
        released,
        directions=directions,
        canaries=game.canaries,
        rng=stream(config.seed, "audit", CHANNEL),
    )
    error = game.error / 2.0
    result = judge_record_unit(scores, claim, family_wise_error=error)
    shown = scores.scores[:, scores.arrays.index(result.array or TOGETHER)]
    guesses = standardise(shown, threshold=RECORD_THRESHOLD, distance=1.0, mu=claim.mu)
    return ChannelAudit(
        channel=CHANNEL,
        mechanism=config.privacy.mechanism,
        result=result,
        guesses=Guesses(guesses, scores.included),
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
    # The game has more rounds than the run, and all of them must be alike.
    training = config.training.model_copy(update={"schedule": None})
    config = config.model_copy(update={"training": training})
    make_trainer = trainer_factory(config, game.run.learning.device, profile.protection)
    return _Setting(make_trainer, broadcast, tuple(entries), first_state(profile))


def _train(
    game: RecordGame,
    setting: _Setting,
    data: Examples,
    round_number: int,
) -> dict[str, Vector]:
    """Return every tensor that one training hands on, flat, by where it goes and its name."""
    profile = dataclasses.replace(game.profile, data=data)
    result = train(
        profile,
        setting.make_trainer,
        ClientView(setting.broadcast, setting.experts, setting.personal),
        round_number=round_number,
        noise=noise_of(profile, round_number),
    )
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
    """Return the same training where every record is in every batch and nothing is noised."""
    mechanism = dataclasses.replace(game.mechanism, noise_multiplier=0.0, sampling_probability=1.0)
    protection = dataclasses.replace(game.profile.protection, training=mechanism)
    profile = dataclasses.replace(game.profile, protection=protection)
    bare = dataclasses.replace(game, profile=profile, mechanism=mechanism)
    return bare, _setting(bare)


def _choose(game: RecordGame, setting: _Setting, rounds: Iterator[int]) -> _Canary:
    """Return the candidate, or the pair of them, that moves the tensors furthest in their noise."""
    bare, quiet = _without_noise(game)
    data = game.profile.data
    others = _rows(data, slice(0, OTHERS))
    scale = _scale(game, setting, others, rounds)
    sets = [
        others,
        *(
            Examples(
                {
                    name: np.concatenate([array, record.arrays[name]])
                    for name, array in others.arrays.items()
                }
            )
            for record in _candidates(game)
        ),
    ]
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


def _candidates(game: RecordGame) -> Iterator[Examples]:
    rng = stream(game.run.terms.config.seed, "audit's candidates")
    classes = len(game.run.learning.classes)
    for length in LENGTHS:
        for _ in range(CANDIDATES):
            yield Examples(
                {
                    name: np.array([rng.integers(classes)], array.dtype)
                    if name == "labels"
                    else _made_up(array, length, rng)
                    for name, array in game.profile.data.arrays.items()
                }
            )


def _made_up(array: NDArray[np.generic], length: float, rng: np.random.Generator) -> Vector:
    """Return one row like an array's: of this norm, or of integers in the array's own range."""
    shape = (1, *array.shape[1:])
    if array.dtype.kind != "f":
        drawn = rng.integers(array.min(), array.max(), shape, endpoint=True)
        return np.asarray(drawn).astype(array.dtype)
    direction = rng.standard_normal(shape)
    return np.asarray(length * direction / np.linalg.norm(direction)).astype(array.dtype)


def _scale(
    game: RecordGame, setting: _Setting, data: Examples, rounds: Iterator[int]
) -> dict[str, float]:
    """Return deviation of each tensor's noise, 0 where it has none."""
    runs = [_train(game, setting, data, next(rounds)) for _ in range(SCALE_RUNS)]
    return {
        name: float(np.sqrt(np.stack([run[name] for run in runs]).var(axis=0, ddof=1).mean()))
        for name in runs[0]
    }


def _arrays(tensors: Tensors, scale: Mapping[str, float]) -> dict[str, Vector]:
    """Return tensors in units of their noise, joined by release, and all of them joined.

    What has no noise counts as if it had a little: then nothing hides it.
    """
    scaled = {name: vector / (scale[name] or _LITTLE) for name, vector in tensors.items()}
    joined: dict[str, list[Vector]] = {}
    own: dict[str, Vector] = {}
    for name, vector in scaled.items():
        part, _, tensor = name.partition("/")
        joined.setdefault(part, []).append(vector)
        # The prompt is update, entry and personal state at once; its noise is one draw.
        own.setdefault(tensor, vector)
    arrays = {part: np.concatenate(vectors) for part, vectors in joined.items()}
    return {**arrays, TOGETHER: np.concatenate(list(own.values()))}


def _directions(game: RecordGame, canary: _Canary) -> dict[str, Vector]:
    """Return the expected effect of the canary on each array that it changes.

    A sampled record counts as in as many batches as is usual, and in one at least: below that no
    threshold tells it from noise.
    """
    mechanism = game.mechanism
    often = max(mechanism.sampling_probability, 1.0 / mechanism.steps)
    arrays = _arrays(canary.difference, canary.scale)
    return {name: often * vector for name, vector in arrays.items() if vector.any()}


def _noise_problems(
    game: RecordGame, setting: _Setting, rounds: Iterator[int], alpha: float
) -> tuple[str, ...]:
    """Return whether two rounds share noise: trainings on no data move by their noise alone."""
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
