"""Tables with a row for each class: clients send their own, the server broadcasts the mean.

A row is a client's mean over one class, of features or of logits. In every message a table has all
rows, zeros where the client has no examples, and a flag (1 or 0) for each row. So every message has
the same size, and a sum suffices: the server divides summed rows by summed flags. Clients send
means, not sums of rows and counts: the large sums of a client with many examples would hit the
clipping norm. Clipping scales flag and row alike, so it does not change one client's quotient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le
from numpy.typing import NDArray
from torch import Tensor

from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters
from methods.networks.method import SplitMethod, rows_of

PROTOTYPES, PRESENCE = "prototypes", "presence"
"""What clients send: means of features, and flags."""
TABLE, KNOWN = "table", "known"
"""What the server broadcasts: rows (C, W), and 1 for each class that has a row, else 0 (C,)."""


@dataclass(frozen=True)
class TableConfig(NetworkConfig):
    """Options of a method whose clients send a table.

    Attributes:
        presence_floor: A class with fewer flags than this many clients' is left out of a round's
            mean, and keeps its row.
    """

    presence_floor: Annotated[float, Gt(0.0), Le(1e6)] = 0.5


class TableMethod(SplitMethod):
    """Personal networks that learn from each other's tables alone.

    A table is a statistic of records that does not come from a noised step, so the platform can
    protect whole clients but not single records (`dp_sgd`).
    """

    config: TableConfig
    sent: ClassVar[str] = PROTOTYPES
    """Name of the rows that a client sends."""
    units = CLIENT_ONLY
    has_personal_state = True

    @property
    def personal_layers(self) -> Layers:
        """The whole network."""
        return self.network_layers

    @property
    def row_width(self) -> int:
        """W, the width of a row."""
        return self.extractor.width

    @property
    def scale(self) -> float:
        """Divisor of rows when they are sent, so that they are about as long as flags."""
        return math.sqrt(self.row_width)

    def rows(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the rows (B, W) whose means a table holds."""
        return self.features(parameters, batch)

    def kept(self, means: NDArray[np.float32], flags: NDArray[np.float32]) -> m.Arrays:
        """Return what a client keeps of its own table (C, W) and flags (C,)."""
        return {}

    def shared_spec(self) -> dict[str, m.TensorSpec]:
        """Return rows (C, W) over `scale`, zero for a class without examples, and flags (C,)."""
        return table_spec(self.sent, len(self.classes), self.row_width)

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a table in which no class is known."""
        classes = len(self.classes)
        table = np.zeros((classes, self.row_width), np.float32)
        return {TABLE: table, KNOWN: np.zeros(classes, np.float32)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the whole network beside the broadcast table, then send the means of its rows."""
        names = tuple(self.personal_layers)
        start = {**self.model_of(view), **table_of(view.broadcast)}
        trained = self.train(view, data, trainer, rng, names=names, start=start)
        own = {name: trained[name] for name in names}
        rows = rows_of(self, self.rows, own, data)
        means, flags = class_means(rows, data.arrays["labels"], len(self.classes))
        update = {self.sent: means / np.float32(self.scale), PRESENCE: flags}
        return m.LocalResult(update, None, {**own, **self.kept(means, flags)})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Return the means over the clients that have a class; other rows stay as they are."""
        floor = self.config.presence_floor / aggregate.cohort_size
        sent, flags = aggregate.values[self.sent], aggregate.values[PRESENCE]
        rows, classes = known_rows(sent, flags, floor, self.scale)
        table, known = np.array(state[TABLE]), np.array(state[KNOWN])
        table[classes], known[classes] = rows, 1.0
        return {**state, TABLE: table, KNOWN: known}


def table_spec(sent: str, classes: int, width: int) -> dict[str, m.TensorSpec]:
    """Return the rows that a client sends (C, W), and flags (C,)."""
    spec = partial(m.TensorSpec, weighting=m.Weighting.UNIFORM, source=m.Source.STATISTIC)
    return {sent: spec((classes, width)), PRESENCE: spec((classes,))}


def table_of(broadcast: m.Arrays) -> dict[str, NDArray[Any]]:
    """Return the table of a broadcast and the classes that it knows."""
    return {TABLE: broadcast[TABLE], KNOWN: broadcast[KNOWN]}


def class_means(
    rows: NDArray[np.float32], labels: NDArray[Any], classes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean (C, W) of each class's rows (n, W), zero without rows, and flags (C,)."""
    members = (labels[None, :] == np.arange(classes)[:, None]).astype(np.float64)
    counts = members.sum(axis=1)
    means = members @ rows.astype(np.float64) / np.maximum(counts, 1.0)[:, None]
    return means.astype(np.float32), (counts > 0).astype(np.float32)


def known_rows(
    sent: NDArray[Any], flags: NDArray[Any], floor: float, scale: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the rows (m, W) of the classes that have one, without flags, and these classes (m,).

    Args:
        sent: Rows (C, W) over the scale, each times its flag, of one client or the mean of many.
        flags: Flags (C,), combined alike. Without a flag above zero there are no rows.
        floor: Share of the largest flag below which a class is left out.
        scale: Divisor of the rows.
    """
    flags = flags.astype(np.float64)
    classes = np.flatnonzero((flags > 0) & (flags >= floor * flags.max()))
    rows = sent[classes] / flags[classes, None]
    return (rows * scale).astype(np.float32), classes


def negative_distances(rows: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    """Return minus the mean squared difference of rows (B, W) and each class's row (C, W), (B, C).

    At least one of `candidates` (C,) is true. All other classes score one below the smallest score
    of a candidate.
    """
    # Each row by itself, so that rounding does not depend on the rest of the batch.
    exact = torch.cdist(rows, table, compute_mode="donot_use_mm_for_euclid_dist")
    scores = -exact.square() / rows.shape[1]
    least = scores[:, candidates].min(dim=1, keepdim=True).values
    return torch.where(candidates, scores, least - 1.0)
