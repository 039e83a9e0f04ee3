"""Data sets from outside: what is announced is there, and every example has its one label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from platform.contract.cases import Plugin
from platform.data.catalogue import (
    DataRequest,
    DatasetInfo,
    Draws,
    dataset_info,
    load_dataset,
    user_path,
)
from platform.data.checking import require_every_class, require_sound
from platform.data.dataset import Dataset, Split, content_digests
from platform.errors import ConfigError

KIND = "dataset"
LOOKED_AT = 64
"""Images of a split that are read."""


@pytest.fixture
def info(plugin: Plugin) -> DatasetInfo:
    """Return what is known without files."""
    return dataset_info(plugin.name, plugin.plugins)


@pytest.fixture
def asked(plugin: Plugin, pytestconfig: pytest.Config) -> DataRequest:
    """Return a run's request, with the folder of `--data-root`."""
    root = user_path(pytestconfig.getoption("--data-root"), "--data-root")
    root = pytestconfig.invocation_params.dir / root
    draws = Draws(3, train_per_class=4, test_per_class=4)
    return DataRequest(root=root, draws=draws, plugins=plugin.plugins)


@pytest.fixture
def dataset(plugin: Plugin, asked: DataRequest) -> Dataset:
    """Return the whole data set; without its files no test can run, and the suite ends."""
    try:
        return load_dataset(plugin.name, asked)
    except ConfigError as error:
        if str(error).startswith("task.root: "):
            pytest.exit(f"--data-root, {error}", returncode=4)
        raise


def sides(dataset: Dataset) -> tuple[Split, Split]:
    """Return training and test examples."""
    return dataset.train, dataset.test


def test_it_is_what_its_info_says(info: DatasetInfo, dataset: Dataset) -> None:
    """Classes, domains and kind are those that `INFOS` states, where it states any."""
    assert info.classes in ((), dataset.classes)
    assert info.domains in ((), dataset.domains)
    assert info.modality == dataset.modality
    assert info.title and info.source


def test_labels_and_domains_are_indices(dataset: Dataset) -> None:
    """Labels and domains are int64, one for each example, and below the number of their names."""
    require_sound(dataset)
    for split in sides(dataset):
        count = len(split.images) if split.texts is None else len(split.texts)
        for values, names in ((split.labels, dataset.classes), (split.domains, dataset.domains)):
            assert values.dtype == np.int64
            assert values.shape == (count,)
            assert values.min() >= 0
            assert values.max() < len(names)


def test_every_class_can_be_trained_and_tested(dataset: Dataset) -> None:
    """Each class has training and test examples."""
    for split in sides(dataset):
        require_every_class(dataset, split.labels, dataset.classes)


def test_no_example_is_on_both_sides_or_has_two_labels(dataset: Dataset) -> None:
    """An example is a training or a test example and has one label, also if there are copies."""
    seen: dict[bytes, tuple[int, int]] = {}
    for side, split in enumerate(sides(dataset)):
        digests = content_digests(split, np.arange(split.num_examples))
        for row, (digest, label) in enumerate(zip(digests, split.labels.tolist(), strict=True)):
            first = seen.setdefault(digest, (side, label))
            assert first == (side, label), f"row {row} of {('train', 'test')[side]} is a copy"


def test_a_folder_with_a_class_s_name_has_its_images(dataset: Dataset) -> None:
    """An image in a folder with the name of a class has the label of this class."""
    known = {name.replace(" ", "_"): label for label, name in enumerate(dataset.classes)}
    for split in sides(dataset):
        for path, label in zip(
            getattr(split.images, "paths", ()), split.labels.tolist(), strict=False
        ):
            parts = (part.replace(" ", "_") for part in path.split("/")[:-1])
            said = [known[part] for part in parts if part in known]
            assert not said or label in said, f"{path} has the label {dataset.classes[label]!r}"


def test_images_can_be_read(dataset: Dataset) -> None:
    """Images are RGB, uint8 (H, W, 3), and texts are not empty."""
    for split in sides(dataset):
        rows = np.linspace(0, split.num_examples - 1, LOOKED_AT).astype(np.int64)
        if split.texts is not None:
            assert all(split.texts[row].strip() for row in rows.tolist())
            continue
        for image in split.images[np.unique(rows)]:
            assert image.dtype == np.uint8
            assert image.ndim == 3
            assert image.shape[2] == 3


def test_it_is_the_same_each_time(plugin: Plugin, asked: DataRequest, dataset: Dataset) -> None:
    """The same request gives the same examples in the same order."""
    again = load_dataset(plugin.name, asked)
    assert (again.classes, again.domains) == (dataset.classes, dataset.domains)
    for one, other in zip(sides(dataset), sides(again), strict=True):
        rows = np.arange(min(one.num_examples, LOOKED_AT))
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.domains, other.domains)
        assert content_digests(one, rows) == content_digests(other, rows)


def test_domains_that_are_asked_for(plugin: Plugin, asked: DataRequest, dataset: Dataset) -> None:
    """A request for one domain gives its examples alone; an unknown domain is one sentence."""
    first = dataset.domains[:1]
    alone = load_dataset(plugin.name, replace(asked, domains=first))
    assert alone.domains == first
    labels = [d.train.labels[d.train.domains == 0].tolist() for d in (alone, dataset)]
    assert sorted(labels[0]) == sorted(labels[1])
    with pytest.raises(ConfigError, match=r"^task\.domains: "):
        load_dataset(plugin.name, replace(asked, domains=("no such domain",)))


def test_missing_files_are_one_sentence(
    plugin: Plugin, info: DatasetInfo, asked: DataRequest, stores: Path
) -> None:
    """Without its files, a data set that needs some says so in one sentence about `task.root`."""
    if not info.layout:
        return
    with pytest.raises(ConfigError, match=r"^task\.root: ") as refused:
        load_dataset(plugin.name, replace(asked, root=stores))
    assert "\n" not in str(refused.value)
