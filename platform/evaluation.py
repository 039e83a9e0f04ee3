"""Accuracy, as a simulation sees it: every client on its own test images, over all classes.

It is the experimenter's view and no message: in a federation nothing of it would leave a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from methods import Arrays, Examples, Method
from platform.client_profile import PersonalState


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over clients.

    Attributes:
        mean: Unweighted mean over clients, in [0, 1].
        weighted: Mean weighted by test images.
        std: Standard deviation over clients (population form).
        worst: The worst client's.
        per_client: Each client's, in the clients' order.
    """

    mean: float
    weighted: float
    std: float
    worst: float
    per_client: tuple[float, ...]

    def document(self) -> dict[str, Any]:
        """As `summary.json` states it."""
        return {
            "mean": self.mean,
            "std": self.std,
            "worst": self.worst,
            "per_client": list(self.per_client),
        }


def client_accuracy(
    method: Method,
    broadcast: Arrays,
    state: PersonalState,
    test: Examples,
    classes: Sequence[str],
) -> float:
    """Share of a client's test images whose largest logit is at their label, in [0, 1]."""
    batch = {name: value for name, value in test.arrays.items() if name != "labels"}
    logits = method.predict(broadcast, state.experts, state.personal, batch, classes)
    return float(np.mean(logits.argmax(axis=1) == test.arrays["labels"]))


def summarise(accuracies: Sequence[float], sizes: Sequence[int]) -> Accuracy:
    """Mean, standard deviation and worst of the clients' accuracies.

    Args:
        accuracies: One a client, in [0, 1].
        sizes: Test images of each.
    """
    values = np.asarray(accuracies, np.float64)
    return Accuracy(
        mean=float(values.mean()),
        weighted=float(np.average(values, weights=sizes)),
        std=float(values.std()),
        worst=float(values.min()),
        per_client=tuple(float(v) for v in values),
    )


def accuracy_document(accuracy: Accuracy | None) -> Mapping[str, Any]:
    """As `summary.json` states it; all null where nothing was measured."""
    if accuracy is None:
        return {"mean": None, "std": None, "worst": None, "per_client": None}
    return accuracy.document()
