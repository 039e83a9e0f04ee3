"""Accuracy by hand, each client with its own personal part and its own images."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from methods import Examples
from platform.client_profile import PersonalState
from platform.evaluation import accuracy_document, client_accuracy, summarise


class Lookup:
    """Predicts the columns of `batch`, shifted by the personal part and the broadcast."""

    def predict(self, broadcast, experts, personal, batch, classes):
        assert set(batch) == {"features"}, "labels are not for predicting"
        shift = int(broadcast["shift"]) + int(personal["shift"]) + len(experts)
        return np.roll(batch["features"], shift, axis=1)[:, : len(classes)]


def one_hot(*columns: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[list(columns)]


TEST = Examples({"features": one_hot(0, 1, 2, 0), "labels": np.array([0, 1, 2, 2])})


def number(value: int) -> dict[str, np.ndarray]:
    return {"shift": np.array(value)}


@pytest.mark.parametrize(
    ("broadcast", "personal", "experts", "expected"),
    [(0, 0, 0, 0.75), (1, 0, 0, 0.0), (1, 1, 0, 0.25), (1, 1, 1, 0.75)],
)
def test_accuracy_by_hand(broadcast, personal, experts, expected):
    state = PersonalState(number(personal), ({},) * experts)
    got = client_accuracy(Lookup(), number(broadcast), state, TEST, ("a", "b", "c"))
    assert got == expected


def test_a_summary_by_hand():
    """0.5 of 10, 1.0 of 30: mean 0.75, weighted 35/40, deviation 0.25, worst 0.5."""
    summary = summarise([0.5, 1.0], [10, 30])
    assert summary.mean == 0.75
    assert summary.weighted == 0.875
    assert summary.std == 0.25
    assert summary.worst == 0.5
    assert summary.per_client == (0.5, 1.0)


def test_the_deviation_is_the_populations():
    assert summarise([0.0, 0.5, 1.0], [1, 1, 1]).std == pytest.approx(math.sqrt(1 / 6))
    assert summarise([0.4], [5]).std == 0.0


def test_the_document_is_plain_json():
    document = accuracy_document(summarise([0.5, 1.0], [10, 30]))
    assert json.loads(json.dumps(document)) == {
        "mean": 0.75,
        "std": 0.25,
        "worst": 0.5,
        "per_client": [0.5, 1.0],
    }
    nothing = accuracy_document(None)
    assert nothing == {"mean": None, "std": None, "worst": None, "per_client": None}
