"""Neighbouring folders: what one client's folder holds changes nothing of what another one sends.

Roster and list of classes are fixed by the configuration, as epsilon assumes. Every layout in which
a client's data are its own source is written to disk and read through a configuration. Client unit:
the whole content of one client's folder is replaced, and only that client's rows may change. Record
unit: one image is added, taken away or replaced, and only that image may change its side.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from platform.errors import ConfigError
from platform.experiment.caveats import privacy_warnings
from platform.experiment.finishing import execute
from platform.experiment.joining import host_of
from platform.experiment.planning import Surroundings, create_run
from platform.holder.settings import load_holder
from platform.rounds.observing import SilentObserver
from platform.wire.transport import InProcessTransport
from tests.drawn._pictures import write_picture
from tests.trunk._ahead import Overheard
from tests.trunk._federations import NAMES, SHAPES, Holders, federation, hold
from tests.trunk._leaving import Doing, crash, doing, runs_of
from tests.trunk._runs import NONE, RECORDS, Crash, opened

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


def split_table(root: Path, folders: Folders) -> None:
    """A list of images that says of each one whose it is, and what it is for."""
    rows = [("path", "label", "client", "split")]
    for client, images in folders.items():
        for image in sorted(images):
            path = f"heap/{client}-{image.label}-{image.number}.png"
            write_image(root / path, image)
            rows.append((path, CLASSES[image.label], client, image.use))
    with (root / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@dataclass(frozen=True)
class Layout:
    """A way in which clients' own data lie on a disk, and what a configuration says of it."""

    write: Callable[[Path, Folders], None]
    overrides: tuple[str, ...]
    # Whether it says what each image is for.
    says_uses: bool = False
    # Whether a file fixes the list of classes; else every client has an image of each class.
    lists_classes: bool = True


IMAGES = "task.dataset=images"
LAYOUTS = {
    "client_folders": Layout(plain_folders, ("task.dataset=client_folders",)),
    "client_folders, split": Layout(split_folders, ("task.dataset=client_folders",), True),
    "images as client_folders": Layout(plain_folders, (IMAGES, "task.layout=client_folders")),
    "images as a split table": Layout(split_table, (IMAGES,), True),
    "folders": Layout(plain_folders, ("task.dataset=folders",), lists_classes=False),
}
of_layouts = pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=name, marks=() if name == "client_folders" else pytest.mark.slow)
        for name, layout in LAYOUTS.items()
    ],
)

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


@st.composite
def contents(draw: st.DrawFn, layout: Layout) -> Folder:
    """What one client's folder may hold: each class, or as few as a list of classes lets it."""
    images = set()
    # A client without any image has nothing to begin with, and is refused before a run.
    for label in range(len(CLASSES)):
        low = 4 if label == 0 or not layout.lists_classes else 0
        numbers = draw(st.sets(st.integers(0, 10**6 - 1), min_size=low, max_size=6))
        images |= {Image(label, number, _use(draw, layout)) for number in sorted(numbers)}
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


@of_layouts
@settings(max_examples=6, phases=GENERATED)
@given(data=st.data())
def test_another_folder_of_one_client_changes_no_other_client(layout, data):
    folders, one = data.draw(all_folders(layout)), data.draw(st.sampled_from(CLIENTS))
    other = {**folders, one: data.draw(contents(layout))}
    chosen = (data.draw(st.sampled_from(SHOTS)), data.draw(st.sampled_from(SHARES)))
    before, after = loaded(layout, folders, *chosen), loaded(layout, other, *chosen)
    for client in CLIENTS:
        assert client == one or before[client] == after[client]


def neighbours(draw: st.DrawFn | Any, layout: Layout, folder: Folder) -> tuple[Folder, int]:
    """A folder in which one image is more, less or another, and how many records that changes."""
    change = draw(st.sampled_from(("add", "remove", "replace")))
    spare = [image for image in folder if image.number < 10**6]
    of_class = Counter(image.label for image in folder)
    # What every client must have of a class is no record that could be missing.
    spare = [i for i in spare if layout.lists_classes or of_class[i.label] > 1]
    gone = {draw(st.sampled_from(sorted(spare)))} if spare and change != "add" else set()
    added = Image(draw(st.integers(0, len(CLASSES) - 1)), 2 * 10**6, _use(draw, layout))
    new = {added} if change != "remove" else set()
    return (folder - gone) | new, len(gone) + len(new)


@of_layouts
@settings(max_examples=8, phases=GENERATED)
@given(data=st.data())
def test_one_image_changes_the_side_of_no_other_image(layout, data):
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


def folder(each: int, start: int = 0) -> Folder:
    """So many images of each class, of numbers that no other start has."""
    return frozenset(
        Image(label, start + 1000 * label + n) for label in range(len(CLASSES)) for n in range(each)
    )


FOLDERS = {"ash": folder(9), "birch": folder(6, 10_000), "cedar": folder(6, 20_000)}


def uploads(layout: Layout, folders: Folders, *overrides: str) -> dict[str, bytes]:
    """What each client answered in the training of round one, but for the run's name."""
    with tempfile.TemporaryDirectory() as place, written(layout, folders) as places:
        ears: list[Overheard] = []

        def carry(inner: InProcessTransport) -> Overheard:
            ears.append(Overheard(inner))
            return ears[-1]

        url = f"storage.url=sqlite:///{place}/sotto.db"
        config = parse_config(TREE, (*places, url, *overrides))
        with opened(create_run(config, SilentObserver(), Surroundings(carry=carry))) as simulation:
            execute(simulation, SilentObserver())
            run_id = simulation.run_id.encode()
    return {
        CLIENTS[int(client.rpartition("-")[2])]: reply.replace(run_id, b"")
        for (stage, client), (_, reply) in ears[0].seen.items()
        if stage == "train"
    }


def test_the_others_send_the_same_bytes():
    """Before, a generator drew the shots of all clients in turn: 20 of 48 images were others'."""
    before, after = (
        uploads(LAYOUTS["client_folders"], folders, "task.shots=4", NONE)
        for folders in (FOLDERS, {**FOLDERS, "ash": folder(3, 77_000)})
    )
    assert {client for client in CLIENTS if before[client] != after[client]} == {"ash"}


class Hosts(Holders):
    """Data holders whose clients can be asked what they hold."""

    def held_in_a_run(self, *overrides: str) -> dict[str, Counter[bytes]]:
        """Begin a run, and count what each client would train on."""
        hosts = {
            name: host_of(load_holder(self.folder / name / "client.yaml"), self.surroundings, note)
            for name, note in ((name, lines.append) for name, lines in self.lines.items())
        }
        config = federation(self.folder, "rounds=1", *overrides)
        handlers = {name: host.handle for name, host in hosts.items()}
        before = set(runs_of(self.folder)) if (self.folder / "sotto.db").exists() else set()
        with pytest.raises(Crash):
            hold(config, doing(Doing(handlers, ("join", 1), crash, after=True)))
        (run_id,) = set(runs_of(self.folder)) - before
        found = {}
        for name, host in hosts.items():
            data = host.client_of(run_id).profile.data
            columns = [data.arrays[key] for key in sorted(data.arrays)]
            found[name] = Counter(
                b"".join(np.ascontiguousarray(column[row]).tobytes() for column in columns)
                for row in range(data.num_examples)
            )
        return found


def holders(place: Path, each: int = 12) -> Hosts:
    """Four holders with images in class folders that nothing splits."""
    made = Hosts.written(place)
    for number, name in enumerate(NAMES):
        shutil.rmtree(place / name / "images")
        for (label, shape), image in product(enumerate(SHAPES), range(each)):
            path = place / name / "images" / shape / f"{image}.png"
            write_picture(path, label, 1000 * number + image, size=16)
    return made


@pytest.mark.parametrize("added", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_one_image_more_at_a_holder_changes_what_depends_on_it_only(tmp_path, added):
    """Before, up to a class's validation images were others; who splits is the store's secret.

    East holds the same images as north, and no public seed says which ones each trains on.
    """
    found, images = holders(tmp_path), tmp_path / "north" / "images"
    shutil.rmtree(tmp_path / "east" / "images")
    shutil.copytree(images, tmp_path / "east" / "images")
    share = "task.validation_share=0.3"
    before = found.held_in_a_run(share)
    assert before["east"] != before["north"]
    for number in range(added):
        write_picture(images / SHAPES[number % 3] / f"new-{number}.png", 0, 50_000 + number, 16)
        after = found.held_in_a_run(share)
        for name in NAMES:
            moved = (before[name] - after[name]) + (after[name] - before[name])
            assert moved.total() <= (1 if name == "north" else 0)
        before = after


RECORD = tuple(one for one in RECORDS if "clipping_norm=null" not in one)
OWN = ("task.dataset=client_folders", "task.root=x")


def test_shots_of_a_class_are_no_record_s_own():
    """One image more displaces another, which epsilon of single records does not cover."""
    with pytest.raises(ConfigError, match=r"task\.shots: 16"):
        parse_config(TREE, (*OWN, *RECORD, "task.shots=16"))
    assert parse_config(TREE, (*OWN, *RECORD)).task.shots is None


def test_one_image_more_displaces_one_shot():
    layout = LAYOUTS["client_folders"]
    own = [FOLDERS["ash"] | {Image(number, 88_000 + number)} for number in range(3)]
    before, *others = (
        Counter(r for r in loaded(layout, folders, "task.shots=3")["ash"] if r.side == "train")
        for folders in (FOLDERS, *({**FOLDERS, "ash": one} for one in own))
    )
    for after in others:
        assert (before - after).total() == (after - before).total() <= 1


def test_a_report_says_what_epsilon_takes_for_fixed():
    def notes(*overrides: str) -> str:
        return " ".join(privacy_warnings(parse_config(TREE, overrides)))

    dealt = ("task.dataset=digits", "task.domains=null", *RECORD)
    said = notes(*dealt, "task.partition.kind=iid", "task.shots=4")
    assert "task.partition.kind iid" in said and "pool" in said
    fixed = notes(*OWN, *RECORD, "task.class_names=names.txt")
    assert "pool" not in fixed and "folders say" not in fixed
    assert "who the clients are" in notes(*OWN, *RECORD, "task.domains=null")
