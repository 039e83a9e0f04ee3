"""A dry run of a configuration on public images: what clients would upload, and how long it is.

The clipping norm C must be fixed before a round, and trying norms out on the clients' own data is a
use of these that no ledger sees. So the configuration is run on images that are nobody's: the same
clients, shots, partition, method, steps and subspace, without noise, masks and losses. Its uploads
are read on their way, and nothing of it is kept.

Recommended is the median norm of the first round's uploads, or less:

- Noise on the mean of n uploads has deviation proportional to C, while what a norm above C adds is
  lost. Above all norms signal to noise falls as 1 / C; below all of them it stays as it is, as both
  are proportional to C, and C is the length of a step. A median is where that turns, and what
  adaptive clipping follows as well (Andrew et al. 2021, section 2). So it is the largest C that is
  worth its noise, and not the best one: where noise is large, shorter steps may reach further.
- The first round's, as there the broadcast is what the federation's will be. Later ones are those
  of a run without noise, which is nearer to its end, where gradients are short: of noised rounds
  the first is the better likeness.
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
"""Of a round: quantiles are no better with more, and a dry run need not take as long as the run."""


@dataclass(frozen=True)
class Listening:
    """A transport that writes down how long the vectors are that it carries.

    Attributes:
        within: How messages travel.
        norms: Of the uploads of each round, by its number.
    """

    within: Transport
    norms: dict[int, list[float]] = field(default_factory=dict)

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Carry a stage's messages, and listen to uploads."""
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
    """What one round's uploads would be like.

    Attributes:
        number: The round.
        norms: Their norms before any clip, in no order that tells clients.
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
    """Return what was heard, round by round."""
    return tuple(RoundOfNorms(n, np.sort(norms[n])) for n in sorted(norms) if norms[n])


def recommended(rounds: Sequence[RoundOfNorms]) -> float:
    """Return the clipping norm to take: the median of the first round's norms.

    Raises:
        ConfigError: If nothing was uploaded, or nothing but zeros.
    """
    found = float(np.median(rounds[0].norms)) if rounds else 0.0
    if not found > 0.0:
        raise ConfigError(
            "method.name: its clients upload nothing that has a length, so there is nothing to "
            "clip; valid is a method that shares something and learns"
        )
    return found


def on_public_images(config: RunConfig, dataset: str | None, root: str | None) -> RunConfig:
    """Return a configuration whose clients hold public images.

    Those of `shapes` and `homonyms` are rendered, in a stream that no federation sees; others are
    what `public_data` names, or the arguments.

    Args:
        config: The run's.
        dataset: In place of `public_data.dataset`.
        root: In place of `public_data.root`.

    Raises:
        ConfigError: If no public images are named, they have other classes, or are the clients'.
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
    own = DataRequest(root=user_path(task.root), draws=draws, hints=hints)
    public = replace(own, root=user_path(place or task.root))
    if name != task.dataset:
        public = replace(public, hints=Hints())
    load_public(name, public, load_dataset(task.dataset, own))
    senses = task.senses if name == task.dataset else None
    changed = {"dataset": name, "root": place or task.root, "senses": senses}
    return config.model_copy(update={"task": task.model_copy(update=changed)})


def _of_whole_run(config: RunConfig) -> dict[str, Any] | None:
    """Return the schedule by which fewer rounds train like the first ones of the run."""
    schedule = config.training.schedule
    if schedule is None or schedule.kind != "cosine":
        return None if schedule is None else schedule.model_dump(mode="json")
    return {**schedule.model_dump(mode="json"), "rounds": schedule.rounds or config.rounds}


def rehearsal_config(
    config: RunConfig, rounds: int | None, url: str, sources: Sources
) -> RunConfig:
    """Return the configuration of the dry run.

    Args:
        config: The run's, on images that are public.
        rounds: How many of its rounds; None for all.
        url: Where the dry run is kept while it lasts.
        sources: What the configuration is checked against.

    Raises:
        ConfigError: If no upload of the run would be clipped, or it has no rounds of its own.
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
    tree["training"]["schedule"] = _of_whole_run(config)
    tree["cohort"] = {"size": min(config.cohort_size, MOST_UPLOADS), "minimum": 1, "retries": 0}
    tree["secure_aggregation"] = {}
    # Of private experts a client moves one; what that takes is as long as any one prompt's update.
    tree["pool"] = {} if config.pool.kind == "groups" else {**tree["pool"], "noise": None}
    tree["evaluation"] = {
        "every": tree["rounds"],
        "local_twins": False,
        "worth_of_sharing": False,
    }
    # Nobody is audited who uploads nothing that is kept.
    tree["audit"] = None
    tree["storage"] = {"url": url}
    return parse_config(tree, ("privacy.mechanism=none",), sources)
