"""A data set, a model, a mechanism and a transport that live outside the repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from platform.cli.configs import new_plugin_command

KINDS = ("dataset", "model", "mechanism", "transport")
Change = tuple[str, str]


def write_plugin(folder: Path, kind: str, name: str, changes: Iterable[Change] = ()) -> Path:
    """The start that `new` writes, with changes."""
    new_plugin_command(kind, name, folder, as_json=True)
    path = folder / f"{kind}s" / f"{name}.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def write_pictures(root: Path, name: str, counts: tuple[int, int] = (6, 4)) -> None:
    """Bright in another colour for each of two classes, and all different."""
    rng = np.random.default_rng(1)
    for side, count in zip(("train", "test"), counts, strict=True):
        for label, one in enumerate(("cat", "dog")):
            place = root / name / side / one
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (16, 16, 3))
                pixels[..., label] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def write_outside(folder: Path) -> Path:
    """A folder of one plug-in of each kind, `own_KIND`, beside pictures in `data`."""
    for kind in KINDS:
        write_plugin(folder, kind, f"own_{kind}")
    write_pictures(folder / "data", "own_dataset")
    return folder
