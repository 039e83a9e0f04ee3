"""Base of methods on small networks: two parts, a local loop, a closed set of classes.

A method says which layers are shared and which are personal, what the logits are, and where it
departs from plain cross-entropy. This file has the rest of a round.

PM-MoE (Feng et al. 2025, section 3.2) mixes the converged personal modules of all clients. For that
a `ModularMethod` is cut at its personal module: the module's input, its output, and what the
network makes of the output. A module is an *expert* (PE), a head or an extractor that maps rows to
rows, or a vector of *parameters* (PP), whose output is the vector itself for any input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.averaging import plus_change
from methods.interface.defaults import CLIENT_ONLY, MethodDefaults
from methods.networks.extractors import ClipTower, Extractor, NetworkConfig, build_extractor
from methods.networks.layers import Layers, Parameters, linear, specs, start

HEAD = "head"

PerExample = Callable[[Parameters, Parameters], Tensor]
"""From parameters and a batch to one number or row of each example."""


@dataclass(frozen=True)
class BatchObjective:
    """An objective without a data-free part: all of the network sees the batch."""

    per_example: PerExample
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Parameters) -> Parameters:
        """Return nothing: the encoder has no part."""
        return {}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,)."""
        return self.per_example(parameters, batch)


@dataclass(frozen=True)
class SplitMethod(MethodDefaults):
    """A network in a shared and a personal part.

    Unless a method says otherwise, a client trains both parts together by cross-entropy, the server
    averages changes of the shared part by number of examples, and the personal part starts alike on
    all clients, as copies of one network do. Torch computes on the task's device.
    """

    weighting: ClassVar[m.Weighting] = m.Weighting.EXAMPLES
    """How the server averages changes of the shared part."""
    config: NetworkConfig
    extractor: Extractor
    classes: tuple[str, ...]
    needs: frozenset[m.Need] = field(default=frozenset({"pixels"}), kw_only=True)
    pixel_size: int | None = field(default=None, kw_only=True)
    task: m.Task = field(default=m.Task((), (), 1), kw_only=True)
    has_personal_state = False
    closed_classes = True

    @cached_property
    def head_layers(self) -> Layers:
        """A linear head from features to classes; kept, as CLIP's text tower may make it."""
        return self.extractor.head_layers(HEAD, self.classes)

    @property
    def network_layers(self) -> Layers:
        """The whole network: extractor and head."""
        return {**self.extractor.layers, **self.head_layers}

    @property
    def shared_layers(self) -> Layers:
        """Layers that are averaged over clients: all of the network that is not personal."""
        own = self.personal_layers
        return {name: layer for name, layer in self.network_layers.items() if name not in own}

    @property
    def personal_layers(self) -> Layers:
        """Layers that stay with a client."""
        return {}

    @property
    def averaged(self) -> frozenset[str]:
        """The shared part."""
        return frozenset(self.shared_layers)

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return what the extractor keeps of each example."""
        return self.extractor.prepare(arrays)

    def features(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return features (B, D)."""
        return self.extractor.features(parameters, self.extractor.inputs(batch))

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C) over the method's own classes."""
        return linear(parameters, HEAD, self.features(parameters, batch))

    def cross_entropies(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, (B,)."""
        logits = self.logits(parameters, batch)
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the loss of each example in local training, (B,)."""
        return self.cross_entropies(parameters, batch)

    def objective(self, view: m.ClientView) -> m.Objective:
        """Return the loss of local training, for a client's view."""
        return BatchObjective(self.losses)

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the shared part."""
        return specs(self.shared_layers, self.weighting)

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh shared part."""
        return start(self.shared_layers, rng)

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return a fresh personal part, alike for all clients."""
        return start(self.personal_layers, shared_rng)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train both parts together."""
        return self.result(view, self.train(view, data, trainer, rng))

    def train(
        self,
        view: m.ClientView,
        data: m.Examples,
        trainer: m.Trainer,
        rng: m.Rng,
        *,
        names: Sequence[str] | None = None,
        further: Sequence[m.ParameterGroup] = (),
        objective: m.Objective | None = None,
        start: m.Arrays | None = None,
        steps: int | None = None,
        penalty: m.Penalty | None = None,
        after_step: Callable[[Parameters], None] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Train the named arrays, and further groups by their own rates; hold the others.

        `names` is None for both parts, `objective` for the method's own, and `start` for the
        broadcast and the personal part. The other arguments are those of `Trainer.fit`. Returns
        all arrays after training.
        """
        named = (*self.shared_layers, *self.personal_layers) if names is None else tuple(names)
        return trainer.fit(
            self.objective(view) if objective is None else objective,
            self.model_of(view) if start is None else start,
            data.arrays,
            groups=(m.ParameterGroup(named), *further),
            rng=rng,
            steps=steps,
            penalty=penalty,
            after_step=after_step,
        )

    def model_of(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network: the shared part as broadcast, and its own."""
        own = view.personal
        return {
            **{name: view.broadcast[name] for name in self.shared_layers},
            **{name: own[name] for name in self.personal_layers if name in own},
        }

    def result(self, view: m.ClientView, trained: m.Arrays) -> m.LocalResult:
        """Return the change of the shared part, and the personal part after training."""
        update = {name: trained[name] - view.broadcast[name] for name in self.shared_layers}
        return m.LocalResult(update, None, {name: trained[name] for name in self.personal_layers})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change."""
        return plus_change(state, aggregate.values)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)) of the client's network; refuse an unknown class."""
        columns = columns_of(classes, self.classes)
        with torch.no_grad():
            logits = self.logits(self.tensors(self.whole_model_of(view)), self.tensors(batch))
        return logits[:, columns].cpu().numpy().astype(np.float32)

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return the client's network; without a personal part the shared one is refused."""
        model = self.model_of(view)
        if not model.keys() >= self.personal_layers.keys():
            raise MethodError(
                "client: none, but a part of the network is a client's own; valid: one client"
            )
        return model

    def tensors(self, arrays: m.Arrays) -> dict[str, Tensor]:
        """Return arrays on the method's device, copied."""
        return {n: torch.from_numpy(np.array(a)).to(self.task.device) for n, a in arrays.items()}

    @classmethod
    def built(cls, config: NetworkConfig, task: m.Task) -> Self:
        """Return the method for a task; refuse a network that needs a CLIP model without one."""
        extractor = build_extractor(config, task)
        needs, side = extractor.needs, extractor.pixel_size
        return cls(config, extractor, task.classes, needs=needs, pixel_size=side, task=task)


def columns_of(classes: Sequence[str], known: Sequence[str]) -> list[int]:
    """Return positions of classes, those of a head's outputs; refuse an unknown class."""
    for name in classes:
        if name not in known:
            raise MethodError(
                f"classes: {name!r} is a class without an output in the network; valid: "
                f"{', '.join(known)}"
            )
    return [known.index(name) for name in classes]


GATED = "gated"
"""Name of the part (B, G) that a gate over modules gets."""
FED = "fed"
"""Name of the part (B, ...) that the module gets."""


class CentralisedMethod(SplitMethod):
    """A network that one party trains on all data, so nothing is shared."""

    has_personal_state = True
    units = CLIENT_ONLY
    centralised = True

    @property
    def personal_layers(self) -> Layers:
        """The whole network, so that nothing is shared."""
        return self.network_layers

    @property
    def tower(self) -> ClipTower:
        """CLIP's image tower, for methods that have no other network."""
        return cast("ClipTower", self.extractor)


class ModularMethod(SplitMethod):
    """A network cut at its personal module."""

    combined: ClassVar[tuple[str, ...]] = ()
    """Names of the parts that `combine` reads."""
    refines: ClassVar[bool] = False
    """Whether `personalise` trains the module, so that it converges there and goes to the pool."""
    has_personal_state = True

    @property
    def module_layers(self) -> Layers:
        """The module's arrays: all personal arrays, unless a method says otherwise."""
        return self.personal_layers

    @property
    def gated_width(self) -> int:
        """G, the width of the input of a gate over modules."""
        return self.extractor.width

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return what the rest of the network makes of a batch: `fed`, `gated` and `combined`."""
        features = self.features(parameters, batch)
        return {FED: features, GATED: features}

    def module_output(self, module: Parameters, fed: Tensor) -> Tensor:
        """Return what one module makes of rows (B, ...): (B, H)."""
        return linear(module, HEAD, fed)

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C) from the output (B, H) of a module, or of a mixture of several.

        `parts` has the parts that `combined` names.
        """
        return output

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C) with the client's own module."""
        parts = self.parts(parameters, batch)
        return self.combine(parameters, parts, self.module_output(parameters, parts[FED]))


def blocks(arrays: m.Arrays, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the examples in order, at most `rows` at a time; without examples, one empty block."""
    count = len(next(iter(arrays.values())))
    for first in range(0, max(count, 1), rows):
        yield {name: array[first : first + rows] for name, array in arrays.items()}


ROWS = 256
"""Examples that torch computes at once; changes memory only."""
MAPS = 64
"""Images whose maps or spectra are in memory at once; changes memory only."""


def rows_of(
    method: SplitMethod, compute: PerExample, model: m.Arrays, data: m.Examples
) -> NDArray[np.float32]:
    """Return rows (n, W) that `compute` gives for n examples, at least 1, under a network.

    It reads the data outside the trainer, so nothing that follows from it may leave under `dp_sgd`.
    """
    parameters, pieces = method.tensors(model), []
    with torch.no_grad():
        for some in blocks(data.arrays, ROWS):
            pieces.append(compute(parameters, method.tensors(some)))
    rows: NDArray[np.float32] = torch.cat(pieces).cpu().numpy()
    return rows


def label_shares(labels: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """Return the share of each class (C,) among labels (n,); zeros without labels.

    The shares are a statistic of records that does not come from a noised step.
    """
    return (np.bincount(labels, minlength=classes) / max(len(labels), 1)).astype(np.float32)


def pull_to(anchor: Parameters, weight: float, prefix: str = "") -> m.Penalty | None:
    """Return the term weight/2 ||w - anchor||^2, None where the weight is zero.

    It sees no data, so as a trainer's penalty it uses no part of an example's bound. `prefix` is
    the beginning of the names of the trained arrays, before the anchor's names.
    """
    if not weight:
        return None

    def pull(parameters: Parameters, encoded: Parameters) -> Tensor:
        flat = [(parameters[prefix + name] - held).flatten() for name, held in anchor.items()]
        return weight * (0.5 * torch.cat(flat).square().sum())

    return pull


ServerLoss = Callable[[Parameters], Tensor]
"""From the parameters to a scalar."""


def descend(
    parameters: Parameters,
    losses: Iterable[ServerLoss],
    optimizer: Callable[[list[Tensor]], Optimizer],
) -> dict[str, NDArray[np.float32]]:
    """Return the parameters after one step of a fresh optimiser for each loss, in order."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    steps = optimizer(list(leaves.values()))
    for loss in losses:
        steps.zero_grad()
        torch.autograd.backward(loss(leaves))
        steps.step()
    return {name: leaf.detach().cpu().numpy() for name, leaf in leaves.items()}
