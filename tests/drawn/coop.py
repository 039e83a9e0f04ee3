"""Data sets with CoOp's split files, drawn small, in exactly the published folders."""

from __future__ import annotations

import json
from pathlib import Path

from tests.drawn._pictures import write_picture

CLASSES = {"caltech101": 100, "dtd": 47, "flowers102": 102, "food101": 101, "oxford_pets": 37}
"""How many classes each has as it is published."""
PLACES = {
    "caltech101": (
        *("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
        "{name}/image_{number:04d}.jpg",
    ),
    "dtd": (
        *("dtd", "images", "split_zhou_DescribableTextures.json"),
        "{name}/{name}_{number:04d}.jpg",
    ),
    "flowers102": (
        *("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json"),
        "image_{number:05d}.jpg",
    ),
    "food101": ("food-101", "images", "split_zhou_Food101.json", "{name}/{number}.jpg"),
    "oxford_pets": (
        *("oxford_pets", "images", "split_zhou_OxfordPets.json"),
        "{name}_{number}.jpg",
    ),
}


def draw_coop(
    root: Path,
    name: str,
    *,
    classes: int | None = None,
    train: int = 4,
    val: int = 1,
    test: int = 2,
    size: int = 24,
) -> Path:
    """Draws one below `task.root` and gives its folder; classes are called `kind_of_0` and so on.

    Numbers are of images of each class; without a number of classes all that it has are drawn.
    """
    folder, images, split, pattern = PLACES[name]
    parts: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    number = 0
    for label in range(CLASSES[name] if classes is None else classes):
        words = f"kind_of_{label}"
        for part, count in (("train", train), ("val", val), ("test", test)):
            for _ in range(count):
                number += 1
                path = pattern.format(name=words, number=number)
                write_picture(root / folder / images / path, label, number, size)
                parts[part].append([path, label, words])
    (root / folder / split).write_text(json.dumps(parts))
    return root / folder


def draw_oxford_flowers(root: Path, *, classes: int = 3, train: int = 4, test: int = 2) -> Path:
    """Draws `flowers102`, by default with three classes."""
    return draw_coop(root, "flowers102", classes=classes, train=train, test=test)
