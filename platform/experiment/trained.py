"""What a run trained, at work: one example's class, and the arrays that predict it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import ClientView, Method
from platform.experiment.dealing import BatchMaking


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What a finished run can predict with.

    Attributes:
        method: Its method.
        view: The shared parameters after the last round, and a client's own part where one is
            chosen.
        classes: The classes that are told apart.
        batch_of: Images (n, H, W, 3) or texts to what the method predicts from.
    """

    method: Method
    view: ClientView
    classes: Sequence[str]
    batch_of: BatchMaking

    def classify(self, example: NDArray[np.uint8] | str) -> dict[str, Any]:
        """Return class and probability of one image (H, W, 3) or text."""
        batch = self.batch_of((example,) if isinstance(example, str) else example[None])
        logits = self.method.predict(self.view, batch, self.classes)[0]
        odds = np.exp(logits - logits.max())
        best = int(logits.argmax())
        return {"class": self.classes[best], "probability": float(odds[best] / odds.sum())}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that predicts, by name; empty where nothing was trained."""
        view = self.view
        found = {f"shared.{name}": np.ascontiguousarray(a) for name, a in view.broadcast.items()}
        for name, array in view.personal.items():
            found[f"personal.{name}"] = np.ascontiguousarray(array)
        for position, expert in enumerate(view.experts):
            for name, array in expert.items():
                found[f"expert.{position}.{name}"] = np.ascontiguousarray(array)
        return found
