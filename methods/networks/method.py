"""What methods on small networks have in common: two parts, a local loop, a closed set of classes.

A method says which layers are shared and which are personal, what the logits are, and where it
departs from plain cross-entropy. Everything else of a round is here, once.

PM-MoE (Feng et al. 2025, section 3.2) mixes the converged personal modules of all clients. For that
a `ModularMethod` is cut at its personal module: what it is fed, what it gives, and what becomes of
that. A module is an *expert* (PE), a head or an extractor that maps rows to rows, or a vector of
*parameters* (PP), whose output is the vector itself whatever it is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from methods.errors import MethodError
from methods.interface.averaging import plus_change
from methods.interface.defaults import CLIENT_ONLY, MethodDefaults
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Need,
    Objective,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
    Unit,
    Weighting,
)
from methods.networks.extractors import ClipTower, Extractor, NetworkConfig, build_extractor
from methods.networks.layers import Layers, Parameters, linear, specs, start

if TYPE_CHECKING:
    from methods.interface.method import Penalty

HEAD = "head"

PerExample = Callable[[Parameters, Parameters], Tensor]
"""From parameters and a batch to one number of each example, (B,)."""


@dataclass(frozen=True)
class BatchObjective:
    """An objective without a data-free part: all of the network sees the batch.

    Attributes:
        per_example: The loss of each example.
    """

    per_example: PerExample
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Parameters) -> Parameters:
        """Return nothing: all of it sees the batch."""
        return {}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,)."""
        return self.per_example(parameters, batch)


@dataclass(frozen=True)
class SplitMethod(MethodDefaults):
    """A network in a shared and a personal part.

    Unless a method says otherwise all of it is trained together by cross-entropy, changes of the
    shared part are averaged by number of examples, and the personal part starts alike on all
    clients, as copies of one network do.

    Attributes:
        config: Options of the network.
        extractor: The network below its head.
        classes: The classes that are told apart, in label order.
        needs: What the extractor asks for.
        pixel_size: The extractor's.
        device: Where torch computes outside of training.
    """

    weighting: ClassVar[Weighting] = Weighting.EXAMPLES
    """How changes of the shared part are averaged."""
    config: NetworkConfig
    extractor: Extractor
    classes: tuple[str, ...]
    needs: frozenset[Need] = field(default=frozenset({"pixels"}), kw_only=True)
    pixel_size: int | None = field(default=None, kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    has_personal_state: bool = field(default=False, init=False)

    @property
    def head_layers(self) -> Layers:
        """A linear head from features to classes."""
        return self.extractor.head_layers(HEAD, self.classes)

    @property
    def shared_layers(self) -> Layers:
        """What is averaged over clients."""
        raise NotImplementedError

    @property
    def personal_layers(self) -> Layers:
        """What stays with a client."""
        return {}

    @property
    def averaged(self) -> frozenset[str]:
        """The shared part."""
        return frozenset(self.shared_layers)

    @property
    def closed_classes(self) -> bool:
        """The head has an output for each class."""
        return True

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return what the extractor keeps."""
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

    def objective(self, view: ClientView) -> Objective:
        """Return what local training minimises, given what the client has in hand."""
        return BatchObjective(self.cross_entropies)

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return the shared part."""
        return specs(self.shared_layers, self.weighting)

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return a fresh shared part."""
        return start(self.shared_layers, rng)

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return a fresh personal part, alike for all clients."""
        return start(self.personal_layers, shared_rng)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train both parts together."""
        trained = self.train(
            view, data, trainer, rng, names=(*self.shared_layers, *self.personal_layers)
        )
        return self.result(view, trained)

    def train(
        self,
        view: ClientView,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
        *,
        names: Sequence[str],
        start: Arrays | None = None,
        steps: int | None = None,
        penalty: Penalty | None = None,
        after_step: Callable[[Parameters], None] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Train the named arrays by the method's objective, the others being held.

        Args:
            view: What the client has in hand.
            data: Its examples.
            trainer: Trains.
            rng: Draws the batches.
            names: What is trained.
            start: Where to start; None for the broadcast and the personal part.
            steps: Number of steps in place of the configured amount.
            penalty: A term of the loss that sees no data.
            after_step: Data-free correction of the trained tensors.

        Returns:
            All arrays after training.
        """
        return trainer.fit(
            self.objective(view),
            self.model_of(view) if start is None else start,
            data.arrays,
            groups=(ParameterGroup(tuple(names)),),
            rng=rng,
            steps=steps,
            penalty=penalty,
            after_step=after_step,
        )

    def model_of(self, view: ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network: the shared part as broadcast, and its own."""
        own = view.personal
        return {
            **{name: view.broadcast[name] for name in self.shared_layers},
            **{name: own[name] for name in self.personal_layers if name in own},
        }

    def result(self, view: ClientView, trained: Arrays) -> LocalResult:
        """Return the change of the shared part, and the personal part as it is now."""
        update = {name: trained[name] - view.broadcast[name] for name in self.shared_layers}
        return LocalResult(update, None, {name: trained[name] for name in self.personal_layers})

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Add the mean change."""
        return plus_change(state, aggregate.values)

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, len(classes)) of the client's network.

        Raises:
            MethodError: If a class is not one of the task's, or there is no personal part.
        """
        columns = self.columns(classes)
        with torch.no_grad():
            logits = self.logits(self.tensors(self.whole_model_of(view)), self.tensors(batch))
        return logits[:, columns].cpu().numpy().astype(np.float32)

    def whole_model_of(self, view: ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network.

        Raises:
            MethodError: If there is no personal part: the shared part alone is no network.
        """
        model = self.model_of(view)
        if not model.keys() >= self.personal_layers.keys():
            raise MethodError(
                "client: none, but a part of the network is a client's own; valid: one client"
            )
        return model

    def tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return arrays on the method's device, copied."""
        return {n: torch.from_numpy(np.array(a)).to(self.device) for n, a in arrays.items()}

    @classmethod
    def built(cls, config: NetworkConfig, task: Task) -> Self:
        """Return the method for a task.

        Raises:
            BackboneError: If the network needs a CLIP model and the task has none.
        """
        extractor = build_extractor(config, task)
        return cls(
            config,
            extractor,
            task.classes,
            needs=extractor.needs,
            pixel_size=extractor.pixel_size,
            device=task.device,
        )

    def columns(self, classes: Sequence[str]) -> list[int]:
        """Return positions of classes among the head's outputs.

        Raises:
            MethodError: If one is not among them.
        """
        return columns_of(classes, self.classes)


def columns_of(classes: Sequence[str], known: Sequence[str]) -> list[int]:
    """Return positions of classes among a head's outputs.

    Args:
        classes: What is asked about.
        known: Classes of the outputs.

    Raises:
        MethodError: If one is not among them.
    """
    for name in classes:
        if name not in known:
            raise MethodError(
                f"classes: {name!r} is none that the network has an output for; valid: "
                f"{', '.join(known)}"
            )
    return [known.index(name) for name in classes]


GATED = "gated"
"""The part that a gate over modules is fed, (B, G)."""
FED = "fed"
"""The part that the module is fed, (B, ...)."""


@dataclass(frozen=True)
class CentralisedMethod(SplitMethod):
    """A network that one party trains on all data, so that nothing is shared."""

    has_personal_state: bool = field(default=True, init=False)
    units: frozenset[Unit] = field(default=CLIENT_ONLY, init=False)

    @property
    def centralised(self) -> bool:
        """One party holds all data."""
        return True

    @property
    def shared_layers(self) -> Layers:
        """Nothing is shared."""
        return {}

    @property
    def tower(self) -> ClipTower:
        """CLIP's image tower, of a method that has no other network."""
        return cast("ClipTower", self.extractor)


@dataclass(frozen=True)
class ModularMethod(SplitMethod):
    """A network cut at its personal module."""

    combined: ClassVar[tuple[str, ...]] = ()
    """The parts that `combine` reads."""
    refines: ClassVar[bool] = False
    """Whether `personalise` trains the module: then it is what converged, and goes to the pool."""
    has_personal_state: bool = field(default=True, init=False)

    @property
    def module_layers(self) -> Layers:
        """The module's arrays: a part of the personal ones, all of them unless said otherwise."""
        return self.personal_layers

    @property
    def gated_width(self) -> int:
        """G, the width of what a gate over modules is fed."""
        return self.extractor.width

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return what the rest of the network makes of a batch, row by row.

        Returns:
            `fed`, `gated`, and those that `combined` names.
        """
        features = self.features(parameters, batch)
        return {FED: features, GATED: features}

    def module_output(self, module: Parameters, fed: Tensor) -> Tensor:
        """Return what one module makes of rows (B, ...): (B, H)."""
        return linear(module, HEAD, fed)

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C) from a module's output, or from a mixture of several.

        Args:
            parameters: The client's network.
            parts: Those that `combined` names, among others perhaps.
            output: (B, H).
        """
        return output

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C) with the client's own module."""
        parts = self.parts(parameters, batch)
        return self.combine(parameters, parts, self.module_output(parameters, parts[FED]))


def blocks(arrays: Arrays, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the examples in order, so many at a time.

    Args:
        arrays: One or more arrays (n, ...), row i of each being example i.
        rows: Most examples of a block, 1 at least.

    Yields:
        Arrays (b, ...) of each name, b at most `rows`; a single empty block where n is 0.
    """
    count = len(next(iter(arrays.values())))
    for first in range(0, max(count, 1), rows):
        yield {name: array[first : first + rows] for name, array in arrays.items()}


ROWS = 256
"""Examples that are computed at once; changes memory only."""

RowByRow = Callable[[Parameters, Parameters], Tensor]
"""From parameters and a batch to rows (B, W), row i being of example i."""


def features_of(method: SplitMethod, model: Arrays, data: Examples) -> NDArray[np.float32]:
    """Return features (n, D) of all examples, as `rows_of` does."""
    return rows_of(method, method.features, model, data)


def rows_of(
    method: SplitMethod, compute: RowByRow, model: Arrays, data: Examples
) -> NDArray[np.float32]:
    """Return what is computed of each example, (n, W).

    It reads the data past the trainer, so nothing that follows from it may leave under `dp_sgd`.

    Args:
        method: Whose network it is.
        compute: What is computed.
        model: Arrays of the network, those that are read among them.
        data: The n examples, n at least 1.
    """
    parameters, pieces = method.tensors(model), []
    with torch.no_grad():
        for some in blocks(data.arrays, ROWS):
            pieces.append(compute(parameters, method.tensors(some)))
    rows: NDArray[np.float32] = torch.cat(pieces).cpu().numpy()
    return rows


def label_shares(labels: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """Return the share of each class (C,) among labels (n,); zeros without labels.

    It is a statistic of records that no noised step returns.

    Args:
        labels: Classes (n,), each below C.
        classes: C.
    """
    return (np.bincount(labels, minlength=classes) / max(len(labels), 1)).astype(np.float32)


def pull_to(anchor: Parameters, weight: float, prefix: str = "") -> Penalty | None:
    """Return the term weight/2 ||w - anchor||^2, None where the weight is zero.

    It sees no data. As a trainer's penalty it costs nothing of an example's bound.

    Args:
        anchor: Where training is held, by the names of the network's arrays.
        weight: Factor of the term.
        prefix: What the names of the arrays in training begin with, before the anchor's.
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
    """Take one step for each loss, in order.

    Args:
        parameters: Starting values, which are left as they are.
        losses: One per step; a generator may draw each anew.
        optimizer: Makes the optimiser of some tensors; its state ends with the call.

    Returns:
        The parameters after the last step.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    steps = optimizer(list(leaves.values()))
    for loss in losses:
        steps.zero_grad()
        torch.autograd.backward(loss(leaves))
        steps.step()
    return {name: leaf.detach().cpu().numpy() for name, leaf in leaves.items()}
