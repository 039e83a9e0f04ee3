"""How a client measures its own model, on its own examples and on sets common to all clients.

The measurements are the experimenter's view. In a federation no measurement leaves a client, except
the accuracy on validation images, clipped and noised with the update (`platform.protection`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, ClientView, Examples, Method
from platform.wire.outside_rounds import Tally
from privacy import NonFiniteUpdate

LOCAL: Final = "local"
"""Name of the test images of a client's accuracy: its own, or those of all clients."""
OWN: Final = "own"
"""Name of its own test images, if its accuracy is on those of all clients."""
VALIDATION: Final = "validation"
"""Name of the images that serve neither training nor tests."""
# A large test set in one block would need the intermediate results of all its rows at once.
_ROWS: Final = 512


@dataclass(frozen=True)
class EvaluationSet:
    """Test images with their classes; labels are places in the list of classes."""

    examples: Examples
    classes: tuple[str, ...]


class CommonScores:
    """Counts on sets common to all clients, for the last model that was measured on them.

    If a method keeps nothing on a client, all clients have one model, and a common set may be many
    thousand images. Clients of one process share these counts, so that one measurement serves all
    clients that predict with equal arrays.
    """

    def __init__(self) -> None:
        """Start without a model."""
        self._broadcast: Arrays | None = None
        self._right: dict[int, int] = {}

    def count(self, method: Method, view: ClientView, test: EvaluationSet) -> int:
        """Return the images whose class is found, counted at most once for equal models."""
        if view.experts or view.personal:
            return count_right(method, view, test)
        if self._broadcast is None or not (
            self._broadcast.keys() == view.broadcast.keys()
            and all(np.array_equal(self._broadcast[n], view.broadcast[n]) for n in self._broadcast)
        ):
            self._broadcast, self._right = view.broadcast, {}
        # Sets live as long as the clients that are measured on them, so no two have one identity.
        if id(test) not in self._right:
            self._right[id(test)] = count_right(method, view, test)
        return self._right[id(test)]


@dataclass(frozen=True)
class MeasuredSets:
    """The sets on which a client measures its model.

    Attributes:
        own: Its own sets by name: `LOCAL` or `OWN`, and `VALIDATION` if it has one.
        common: The sets that it shares with other clients.
        shared: Their counts, which all clients of a process share.
    """

    own: Mapping[str, EvaluationSet] = field(default_factory=dict)
    common: Mapping[str, EvaluationSet] = field(default_factory=dict)
    shared: CommonScores = field(default_factory=CommonScores, repr=False)

    @property
    def names(self) -> frozenset[str]:
        """The names of all sets."""
        return frozenset((*self.own, *self.common))

    def named(self, name: str) -> EvaluationSet:
        """Return one of the sets."""
        return self.own[name] if name in self.own else self.common[name]

    def tally(self, method: Method, view: ClientView, name: str) -> Tally:
        """Return the images whose class is found, and all images, of one set."""
        test = self.named(name)
        count = self.shared.count if name in self.common else count_right
        return count(method, view, test), test.examples.num_examples


def count_right(
    method: Method, view: ClientView, test: EvaluationSet, *, refuses_nan: bool = True
) -> int:
    """Return number of test images whose largest logit is at their label; `NonFiniteUpdate` on NaN.

    The images are predicted in blocks of 512 rows, which bounds the memory and changes nothing: a
    prediction depends on its own image only.
    """
    right = 0
    for labels, batch in _blocks(test.examples):
        logits = method.predict(view, batch, test.classes)
        if refuses_nan and np.isnan(logits).any():
            raise NonFiniteUpdate("the method predicts NaN; valid: numbers")
        right += int(np.count_nonzero(logits.argmax(axis=1) == labels))
    return right


def accuracy(method: Method, view: ClientView, test: EvaluationSet) -> float:
    """Return share of test images whose class is found, in [0, 1]."""
    # It may be released, and an error that depends on an image would tell of it.
    return count_right(method, view, test, refuses_nan=False) / test.examples.num_examples


def mean_weights(
    method: Method, view: ClientView, test: EvaluationSet
) -> NDArray[np.float64] | None:
    """Return the mean weight (E,) of each expert on test images; None if a client has no experts.

    Entries that are fetched round by round come without owners and in no meaningful order: only
    their ranks can be averaged.
    """
    policy, found = method.pool_policy(), []
    for _, batch in _blocks(test.examples):
        weights = method.expert_weights(view, batch, test.classes)
        if weights is None:
            return None
        found.append(weights)
    if not found:
        return None
    is_ranked = policy is not None and not policy.fixed
    return ranked_means(np.concatenate(found), is_ranked=is_ranked)


def ranked_means(weights: NDArray[np.float32], *, is_ranked: bool) -> NDArray[np.float64]:
    """Return the mean (E,) of weights (n, E), each image's sorted from the second on."""
    values = np.asarray(weights, np.float64)
    if is_ranked:
        values = np.concatenate((values[:, :1], -np.sort(-values[:, 1:], axis=1)), axis=1)
    return np.asarray(values.mean(axis=0))


def _blocks(test: Examples) -> Iterator[tuple[NDArray[np.generic], Arrays]]:
    """Yield labels and the other arrays, at most `_ROWS` examples at a time."""
    labels = test.arrays["labels"]
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        yield labels[rows], {n: v[rows] for n, v in test.arrays.items() if n != "labels"}
