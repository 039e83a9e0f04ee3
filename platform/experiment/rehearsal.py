"""A dry run of a configuration on public images, which measures the norms of clients' uploads.

The clipping norm C must be fixed before a round, and trying norms out on the clients' own data is a
use of the data that no ledger sees. So the dry run uses public images: with the same clients,
shots, partition, method, steps and subspace, without noise, masks and losses. It reads the uploads
on their way and keeps none of them.

The recommended norm is the median norm of the first round's uploads, or less:

- Noise on the mean of n uploads has deviation proportional to C, and clipping loses the part of a
  norm above C. For C above all norms signal to noise falls as 1 / C; for C below all norms it stays
  constant, as signal and noise are both proportional to C, and C is the length of a step. The
  median is where that turns, and adaptive clipping follows it as well (Andrew et al. 2021, section
  2). So the median is the largest C that is worth its noise, and not the best C: where noise is
  large, shorter steps may reach further.
- The first round is taken, because its broadcast is the federation's. Later rounds of a run without
  noise are nearer to its end, where gradients are short: the first round is the better likeness of
  noised rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.config import PublicDataConfig, RunConfig, Sources, parse_config
from platform.data.catalogue import DataRequest, Draws, Hints, load_dataset, user_path
from platform.data.loading import RENDERED, hints_of, load_public
from platform.errors import ConfigError
from platform.wire.messages import Stage, decode_upload
from platform.wire.transport import ClientId, Dropout, Transport

QUANTILES: Final = (0.1, 0.5, 0.9)
MOST_UPLOADS: Final = 100
"""Most uploads of a round: more would improve no quantile, and make a dry run too long."""


@dataclass(frozen=True)
class Listening:
    """A transport that notes the norms of the vectors that it carries, by round number."""

    within: Transport
    norms: dict[int, list[float]] = field(default_factory=dict)

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Carry a stage's messages, and note the norms of uploads."""
        replies = self.within.exchange(stage, messages, deadline)
        for reply in replies.values() if stage == "train" else ():
            if isinstance(reply, Dropout):
                continue
            upload = decode_upload(reply)
            if upload.vector is not None:
                heard = self.norms.setdefault(upload.envelope.round_number, [])
                heard.append(float(np.linalg.norm(upload.vector)))
        return replies


@dataclass(frozen=True)
class RoundOfNorms:
    """The norms of one round's uploads before any clip.

    They are sorted, so that the order tells nothing of clients.
    """

    number: int
    norms: NDArray[np.float64]

    def quantiles(self) -> tuple[float, ...]:
        """Return the norms' quantiles at `QUANTILES`."""
        return tuple(np.quantile(self.norms, QUANTILES).tolist())

    def clipped(self, clipping_norm: float) -> float:
        """Return the fraction of uploads that are longer than C."""
        return float(np.mean(self.norms > clipping_norm))


def rounds_of(norms: Mapping[int, Sequence[float]]) -> tuple[RoundOfNorms, ...]:
    """Return the noted norms, round by round."""
    return tuple(RoundOfNorms(n, np.sort(norms[n])) for n in sorted(norms) if norms[n])


def recommended(rounds: Sequence[RoundOfNorms]) -> float:
    """Return the recommended clipping norm: the median of the first round's norms."""
    found = float(np.median(rounds[0].norms)) if rounds else 0.0
    if not found > 0.0:
        raise ConfigError(
            "method.name: its clients upload nothing that has a length, so there is nothing to "
            "clip; valid is a method that shares something and learns"
        )
    return found


def on_public_images(config: RunConfig, dataset: str | None, root: str | None) -> RunConfig:
    """Return a configuration whose clients hold public images.

    Images of `shapes` and `homonyms` are rendered, in a stream that no federation uses; for other
    data sets the arguments or `public_data` name the images.
    """
    section, task = config.public_data or PublicDataConfig(), config.task
    name, place = dataset or section.dataset or task.dataset, root or section.root
    if name == task.dataset and name in RENDERED:
        return config
    if name == task.dataset and place is None:
        raise ConfigError(
            f"public_data: null names no image of {name} that would be public; valid: --root with "
            "a folder of such, or --dataset with another data set of the same classes"
        )
    draws, hints = Draws(train_per_class=1, test_per_class=1), hints_of(task, dealt=False)
    own = DataRequest(root=user_path(task.root), draws=draws, hints=hints, plugins=config.plugins)
    public = replace(own, root=user_path(place or task.root))
    if name != task.dataset:
        public = replace(public, hints=Hints())
    load_public(name, public, load_dataset(task.dataset, own))
    senses = task.senses if name == task.dataset else None
    changed = {"dataset": name, "root": place or task.root, "senses": senses}
    return config.model_copy(update={"task": task.model_copy(update=changed)})


def rehearsal_config(
    config: RunConfig, rounds: int | None, url: str, sources: Sources
) -> RunConfig:
    """Return the configuration of the dry run on public images, with a database of its own.

    A run of which no upload would be clipped, and a second phase, are refused.
    """
    if config.phase_two_of is not None:
        raise ConfigError(
            f"phase_two_of: {config.phase_two_of!r} uploads nothing; valid: the configuration of "
            "a run with rounds"
        )
    if config.mechanism.facts.is_in_steps:
        raise ConfigError(
            f"privacy.mechanism: {config.mechanism.name} clips each example's gradient and no "
            "upload; valid: a mechanism whose noise is on uploads, or none"
        )
    tree: dict[str, Any] = config.model_dump(mode="json")
    tree["rounds"] = config.rounds if rounds is None else min(rounds, config.rounds)
    schedule = config.training.schedule
    if schedule is not None and schedule.kind == "cosine":
        # Fewer rounds then train like the first rounds of the run.
        tree["training"]["schedule"]["rounds"] = schedule.rounds or config.rounds
    tree["cohort"] = {"size": min(config.cohort_size, MOST_UPLOADS), "minimum": 1, "retries": 0}
    tree["secure_aggregation"] = {}
    # A client moves one private expert, and that update is as long as one prompt's update.
    tree["pool"] = {} if config.pool.kind == "groups" else {**tree["pool"], "noise": None}
    tree["evaluation"] = {"every": tree["rounds"], "local_twins": False, "worth_of_sharing": False}
    # The dry run keeps no upload, so an audit has no object.
    tree["audit"] = None
    tree["storage"] = {"url": url}
    return parse_config(tree, ("privacy.mechanism=none",), sources)
