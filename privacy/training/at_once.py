"""Fits of several clients at once: the same steps, on arrays with a leading client axis.

`side_by_side` runs computations that each belong to one client, in greenlets of one thread. A
computation stops at its fit; when all have stopped or ended, fits that are alike become one, and
each computation goes on with its own result. So no method needs to know of the others.

Fits are alike if they have equal objectives, and parameters of equal names and shapes. A client's
numbers are those of a fit of its own, up to the order in which a sum adds its terms. A fit that
clips or noises each example, or whose objective `vmap` cannot run, is done by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from privacy.training.fits import Fit, optimizer_of, to_tensor
from privacy.training.per_sample import (
    Objective,
    require_dependent,
    require_one_loss_each,
    visible,
)
from privacy.training.steps import Variables, not_finite

T = TypeVar("T")

ROOM: Final = 2**26
"""Bytes that the forward passes of fits at once may hold; each fit alone may hold more."""


class _Side(greenlet):
    """A computation beside others."""


def side_by_side(works: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Return each computation's result, or the error that it raised, in order."""
    sides = [_Side(partial(_outcome, work)) for work in works]
    outcomes: dict[int, Any] = {}
    waiting: dict[int, Fit] = {}

    def resume(number: int, *result: object) -> None:
        found = sides[number].switch(*result)
        (outcomes if sides[number].dead else waiting)[number] = found

    for number in range(len(sides)):
        resume(number)
    while waiting:
        numbers, fits = list(waiting), list(waiting.values())
        waiting.clear()
        for place, result in _carried_out(fits):
            resume(numbers[place], result)
    return [outcomes[number] for number in range(len(sides))]


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Return each computation's result, in order; raise the first error."""
    results = []
    for outcome in side_by_side(works):
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


def carried_out(fit: Fit) -> dict[str, NDArray[Any]]:
    """Return a fit's trained parameters: with those of others in `side_by_side`, else by itself."""
    side = getcurrent()
    if not isinstance(side, _Side) or side.parent is None:
        return fit.run()
    result = side.parent.switch(fit)
    if isinstance(result, Exception):
        raise result
    trained: dict[str, NDArray[Any]] = result
    return trained


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    # Every type of error: it belongs to this computation, and others go on.
    except Exception as error:
        return error


Result = dict[str, NDArray[Any]] | Exception


def _carried_out(fits: Sequence[Fit]) -> Iterator[tuple[int, Result]]:
    """Yield each fit's number and result, as soon as it is there."""
    groups: list[list[int]] = []
    for number, fit in enumerate(fits):
        for group in groups:
            if _is_alike(fits[group[0]], fit):
                group.append(number)
                break
        else:
            groups.append([number])
    for group in groups:
        yield from _at_once(fits, group)


def _is_alike(one: Fit, other: Fit) -> bool:
    if one.kind != other.kind:
        return False
    return is_same(_without_tensors(one.objective), _without_tensors(other.objective))


def _tensors_of(objective: object) -> dict[str, Tensor]:
    """Return the tensors that an objective has as fields, such as a client's experts."""
    if not is_dataclass(objective):
        return {}
    named = {f.name: getattr(objective, f.name) for f in fields(objective)}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _without_tensors(objective: object) -> object:
    """Return what two objectives need in common: all but the values of their tensors."""
    tensors = _tensors_of(objective)
    if not tensors:
        return objective
    others = (f.name for f in fields(cast("Any", objective)) if f.name not in tensors)
    shapes = tuple((name, str(t.shape), str(t.dtype)) for name, t in tensors.items())
    parts = tuple((name, getattr(objective, name)) for name in others)
    return type(objective).__qualname__, shapes, parts


def is_same(one: object, other: object) -> bool:
    """Return whether two objects compute the same: the same parts, down to equal plain values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    pairs: list[tuple[object, object]]
    match one, other:
        case (str() | int() | float() | bytes() | frozenset(), _):
            return one == other
        case tuple(), tuple():
            if len(one) != len(other):
                return False
            pairs = list(zip(one, other, strict=True))
        case MethodType(), MethodType():
            pairs = [(one.__func__, other.__func__), (one.__self__, other.__self__)]
        case FunctionType(), FunctionType():
            if one.__code__ is not other.__code__ or one.__globals__ is not other.__globals__:
                return False
            closed = zip(one.__closure__ or (), other.__closure__ or (), strict=True)
            pairs = [(mine.cell_contents, its.cell_contents) for mine, its in closed]
            pairs += [(one.__defaults__, other.__defaults__)]
            pairs += [(one.__kwdefaults__, other.__kwdefaults__)]
        case partial(), partial():
            pairs = [
                (one.func, other.func),
                (one.args, other.args),
                (tuple(one.keywords.items()), tuple(other.keywords.items())),
            ]
        case _ if is_dataclass(one) and is_dataclass(other):
            pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
        case _:
            return False
    return all(is_same(*pair) for pair in pairs)


def _at_once(fits: Sequence[Fit], numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
    """Yield the results of fits that are alike, as many at a time as there is room for."""
    first, size = fits[numbers[0]], 1
    if len(numbers) > 1 and first.bound is None and (needed := _needed(first)) is not None:
        size = max(1, ROOM // max(needed, 1))
    # Fits of as many steps stand together, so that few wait for others.
    order = sorted(numbers, key=lambda number: len(fits[number].batches))
    for start in range(0, len(order), size):
        some = order[start : start + size]
        found = _outcome(_Stacked([fits[n] for n in some]).run) if len(some) > 1 else None
        if isinstance(found, list):
            yield from zip(some, found, strict=True)
        else:
            # One fit's error must not reach the others, so each shows its own.
            yield from ((number, _outcome(fits[number].run)) for number in some)


_NEEDS: dict[object, int | None] = {}


def _needed(fit: Fit) -> int | None:
    """Return the bytes that one fit's forward pass keeps; None if `vmap` cannot run it."""
    rows = max(len(rows) for rows in fit.batches)
    key = (type(fit.objective), fit.kind, rows)
    if key not in _NEEDS:
        held = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal held
            held += tensor.numel() * tensor.element_size()
            return tensor

        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                _Stacked([fit, fit]).gradients(0)
        # Torch's own error says what `vmap` cannot do; a fault of the data shows in the fit itself.
        except Exception:
            _NEEDS[key] = None
        else:
            # Beside the pass: values, gradients, and an optimiser's two moments.
            size = sum(array.nbytes for array in fit.parameters.values())
            _NEEDS[key] = held // 2 + 4 * size
    return _NEEDS[key]


class _Stacked:
    """Fits of one kind, with their parameters stacked: (K, ...) for K fits."""

    def __init__(self, fits: Sequence[Fit]) -> None:
        self._fits, first = fits, fits[0]
        self._device, self._objective = first.device, first.objective
        stacked = {
            name: to_tensor(np.stack([fit.parameters[name] for fit in fits]), first.device)
            for name in first.parameters
        }
        own = [_tensors_of(fit.objective) for fit in fits]
        self._own = {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}
        names = [name for group in first.groups for name in group.names]
        self._trained = {name: stacked.pop(name).requires_grad_() for name in names}
        self._constants = stacked
        self._held: Mapping[str, Tensor] | None = None
        if first.objective.encoder_parameters.isdisjoint(names):
            with torch.no_grad(), _plain_attention():
                self._held = self._encoded_once()

    def run(self) -> list[Result]:
        """Return each fit's result."""
        fits, first, trained = self._fits, self._fits[0], self._trained
        variables = Variables(trained=trained, constants=self._constants)
        optimizer = optimizer_of(first.plan, variables, first.groups)
        # By client, which tensor was not finite first: 0 for none, 1 for the loss, then gradients.
        fault = torch.zeros(len(fits), dtype=torch.int64, device=self._device)
        ended: dict[int, dict[str, Tensor]] = {}
        for step in range(max(len(fit.batches) for fit in fits)):
            bad_losses, gradients = self.gradients(step)
            parts = torch.stack([bad_losses, *(_is_bad(gradient) for gradient in gradients)])
            found = torch.where(parts.any(dim=0), parts.int().argmax(dim=0) + 1, 0)
            fault = torch.where(fault == 0, found, fault)
            for tensor, gradient in zip(trained.values(), gradients, strict=True):
                tensor.grad = gradient
            optimizer.step()
            for number, fit in enumerate(fits):
                left = len(fit.batches) - 1 - step
                if left < 0 or (left and fit.after_step is None):
                    continue
                rows = {name: leaf.detach()[number] for name, leaf in trained.items()}
                if fit.after_step is not None:
                    with torch.no_grad():
                        fit.after_step(rows)
                # Its momentum may move a fit that has ended; what it ended with is kept here.
                if not left:
                    ended[number] = {name: row.clone() for name, row in rows.items()}
        named = ("the loss", *(f"the gradient of {name!r}" for name in trained))
        faults = fault.tolist()
        return [
            not_finite(named[faults[number] - 1])
            if faults[number]
            else _outcome(partial(fit.result, ended[number]))
            for number, fit in enumerate(fits)
        ]

    def gradients(self, step: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return which fits have a loss that is not finite (K,), and gradients (K, ...).

        Fits whose batches have as many rows are computed at once. A fit without a step has zeros.
        """
        numbers: dict[int, list[int]] = {}
        for number, fit in enumerate(self._fits):
            if step < len(fit.batches):
                numbers.setdefault(len(fit.batches[step]), []).append(number)
        bad = torch.zeros(len(self._fits), dtype=torch.bool, device=self._device)
        totals = []
        for some in numbers.values():
            losses, total = self._losses(step, some)
            bad[some] = _is_bad(losses)
            totals.append(total)
        leaves = list(self._trained.values())
        total = torch.stack(totals).sum()
        return bad, torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)

    def _losses(self, step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the losses (k, B) of some fits, and the sum of what each minimises."""
        fits, all_of_them = [self._fits[n] for n in numbers], len(numbers) == len(self._fits)

        def of_these(tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
            return {n: t if all_of_them else t[numbers] for n, t in (tensors or {}).items()}

        trained, constants = of_these(self._trained), of_these(self._constants)
        batch = {
            name: to_tensor(
                np.stack([fit.examples[name][fit.batches[step]] for fit in fits]), self._device
            )
            for name in fits[0].examples
        }
        with _plain_attention():
            known = (constants, of_these(self._held), of_these(self._own))
            losses, encoded = vmap(self._of_one)(trained, known, batch)
        # Within `vmap` no tensor tells whether it has a gradient.
        require_dependent(self._objective, encoded, trained)
        total = losses.mean(dim=1).sum()
        parameters = {**constants, **trained}
        for number, fit in enumerate(fits):
            if fit.penalty is not None:
                own = {name: tensor[number] for name, tensor in parameters.items()}
                total = total + fit.penalty(own, {n: t[number] for n, t in encoded.items()})
        return losses, total

    def _of_one(
        self,
        trained: Mapping[str, Tensor],
        known: tuple[Mapping[str, Tensor], ...],
        batch: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        constants, encoded, own = known
        objective, parameters = self._with(own), {**constants, **trained}
        if self._held is None:
            encoded = objective.encode(visible(objective, parameters, trained))
        losses = objective.losses(parameters, encoded, batch)
        require_one_loss_each(losses, len(batch["labels"]))
        return losses, encoded

    def _encoded_once(self) -> Mapping[str, Tensor]:
        """Return what no trained parameter changes, with a leading client axis."""
        constants, own = self._constants, self._own
        if constants or own:
            each = vmap(lambda parameters, own: dict(self._with(own).encode(parameters)))
            held: Mapping[str, Tensor] = each(constants, own)
            return held
        alike = self._objective.encode({})
        return {name: t.expand(len(self._fits), *t.shape) for name, t in alike.items()}

    def _with(self, own: Mapping[str, Tensor]) -> Objective:
        return replace(cast("Any", self._objective), **own) if own else self._objective


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Compute attention without fused kernels, which `vmap` cannot run or cannot differentiate."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _is_bad(part: Tensor) -> Tensor:
    """Return for each client whether its part holds NaN or infinity, (K,)."""
    return ~torch.isfinite(part.detach()).reshape(len(part), -1).all(dim=1)
