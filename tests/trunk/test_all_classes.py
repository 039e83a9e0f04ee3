"""Every client on all test images, of the clients that are measured: by hand, and in runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from methods import ClientView, Examples
from platform.config import parse_config
from platform.data.homonyms import SENSES
from platform.data.loading import TaskData, load_task_data
from platform.experiment.evaluation import measured
from platform.parties.scoring import LOCAL, OWN, CommonScores, EvaluationSet, MeasuredSets
from platform.wire.codec import decode_arrays
from tests.trunk._runs import NONE, TWINS, Finished, opened
from tests.trunk.conftest import MakeStorage

ALL = "evaluation.protocol=all_classes"
TREE = {
    **{"name": "run", "seed": 4, "method": {"name": "promptfl"}},
    "training": {"local_steps": 1},
    "task": {"dataset": "homonyms", "domains": ["real", "sketch"], "test_per_class": 6},
}
SHARED = ("task.partition.classes_per_client=2", "task.shots=2", "task.clients=22")
FEW = ("task.dataset=homonyms", "task.partition.classes_per_client=4", "task.shots=2")
"""Five clients with a class each in common: 20 classes have one owner each."""
ALONE = ("secure_aggregation.enabled=false", "cohort.dropout_rate=0", NONE)
SENSED = (*ALONE, *FEW, ALL, "task.senses=clients", "task.new_clients=1", "rounds=1")
PERSONAL = ("method.name=fedpgp", "method.context_tokens=2")


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(TREE, overrides))


def test_all_test_images_are_those_of_all_clients():
    data = load(ALL, *SHARED)
    assert list(data.all_tests) == [""]
    assert data.all_tests[""].tolist() == list(range(120))
    assert load(*SHARED).all_tests == {}


def test_each_sense_has_all_test_images_drawn_in_it():
    data = load(ALL, *SHARED, "task.senses=clients")
    test = data.dataset.test
    assert list(data.all_tests) == list(SENSES) and test.num_examples == 5 * 120
    for sense, rows in data.all_tests.items():
        alone = load(*SHARED, f"task.senses={sense}").dataset.test
        np.testing.assert_array_equal(test.images[rows], alone.images)
        np.testing.assert_array_equal(test.labels[rows], alone.labels)
    plain = load(*SHARED, "task.senses=clients")
    for client, other, sense in zip(data.clients, plain.clients, data.senses, strict=True):
        np.testing.assert_array_equal(client.test, other.test)
        own = test.images[client.test]
        np.testing.assert_array_equal(own, plain.dataset.test.images[client.test])
        np.testing.assert_array_equal(own, test.images[data.all_tests[sense][client.test]])


class Saying:
    """Says of every image the class that the broadcast names, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, view, batch, classes):
        self.asked += 1
        said = np.full(len(batch["row"]), int(view.broadcast["says"]))
        return np.eye(len(classes), dtype=np.float32)[said]


def images(*labels: int) -> EvaluationSet:
    arrays = {"row": np.arange(len(labels)), "labels": np.array(labels, np.int64)}
    return EvaluationSet(Examples(arrays), ("a", "b", "c"))


def test_two_senses_and_a_client_without_images_by_hand():
    """All say "a". In the first sense 3 of 4 are "a", in the second 1 of 4: 3/4, 1/4 and 3/4.
    Of their own, 1 of 2 and 0 of 1, and the third has none: 1/4 in the mean, 1/3 weighted."""
    senses = [images(0, 0, 0, 1), images(0, 1, 1, 2)]
    owns = [images(0, 1), images(2), images()]
    method, shared, tallies = Saying(), CommonScores(), []
    view = ClientView({"says": np.array(0)}, (), {})
    for own, everything in zip(owns, (*senses, senses[0]), strict=True):
        sets = MeasuredSets({OWN: own}, {LOCAL: everything}, shared)
        tallies.append({name: sets.tally(method, view, name) for name in (LOCAL, OWN)})
    found = measured("all_classes", (LOCAL, OWN), tallies)
    assert found.local.per_client == (0.75, 0.25, 0.75)
    assert found.headline == found.local.mean == pytest.approx(7 / 12)
    own = found.document()["own"]
    assert found.document()["name"] == "all_classes"
    assert own["per_client"] == [0.5, 0.0, None]
    assert (own["mean"], own["weighted"], own["worst"]) == (0.25, pytest.approx(1 / 3), 0.0)
    # Two senses and two clients with images: the third client's model is known already.
    assert method.asked == 4


@pytest.fixture(scope="module")
def both(make_storage: MakeStorage) -> tuple[Finished, Finished]:
    """All clients measured, and two of them."""
    storage = make_storage("all-classes")
    run = (*SENSED, *PERSONAL, TWINS, "task.test_per_class=2", "task.domains=[real]")
    return storage.run(*run), storage.run(*run, "evaluation.measured_clients=2")


def test_accuracy_is_on_all_test_images_in_the_client_s_sense(both):
    run, _ = both
    with opened(run.storage.reopen(run.run_id)) as simulation:
        plan, population = simulation.learning.evaluation, simulation.population.clients
        sizes = {len(plan.everything[name].examples.arrays["labels"]) for name in population}
        assert sizes == {40}
        assert plan.everything["client-00000"] is plan.everything["client-00004"]
        assert plan.everything["client-00000"] is not plan.everything["client-00001"]
        found, kept = {}, run.personal_parts()
        for name in population:
            test = plan.everything[name]
            broadcast = simulation.run.terms.method.broadcast(run.state(), name)
            view = ClientView(broadcast, (), decode_arrays(kept[name][0]))
            arrays = {n: v for n, v in test.examples.arrays.items() if n != "labels"}
            logits = simulation.run.terms.method.predict(view, arrays, test.classes)
            right = logits.argmax(axis=1) == test.examples.arrays["labels"]
            found[name] = float(right.mean())
    assert run.summary["final"]["accuracy"]["per_client"] == pytest.approx(list(found.values()))


def test_who_is_measured_changes_nothing_else(both: tuple[Finished, Finished]) -> None:
    everybody, two = both
    for name, array in everybody.state().items():
        np.testing.assert_array_equal(array, two.state()[name])
    with opened(two.storage.reopen(two.run_id)) as simulation:
        chosen = simulation.learning.evaluation.measured
    assert len(chosen) == 2
    places = [int(name.removeprefix("client-")) for name in chosen]

    def of(summary: Mapping[str, Any], *path: str) -> list[float]:
        found: Any = summary
        for key in path:
            found = found[key]
        return found["per_client"]

    for path in (("final", "accuracy"), ("local", "accuracy"), ("final", "protocol", "own")):
        whole = of(everybody.summary, *path)
        assert of(two.summary, *path) == pytest.approx([whole[place] for place in places])
    for one, other in zip(everybody.summary["rounds"], two.summary["rounds"], strict=True):
        whole = of(one, "accuracy")
        assert of(other, "accuracy") == pytest.approx([whole[place] for place in places])
