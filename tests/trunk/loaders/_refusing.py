"""What all loaders' tests ask: what is loaded from a folder, and how it is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from platform.data.catalogue import DataRequest, dataset_info, load_dataset
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.errors import ConfigError, DataError
from tests.drawn._users import open_to_all, readable_for_nobody


def load(name: str, root: Path, **keys: Any) -> Dataset:
    return load_dataset(name, DataRequest(root=root, **keys))


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


def assert_closed(name: str, root: Path, folder: Path) -> None:
    """A folder that may not be entered is called that, and not missing."""
    open_to_all(root)
    folder.chmod(0)
    try:
        with readable_for_nobody(root.parent):
            text = refused(name, root)
    finally:
        folder.chmod(0o755)
    assert "cannot be read (Permission denied)" in text
    assert "is not there" not in text


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
