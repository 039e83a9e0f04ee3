"""Checks of a data set: what a run requires of it, and all that is wrong with a folder.

A run refuses a data set with the first sentence that applies: labels and sizes that do not fit, or
one example under two labels. It also tells of examples that are trained and tested on under other
names. `check_folder` reads every file instead, which takes too long for a run, and counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from platform.data.catalogue import DataRequest, DatasetInfo, dataset_info, load_dataset
from platform.data.dataset import (
    Dataset,
    ImageFiles,
    Indices,
    Split,
    content_digests,
    decode,
    image_digests,
)
from platform.errors import ConfigError, DataError


def require_sound(dataset: Dataset) -> None:
    """Check a data set's labels, domains and sizes.

    Raises:
        DataError: If a side has no example, an example has no row in one of its parts, or a label
            or domain is none of the data set's.
    """
    for split, side in ((dataset.train, "training"), (dataset.test, "test")):
        if not split.num_examples:
            raise DataError(
                f"task.root: {dataset.name} has no {side} example; valid: at least one of each side"
            )
        examples = len(split.images) if split.texts is None else len(split.texts)
        for what, count in (("domains", len(split.domains)), ("examples", examples)):
            if count != split.num_examples:
                raise DataError(
                    f"task.root: {dataset.name} has {count} {side} {what} and "
                    f"{split.num_examples} labels; valid: as many of each"
                )
        for values, names, what in (
            (split.labels, dataset.classes, "label"),
            (split.domains, dataset.domains, "domain"),
        ):
            for bad in (int(values.min()), int(values.max())):
                if not 0 <= bad < len(names):
                    raise DataError(
                        f"task.root: {dataset.name} has {bad} for the {what} of a {side} example; "
                        f"valid: 0 to {len(names) - 1}"
                    )


def require_every_class(dataset: Dataset, labels: Indices, classes: tuple[str, ...]) -> None:
    """Check that there is something to deal out of each class.

    Args:
        dataset: For its name.
        labels: Of the training examples that are dealt out, (n,).
        classes: Those that are dealt out.

    Raises:
        DataError: If a class has none.
    """
    held = set(labels.tolist())
    absent = [repr(name) for label, name in enumerate(classes) if label not in held]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise DataError(
            f"task.root: {dataset.name} has no training example of {', '.join(absent[:3])}{more}; "
            "valid: at least one of each class in the domains that are dealt out"
        )


class _Held(NamedTuple):
    """A file or text that somebody holds.

    Attributes:
        side: `training` or `test`.
        name: Its path below the data set's folder, or its row.
        label: Its class.
        size: Of a file in bytes, of a text in characters; 0 where it cannot be told.
        place: Where it lies.
        digest: Of its content.
    """

    side: str
    name: str
    label: int
    size: int
    place: tuple[Path | int, str | int]
    digest: Callable[[], bytes]


def require_one_label(dataset: Dataset, train: Indices, test: Indices) -> tuple[str, ...]:
    """Refuse one image or text under two labels, and tell of one that is trained and tested on.

    Only files of equal size can be the same, so most files are not read. Images in memory are not
    looked at: published arrays have such pairs.

    Args:
        dataset: All examples.
        train: Rows of training examples that are held.
        test: Rows of test examples that are held.

    Returns:
        What a report must say; empty where no test example is a training example.

    Raises:
        DataError: If two examples are the same and their labels are not, or one cannot be read.
    """
    sides = (("training", dataset.train, train), ("test", dataset.test, test))
    # Where both sides are one pool, a file that is in both is one file.
    held_once = {one.place: one for side in reversed(sides) for one in _held(*side)}
    groups: dict[int, list[_Held]] = {}
    # Training examples come first.
    for one in sorted(held_once.values(), key=lambda held: held.side, reverse=True):
        groups.setdefault(one.size, []).append(one)
    repeated: list[tuple[str, str]] = []
    noun = dataset.modality
    for group in groups.values():
        if len({(held.side, held.label) for held in group}) == 1:
            continue
        seen: dict[bytes, _Held] = {}
        for held in group:
            first = seen.setdefault(held.digest(), held)
            if first.label != held.label:
                labels = [repr(dataset.classes[one.label]) for one in (first, held)]
                same = "file" if noun == "images" else "text"
                raise DataError(
                    f"task.root: the {noun} {first.name!r} of class {labels[0]} and "
                    f"{held.name!r} of class {labels[1]} are the same {same}; valid is one label "
                    f"for each {same} (`datasets --check` lists all such pairs)"
                )
            if first.side != held.side:
                repeated.append((held.name, first.name))
    if not repeated:
        return ()
    test_name, train_name = repeated[0]
    return (
        f"{len(repeated)} test {noun} are also training {noun} under other "
        f"names ({test_name!r} is the same as {train_name!r}): they do not show how the model does "
        f"on new {noun}",
    )


def _held(side: str, split: Split, rows: Indices) -> Iterator[_Held]:
    for position, row in enumerate(rows.tolist()):
        at, label = rows[position : position + 1], int(split.labels[row])
        if split.texts is not None:
            name, size = f"{side} example {row}", len(split.texts[row])
            place: tuple[Path | int, str | int] = (id(split.texts), row)
        elif isinstance(split.images, ImageFiles):
            name, size = split.images.paths[row], split.images.size_of(row)
            place = (split.images.root, name)
        else:
            return
        yield _Held(side, name, label, size, place, partial(_digest, split, at))


def _digest(split: Split, row: Indices) -> bytes:
    (digest,) = content_digests(split, row)
    return digest


SHOWN: Final = 20
FEW: Final = 16
"""The most shots that the papers take."""
_BLOCK: Final = 256
MOST_THREADS: Final = 4
"""Each may have an image of the largest size in memory."""

RARE: Final = 10
"""How many times more examples a class has than one whose name may be a slip for its own."""
LIKE: Final = 0.8
"""Share of letters that two names have in common, in order: one swapped or left out of five."""

FAULTS: Final = ("damaged", "repeated", "contradictory")
"""Images that cannot be opened, test examples that are training examples too, and examples that are
identical to one of another class."""
KINDS: Final = (*FAULTS, "copies", "few", "slips")
"""What is looked for. Beside faults: examples that are identical to another of their side and
class, classes with fewer than `FEW` training examples, and rare ones whose name is nearly that of
a larger one."""

Telling = Callable[[int, int], None]
"""Told how many of how many examples have been opened."""


@dataclass(frozen=True)
class Findings:
    """Things of one kind that were found.

    Attributes:
        number: How many.
        first: The first ones, at most `SHOWN`.
    """

    number: int
    first: tuple[str, ...]

    @staticmethod
    def of(found: Sequence[str]) -> Findings:
        """Return all of them counted, the first ones kept."""
        return Findings(len(found), tuple(found[:SHOWN]))


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """What a check found.

    Attributes:
        info: What is known of the data set without its files.
        refusal: The sentence with which a run would refuse the folder; None if it would not.
        dataset: What was read, if it was.
        found: What is remarkable, by `KINDS`; nothing where nothing was read.
    """

    info: DatasetInfo
    refusal: str | None
    dataset: Dataset | None
    found: Mapping[str, Findings] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; few examples, copies and like names are only remarkable."""
        return self.refusal is None and not any(self.of(kind).number for kind in FAULTS)

    def of(self, kind: str) -> Findings:
        """Return what was found of one of the `KINDS`."""
        return self.found.get(kind, Findings(0, ()))

    def document(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        found = {kind: self.of(kind) for kind in KINDS}
        return {
            "dataset": self.info.name,
            "sound": self.is_sound,
            "expected": list(self.info.layout),
            "source": self.info.source,
            "refusal": self.refusal,
            "recognised": [] if self.dataset is None else list(self.dataset.recognised),
            "counts": None if self.dataset is None else counts(self.dataset),
            **{n: {"number": f.number, "first": list(f.first)} for n, f in found.items()},
        }


def check_folder(name: str, request: DataRequest, tell: Telling) -> FolderReport:
    """Read a data set's folder, every image included.

    Args:
        name: Name of the data set.
        request: Where its folder is.
        tell: Hears of progress.

    Raises:
        ConfigError: If there is no data set of this name.
    """
    info = dataset_info(name)
    try:
        dataset = load_dataset(name, request)
        require_sound(dataset)
    except ConfigError as error:
        return FolderReport(info=info, refusal=str(error), dataset=None)
    refusal = None
    try:
        require_every_class(dataset, dataset.train.labels, dataset.classes)
    except DataError as error:
        refusal = str(error)
    sizes = counts(dataset)["train"]["by_class"]
    few = [f"{name} ({number})" for name, number in sizes.items() if number < FEW]
    found = {**examine(dataset, tell), "few": few, "slips": _slips(sizes)}
    return FolderReport(
        info=info,
        refusal=refusal,
        dataset=dataset,
        found={kind: Findings.of(lines) for kind, lines in found.items()},
    )


def counts(dataset: Dataset) -> dict[str, Any]:
    """Return examples of each side in all, by class and by domain.

    Those that files hold back for validation are a side of their own, where there are any.
    """
    train, test, held = dataset.train, dataset.test, dataset.validation
    rows = np.setdiff1d(np.arange(train.num_examples), held)
    sides = {
        "train": (train.labels[rows], train.domains[rows]),
        **({"validation": (train.labels[held], train.domains[held])} if len(held) else {}),
        "test": (test.labels, test.domains),
    }
    return {
        side: {
            "total": len(labels),
            "by_class": _named(labels, dataset.classes),
            "by_domain": _named(domains, dataset.domains),
        }
        for side, (labels, domains) in sides.items()
    }


def _named(values: np.ndarray[Any, Any], names: Sequence[str]) -> dict[str, int]:
    found = np.bincount(values, minlength=len(names)).tolist()
    return dict(zip(names, found, strict=True))


def _slips(sizes: Mapping[str, int]) -> list[str]:
    """Return sentences of rare classes that may be slips of the pen for another."""
    found = []
    for name, number in sizes.items():
        many = [other for other, of in sizes.items() if of > 0 and of >= RARE * number]
        for like in get_close_matches(name, many, n=1, cutoff=LIKE):
            found.append(f"{name} ({number}), where {like} has {sizes[like]}")
    return found


class _First(NamedTuple):
    """The first example of some content; training ones come before test ones."""

    side: str
    label: int
    name: str


def examine(dataset: Dataset, tell: Telling) -> dict[str, list[str]]:
    """Open every example; sentences of images that do not open, and of examples that are the same.

    Args:
        dataset: All examples.
        tell: Hears of progress.

    Returns:
        What was found, by `FAULTS` and as `copies`.
    """
    total, done = dataset.train.num_examples + dataset.test.num_examples, 0
    seen: dict[bytes, _First] = {}
    found: dict[str, list[str]] = {kind: [] for kind in (*FAULTS, "copies")}
    tell(0, total)
    for side, split in (("training", dataset.train), ("test", dataset.test)):
        for row, (digest, fault) in enumerate(_opened(split)):
            done += 1
            if done % _BLOCK == 0 or done == total:
                tell(done, total)
            if fault is not None:
                found["damaged"].append(fault)
            if digest is None:
                continue
            one = _First(side, int(split.labels[row]), _name(split, side, row))
            first = seen.setdefault(digest, one)
            if first is not one:
                for kind, line in _same(one, first, dataset.classes):
                    found[kind].append(line)
    return found


def _same(one: _First, first: _First, classes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of an example that is the same as an earlier one."""
    line = f"{one.name} is the same as {first.name}"
    if one.side != first.side:
        yield "repeated", line
    if one.label != first.label:
        labels = f"of class {classes[one.label]!r} and not {classes[first.label]!r}"
        yield "contradictory", f"{line}, but {labels}"
    elif one.side == first.side:
        yield "copies", line


def _opened(split: Split) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield each example's digest, and what is wrong with it."""
    images = split.images
    if split.texts is not None:
        for text in split.texts:
            yield hashlib.sha256(text.encode()).digest(), None
    elif isinstance(images, ImageFiles):
        # Decoders let other threads run; blocks keep what waits small, few threads what is open.
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            for start in range(0, len(images), _BLOCK):
                block = range(start, min(start + _BLOCK, len(images)))
                yield from pool.map(lambda row: _open(images, row), block)
    else:
        for start in range(0, len(images), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(images)))
            yield from ((digest, None) for digest in image_digests(images, rows))


def _open(files: ImageFiles, row: int) -> tuple[bytes | None, str | None]:
    digest = None
    try:
        data = files.bytes_of(row)
        digest = hashlib.sha256(data).digest()
        decode(data, files.paths[row])
    except DataError as error:
        return digest, str(error)
    return digest, None


def _name(split: Split, side: str, row: int) -> str:
    if isinstance(split.images, ImageFiles) and split.texts is None:
        return f"{side} image {split.images.paths[row]!r}"
    return f"{side} example {row}"
