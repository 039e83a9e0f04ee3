"""What all loaders' tests ask: what is loaded from a folder, and how it is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from platform.config import parse_config
from platform.data.catalogue import DataRequest, dataset_info, load_dataset
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loading import TaskData, load_task_data
from platform.errors import ConfigError, DataError
from tests.drawn._pictures import write_picture


def load(name: str, root: Path, **keys: Any) -> Dataset:
    return load_dataset(name, DataRequest(root=root, **keys))


def draw(root: Path, count: int, *folders: str) -> Path:
    """So many images in each folder, no two of which have the same bytes."""
    for folder in folders:
        for number in range(count):
            seed = 1000 * sum(map(ord, folder)) + number
            write_picture(root / folder / f"{number:02d}.png", 0, seed, size=16)
    return root


def dealt(name: str, root: Path, clients: int, kind: str, *overrides: str) -> TaskData:
    """All images of a folder, dealt among clients by a partition."""
    tree = {
        "name": "x",
        "method": {"name": "coop"},
        "training": {"local_steps": 1},
        "task": {"dataset": name, "root": str(root), "clients": clients, "shots": None},
    }
    return load_task_data(parse_config(tree, (f"task.partition.kind={kind}", *overrides)))


def paths(split: Split) -> tuple[str, ...]:
    """The files of a split, in the order of its rows."""
    assert isinstance(split.images, ImageFiles)
    return split.images.paths


def refused(name: str, root: Path, **keys: Any) -> str:
    """The one sentence, which names the field."""
    with pytest.raises(ConfigError) as caught:
        load(name, root, **keys)
    text = str(caught.value)
    assert text.startswith("task.")
    assert "\n" not in text
    return text


def assert_missing(name: str, root: Path, path: Path) -> None:
    """The sentence for a missing file: which, the expected layout, and where to get it."""
    path.unlink()
    with pytest.raises(DataError) as caught:
        load(name, root)
    info, text = dataset_info(name), str(caught.value)
    assert text.startswith(f"task.root: {name} needs {str(path)!r}, which is not there; expected")
    assert text.endswith(f"{'; '.join(info.layout)}; {info.source}")


def refused_in_little_memory(name: str, root: Path, most: int) -> str:
    """The sentence, for which not more than so many bytes were ever held."""
    tracemalloc.start()
    try:
        text = refused(name, root)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
    return text
