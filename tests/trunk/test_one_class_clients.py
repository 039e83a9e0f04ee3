"""Few-shot clients of one class: a whole run, and methods that learn nothing from them."""

from __future__ import annotations

import pytest

from platform.errors import ConfigError
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
