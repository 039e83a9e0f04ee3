"""Each seed of the data changes its own thing, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def held(data: TaskData, part: str) -> list[np.ndarray]:
    return [getattr(client, part) for client in data.clients]


SEEDED = ("task.domains=[real]", "task.shots=6", "task.clients=5", "task.validation_share=0.34")


def counts(data: TaskData) -> list[list[int]]:
    labels = data.dataset.train.labels
    return [
        np.bincount(labels[[*client.train, *client.validation]], minlength=20).tolist()
        for client in data.clients
    ]


def whole(data: TaskData) -> list[list[int]]:
    """Training and validation rows together."""
    return [sorted([*client.train, *client.validation]) for client in data.clients]


def shown(data: TaskData) -> list[list[int]]:
    return [client.test.tolist() for client in data.clients]


def test_the_class_map_s_seed_changes_who_has_which_class():
    base, other = load(*SEEDED), load(*SEEDED, "seeds.class_map=8")
    assert counts(base) != counts(other)
    np.testing.assert_array_equal(base.dataset.train.images, other.dataset.train.images)


@pytest.mark.parametrize("kind", ["pathological", "iid", "dirichlet"])
def test_the_shots_seed_changes_images_and_not_counts(kind: str):
    digits = ("task.dataset=digits", f"task.partition.kind={kind}", *SEEDED[1:])
    base, other = load(*digits), load(*digits, "seeds.shots=8")
    assert counts(base) == counts(other)
    assert all(a != b for a, b in zip(whole(base), whole(other), strict=True))


def test_the_validation_seed_changes_what_is_held_back_only():
    base, other = load(*SEEDED), load(*SEEDED, "seeds.validation=8")
    assert whole(base) == whole(other) and shown(base) == shown(other)
    for one, two in zip(base.clients, other.clients, strict=True):
        assert len(one.validation) and len(two.validation)
        assert one.validation.tolist() != two.validation.tolist()


def test_the_split_s_seed_changes_which_digits_are_test_images():
    digits = ("task.dataset=digits", "task.partition.kind=iid", "task.clients=5", "task.shots=4")
    base, other = load(*digits), load(*digits, "seeds.split=8")
    assert base.dataset.train.num_examples == other.dataset.train.num_examples
    assert (base.dataset.test.images != other.dataset.test.images).any()
    assert [len(rows) for rows in held(base, "train")] == [40] * 5
