"""SWAD: weights averaged at every step over a flat valley; centralised, with no federation.

Cha et al. 2021, "SWAD: Domain Generalization by Seeking Flat Minima" (NeurIPS), here by its
published code (khanrc/swad, commit 252190e: swad.py, trainer.py, config.yaml). One party holds all
data, so nothing is shared. A round is a *segment*, the steps between two evaluations: its weights
are averaged over every step. At its end the party measures the validation loss of the *current*
weights on examples that it holds out of training.

- The valley begins where the oldest of the last N_s losses is their minimum (the first on ties).
  Losses up to their mean times 1 + r belong to it; it ends when the last N_e are all above.
- `bookkeeping: published` counts segments as the code does. It starts the average as a copy of the
  valley's first segment, at count 0, so that the next segment overwrites it. If N_e is above N_s,
  it looks back further than that segment, so that some segments count twice. `plain` counts each
  segment from the valley's first to its last once.
- Without a valley the result is the last segment. A prediction after any round is the result if
  training had ended there.

Departures: an optimiser's moments start anew with each segment, as with each round here, and the
held-out examples are drawn class by class. Where no class has two examples, losses are those of the
training examples. No network here has statistics of batches that would need a new pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray
from torch import Tensor

from methods.interface import method as m
from methods.interface.method import CountsUpTo
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters
from methods.networks.method import ROWS, CentralisedMethod, blocks

SENDS_NOTHING = True
VARIANTS = ({"network": "features"}, {"network": "clip"}, {"bookkeeping": "plain"})

SPLIT: Final = "swad.split"
LOSSES: Final = "swad.losses"
COUNT: Final = "swad.count"
SUM: Final = "swad.sum."
"""Prefix: the settled segments' sum, or a copy of the valley's first one while the count is 0."""
RECENT: Final = "swad.recent."
"""Prefix: the last max(N_s, N_e) segments, oldest first, zeros while there are fewer."""


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        optimum_patience: N_s, the losses whose oldest must be the minimum for the valley to begin.
        overfit_patience: N_e, the losses that must all be too high for it to end.
        tolerance: r, how far losses in the valley may be above their mean, as a share of it.
        validation_share: Share of each class that is held out of training, rounded up; the last
            example of a class is not.
        bookkeeping: How often each segment counts; see the head of the file.
    """

    optimum_patience: Annotated[
        int,
        Ge(1),
        Le(100000),
        CountsUpTo("rounds", "the valley never begins, and the model is that of the last round"),
    ] = 3
    overfit_patience: Annotated[
        int, Ge(1), Le(100000), CountsUpTo("rounds", "the valley never ends before the run does")
    ] = 6
    tolerance: Annotated[float, Ge(0.0), Le(1e6)] = 0.3
    validation_share: Annotated[float, Gt(0.0), Lt(1.0)] = 0.2
    bookkeeping: Literal["published", "plain"] = "published"


@dataclass(frozen=True)
class Counts:
    """How often each segment counts, the first segment first.

    Attributes:
        settled: By the losses so far; later losses do not change these counts.
        final: If training ended now; all zero where the copy of `first` is the result.
        first: The valley's first segment, None before the valley begins.
    """

    settled: tuple[int, ...]
    final: tuple[int, ...]
    first: int | None


def count_segments(losses: Sequence[float], config: Config) -> Counts:
    """Return how often each segment counts, from the losses at their ends alone, at least one."""
    end, patience = len(losses), config.optimum_patience
    windows = ((seen, losses[seen - patience : seen]) for seen in range(patience, end + 1))
    # The number of segments after which the valley shows.
    at = next((seen for seen, window in windows if window[0] == min(window)), None)
    if at is None:
        last = (*(0 for _ in losses[1:]), 1)
        return Counts((0,) * end, last, None)
    start = at - patience
    threshold = math.fsum(losses[start:at]) / patience * (1.0 + config.tolerance)
    count = _published if config.bookkeeping == "published" else _plain
    settled, final = count(losses, at, config, threshold)
    return Counts(
        tuple(settled.count(one) for one in range(end)),
        tuple(final.count(one) for one in range(end)),
        start,
    )


def _published(
    losses: Sequence[float], at: int, config: Config, threshold: float
) -> tuple[list[int], list[int]]:
    """Return the segments that the published code adds: so far, and if training ended now."""
    ahead, first = config.overfit_patience, at - config.optimum_patience
    added = _looked_back(losses, at, config, threshold)
    for seen in range(at + 1, len(losses) + 1):
        head = max(seen - ahead, 0)
        if head < first:
            continue
        if min(losses[head:seen]) > threshold:
            return added, added
        added.append(head)
    head = max(len(losses) - ahead, 0) + 1
    final = list(added)
    while head < len(losses) and min(losses[head:]) <= threshold:
        final.append(head)
        head += 1
    return added, final


def _looked_back(losses: Sequence[float], at: int, config: Config, threshold: float) -> list[int]:
    """Return the segments that the published code adds in the round that shows the valley."""
    ahead, first = config.overfit_patience, at - config.optimum_patience
    if ahead <= config.optimum_patience:
        return list(range(first + 1, first + 1 + config.optimum_patience - ahead))
    queue = range(max(at - ahead, 0), at)[: ahead - config.optimum_patience + 1]
    above = [place for place, one in enumerate(queue) if losses[one] > threshold]
    start = above[-1] + 1 if above else 0
    return list(queue[start + 1 :])


def _plain(
    losses: Sequence[float], at: int, config: Config, threshold: float
) -> tuple[list[int], list[int]]:
    """Return the segments from the valley's first to its last: the certain ones, and all."""
    ahead, first = config.overfit_patience, at - config.optimum_patience
    for seen in range(at + 1, len(losses) + 1):
        if seen >= ahead and min(losses[seen - ahead : seen]) > threshold:
            found = list(range(first, seen - ahead))
            return found, found
    return list(range(first, len(losses) - ahead + 1)), list(range(first, len(losses)))


class Swad(CentralisedMethod):
    """One network; its weights of every step are averaged where they are flat."""

    config: Config

    @property
    def _kept(self) -> int:
        return max(self.config.optimum_patience, self.config.overfit_patience)

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return a fresh network without a past, and the seed of held-out examples."""
        network = super().init_client(shared_rng, client_rng)
        none = {f"{SUM}{name}": np.zeros(value.shape) for name, value in network.items()}
        recent = {
            f"{RECENT}{name}": np.zeros((self._kept, *value.shape), np.float32)
            for name, value in network.items()
        }
        past = {
            SPLIT: np.array(client_rng.integers(2**62), np.int64),
            LOSSES: np.zeros(0, np.float64),
            COUNT: np.array(0, np.int64),
        }
        return {**network, **none, **recent, **past}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train one segment and measure it."""
        held = held_out(
            data.arrays["labels"], self.config.validation_share, int(view.personal[SPLIT])
        )
        rest = m.Examples({name: array[~held] for name, array in data.arrays.items()})
        mean = _StepMean()
        trained = self.train(view, rest, trainer, rng, after_step=mean.add)
        rows = held if held.any() else ~held
        loss = self._loss(trained, {name: array[rows] for name, array in data.arrays.items()})
        segment = mean.values(trained)
        personal = self._remembered(view.personal, segment, loss)
        return m.LocalResult({}, None, {**personal, **trained}, {"validation_loss": loss})

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)) of the average, as if training had ended now."""
        self.whole_model_of(view)
        averaged = m.ClientView({}, (), self.average(view.personal))
        return super().predict(averaged, batch, classes)

    def average(self, personal: m.Arrays) -> dict[str, NDArray[np.float32]]:
        """Return the averaged network; the fresh one before the first segment."""
        names, losses = self.personal_layers, personal[LOSSES].tolist()
        if not losses:
            return {name: personal[name] for name in names}
        counts = count_segments(losses, self.config)
        extra = [a - b for a, b in zip(counts.final, counts.settled, strict=True)]
        found = {}
        for name in names:
            due = self._due(extra, personal[f"{RECENT}{name}"])
            total, count = _added(personal[f"{SUM}{name}"], int(personal[COUNT]), due)
            found[name] = np.asarray(total / max(count, 1), np.float32)
        return found

    def _remembered(self, personal: m.Arrays, segment: m.Arrays, loss: float) -> dict[str, Any]:
        """Return the past with one segment more."""
        earlier = personal[LOSSES].tolist()
        losses = [*earlier, loss]
        now = count_segments(losses, self.config)
        before = (*(count_segments(earlier, self.config).settled if earlier else ()), 0)
        more = [a - b for a, b in zip(now.settled, before, strict=True)]
        begins = now.first is not None and len(losses) == now.first + self.config.optimum_patience
        found: dict[str, Any] = {LOSSES: np.array(losses), SPLIT: personal[SPLIT]}
        for name, value in segment.items():
            recent = np.concatenate([personal[f"{RECENT}{name}"][1:], value[None]])
            total = personal[f"{SUM}{name}"]
            if begins:
                total = recent[-self.config.optimum_patience].astype(np.float64)
            due = self._due(more, recent)
            found[f"{SUM}{name}"], count = _added(total, int(personal[COUNT]), due)
            found[f"{RECENT}{name}"], found[COUNT] = recent, np.array(count, np.int64)
        return found

    def _due(self, counts: Sequence[int], recent: NDArray[Any]) -> list[tuple[int, NDArray[Any]]]:
        """Return the kept segments that are to be added, each with its count."""
        last = counts[-self._kept :]
        return [(n, one) for n, one in zip(last, recent[-len(last) :], strict=True) if n]

    def _loss(self, network: m.Arrays, arrays: m.Arrays) -> float:
        """Return mean cross-entropy."""
        parameters, found = self.tensors(network), []
        with torch.no_grad():
            for block in blocks(arrays, ROWS):
                found += self.cross_entropies(parameters, self.tensors(block)).tolist()
        return math.fsum(found) / len(found)


def _added(
    total: NDArray[Any], count: int, due: Sequence[tuple[int, NDArray[Any]]]
) -> tuple[NDArray[np.float64], int]:
    """Return sum and count with segments added; the first of all overwrites a copy."""
    for number, segment in due:
        total = number * segment.astype(np.float64) + (total if count else 0.0)
        count += number
    return total, count


def held_out(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return which examples are held out of training, (n,) of labels (n,), the same for a seed.

    They are a share of each class, rounded up; never the last example of a class.
    """
    rng, held = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        number = min(math.ceil(share * len(rows)), len(rows) - 1)
        held[rng.permutation(rows)[:number]] = True
    return held


class _StepMean:
    """The mean of the trained tensors over all steps of a fit."""

    def __init__(self) -> None:
        self._sums, self._steps = dict[str, Tensor](), 0

    def add(self, trained: Parameters) -> None:
        """Add the tensors after a step, without a change."""
        for name, value in trained.items():
            now = value.to(torch.float64, copy=True)
            self._sums[name] = self._sums[name] + now if self._steps else now
        self._steps += 1

    def values(self, last: m.Arrays) -> dict[str, NDArray[np.float32]]:
        """Return the mean, or the last values for tensors without a step."""
        return {
            name: (self._sums[name] / self._steps).cpu().numpy().astype(np.float32)
            if name in self._sums
            else np.asarray(value)
            for name, value in last.items()
        }


build = Swad.built
