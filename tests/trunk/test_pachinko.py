"""Shares of superclasses and of classes within them: by hand, by limits, from CIFAR-100's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import WITHIN, pachinko_counts
from platform.errors import ConfigError
from tests.drawn.arrays import draw_cifar100

# Alphabetical, as in the data set's files, and the superclass of each.
NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle "
    "bowl boy bridge bus butterfly camel can castle caterpillar cattle "
    "chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard "
    "lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain "
    "mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket "
    "rose sea seal shark shrew skunk skyscraper snail snake spider "
    "squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor "
    "train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
).split()
SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)


class Given:
    """In place of a generator: hands out shares and numbers that it was given."""

    def __init__(self, shares: list[list[float]], numbers: list[list[list[float]]]) -> None:
        self.shares, self.numbers, self.alphas = iter(shares), iter(numbers), []

    def dirichlet(self, alphas: np.ndarray) -> np.ndarray:
        self.alphas.append(alphas.tolist())
        return np.array(next(self.shares))

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        found = np.array(next(self.numbers))
        assert found.shape == shape
        return found


def test_two_clients_by_hand():
    """Superclass 0 has classes 0 and 1, superclass 1 has class 2; seven images, three for each.

    The first client draws 0.5 < 0.75, and 0.1 < 0.2: class 0, whose one image is gone. Then 0.7 and
    0.1, which is class 1 now that it has all of the superclass; then 0.9, class 2. The second has
    class 1 and 2 left, in shares 0.5 and 0.5: twice class 1, whose images are gone, and then 0.2 is
    of class 2, which has all.
    """
    rng = Given(
        [[0.75, 0.25], [0.2, 0.8], [1.0], [0.5, 0.5], [1.0], [1.0]],
        [
            [[0.5, 0.1], [0.7, 0.1], [0.9, 0.5]],
            [[0.4, 0.0], [0.1, 0.9], [0.2, 0.6]],
        ],
    )
    counts = pachinko_counts(np.array([1, 3, 3]), (0, 0, 1), 2, 0.3, rng=rng)
    assert counts.tolist() == [[1, 0], [1, 2], [1, 1]]
    assert rng.alphas == [[0.3] * 2, [WITHIN] * 2, [WITHIN], [0.3] * 2, [WITHIN], [WITHIN]]


@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 6),
    groups=st.integers(1, 4),
    alpha=st.sampled_from([1e-3, 0.3, 100.0]),
    seed=st.integers(0, 1000),
)
def test_everybody_gets_as_many_and_no_image_twice(classes, clients, groups, alpha, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 20, classes)
    counts = pachinko_counts(sizes, np.arange(classes) % groups, clients, alpha, rng=rng)
    assert counts.sum(axis=0).tolist() == [int(sizes.sum()) // clients] * clients
    assert (counts >= 0).all() and (counts.sum(axis=1) <= sizes).all()


# --- CIFAR-100 ----------------------------------------------------------------------------------


def dealt(root: Path, *overrides: str) -> TaskData:
    tree = {
        "name": "drawn",
        "rounds": 1,
        "task": {
            "dataset": "cifar100",
            "root": str(root),
            "clients": 5,
            "shots": None,
            "partition": {"kind": "hierarchical_dirichlet", "alpha": 0.3},
        },
        "method": {"name": "zero_shot"},
        "training": {"local_steps": 1},
    }
    return load_task_data(parse_config(tree, overrides))


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    root = draw_cifar100(tmp_path, 5, 1)
    (root / "cifar-100-binary" / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n")
    return root


def test_the_superclasses_are_those_of_published_code(drawn: Path):
    assert dealt(drawn).dataset.superclasses == SUPERCLASSES


def test_training_images_stay_training_images(drawn: Path):
    """Of 600 images five clients have 120 each; a sixth of the pool are test images."""
    data = dealt(drawn)
    assert [len(c.train) + len(c.test) for c in data.clients] == [120] * 5
    for side, rows in (("train", 500), ("test", 100)):
        held = np.concatenate([getattr(client, side) for client in data.clients])
        assert sorted(held) == list(range(rows))
    assert all(5 <= len(client.test) <= 45 for client in data.clients)


def test_classes_without_superclasses_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="hierarchical_dirichlet shares out superclasses, and"):
        dealt(draw_cifar100(tmp_path, 5, 1))
