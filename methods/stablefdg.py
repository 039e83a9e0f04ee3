"""StableFDG: clients train in each other's styles and beyond, and attend to where classes agree.

Park et al. 2023, "StableFDG: Style and Attention Based Learning for Federated Domain
Generalization" (NeurIPS), by its published code (savertm/StableFDG_github, commit 77eac35): only
the paper's abstract was available. A *style* is the mean mu and the standard deviation sigma of
each channel of an image's feature map, over its positions. In each round a client sends, of the
broadcast model's first map, mean and deviation over its images of both: 4 W numbers. It gets
another client's numbers, which stand for another domain, and trains with

- *sharing*, after layer 1, in half of the batches: maps are renormalised, in the order of the batch
  to ceil(B/2) centres of its own styles (k-means++ and one step of k-means), then to floor(B/2)
  styles drawn from the other's N(mean, deviation^2), with negative sigmas set to 0;
- *exploration*, after each of the first layers, in half of the batches: the first time, it adds as
  many rows as there are, always to the classes with the fewest, and moves them away from
  the batch's mean style,  mu + a (mu - mean mu),  sigma likewise; then it mixes all styles in
  pairs, each with l ~ Beta(m, m) (MixStyle, Zhou et al. 2021). Later layers only mix;
- a *highlighter* of the last map x (B, W, positions). Queries and keys are 1x1 convolutions of it,
  each of length one at each position; with q' the mean of q and that of the class' next row,

      attention = softmax over positions j of mean_i q'_i . k_j,   attended = sum_j attention_j x_j,

  which the head gets beside the features. In a prediction q' is the image's own.

The loss is the cross-entropy of all rows; the server takes the plain mean. Departures:

- styles come from the cohort, not from all clients, and each client gets one of those at random;
- the head's columns for `attended` start at zero, so training starts where FedAvg's does; the
  code's values v affect no result and are left out; its scale of queries is lost when they get
  length one; the only row of a class in a batch is its own next (the code fetches another image);
- with `network: clip` a layer is one of the transformer, its map the patches' tokens; the last map
  is projected as features are. CLIP's feature, not the map's mean, stands beside `attended`, and
  after the last layer only the highlighter sees the patches. With `cnn` layers are its two
  convolutions. Maps of one position are left out;
- an extrapolated sigma may be negative, as in the code, whose guard is commented out.

`dp_sgd` is refused: a style is a statistic of all images that no noised step covers, and batches
join examples. Each entry is clipped, noised and charged in each round. With both probabilities 0
and without the highlighter it is FedAvg with uniform weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.draws import Draws
from methods.networks.extractors import Change, ClipTower, Cnn, NetworkConfig
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.method import HEAD, MAPS, BatchObjective, blocks

MEAN, MEAN_DEVIATION = "style.mean", "style.mean_deviation"
SPREAD, SPREAD_DEVIATION = "style.spread", "style.spread_deviation"
"""Names of an entry's arrays, (W,) each."""
EPSILON: Final = 1e-6


def style_of(found: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of maps (B, W, h, w): (B, W, 1, 1)."""
    spread = (found.var((-2, -1), keepdim=True) + EPSILON).sqrt()
    return found.mean((-2, -1), keepdim=True), spread


def shared(found: Tensor, *, rows: Tensor, count: int, other: m.Arrays, rng: m.Rng) -> Tensor:
    """Return maps (N, W, h, w), half in the client's own styles, the rest in another client's.

    The first `count` of the maps differ, and `rows` (N,) says which of those each map is. `other`
    has mean and deviation of another client's styles, which may carry noise.
    """
    found = found[:count]
    mean, spread = (part.detach() for part in style_of(found))
    own = torch.cat((mean, spread), dim=1).flatten(1).cpu().double().numpy()
    drawn = count // 2
    centres = centres_of(own, count - drawn, rng)
    width = len(other[MEAN])
    means = rng.normal(other[MEAN], np.maximum(other[MEAN_DEVIATION], 0.0), (drawn, width))
    spreads = rng.normal(other[SPREAD], np.maximum(other[SPREAD_DEVIATION], 0.0), (drawn, width))
    styles = np.concatenate((centres, np.hstack((means, np.maximum(spreads, 0.0)))))
    there = torch.from_numpy(styles).to(found)[..., None, None]
    return ((found - mean) / spread * there[:, width:] + there[:, :width])[rows]


def centres_of(styles: NDArray[np.float64], count: int, rng: m.Rng) -> NDArray[np.float64]:
    """Return centres (count, 2 W) of styles (n, 2 W): k-means++ and one step of k-means.

    Seeding is that of Arthur and Vassilvitskii 2007: each further centre is a style drawn in
    proportion to its squared distance from the nearest one.
    """
    first = int(rng.integers(len(styles)))
    centres = styles[[first]]
    while len(centres) < count:
        distances = _squares(styles, centres).min(1)
        total = distances.sum()
        # Where each style is a centre already, further centres repeat styles.
        weights = distances / total if total else np.full(len(styles), 1.0 / len(styles))
        centres = np.vstack((centres, styles[rng.choice(len(styles), p=weights)]))
    nearest = _squares(styles, centres).argmin(1)
    found = [styles[nearest == at] for at in range(count)]
    means = [part.mean(0) if len(part) else centres[at] for at, part in enumerate(found)]
    return np.stack(means)


def _squares(styles: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = ((styles[:, None] - centres) ** 2).sum(-1)
    return squares


def beyond(part: Tensor, count: int, extrapolation: float) -> Tensor:
    """Return means or deviations (N, W, 1, 1), from `count` on further from the others' mean."""
    added = part[count:]
    return torch.cat((part[:count], added + extrapolation * (added - part[:count].mean(0))))


QUERY, KEY, ATTENDED = "highlighter.query", "highlighter.key", "attended.weight"

READING = (
    "the authors have it on ResNets; what a layer and the last map of a transformer are is ours"
)
VARIANTS = (
    {"network": "cnn", "explored_layers": 2, "attention_width": None},
    {"network": "cnn", "sharing_probability": 1.0, "exploration_probability": 0.0},
    {"network": "clip", "exploration_probability": 1.0, "lora_rank": 1},
)
Probability = Annotated[float, Ge(0.0), Le(1.0)]


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        network: One that takes images, and whose maps can change on their way.
        sharing_probability: Share of the batches that train in others' styles.
        exploration_probability: Share of the batches that explore styles after one layer.
        explored_layers: Number of first layers after which styles are explored; at most all.
        extrapolation: a, how far beyond the batch's mean style.
        mixing: m, of Beta(m, m).
        attention_width: Width of queries and keys; null leaves the highlighter out.
    """

    network: Literal["cnn", "clip"] = "cnn"
    sharing_probability: Probability = 0.5
    exploration_probability: Probability = 0.5
    explored_layers: Annotated[int, Ge(0), Le(64), CountsWith("exploration_probability")] = 3
    extrapolation: Annotated[float, Ge(0.0), Le(1e6), CountsWith("exploration_probability")] = 3.0
    mixing: Annotated[float, Gt(0.0), Le(1e6)] = 0.1
    attention_width: Annotated[int, Ge(1), Le(16384)] | None = 30


class StableFDG(FedAvg):
    """Shared and explored styles, and attention to what a class has in common."""

    weighting: ClassVar[m.Weighting] = m.Weighting.UNIFORM
    config: Config
    extractor: Cnn | ClipTower
    couples_examples = True

    @property
    def shared_layers(self) -> Layers:
        """The whole network, with the highlighter."""
        width, network = self.attention_width, self.extractor
        if width is None:
            return super().shared_layers
        # A tower's last map is projected to the width of its features.
        last = network.width if isinstance(network, ClipTower) else network.map_sizes[-1][0]
        return {
            **super().shared_layers,
            **linear_layers(QUERY, last, width),
            **linear_layers(KEY, last, width),
            ATTENDED: Layer((len(self.classes), last), 0),
        }

    @property
    def attention_width(self) -> int | None:
        """Width of queries and keys, None where nothing is highlighted."""
        _, places = self.extractor.map_sizes[-1]
        return self.config.attention_width if places > 1 else None

    @property
    def style_width(self) -> int:
        """W, channels of the first map."""
        return self.extractor.map_sizes[0][0]

    @property
    def explored(self) -> tuple[int, ...]:
        """Layers after which styles are explored, from 1."""
        sizes = self.extractor.map_sizes[: self.config.explored_layers]
        return tuple(layer for layer, (_, places) in enumerate(sizes, start=1) if places > 1)

    def pool_policy(self) -> m.PoolPolicy:
        """Return one other client's style, at random."""
        style = m.TensorSpec((self.style_width,))
        names = (MEAN, MEAN_DEVIATION, SPREAD, SPREAD_DEVIATION)
        return replace(serving(self.config, 0), spec=dict.fromkeys(names, style))

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train with another client's style; return the styles under the broadcast as entry."""
        entry = self.styles_of(view.broadcast, data)
        draws, other = Draws(rng), view.experts[0] if view.experts else None
        loss, step = BatchObjective(partial(self.styled_losses, draws, other)), draws.advance
        trained = self.train(view, data, trainer, rng, objective=loss, after_step=step)
        return replace(self.result(view, trained), pool_entry=entry)

    def styles_of(self, broadcast: m.Arrays, data: m.Examples) -> m.Arrays:
        """Return mean and deviation over a client's images of their styles, (W,) each."""
        model, found = self.tensors(broadcast), []

        def keep(seen: Tensor) -> Tensor:
            found.append(torch.cat(style_of(seen), dim=1).flatten(1).to(torch.float64))
            return seen

        with torch.no_grad():
            for block in blocks({"pixels": data.arrays["pixels"]}, MAPS):
                inputs = self.extractor.inputs(self.tensors(block))
                self.extractor.through(model, inputs, {1: keep})
        styles = torch.cat(found)
        parts = torch.cat((styles.mean(0), styles.std(0, correction=0))).float().cpu().numpy()
        names = (MEAN, SPREAD, MEAN_DEVIATION, SPREAD_DEVIATION)
        return dict(zip(names, np.split(parts, 4), strict=True))

    def styled_losses(
        self, draws: Draws, other: m.Arrays | None, parameters: Parameters, batch: Parameters
    ) -> Tensor:
        """Return a loss of each example, (B,); their mean is the mean over all rows."""
        # All rows of a step share its one key: the loss joins them anyway.
        rng = np.random.default_rng(draws.key)
        labels = batch["labels"]
        shares = other is not None and rng.random() < self.config.sharing_probability
        often = self.config.exploration_probability
        active = [layer for layer in self.explored if rng.random() < often]
        count = len(labels)
        # Rows are added before the first layer; until a change they equal their source.
        added = balancing_rows(labels.cpu().numpy(), count, rng) if active else np.arange(0)
        rows = torch.from_numpy(np.concatenate((np.arange(count), added))).to(labels.device)
        changes: dict[int, Change] = {
            layer: partial(self.explore, rng=rng, count=count if layer == active[0] else None)
            for layer in active
        }
        if shares and other is not None:
            share = partial(shared, rows=rows, count=count, other=other, rng=rng)
            then = changes.get(1)
            changes[1] = share if then is None else lambda found: then(share(found))
        inputs = self.extractor.inputs(batch)[rows]
        logits = self._logits(parameters, inputs, changes, next_of_class(labels[rows]))
        losses = functional.cross_entropy(logits, labels[rows], reduction="none")
        return losses.view(-1, count).mean(0)

    def explore(self, found: Tensor, *, rng: m.Rng, count: int | None) -> Tensor:
        """Return maps with styles mixed in pairs, those from `count` on extrapolated before."""
        mean, deviation = style_of(found)
        unit = (found - mean) / deviation
        styles = [
            part if count is None else beyond(part, count, self.config.extrapolation)
            for part in (mean.detach(), deviation.detach())
        ]
        drawn = rng.beta(self.config.mixing, self.config.mixing, (len(found), 1, 1, 1))
        share = torch.from_numpy(drawn).to(found)
        order = torch.from_numpy(rng.permutation(len(found))).to(found.device)
        mean, deviation = (share * part + (1.0 - share) * part[order] for part in styles)
        return unit * deviation + mean

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C)."""
        inputs = self.extractor.inputs(batch)
        return self._logits(parameters, inputs, {}, torch.arange(len(inputs), device=inputs.device))

    def _logits(
        self,
        parameters: Parameters,
        inputs: Tensor,
        changes: Mapping[int, Change],
        following: Tensor,
    ) -> Tensor:
        features, last = self.extractor.through(parameters, inputs, changes)
        found = linear(parameters, HEAD, features)
        if self.attention_width is None:
            return found
        attended = highlighted(parameters, last, following)
        return found + functional.linear(attended, parameters[ATTENDED])


def balancing_rows(labels: NDArray[np.int64], count: int, rng: m.Rng) -> NDArray[np.int64]:
    """Return `count` further rows of a batch, each of a class with the fewest rows so far.

    Classes with equally few rows take turns in a random order; a class's row is drawn uniformly.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    picked: list[int] = []
    while len(picked) < count:
        few = np.flatnonzero(sizes == sizes.min())
        turn = rng.permutation(few)[: count - len(picked)]
        picked += [int(rng.choice(np.flatnonzero(labels == classes[at]))) for at in turn]
        sizes[turn] += 1
    return np.array(picked, np.int64)


def next_of_class(labels: Tensor) -> Tensor:
    """Return for each row (B,) the next row of its class, the first after the last."""
    found = torch.arange(len(labels), device=labels.device)
    for label in set(labels.tolist()):
        rows = (labels == label).nonzero().flatten()
        found[rows] = rows.roll(-1)
    return found


def highlighted(parameters: Parameters, last: Tensor, following: Tensor) -> Tensor:
    """Return what each image's map (B, W, h, w) attends to, (B, W).

    The queries of the rows `following` (B,) join each row's queries.
    """
    flat = last.flatten(2).transpose(1, 2)
    query, key = (
        functional.normalize(linear(parameters, name, flat), dim=-1) for name in (QUERY, KEY)
    )
    # The mean over queries of products is the product with their mean.
    asked = ((query + query[following]) / 2).mean(1, keepdim=True)
    attention = (asked @ key.transpose(1, 2)).softmax(-1)
    return (attention @ flat).squeeze(1)


def serving(config: Config, clients: int) -> m.PoolPolicy:
    """Return the pool's use, without an entry's tensors; known before the method is built."""
    return m.PoolPolicy({}, 1, select="random")


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a network without spread in its first map."""
    method = StableFDG.built(config, task)
    if method.extractor.map_sizes[0][1] < 2:
        raise MethodError(
            "method.network: its first map has one position, which has no spread, and so no style; "
            "valid: a network whose first map has more"
        )
    return method
