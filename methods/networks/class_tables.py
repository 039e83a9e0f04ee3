"""Tables with a row for each class: clients send their own, the server broadcasts the mean.

Means of features, of logits: whatever a client makes of its examples, averaged over each class. In
every message a table has all rows, zeros where the client has no examples, and a flag for each row
(1 or 0) goes with it. So no message is of another size for what a client has, and a sum suffices:
the server divides summed rows by summed flags. Neither sums of rows nor counts are sent: under one
clipping norm they would leave a client with many examples nothing but its length. One client's
quotient is not changed by clipping, which scales flag and row alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.defaults import CLIENT_ONLY
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Objective,
    Source,
    TensorSpec,
    Trainer,
    Unit,
    Weighting,
)
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters
from methods.networks.method import BatchObjective, SplitMethod, rows_of

PROTOTYPES, PRESENCE = "prototypes", "presence"
"""What is sent: means of features, and flags."""
TABLE, KNOWN = "table", "known"
"""What is broadcast: rows (C, W), and 1 for each class that has one, else 0 (C,)."""


@dataclass(frozen=True)
class TableConfig(NetworkConfig):
    """Options of a method whose clients send a table.

    Attributes:
        presence_floor: A class is left out of a round's mean below this many clients' flags; it
            keeps the row that it had.
    """

    presence_floor: Annotated[float, Gt(0.0), Le(1e6)] = 0.5


@dataclass(frozen=True)
class TableMethod(SplitMethod):
    """Personal networks that learn from each other's tables alone.

    A table is a statistic of records that no noised step returned, so a record cannot be protected
    (`dp_sgd`); whole clients can.
    """

    config: TableConfig
    sent: ClassVar[str] = PROTOTYPES
    """Name of the rows that are sent."""
    units: frozenset[Unit] = field(default=CLIENT_ONLY, init=False)
    has_personal_state: bool = field(default=True, init=False)

    @property
    def shared_layers(self) -> Layers:
        """Nothing of the network."""
        return {}

    @property
    def personal_layers(self) -> Layers:
        """The whole network."""
        return {**self.extractor.layers, **self.head_layers}

    @property
    def row_width(self) -> int:
        """W, the width of a row."""
        return self.extractor.width

    @property
    def scale(self) -> float:
        """What rows are divided by when they are sent, so that they are about as long as flags."""
        return math.sqrt(self.row_width)

    def rows(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the rows (B, W) that a table has the means of."""
        return self.features(parameters, batch)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,), where the parameters hold the broadcast table."""
        raise NotImplementedError

    def kept(self, means: NDArray[np.float32], flags: NDArray[np.float32]) -> Arrays:
        """Return what a client keeps of its own table (C, W) and flags (C,)."""
        return {}

    def objective(self, view: ClientView) -> Objective:
        """Return the method's loss."""
        return BatchObjective(self.losses)

    def shared_spec(self) -> dict[str, TensorSpec]:
        """Return rows (C, W) over `scale`, zero where there are none, and flags (C,)."""
        spec = partial(TensorSpec, weighting=Weighting.UNIFORM, source=Source.STATISTIC)
        classes = len(self.classes)
        return {self.sent: spec((classes, self.row_width)), PRESENCE: spec((classes,))}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return a table in which no class is known."""
        classes = len(self.classes)
        table = np.zeros((classes, self.row_width), np.float32)
        return {TABLE: table, KNOWN: np.zeros(classes, np.float32)}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the whole network beside the broadcast table, then send the means of its rows."""
        names = tuple(self.personal_layers)
        start = {**self.model_of(view), **table_of(view.broadcast)}
        trained = self.train(view, data, trainer, rng, names=names, start=start)
        own = {name: trained[name] for name in names}
        rows = rows_of(self, self.rows, own, data)
        means, flags = class_means(rows, data.arrays["labels"], len(self.classes))
        update = {self.sent: means / np.float32(self.scale), PRESENCE: flags}
        return LocalResult(update, None, {**own, **self.kept(means, flags)})

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Return the means over the clients that have a class; other rows stay as they are."""
        floor = self.config.presence_floor / aggregate.cohort_size
        sent, flags = aggregate.values[self.sent], aggregate.values[PRESENCE]
        rows, classes = known_rows(sent, flags, floor, self.scale)
        table, known = np.array(state[TABLE]), np.array(state[KNOWN])
        table[classes], known[classes] = rows, 1.0
        return {**state, TABLE: table, KNOWN: known}


def table_of(broadcast: Arrays) -> dict[str, NDArray[Any]]:
    """Return the table of a broadcast and which classes it knows."""
    return {TABLE: broadcast[TABLE], KNOWN: broadcast[KNOWN]}


def class_means(
    rows: NDArray[np.float32], labels: NDArray[Any], classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean of each class's rows.

    Args:
        rows: Rows (n, W), such as features.
        labels: Classes (n,).
        classes: C.

    Returns:
        Means (C, W), zero for a class without examples, and flags (C,), 1 for one with.
    """
    members = (labels[None, :] == np.arange(classes)[:, None]).astype(np.float64)
    counts = members.sum(axis=1)
    means = members @ rows.astype(np.float64) / np.maximum(counts, 1.0)[:, None]
    return means.astype(np.float32), (counts > 0).astype(np.float32)


def known_rows(
    sent: NDArray[Any], flags: NDArray[Any], floor: float, scale: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows as they were before a common factor, of the classes that there are.

    Args:
        sent: Rows (C, W) over the scale, each times its flag, of one client or the mean of many.
        flags: Flags (C,), combined alike.
        floor: Share of the largest flag below which a class is left out.
        scale: Of the rows.

    Returns:
        Rows (m, W) and their classes (m,), none where no flag is above zero.
    """
    flags = flags.astype(np.float64)
    classes = np.flatnonzero((flags > 0) & (flags >= floor * flags.max()))
    rows = sent[classes] / flags[classes, None]
    return (rows * scale).astype(np.float32), classes


def negative_distances(rows: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    """Return minus the mean squared difference of each row to each class's, (B, C).

    No other class reaches a candidate: it is one below the least of them.

    Args:
        rows: Of examples (B, W).
        table: Of classes (C, W).
        candidates: Whether a class may be predicted (C,), true for one of them at least.
    """
    # Each by itself, so that an example's company has no say in rounding.
    exact = torch.cdist(rows, table, compute_mode="donot_use_mm_for_euclid_dist")
    scores = -exact.square() / rows.shape[1]
    least = scores[:, candidates].min(dim=1, keepdim=True).values
    return torch.where(candidates, scores, least - 1.0)
