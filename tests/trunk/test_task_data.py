"""What a task deals out: domains, classes that are held back, and what everybody is measured on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from platform.errors import ConfigError
from platform.experiment.dealing import records_of
from platform.results.sweeping.grid import identity
from tests.trunk._networks import PIXELS
from tests.trunk._runs import NONE, Storage, opened

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
THREE = ("task.domains=[real, sketch, clipart]", "task.partition.kind=domain", "task.shots=2")
SPLIT = ("task.domains=[real, sketch]", "task.partition.kind=domain_dirichlet", "task.shots=6")
LEAVING = "evaluation.protocol=leave_one_domain_out"
LEFT_OUT = (*THREE, LEAVING, "task.held_out_domain=sketch", "task.test_per_class=9")
ONE_IS_ENOUGH = "cohort.minimum=1"
TO_NOVEL = (
    *("evaluation.protocol=base_to_novel", "task.domains=[real]", "task.shots=2"),
    "task.test_per_class=3",
)


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def held(data: TaskData, part: str) -> list[np.ndarray]:
    return [getattr(client, part) for client in data.clients]


def test_each_client_holds_one_domain():
    """3 domains, 20 classes, 2 shots: 40 training images each, and 20 classes x 3 test images."""
    data = load(*THREE, "task.clients=3", "task.test_per_class=9")
    assert (data.domains, data.domain_names) == ((0, 1, 2), ("real", "sketch", "clipart"))
    assert data.common == {}
    for part, each in (("train", 2), ("test", 3)):
        split = getattr(data.dataset, part)
        for domain, rows in enumerate(held(data, part)):
            assert set(split.domains[rows]) == {domain}
            assert np.bincount(split.labels[rows]).tolist() == [each] * 20


def test_one_client_holds_the_images_of_all_clients_and_meets_the_same_target():
    """Image by image what two clients have together, validation images as well."""
    more = (*LEFT_OUT, "task.validation_share=0.3")
    apart, pooled = load(*more, "task.clients=2"), load(*more, "task.clients=1", ONE_IS_ENOUGH)
    (one,) = pooled.clients
    for part in ("train", "test", "validation"):
        together = np.concatenate(held(apart, part))
        assert len(together) and sorted(getattr(one, part)) == sorted(together)
    assert set(pooled.dataset.train.domains[one.train]) == {0, 2}
    assert pooled.common["target"].rows.tolist() == apart.common["target"].rows.tolist()
    named = [
        records_of(parse_config(MINIMAL, (*more, ONE_IS_ENOUGH)), data) for data in (apart, pooled)
    ]
    assert [list(names) for names in named] == [["real", "clipart"], ["0"]]
    assert sum(named[0].values(), Counter()) == named[1]["0"]


def test_the_target_is_all_test_images_of_the_held_out_domain():
    """9 test images a class over 3 domains: 3 of each of 20 classes are of the target."""
    data = load(*LEFT_OUT, "task.clients=2")
    (name,) = data.common
    target, test = data.common[name], data.dataset.test
    assert (name, target.classes, target.first_label) == ("target", data.dataset.classes, 0)
    assert target.rows.tolist() == np.flatnonzero(test.domains == 1).tolist()
    assert len(target.rows) == 60
    for part in ("train", "test"):
        split = getattr(data.dataset, part)
        assert [set(split.domains[rows]) for rows in held(data, part)] == [{0}, {2}]


@pytest.mark.parametrize("kind", ["pathological", "dirichlet", "domain"])
def test_only_base_classes_are_dealt_out(kind: str):
    domains = "task.domains=[real, sketch, clipart]"
    data = load(*TO_NOVEL, domains, f"task.partition.kind={kind}", "task.clients=3")
    assert data.classes == data.dataset.classes[:10]
    for part in ("train", "test"):
        split = getattr(data.dataset, part)
        rows = np.concatenate(held(data, part))
        assert set(split.labels[rows]) == set(range(10))
        assert len(rows) == len(set(rows.tolist()))


def test_base_and_novel_are_all_test_images_of_their_classes():
    data = load(*TO_NOVEL, "task.clients=5")
    labels = data.dataset.test.labels
    base, novel = data.common["base"], data.common["novel"]
    assert list(data.common) == ["base", "novel"]
    assert (base.classes, base.first_label) == (data.dataset.classes[:10], 0)
    assert (novel.classes, novel.first_label) == (data.dataset.classes[10:], 10)
    assert sorted(labels[base.rows]) == [c for c in range(10) for _ in range(3)]
    assert sorted(labels[novel.rows]) == [c for c in range(10, 20) for _ in range(3)]
    assert sorted(np.concatenate(held(data, "test"))) == sorted(base.rows)


KIND = "task.partition.kind={}".format
DIRICHLET = (KIND("dirichlet"), "task.shots=1")
SHARED = (KIND("shared_ratio"), "task.partition.shared_ratio=0.2")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((*LEFT_OUT, "task.clients=3"), r"task\.clients: 3 .*domain: 2"),
        ((*THREE, "task.clients=3", "task.new_clients=1"), r"task\.clients: 3 and.*domain: 3"),
        ((*SPLIT, "task.clients=4", "task.new_clients=1"), r"task\.new_clients: 1"),
        ((*LEFT_OUT, "task.held_out_domain=painting"), r"task\.held_out_domain: .*clipart"),
        ((*LEFT_OUT, "task.domains=[sketch]"), r"task\.held_out_domain: 'sketch'"),
        ((*DIRICHLET, "task.clients=19"), r"task\.partition\.minimum: .*alpha"),
    ],
)
def test_what_cannot_be_dealt_is_refused(overrides: tuple[str, ...], said: str):
    with pytest.raises(ConfigError, match=f"^{said}"):
        load(*overrides)


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (("task.partition.alpha=0.3",), "task.partition.alpha: 0.3"),
        ((KIND("hierarchical_dirichlet"), "task.shots=4"), "task.shots: 4"),
        ((KIND("iid"), "task.partition.minimum=3"), "task.partition.minimum: 3"),
        ((KIND("iid"), "task.partition.shared_classes=0.2"), "task.partition.shared_classes: 0.2"),
        ((KIND("domain"), LEAVING), "evaluation.protocol: leave_one_domain_out"),
        (("task.held_out_domain=real", LEAVING), "task.partition.kind: pathological"),
        (("task.domains=[real, sketch, real]",), "task.domains: 'real'"),
        (("training.optimizer=adam", "training.momentum=0.9"), "training.momentum: 0.9"),
        ((KIND("shared_ratio"),), "task.partition.shared_ratio: null"),
        ((*SHARED, "evaluation.protocol=base_to_novel"), "task.partition.kind: shared_ratio"),
    ],
)
def test_contradictions_are_refused(overrides: tuple[str, ...], start: str):
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL, overrides)
    assert str(caught.value).startswith(start)


def test_new_clients_are_the_last_of_each_domain():
    data = load(*SPLIT, "task.clients=4", "task.new_clients=2", "task.validation_share=0.2")
    everybody = (*data.clients, *data.new_clients)
    domains = [set(data.dataset.train.domains[client.train].tolist()) for client in everybody]
    assert domains == [{0}, {0}, {1}, {1}, {0}, {1}]
    rows = np.concatenate([[*client.train, *client.validation] for client in everybody])
    assert len(rows) == len(set(rows.tolist())) == 240


SEEDED = ("task.domains=[real]", "task.shots=6", "task.clients=5", "task.validation_share=0.34")


def counts(data: TaskData) -> list[list[int]]:
    labels = data.dataset.train.labels
    return [
        np.bincount(labels[[*client.train, *client.validation]], minlength=20).tolist()
        for client in data.clients
    ]


def whole(data: TaskData) -> list[list[int]]:
    return [sorted([*client.train, *client.validation]) for client in data.clients]


def test_each_seed_changes_its_own_thing():
    base, classes = load(*SEEDED), load(*SEEDED, "seeds.class_map=8")
    assert counts(base) != counts(classes)
    np.testing.assert_array_equal(base.dataset.train.images, classes.dataset.train.images)
    held_back = load(*SEEDED, "seeds.validation=8")
    assert whole(base) == whole(held_back)
    for one, two in zip(base.clients, held_back.clients, strict=True):
        assert one.test.tolist() == two.test.tolist()
        assert len(one.validation) and len(two.validation)
        assert one.validation.tolist() != two.validation.tolist()
    digits = ("task.dataset=digits", KIND("dirichlet"), *SEEDED[1:])
    base, shots = load(*digits), load(*digits, "seeds.shots=8")
    assert counts(base) == counts(shots)
    assert all(a != b for a, b in zip(whole(base), whole(shots), strict=True))


SHAPES = "task={dataset: shapes, model: null, test_per_class: 12, domains: [real, sketch], "
REFUSED = (
    # About 45 test images of each of ten classes, one by one to more clients than there are.
    "task={model: null, clients: 500, shots: null, dataset: digits, partition: {kind: iid}}",
    SHAPES + "clients: 60, shots: 2, partition: {kind: domain_dirichlet}}",
    SHAPES + "clients: 40, shots: 3, partition: {kind: shared_ratio, shared_ratio: 0.2}}",
)


@pytest.mark.parametrize("task", REFUSED)
def test_a_client_that_would_have_nothing_is_refused(storage: Storage, task: str):
    with pytest.raises(ConfigError, match=r"^task\.(clients|partition|shots)"):
        storage.create(*PIXELS, task, "cohort.minimum=2")
    assert not storage.file.exists() and not list(storage.folder.glob("*/clients"))


ALONE = "task.partition.fewest_classes=1"


def test_methods_that_compare_the_classes_at_hand_are_refused(storage: Storage) -> None:
    clip = ("method.name=fedclip", NONE, "secure_aggregation.enabled=false", ALONE)
    with pytest.raises(ConfigError, match=r"task\.partition\.fewest_classes: 1 .*fedclip"):
        storage.create(*clip)
    with opened(storage.create(*clip, "method.loss=cross_entropy")):
        pass


def test_runs_of_before_keep_their_identity(storage: Storage) -> None:
    tree = storage.config().model_dump(mode="json")
    before = {**tree, "task": {**tree["task"], "partition": dict(tree["task"]["partition"])}}
    for key in ("fewest_classes", "minimum_test", "slices"):
        del before["task"]["partition"][key]
    assert identity(tree) == identity(before)
