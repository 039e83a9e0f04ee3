"""Neighbouring folders: what one client's folder holds changes nothing of what another one sends.

Roster and list of classes are fixed by the configuration, as epsilon assumes. Every layout in which
a client's data are its own source is written to disk and read through a configuration. Client unit:
the whole content of one client's folder is replaced, and only that client's rows may change. Record
unit: one image is added, taken away or replaced, and only that image may change its side.
"""

from __future__ import annotations

import csv
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from tests.drawn._pictures import write_picture

CLIENTS = ("ash", "birch", "cedar")
CLASSES = ("cat", "dog", "emu")
GENERATED = (Phase.explicit, Phase.reuse, Phase.generate)
"""Shrinking writes folders for minutes, and what was drawn says enough."""


class Image(NamedTuple):
    """A record: its class, the number that its pixels are drawn from, and what it is for."""

    label: int
    number: int
    use: str = "train"


Folder = frozenset[Image]
Folders = Mapping[str, Folder]


# --- layouts -------------------------------------------------------------------------------------


def write_image(path: Path, image: Image) -> None:
    write_picture(path, image.label, image.number, size=4)


def plain_folders(root: Path, folders: Folders) -> None:
    """`CLIENT/CLASS/IMAGE`."""
    for client, images in folders.items():
        for name in CLASSES:
            (root / client / name).mkdir(parents=True)
        for image in images:
            write_image(root / client / CLASSES[image.label] / f"{image.number}.png", image)


def split_folders(root: Path, folders: Folders) -> None:
    """`CLIENT/PART/CLASS/IMAGE`, every client with all three parts."""
    for client, images in folders.items():
        for part in ("train", "val", "test"):
            (root / client / part / CLASSES[0]).mkdir(parents=True)
        for image in images:
            place = root / client / image.use / CLASSES[image.label]
            write_image(place / f"{image.number}.png", image)


def table(root: Path, folders: Folders) -> None:
    """A list of images with a column that says whose each one is."""
    rows = [("path", "label", "client")]
    for client, images in folders.items():
        for image in sorted(images):
            path = f"heap/{client}-{image.label}-{image.number}.png"
            write_image(root / path, image)
            rows.append((path, CLASSES[image.label], client))
    with (root / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def split_table(root: Path, folders: Folders) -> None:
    """The same list, which says of each image what it is for."""
    table(root, folders)
    rows = [("path", "label", "client", "split")]
    for client, images in folders.items():
        for image in sorted(images):
            path = f"heap/{client}-{image.label}-{image.number}.png"
            rows.append((path, CLASSES[image.label], client, image.use))
    with (root / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@dataclass(frozen=True)
class Layout:
    """A way in which clients' own data lie on a disk.

    Attributes:
        write: Writes the folders of all clients.
        overrides: What a configuration says of it.
        says_uses: Whether it says what each image is for.
        lists_classes: Whether a file of class names fixes the list of classes; else every client
            has to have an image of each class.
    """

    write: Callable[[Path, Folders], None]
    overrides: tuple[str, ...]
    says_uses: bool = False
    lists_classes: bool = True


IMAGES = "task.dataset=images"
LAYOUTS = {
    "client_folders": Layout(plain_folders, ("task.dataset=client_folders",)),
    "client_folders, split": Layout(split_folders, ("task.dataset=client_folders",), True),
    "images as client_folders": Layout(plain_folders, (IMAGES, "task.layout=client_folders")),
    "images as a table": Layout(table, (IMAGES,)),
    "images as a split table": Layout(split_table, (IMAGES,), True),
    "images as domain_folders": Layout(
        plain_folders, (IMAGES, "task.layout=domain_folders"), lists_classes=False
    ),
    "folders": Layout(plain_folders, ("task.dataset=folders",), lists_classes=False),
}
of_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)

TREE = {
    "name": "neighbours",
    "seed": 5,
    "rounds": 1,
    "device": "cpu",
    "method": {"name": "promptfl", "context_tokens": 2},
    "training": {"local_steps": 2, "batch_size": 4, "learning_rate": 0.5},
    "task": {
        "clients": len(CLIENTS),
        "domains": list(CLIENTS),
        "shots": None,
        "partition": {"kind": "domain"},
    },
    "evaluation": {"local_twins": False, "worth_of_sharing": False},
}


@contextmanager
def written(layout: Layout, folders: Folders) -> Iterator[tuple[str, ...]]:
    """The folders on disk, and the overrides that name them."""
    with tempfile.TemporaryDirectory() as place:
        root, names = Path(place) / "root", Path(place) / "names.txt"
        root.mkdir()
        layout.write(root, folders)
        names.write_text("".join(f"{name} {name}\n" for name in CLASSES))
        fixed = (f"task.class_names={names}",) if layout.lists_classes else ()
        yield (*layout.overrides, f"task.root={root}", *fixed)


class Record(NamedTuple):
    """What a client has of an image: where it counts it, its bytes and its class."""

    side: str
    digest: str
    label: str


def held(data: TaskData) -> dict[str, list[Record]]:
    """Every client's records in the order in which it has them, by its name."""
    found = {}
    for position, rows in enumerate(data.clients):
        records = []
        for side, split, own in (
            ("train", data.dataset.train, rows.train),
            ("validation", data.dataset.train, rows.validation),
            ("test", data.dataset.test, rows.test),
        ):
            for row, image in zip(own, split.images[own], strict=True):
                digest = hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()
                records.append(Record(side, digest, data.classes[split.labels[row]]))
        found[data.domain_names[position]] = records
    return found


def loaded(layout: Layout, folders: Folders, *overrides: str) -> dict[str, list[Record]]:
    with written(layout, folders) as places:
        return held(load_task_data(parse_config(TREE, (*places, *overrides))))


# --- folders -------------------------------------------------------------------------------------


def numbers(low: int, high: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, 10**6 - 1), min_size=low, max_size=high)


@st.composite
def contents(draw: st.DrawFn, layout: Layout) -> Folder:
    """What one client's folder may hold: each class, or as few as a list of classes lets it."""
    images = set()
    # A client without any image has nothing to begin with, and is refused before a run.
    for label in range(len(CLASSES)):
        low = 4 if label == 0 or not layout.lists_classes else 0
        for number in sorted(draw(numbers(low, 6))):
            images.add(Image(label, number, _use(draw, layout)))
    # Whatever else it says, there is something to train on and to test.
    fixed = {Image(0, 10**6 + n) for n in range(3)}
    return frozenset(images | fixed | ({Image(1, 10**6, "test")} if layout.says_uses else set()))


def _use(draw: st.DrawFn, layout: Layout) -> str:
    return draw(st.sampled_from(("train", "train", "val", "test"))) if layout.says_uses else "train"


@st.composite
def all_folders(draw: st.DrawFn, layout: Layout) -> dict[str, Folder]:
    return {client: draw(contents(layout)) for client in CLIENTS}


SHARES = ("task.validation_share=0.0", "task.validation_share=0.3")
SHOTS = ("task.shots=null", "task.shots=2", "task.shots=16")


# --- client unit ---------------------------------------------------------------------------------


@of_layouts
@settings(max_examples=6, phases=GENERATED)
@given(data=st.data())
def test_another_folder_of_one_client_changes_no_other_client(layout: Layout, data: st.DataObject):
    folders, one = data.draw(all_folders(layout)), data.draw(st.sampled_from(CLIENTS))
    other = {**folders, one: data.draw(contents(layout))}
    chosen = (data.draw(st.sampled_from(SHOTS)), data.draw(st.sampled_from(SHARES)))
    before, after = loaded(layout, folders, *chosen), loaded(layout, other, *chosen)
    for client in CLIENTS:
        assert client == one or before[client] == after[client]


# --- record unit ---------------------------------------------------------------------------------


def neighbours(draw: st.DrawFn | Any, layout: Layout, folder: Folder) -> tuple[Folder, int]:
    """A folder in which one image is more, less or another, and how many records that changes."""
    change = draw(st.sampled_from(("add", "remove", "replace")))
    spare = [image for image in folder if image.number < 10**6]
    of_class = Counter(image.label for image in folder)
    # What every client must have of a class is no record that could be missing.
    spare = [i for i in spare if layout.lists_classes or of_class[i.label] > 1]
    gone = {draw(st.sampled_from(sorted(spare)))} if spare and change != "add" else set()
    label = draw(st.integers(0, len(CLASSES) - 1))
    use = draw(st.sampled_from(("train", "val", "test"))) if layout.says_uses else "train"
    new = {Image(label, 2 * 10**6, use)} if change != "remove" else set()
    return (folder - gone) | new, len(gone) + len(new)


@of_layouts
@settings(max_examples=8, phases=GENERATED)
@given(data=st.data())
def test_one_image_changes_the_side_of_no_other_image(layout: Layout, data: st.DataObject):
    folders, one = data.draw(all_folders(layout)), data.draw(st.sampled_from(CLIENTS))
    folder, changed = neighbours(data.draw, layout, folders[one])
    share = data.draw(st.sampled_from(SHARES))
    before, after = (
        loaded(layout, {**folders, one: content}, share) for content in (folders[one], folder)
    )
    for client in CLIENTS:
        moved = Counter(before[client])
        moved.subtract(after[client])
        total = sum(abs(count) for count in moved.values())
        assert total == (changed if client == one else 0)
