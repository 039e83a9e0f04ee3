"""Class statistics: one noised sum of frozen features for each class, and a head without training.

A client sends, for each class c, its sum s_c of image features x with |x| <= 1, and perhaps its
count h_c. The server adds them up and builds a linear head. Each published relative is a `head`:

- `fedncm`: w_c = s_c / |s_c| (Legate et al. 2023, "Guiding the Last Layer in Federated Learning
  with Pre-Trained Models", NeurIPS, arXiv 2306.03937);
- `ss_text`: w_c = s_c / |s_c| + `text_weight` t_c, with text features t_c (after SS-Text, arXiv
  2506.17500, which is for one client and adds 100 h_c s_c / n to t_c; under noise lengths say
  little, so each mean has length one);
- `fed3r`: w = (G + lambda I)^-1 s, ridge regression on one-hot labels, G = sum of x x^T (Fanì et
  al. 2024, "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", ICML,
  arXiv 2406.01116);
- `fedcgs`: w_c = V^-1 m_c, b_c = log(h_c) - m_c w_c / 2, with means m_c and the covariance V that
  all classes share (Guan et al. 2025, "Capture Global Feature Statistics for One-Shot Federated
  Learning", AAAI, arXiv 2503.06962).

The last two also send the upper triangle of G, whose other numbers are scaled by sqrt(2), so that
its length is that of G. DPPL-Mean (arXiv 2406.08039) is refused: it charges each class on its own
and takes n_c as public; a client with several classes would be in several releases and pay for one.

Counts and sums lie in cones, h_c >= |s_c|, so replacing a client moves them by sqrt(2) C and not by
2 C (ADR 31). But counts take their part of the norm C: where features vary, sums alone at 2 C tell
more. With G there is no such promise, as rounding may leave the positive matrices.

`centre: text` subtracts the mean text feature, which is public, from every image feature, and
`directions: k` keeps the k public directions in which the text features of the task's classes vary
most. Both come before |x| is cut to `feature_norm`, so the bounds above hold.

**Refinement.** With `refine`, all rounds but the first send the sums of *residuals* instead: image
features times (one-hot label - softmax of `scale` x w), which is minus the gradient of the
cross-entropy, and the server steps along their mean: federated SGD of the head (McMahan et al. 2017
with one local step). `start: text` leaves the statistics out and refines from the text alone.

Under `dp_sgd` the same sums are made of noised steps: the loss -<S, row of x> has minus the row as
its gradient. Take SGD without momentum there, or the steps are no longer equal shares of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import MethodDefaults
from methods.interface.method import CountsWith
from methods.networks.method import BatchObjective, columns_of
from methods.prompts.prompt import Captions, require_backbone

SUMS: Final = "class_sums"
"""What clients send: rows (C, 1 + k) of counts and sums; without counts (C, k)."""
MOMENTS: Final = "moments"
"""The upper triangle of the sum of x x^T, (k (k + 1) / 2,)."""
WEIGHT: Final = "weight"
BIAS: Final = "bias"
REFINES: Final = "refines"
"""1 where the next round sends residuals, else 0."""
_DPPL: Final = "dppl_mean"
_WITH_MOMENTS: Final = ("fed3r", "fedcgs")
_RIDGE_SCALE: Final = 10.0
"""Logits of ridge regression over its predictions, which go from 0 to 1."""
_LEAST: Final = 0.1
"""A class is taken to have at least this share of an even share of all images."""

VARIANTS = (
    {"head": "fedncm", "counts": True},
    {"head": "fed3r", "directions": 2},
    {"head": "fedcgs", "counts": True, "centre": "text"},
    {"refine": 1.0, "start": "text"},
)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        head: What the server builds.
        counts: Whether clients send counts, which `fedcgs` needs.
        centre: What is subtracted from image features.
        directions: Number of public directions that are kept; None for the whole feature.
        feature_norm: Length to which an image feature is cut, after centre and directions.
        text_weight: How much a class's text weighs beside its mean.
        ridge: lambda, or what is added to V, over the mean eigenvalue.
        start: What the head is before it is refined.
        refine: Rate of the server's steps along the mean of residuals; None to add up statistics.
        scale: Inverse temperature of the softmax.
        template: Caption with `{}` where the class name goes.
    """

    head: Literal["fedncm", "ss_text", "fed3r", "fedcgs", "dppl_mean"] = "ss_text"
    counts: bool = False
    centre: Literal["none", "text"] = "none"
    directions: Annotated[int, Ge(1), Le(4096)] | None = None
    feature_norm: Annotated[float, Gt(0.0), Le(1.0)] = 1.0
    text_weight: Annotated[float, Ge(0.0), Le(1e6), CountsWith("head", ("ss_text",))] = 0.25
    ridge: Annotated[float, Gt(0.0), Le(1e6), CountsWith("head", _WITH_MOMENTS)] = 0.1
    start: Annotated[Literal["statistics", "text"], CountsWith("refine")] = "statistics"
    refine: Annotated[float, Gt(0.0), Le(1e6)] | None = None
    scale: Annotated[float, Gt(0.0), Le(1e6), CountsWith("refine")] = 10.0
    template: str = "a photo of a {}."


@dataclass(frozen=True)
class ClassStatistics(MethodDefaults):
    """Sums over each class, and the head that the server makes of them."""

    config: Config
    classes: tuple[str, ...]
    captions: Captions
    has_personal_state = False
    closed_classes = True

    @cached_property
    def text(self) -> Tensor:
        """Text features of the classes, (C, d)."""
        return self.captions.features(self.classes).detach().to("cpu", torch.float64)

    @cached_property
    def basis(self) -> Tensor:
        """The directions that are kept, as rows (k, d)."""
        if self.config.directions is None:
            return torch.eye(self.text.shape[1], dtype=torch.float64)
        found = torch.linalg.svd(self.text - self.text.mean(dim=0), full_matrices=False).Vh
        # The sign of a singular vector differs between machines.
        signed: Tensor = found * found.sum(dim=1, keepdim=True).sign()
        return signed[: self.config.directions]

    def rows(self, features: Tensor) -> Tensor:
        """Return image or text features (n, d) as the statistics see them, (n, k)."""
        if self.config.centre == "text":
            features = features - self.text.mean(dim=0).to(features)
        seen = features @ self.basis.T.to(features)
        length = torch.linalg.vector_norm(seen, dim=1, keepdim=True)
        cut: Tensor = seen / (length / self.config.feature_norm).clamp(min=1.0)
        return cut

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the statistics."""
        spec = partial(m.TensorSpec, weighting=m.Weighting.UNIFORM, source=m.Source.STATISTIC)
        classes, width = len(self.classes), len(self.basis)
        if self.config.head in _WITH_MOMENTS:
            moments = {MOMENTS: spec((width * (width + 1) // 2,))}
            return {SUMS: spec((classes, self.config.counts + width)), **moments}
        if not self.config.counts:
            return {SUMS: spec((classes, width))}
        return {SUMS: spec((classes, 1 + width), cone=1 + width)}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return no statistics, and the head of the text alone."""
        nothing = {n: np.zeros(t.shape, np.float64) for n, t in self.shared_spec().items()}
        return {**nothing, **self.head(nothing), **self.stage(0)}

    def stage(self, rounds: int) -> m.Arrays:
        """Return whether the round after so many sends residuals."""
        refines = self.config.refine is not None and (rounds > 0 or self.config.start == "text")
        return {REFINES: np.array(refines, np.int64)}

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the head, and what the round is for."""
        return {name: state[name] for name in (WEIGHT, BIAS, REFINES)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Send the client's statistics; under `dp_sgd` those of noised steps."""
        head = torch.tensor(view.broadcast[WEIGHT]) if view.broadcast[REFINES] else None
        if trainer.charged_steps is None:
            return m.LocalResult(self.summed(data.arrays, head), None, {})
        start = {n: np.zeros(t.shape, np.float32) for n, t in self.shared_spec().items()}
        trained = trainer.fit(
            BatchObjective(partial(self.losses, head=head)),
            start,
            data.arrays,
            groups=(m.ParameterGroup(tuple(start)),),
            rng=rng,
        )
        return m.LocalResult(dict(trained), None, {})

    def summed(self, examples: m.Arrays, head: Tensor | None) -> m.Arrays:
        """Return the statistics of a client's examples, or their residuals at a head (C, k)."""
        rows = self.rows(torch.tensor(examples["features"], dtype=torch.float64))
        labels = torch.tensor(examples["labels"])
        members = (labels[:, None] == torch.arange(len(self.classes))).double()
        if head is not None:
            members = members - functional.softmax(self.config.scale * rows @ head.double().T, 1)
        counted = torch.cat([torch.ones(len(rows), 1).double(), rows], 1)
        found = {SUMS: members.T @ (counted if self.config.counts else rows)}
        if self.config.head in _WITH_MOMENTS:
            first, second, scale = _triangle(rows.shape[1])
            found[MOMENTS] = (rows.T @ rows)[first, second] * scale
        return {name: array.float().numpy() for name, array in found.items()}

    def losses(
        self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor], head: Tensor | None
    ) -> Tensor:
        """Return losses (B,) whose gradients are minus each example's own statistics.

        With a head (C, k), those of its residuals where parameters are zero.
        """
        rows = self.rows(batch["features"])
        if head is not None:
            logits = self.config.scale * rows @ (parameters[SUMS] + head.to(rows)).T
            losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
            return losses / self.config.scale
        own = parameters[SUMS][batch["labels"]]
        found = (own[:, -rows.shape[1] :] * rows).sum(dim=1)
        if self.config.counts:
            found = found + own[:, 0]
        if MOMENTS in parameters:
            first, second, scale = _triangle(rows.shape[1])
            found = found + rows[:, first] * rows[:, second] @ (
                parameters[MOMENTS] * scale.to(rows)
            )
        return -found

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the round's means to the earlier ones and build the head anew, or refine it."""
        if state[REFINES] and self.config.refine is not None:
            moved = state[WEIGHT] + self.config.refine * aggregate.values[SUMS]
            return {**state, WEIGHT: moved.astype(np.float32)}
        total = {n: state[n] + aggregate.values[n] for n in self.shared_spec()}
        return {**total, **self.head(total), **self.stage(1)}

    def head(self, total: m.Arrays) -> m.Arrays:
        """Return the head's rows (C, k) and biases (C,); without statistics, those of the text."""
        text, classes = self.rows(self.text).numpy(), len(self.classes)
        sums = total[SUMS][:, 1:] if self.config.counts else total[SUMS]
        counts = total[SUMS][:, 0] if self.config.counts else np.zeros(classes)
        weight, bias, number = text, np.zeros(classes), float(counts.sum())
        if not sums.any() or (self.config.head == "fedcgs" and number <= 0.0):
            return _single(weight, bias)
        if self.config.head in ("fedncm", "ss_text"):
            weight = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)
            if self.config.head == "ss_text":
                weight = weight + self.config.text_weight * text
        elif self.config.head == "fed3r":
            weight = _RIDGE_SCALE * self.solved(_square(total[MOMENTS]), sums)
        else:
            counts = np.maximum(counts, _LEAST * number / classes)
            means = sums / counts[:, None]
            shared = (_square(total[MOMENTS]) - (counts[:, None] * means).T @ means) / number
            weight = self.solved(shared, means)
            bias = np.log(counts / counts.sum()) - 0.5 * (weight * means).sum(axis=1)
        return _single(weight, bias)

    def solved(self, matrix: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows (C, k) times the inverse of a matrix made positive, plus the ridge."""
        values, vectors = np.linalg.eigh(matrix)
        values = np.maximum(values, 0.0)
        values = values + self.config.ridge * max(float(values.mean()), 1e-30)
        found: NDArray[np.float64] = (rows @ vectors / values) @ vectors.T
        return found

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)); refuse a class that the task does not have."""
        chosen = columns_of(classes, self.classes)
        rows = self.rows(torch.tensor(batch["features"])).numpy()
        scores = rows @ view.broadcast[WEIGHT].T + view.broadcast[BIAS]
        if self.config.head not in _WITH_MOMENTS:
            scores = float(self.captions.backbone.logit_scale) * scores
        logits: m.Logits = scores[:, chosen].astype(np.float32)
        return logits


def _triangle(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and factors of an upper triangle that is as long as its matrix."""
    first, second = torch.triu_indices(width, width)
    return first, second, torch.where(first == second, 1.0, math.sqrt(2.0)).double()


def _square(triangle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric matrix (k, k) of an upper triangle."""
    width = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    first, second, scale = _triangle(width)
    found = np.zeros((width, width))
    found[first, second] = triangle / scale.numpy()
    full: NDArray[np.float64] = found + np.triu(found, 1).T
    return full


def _single(weight: NDArray[np.float64], bias: NDArray[np.float64]) -> m.Arrays:
    return {WEIGHT: weight.astype(np.float32), BIAS: bias.astype(np.float32)}


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a head that lacks its statistics, and DPPL-Mean."""
    if config.head == _DPPL:
        raise MethodError(
            "method.head: dppl_mean charges each class on its own and takes its count as public, "
            "so a client with several classes would pay for one; valid: fedncm"
        )
    if not config.counts and config.head == "fedcgs":
        raise MethodError("method.counts: fedcgs divides by counts; valid: true")
    if config.refine is not None and (config.counts or config.head in _WITH_MOMENTS):
        raise MethodError(
            "method.refine: residuals are sums without counts and moments; valid: null, or "
            "method.counts: false and method.head: fedncm or ss_text"
        )
    captions = Captions(require_backbone(task), config.template)
    captions.require_room(task.classes)
    width = min(len(task.classes) - 1, captions.backbone.embed_dim)
    if config.directions is not None and config.directions > width:
        raise MethodError(
            f"method.directions: {config.directions} is too many for {len(task.classes)} class "
            f"names; valid: 1 to {width}, or null"
        )
    return ClassStatistics(config, task.classes, captions)
