"""What a task deals out: domains, classes that are held back, and what everybody is measured on."""

from __future__ import annotations

import numpy as np
import pytest

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import ClientIndices
from platform.errors import ConfigError

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
THREE = ("task.domains=[real, sketch, clipart]", "task.partition.kind=domain", "task.shots=2")
LEFT_OUT = (
    *THREE,
    "task.held_out_domain=sketch",
    "evaluation.protocol=leave_one_domain_out",
    "task.test_per_class=9",
)
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


def test_a_held_out_domain_is_never_dealt():
    data = load(*LEFT_OUT, "task.clients=2")
    assert (data.domains, data.domain_names) == ((0, 2), ("real", "clipart"))
    for part in ("train", "test"):
        split = getattr(data.dataset, part)
        assert [set(split.domains[rows]) for rows in held(data, part)] == [{0}, {2}]
        rows = np.concatenate(held(data, part))
        assert len(rows) == len(set(rows.tolist()))


def test_the_target_is_all_test_images_of_the_held_out_domain():
    """9 test images a class over 3 domains: 3 of each of 20 classes are of the target."""
    data = load(*LEFT_OUT, "task.clients=2")
    (name,) = data.common
    target, test = data.common[name], data.dataset.test
    assert (name, target.classes, target.first_label) == ("target", data.dataset.classes, 0)
    assert target.rows.tolist() == np.flatnonzero(test.domains == 1).tolist()
    assert len(target.rows) == 60
    assert not set(target.rows.tolist()) & set(np.concatenate(held(data, "test")).tolist())


def test_which_images_a_domains_client_holds_follows_from_the_seed_of_the_shots():
    few = [*THREE, "task.clients=3", "task.test_per_class=3"]
    base = load(*few)
    # Rendering follows the run's seed, and both orders of drawing the shots are whole classes here.
    for other in (load(*few), load(*few, "seeds.class_map=9")):
        for one, two in zip(held(base, "train"), held(other, "train"), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["pathological", "iid", "dirichlet", "domain"])
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
    # Together the clients' own test images are the base ones.
    assert sorted(np.concatenate(held(data, "test"))) == sorted(base.rows)


def test_an_odd_number_of_classes_has_one_more_base_class(monkeypatch: pytest.MonkeyPatch):
    from platform.data import shapes

    monkeypatch.setattr(shapes, "CLASSES", shapes.CLASSES[:5])
    data = load(*TO_NOVEL, "task.clients=3", "task.partition.kind=iid")
    assert data.classes == shapes.CLASSES[:3]
    assert data.common["novel"].classes == shapes.CLASSES[3:5]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            (*THREE, "task.clients=10"),
            "task.clients: 10 is not the number of domains that are dealt out, one to each client; "
            "valid with task.partition.kind = domain: 3",
        ),
        (
            (*LEFT_OUT, "task.clients=3"),
            "task.clients: 3 is not the number of domains that are dealt out, one to each client; "
            "valid with task.partition.kind = domain: 2",
        ),
        (
            (*LEFT_OUT, "task.held_out_domain=painting"),
            "task.held_out_domain: 'painting' is not one of the run's domains; valid: real, "
            "sketch, clipart",
        ),
        (
            (*LEFT_OUT, "task.domains=[sketch]"),
            "task.held_out_domain: 'sketch' is the run's only domain; at least one must be left "
            "for the clients",
        ),
        (
            ("task.partition.kind=dirichlet", "task.shots=1", "task.clients=19"),
            "task.partition.minimum: 2 training images of 2 classes and a test image for each of "
            "19 clients came out of none of 100 draws with task.partition.alpha = 0.5; use fewer "
            "clients, more images or a larger alpha",
        ),
        (
            (
                *("task.partition.kind=dirichlet", "task.dataset=digits", "task.shots=500"),
                "task.clients=5",
            ),
            "task.shots: 500 is more than any class has images for; valid: 1 to 137",
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_sentence(overrides: tuple[str, ...], sentence: str):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert str(caught.value) == sentence


def test_dirichlet_takes_its_own_keys():
    keys = ("task.partition.kind=dirichlet", "task.shots=4", "task.domains=[real]")
    classes_held = []
    for alpha in ("0.05", "50.0"):
        data = load(*keys, f"task.partition.alpha={alpha}")
        assert sum(len(rows) for rows in held(data, "train")) == 4 * 20
        labels = data.dataset.train.labels
        classes_held.append(np.mean([len(set(labels[rows])) for rows in held(data, "train")]))
    assert classes_held[0] < classes_held[1] - 2
    # 80 images cannot be nine each for ten clients.
    with pytest.raises(ConfigError, match=r"task\.partition\.minimum: 9 training images"):
        load(*keys, "task.partition.minimum=9")


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("task.partition.alpha=0.3",),
            "task.partition.alpha: 0.3 has no meaning with task.partition.kind = pathological; "
            "valid: null, or the kind dirichlet or domain_dirichlet or shared_ratio or "
            "hierarchical_dirichlet",
        ),
        (
            ("task.partition.kind=hierarchical_dirichlet", "task.shots=4"),
            "task.shots: 4 does not fit task.partition.kind = hierarchical_dirichlet, which deals "
            "out all images; valid: null",
        ),
        (
            ("task.partition.kind=iid", "task.partition.minimum=3"),
            "task.partition.minimum: 3 has no meaning with task.partition.kind = iid; valid: null, "
            "or the kind dirichlet or domain_dirichlet or shared_ratio",
        ),
        (
            ("task.held_out_domain=real",),
            "task.held_out_domain: 'real' has no meaning with evaluation.protocol = client_mean; "
            "valid: null, or the protocol leave_one_domain_out",
        ),
        (
            ("task.held_out_domain=real", "evaluation.protocol=base_to_novel"),
            "task.held_out_domain: 'real' has no meaning with evaluation.protocol = "
            "base_to_novel; valid: null, or the protocol leave_one_domain_out",
        ),
        (
            ("task.partition.kind=domain", "evaluation.protocol=leave_one_domain_out"),
            "evaluation.protocol: leave_one_domain_out needs task.held_out_domain, which is null; "
            "valid: the name of a domain there",
        ),
        (
            ("task.held_out_domain=real", "evaluation.protocol=leave_one_domain_out"),
            "task.partition.kind: pathological does not fit evaluation.protocol = "
            "leave_one_domain_out, whose clients hold one source domain each; valid: domain "
            "or domain_dirichlet",
        ),
        (
            ("task.domains=[real, sketch, real]",),
            "task.domains: 'real' is listed twice; valid: each domain once",
        ),
        (
            ("training.optimizer=adam", "training.momentum=0.9"),
            "training.momentum: 0.9 has no meaning with training.optimizer = adam; valid: 0",
        ),
    ],
)
def test_contradictions_are_refused_in_one_sentence(overrides: tuple[str, ...], sentence: str):
    assert refused(*overrides) == sentence


# --- domains and clients -------------------------------------------------------------------------

SPLIT = ("task.domains=[real, sketch]", "task.partition.kind=domain_dirichlet", "task.shots=6")


def domains_of(data: TaskData, clients: tuple[ClientIndices, ...]) -> list[set[int]]:
    return [set(data.dataset.train.domains[client.train].tolist()) for client in clients]


def test_dirichlet_within_domains_keeps_each_client_to_one():
    """2 domains, 6 clients: three share 20 classes x 6 shots of each."""
    data = load(*SPLIT, "task.clients=6")
    assert domains_of(data, data.clients) == [{0}] * 3 + [{1}] * 3
    sizes = [len(rows) for rows in held(data, "train")]
    assert sum(sizes[:3]) == sum(sizes[3:]) == 120


def test_new_clients_are_the_last_of_each_domain():
    data = load(*SPLIT, "task.clients=4", "task.new_clients=2", "task.validation_share=0.2")
    assert domains_of(data, data.clients) == [{0}, {0}, {1}, {1}]
    assert domains_of(data, data.new_clients) == [{0}, {1}]
    everybody = (*data.clients, *data.new_clients)
    rows = np.concatenate([[*client.train, *client.validation] for client in everybody])
    assert len(rows) == len(set(rows.tolist())) == 240


def test_shared_classes_have_shots_for_each_client():
    """A tenth of 20 classes is 2 for all 3 clients, 4 shots each; the other 18 are six each."""
    overrides = ("task.domains=[real]", "task.shots=4", "task.clients=3")
    data = load(*overrides, "task.partition.shared_classes=0.1")
    labels = data.dataset.train.labels
    by_client = [np.bincount(labels[rows], minlength=20) for rows in held(data, "train")]
    assert [sorted(own) for own in by_client] == [[0] * 12 + [4] * 8] * 3
    assert sorted(np.sum(by_client, axis=0)) == [4] * 18 + [12] * 2


def test_a_new_client_holds_a_domain_of_its_own():
    data = load(*THREE, "task.clients=2", "task.new_clients=1")
    assert domains_of(data, data.clients) == [{0}, {1}]
    assert domains_of(data, data.new_clients) == [{2}]


def test_new_clients_hold_classes_that_nobody_else_has():
    data = load("task.domains=[real]", "task.shots=2", "task.clients=8", "task.new_clients=2")
    labels = data.dataset.train.labels
    (one, two) = (set(labels[client.train]) for client in data.new_clients)
    others = set(labels[np.concatenate(held(data, "train"))])
    assert (len(one), len(two), len(others)) == (2, 2, 16) and not (one | two) & others


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            (*SPLIT, "task.clients=5"),
            "task.clients: 5 is no multiple of the 2 domains that are dealt out, each among as "
            "many clients; valid with task.partition.kind = domain_dirichlet: 2, 4, 6 and so on",
        ),
        (
            (*SPLIT, "task.clients=4", "task.new_clients=1"),
            "task.new_clients: 1 is no multiple of the 2 domains that are dealt out, each among as "
            "many clients; valid with task.partition.kind = domain_dirichlet: 2, 4, 6 and so on",
        ),
        (
            (*THREE, "task.clients=3", "task.new_clients=1"),
            "task.clients: 3 and task.new_clients: 1 are not the number of domains that are dealt "
            "out, one to each client; valid with task.partition.kind = domain: 3",
        ),
    ],
)
def test_clients_that_do_not_divide_among_domains_are_refused(
    overrides: tuple[str, ...], sentence: str
):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("task.partition.kind=shared_ratio",),
            "task.partition.shared_ratio: null does not say which share of each class all clients "
            "have alike; valid with task.partition.kind = shared_ratio: 0 to 1, such as 0.2",
        ),
        (
            (
                *("task.partition.kind=shared_ratio", "task.partition.shared_ratio=0.2"),
                "evaluation.protocol=base_to_novel",
            ),
            "task.partition.kind: shared_ratio does not fit evaluation.protocol = base_to_novel, "
            "as it deals out test images for training; valid: another kind, or client_mean",
        ),
        (
            ("task.partition.kind=iid", "task.partition.shared_classes=0.2"),
            "task.partition.shared_classes: 0.2 has no meaning with task.partition.kind = iid; "
            "valid: null, or the kind pathological",
        ),
        (
            ("task.partition.shared_ratio=0.2",),
            "task.partition.shared_ratio: 0.2 has no meaning with task.partition.kind = "
            "pathological; valid: null, or the kind shared_ratio",
        ),
        (
            ("task.partition.minimum_test=2",),
            "task.partition.minimum_test: 2 has no meaning with task.partition.kind = "
            "pathological; valid: null, or the kind dirichlet or domain_dirichlet",
        ),
        (
            ("task.partition.slices=rounded", "task.partition.classes_per_client=2"),
            "task.partition.slices: rounded has no meaning with task.partition.classes_per_client "
            "= 2, where classes are drawn one by one; valid: null",
        ),
    ],
)
def test_partition_keys_that_do_not_fit_are_refused(overrides: tuple[str, ...], sentence: str):
    assert refused(*overrides) == sentence
