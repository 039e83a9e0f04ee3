"""`homonyms`: what names mean in each sense, and who is dealt which sense."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from platform.config import parse_config
from platform.data.homonyms import SENSES, homonyms_dataset, outlines_of
from platform.data.loading import TaskData, load_task_data
from platform.data.shapes import DOMAINS, Part, Stream, draw_with_distance, shapes_dataset
from platform.errors import ConfigError
from tests.trunk._runs import slow

MINIMAL = {
    "name": "run",
    "seed": 4,
    "method": {"name": "coop"},
    "training": {"local_steps": 1},
    "task": {"dataset": "homonyms", "domains": ["real", "sketch"], "test_per_class": 10},
}
IID = ("task.partition.kind=iid", "task.clients=5", "task.shots=4")
# Written down by hand: what the names mean from "crane" to "tank".
IN_THE_HARBOUR = (
    *("square", "hexagon", "star", "cross", "heart", "crescent", "arrow", "diamond", "oval"),
    *("semicircle", "trapezoid", "lightning", "house", "drop", "hourglass", "flower", "chevron"),
    *("circle", "ring", "triangle"),
)


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def in_one_sense(sense, train=1, domains=("clipart",), seed=4):
    senses = np.full((len(domains), 1), sense)
    return homonyms_dataset(seed, train, 1, senses=(senses, senses), domains=domains).train


def meaning() -> np.ndarray:
    return np.stack([outlines_of(np.arange(20), np.full(20, sense)) for sense in range(4)])


def test_no_name_means_the_same_in_two_senses_and_no_outline_has_a_name_twice():
    """Brute force over all names and pairs of senses: a Latin rectangle."""
    for row in meaning():
        assert sorted(row.tolist()) == list(range(20))
    for one, other in combinations(meaning(), 2):
        assert all(one[name] != other[name] for name in range(20))
    names = [np.argsort(row) for row in meaning()]
    assert all(len({int(of[outline]) for of in names}) == 4 for outline in range(20))


def test_images_show_what_their_names_mean_by_hand():
    """The same pen draws the outlines of the list: one image of each name, one block."""
    key = (int(Stream.FEDERATION), int(Part.TRAIN), DOMAINS.index("clipart"))
    rng = np.random.default_rng(np.random.SeedSequence(4, spawn_key=key))
    drawn, _ = draw_with_distance(rng, IN_THE_HARBOUR, "clipart", image_size=32)
    made = in_one_sense(1)
    assert made.labels.tolist() == list(range(20))
    np.testing.assert_array_equal(made.images[np.arange(20)], drawn)


def test_the_first_sense_is_shapes_under_other_names():
    shapes = shapes_dataset(4, 3, 1, domains=("clipart",)).train
    np.testing.assert_array_equal(in_one_sense(0, 3).images[np.arange(60)], shapes.images)


def images(data: TaskData, part: str = "train") -> np.ndarray:
    split = getattr(data.dataset, part)
    return np.asarray(split.images[np.arange(split.num_examples)])


@pytest.mark.parametrize(
    "overrides",
    [
        (*IID, "task.new_clients=2", "task.validation_share=0.25"),
        slow(("task.partition.kind=pathological", "task.clients=10", "task.shots=4")),
    ],
    ids=["new", "pathological"],
)
def test_what_a_client_holds_is_drawn_in_its_sense(overrides):
    data = load(*overrides, "task.senses=clients")
    alone = {sense: load(*overrides, f"task.senses={sense}") for sense in SENSES}
    plain = alone["garden"]
    everybody = (*data.clients, *data.new_clients)
    assert data.senses == tuple(SENSES[i % 4] for i in range(len(everybody)))
    whose = zip(everybody, (*plain.clients, *plain.new_clients), data.senses, strict=True)
    for client, before, sense in whose:
        for part, side in (("train", "train"), ("validation", "train"), ("test", "test")):
            rows = getattr(client, part)
            np.testing.assert_array_equal(rows, getattr(before, part))
            labels = [getattr(d.dataset, side).labels[rows] for d in (data, plain)]
            np.testing.assert_array_equal(*labels)
            own = images(alone[sense], side)[rows]
            np.testing.assert_array_equal(images(data, side)[rows], own)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("task.senses=sea",), "task.senses: 'sea' is unknown; valid: styles, clients"),
        (("task.senses=clients", "task.dataset=shapes"), "task.senses: clients has no meaning"),
        (("task.shots=null",), "task.shots: null takes all training examples"),
    ],
)
def test_what_cannot_be_dealt_is_refused(overrides, sentence):
    with pytest.raises(ConfigError) as error:
        load(*overrides)
    assert sentence in str(error.value)
