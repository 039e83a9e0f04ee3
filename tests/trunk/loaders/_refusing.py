"""What all loaders' tests ask: what is loaded from a folder, and how it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from platform.data.catalogue import DataRequest, dataset_info, load_dataset
from platform.data.dataset import Dataset
from platform.errors import ConfigError, DataError


def load(name: str, root: Path, **keys: Any) -> Dataset:
    return load_dataset(name, DataRequest(root, **keys))


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
