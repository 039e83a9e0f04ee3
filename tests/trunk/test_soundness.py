"""What must hold of any data set, whoever read it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from platform.config import parse_config
from platform.data import loading
from platform.data.dataset import Dataset, Split
from platform.data.loading import TaskData, load_task_data
from platform.errors import DataError

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def given(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """A data set of 4 classes x 3 images in two domains, with changes to its training side."""
    labels, domains = np.tile(np.arange(4), 3), np.repeat([0, 1, 1], 4)
    split = Split(np.zeros((12, 4, 4, 3), np.uint8), labels, domains)
    made = Dataset(
        name="drawn",
        classes=("a", "b", "c", "d"),
        domains=("one", "two"),
        train=replace(split, **changes),
        test=split,
    )
    monkeypatch.setattr(loading, "load_dataset", lambda name, request: made)


def rows(labels: list[int], domains: list[int]) -> dict[str, object]:
    images = np.zeros((len(labels), 4, 4, 3), np.uint8)
    return {
        "images": images,
        "labels": np.array(labels, np.int64),
        "domains": np.array(domains, np.int64),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (rows([0, 1, 2, 4], [0] * 4), "4 for the label"),
        (rows([0, 1, 2, 3], [0, 0, 2, 0]), "2 for the domain"),
        (rows([], []), "no training example"),
        (rows([0, 1, 1, 3], [0] * 4), "example of 'c'"),
        ({"domains": np.zeros(3, np.int64)}, "3 training domains"),
    ],
)
def test_what_no_loader_may_say_is_refused(monkeypatch, changes, words):
    given(monkeypatch, **changes)
    with pytest.raises(DataError) as caught:
        load("task.partition.kind=iid", "task.clients=2", "task.shots=1")
    message = str(caught.value)
    assert message.startswith("task.root: drawn has ") and words in message
    assert "\n" not in message


def test_clients_own_images_need_not_be_of_every_class(monkeypatch: pytest.MonkeyPatch):
    """That one client has lost its last image of a class must not end the run of all others."""
    given(monkeypatch, **rows([0, 1, 2, 3, 0, 1, 2], [0, 0, 0, 0, 1, 1, 1]))
    held_out = ("task.held_out_domain=one", "evaluation.protocol=leave_one_domain_out")
    alone = ("task.clients=1", "cohort.minimum=1", "task.partition.kind=domain")
    (client,) = load(*held_out, *alone).clients
    assert len(client.train) == 3
