"""Few-shot clients of one class: a whole run, and methods that learn nothing from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.config.sections import PartitionConfig
from platform.errors import ConfigError
from platform.parties.store_files import stores_folder
from platform.sweeping.grid import identity
from tests.trunk._runs import NO_POOL, NONE, Storage, opened

ALONE = "task.partition.fewest_classes=1"
PLAIN = (*NO_POOL, NONE, "secure_aggregation.enabled=false", "cohort.dropout_rate=0")


def test_more_clients_than_pairs_of_classes(storage: Storage) -> None:
    """Of twenty classes eleven clients have two each but for two of them, who have one."""
    with pytest.raises(ConfigError, match="two a client, since a few shots of one class"):
        storage.run(*PLAIN, "task.clients=11")
    clients = storage.run(*PLAIN, "task.clients=11", ALONE).summary["final"]["accuracy"]
    assert len(clients["per_client"]) == 11


def test_methods_that_compare_the_classes_at_hand_are_refused(storage: Storage) -> None:
    clip = ("method.name=fedclip", NONE, "secure_aggregation.enabled=false", ALONE)
    with pytest.raises(ConfigError, match=r"task\.partition\.fewest_classes: 1 .* fedclip learns"):
        storage.create(*clip)
    with opened(storage.create(*clip, "method.loss=cross_entropy")):
        pass


def test_runs_of_before_keep_their_identity(storage: Storage) -> None:
    tree = storage.config().model_dump(mode="json")
    before = {**tree, "task": {**tree["task"], "partition": dict(tree["task"]["partition"])}}
    for key in ("fewest_classes", "minimum_test", "slices"):
        del before["task"]["partition"][key]
    assert identity(tree) == identity(before)


LIMITED = (*NO_POOL, "privacy.lifetime_budget=20.0")


def test_whoever_is_dealt_otherwise_is_another_client(storage: Storage, tmp_path: Path) -> None:
    """Of every key of a partition, so that no lifetime budget is that of other data."""
    random = "task.partition.kind=dirichlet"
    changes = (
        *(("task.partition.slices=rounded",), (ALONE,), ("task.partition.shared_classes=0.5",)),
        *((random,), (random, "task.partition.minimum_test=3"), (random, ALONE)),
        *((random, "task.partition.minimum=3"), (random, "task.partition.alpha=2.0")),
        ("task.partition.kind=iid", "task.shots=null", "task.partition.images_per_client=4"),
        ("task.partition.classes_per_client=4",),
        ("task.partition.kind=shared_ratio", "task.partition.shared_ratio=0.2"),
    )
    folders = [stores_folder(storage.config(*LIMITED, *keys), tmp_path) for keys in changes]
    assert len({stores_folder(storage.config(*LIMITED), tmp_path), *folders}) == len(folders) + 1
    named = {text.split("=")[0].rpartition(".")[2] for keys in changes for text in keys}
    assert set(PartitionConfig.model_fields) <= named | {"kind"}
