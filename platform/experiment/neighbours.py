"""Which clients' records change between two neighbouring folders: where an audit begins.

Epsilon is about what a client sends, and is only as good as the path from the folder to there: one
client's folder must change no other client's records, and one record the side of no other record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from platform.config import RunConfig
from platform.data.dataset import Indices, Split
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import content_digests

Records = Counter[tuple[str, bytes, str]]
"""Records by side (`train`, `validation` or `test`), digest of their content, and class."""


def changed_records(config: RunConfig, neighbour: Path) -> Mapping[str, Records]:
    """Return what changes for each client if another folder lies where `task.root` is.

    Args:
        config: The run's, of a simulation.
        neighbour: The other folder, alike but for what is to be changed.

    Returns:
        By client's name (its domain's where each has one, else its position), those whose records
        differ only: records that one of the two folders gives the client and the other does not,
        each as often as it is so.

    Raises:
        ConfigError: If one of the two cannot be run.
    """
    task = config.task.model_copy(update={"root": str(neighbour)})
    other = config.model_copy(update={"task": task})
    return differing(*(records_of(config, load_task_data(one)) for one in (config, other)))


def differing(before: Mapping[str, Records], after: Mapping[str, Records]) -> Mapping[str, Records]:
    """Return what records of each client are in one of two and not in the other, if any are."""
    none: Records = Counter()
    found = {}
    for client in dict.fromkeys((*before, *after)):
        one, two = before.get(client, none), after.get(client, none)
        if one != two:
            found[client] = (one - two) + (two - one)
    return found


def records_of(config: RunConfig, data: TaskData) -> Mapping[str, Records]:
    """Return what each client holds, by its name as `changed_records` has it.

    Raises:
        DataError: If an image cannot be read.
    """
    everybody = (*data.clients, *data.new_clients)
    is_own = config.task.partition.kind == "domain"
    names = data.domain_names if is_own else [str(number) for number in range(len(everybody))]
    train, test = data.dataset.train, data.dataset.test
    return {
        name: _counted(data, "train", train, rows.train)
        + _counted(data, "validation", train, rows.validation)
        + _counted(data, "test", test, rows.test)
        for name, rows in zip(names, everybody, strict=True)
    }


def _counted(data: TaskData, side: str, split: Split, rows: Indices) -> Records:
    labels = [data.classes[label] for label in split.labels[rows]]
    pairs = zip(content_digests(split, rows), labels, strict=True)
    return Counter((side, digest, name) for digest, name in pairs)
