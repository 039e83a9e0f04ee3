"""At home: a client's own class means before, beside or in place of what the federation gave it.

After the last release a client keeps the mean of its own image features for each class that it
holds. Its head is then one of

- `shared`: the method's own logits;
- `own`: the cosine of an image with its class means; classes that it does not hold come last;
- `both`: the method says whether an image shows a class that the client holds, and the means say
  which of them: p(y) = p_method(held) p_means(y | held) for a held class y, else p_method(y);
- `select`: `own` or `shared`, whichever has more right answers on the client's own examples, where
  a mean leaves the example itself out; `own` if both have as many. `both` never has more there than
  `own`, since the means decide among the held classes in either.

Nothing of this feeds an upload: means and choice are made after the last release, and the method
never sees them. They are a model of the client's data without noise, which no epsilon covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY, OverMethod

Head = Literal["shared", "own", "both"]
HEADS: Final[tuple[Head, ...]] = ("own", "shared", "both")
ROWS: Final = "home.rows"
HEAD: Final = "home.head"
"""Names of arrays in personal state: means (C, d), zero for a class that is not held, and the
index of the head in `HEADS`."""
FEATURES: Final = "home.features"
"""Image features beside what the method makes of an example."""
_TEMPERATURE: Final = 100.0
"""Of the means' cosines, as CLIP's own."""


@dataclass(frozen=True)
class AtHome(OverMethod):
    """A method whose clients have a head of their own at the end. Made by `at_home`."""

    head: Literal["own", "both", "select"]
    classes: tuple[str, ...]
    units = CLIENT_ONLY
    has_personal_state = True

    @property
    def needs(self) -> frozenset[m.Need]:
        """What the method needs, and image features."""
        return self.base.needs | {"features"}

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return what the method keeps, and the features."""
        asked = {n: a for n, a in arrays.items() if n != "features" or n in self.base.needs}
        return {**self.base.prepare(asked), FEATURES: arrays["features"]}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train by the method, which does not see means or choice."""
        return self.base.client_update(_bare(view), data, trainer, rng)

    def contribute(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Contribute by the method, which does not see means or choice."""
        return self.base.contribute(_bare(view), data, trainer, rng)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Personalise by the method, then keep means and choice."""
        personal = self.base.personalise(_bare(view), data, trainer, rng)
        features, labels = data.arrays[FEATURES].astype(np.float64), data.arrays["labels"]
        members = labels[:, None] == np.arange(len(self.classes))
        sums = members.T.astype(np.float64) @ features
        chosen: Head = "shared" if self.head == "select" else self.head
        if self.head == "select" and len(labels):
            held = members.any(axis=0)
            scores = np.full(members.shape, -np.inf)
            scores[:, held] = _cosines(features, sums[held])
            # The example's own class is judged without the example.
            without = sums[labels] - features
            scores[np.arange(len(labels)), labels] = _rows_cosines(features, without)
            shared = self.base.predict(
                replace(_bare(view), personal=personal), data.arrays, self.classes
            )
            own, others = (
                int((combined(head, shared, scores).argmax(axis=1) == labels).sum())
                for head in ("own", "shared")
            )
            chosen = "own" if own >= others else "shared"
        kept = {ROWS: sums.astype(np.float32), HEAD: np.array(HEADS.index(chosen), np.int64)}
        return {**personal, **kept}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)) of the client's head; the method's before the end."""
        shared = self.base.predict(_bare(view), batch, classes)
        if HEAD not in view.personal:
            return shared
        known = [self.classes.index(name) if name in self.classes else -1 for name in classes]
        rows = np.append(view.personal[ROWS], np.zeros((1, view.personal[ROWS].shape[1])), 0)
        held = rows[known].any(axis=1)
        scores = np.full(shared.shape, -np.inf)
        scores[:, held] = _cosines(batch[FEATURES].astype(np.float64), rows[known][held])
        head = HEADS[int(view.personal[HEAD])]
        return combined(head, shared, scores).astype(np.float32)

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> m.Logits | None:
        """Return the method's, or (n, 2): one for `own`, then one for any other head.

        So their mean over clients says how many chose `own`.
        """
        found = self.base.expert_weights(_bare(view), batch, classes)
        if found is not None or HEAD not in view.personal:
            return found
        is_own = HEADS[int(view.personal[HEAD])] == "own"
        return np.tile(np.array([is_own, not is_own], np.float32), (len(batch[FEATURES]), 1))


def combined(head: Head, shared: NDArray[Any], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logits (n, C) of a head.

    `shared` are the method's logits, and `scores` the cosines with means, -inf for a class that is
    not held. A client without any class has the method's logits.
    """
    logits: NDArray[np.float64] = log_softmax(shared.astype(np.float64), axis=1)
    held = np.isfinite(scores).any(axis=0)
    if head == "shared" or not held.any():
        return logits
    own = log_softmax(_TEMPERATURE * scores[:, held], axis=1)
    mass = logsumexp(logits[:, held], axis=1, keepdims=True)
    if head == "own" and not held.all():
        # The others keep their order below all that are held.
        logits -= logits[:, ~held].max(axis=1, keepdims=True) - own.min(axis=1, keepdims=True) + 1
        mass = np.zeros_like(mass)
    logits[:, held] = own + mass
    return logits


def _cosines(features: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(features, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    found: NDArray[np.float64] = features @ rows.T / np.maximum(lengths, 1e-12)
    return found


def _rows_cosines(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows; -1 where the second is zero."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found = (first * second).sum(axis=1) / np.maximum(lengths, 1e-12)
    return np.where(np.linalg.norm(second, axis=1) > 1e-9, found, -1.0)


def _bare(view: m.ClientView) -> m.ClientView:
    """Return a view without means and choice."""
    kept = {n: v for n, v in view.personal.items() if n not in (ROWS, HEAD)}
    return replace(view, personal=kept)


def at_home(method: m.Method, head: Literal["own", "both", "select"], task: m.Task) -> m.Method:
    """Wrap a method; refuse a task without CLIP, whose features the means are of."""
    if task.backbone is None:
        raise MethodError(
            f"evaluation.at_home: {head} takes means of CLIP's image features, and no model is "
            "configured; valid: shared"
        )
    return AtHome(method, head, task.classes)
