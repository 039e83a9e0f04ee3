"""Checks of a data set: the requirements of a run, and all faults of a folder.

A run refuses a data set with the first sentence that applies: labels and sizes that do not fit, or
one example under two labels. It also reports test examples that are training examples by another
name. `check_folder` reads every file instead, which takes too long for a run, and counts faults.
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
from platform.data.dataset import Dataset, ImageFiles, Indices, Split, content_digests, decode
from platform.errors import ConfigError, DataError, Faults


def require_sound(dataset: Dataset, classes: Sequence[str] = ()) -> None:
    """Refuse all faults of a data set at once, with the images that cannot be opened if it has any.

    These are the loader's, a side without examples, one of `classes` without a training example,
    unequal lengths, and labels or domains out of range.
    """
    if faults := _faults(dataset, classes):
        sides = (dataset.train, dataset.test)
        opened = [damaged(side, np.arange(side.num_examples)) for side in sides]
        raise DataError(*faults, *(fault for side in opened for fault in side))


def _faults(dataset: Dataset, classes: Sequence[str]) -> list[str]:
    faults = Faults(dataset.faults)
    if len(dataset.classes) == 1:
        faults.append(f"task.root: {dataset.name} has one class; valid: at least two")
    for split, side in ((dataset.train, "training"), (dataset.test, "test")):
        if not split.num_examples:
            faults.append(
                f"task.root: {dataset.name} has no {side} example; valid: at least one of each side"
            )
            continue
        examples = len(split.images) if split.texts is None else len(split.texts)
        for what, count in (("domains", len(split.domains)), ("examples", examples)):
            if count != split.num_examples:
                said = f"has {count} {side} {what} and {split.num_examples} labels"
                raise DataError.at(dataset.name, said, "as many of each")
        for values, names, what in (
            (split.labels, dataset.classes, "label"),
            (split.domains, dataset.domains, "domain"),
        ):
            for bad in (int(values.min()), int(values.max())):
                if not 0 <= bad < len(names):
                    said = f"has {bad} for the {what} of a {side} example"
                    raise DataError.at(dataset.name, said, f"0 to {len(names) - 1}")
    rows = np.setdiff1d(np.arange(dataset.train.num_examples), dataset.validation)
    with faults:
        require_every_class(dataset, dataset.train.labels[rows], classes if len(rows) else ())
    return faults


def require_every_class(dataset: Dataset, labels: Indices, classes: Sequence[str]) -> None:
    """Refuse classes that are dealt out without one of these labels of training examples."""
    held = set(labels.tolist())
    absent = [name for label, name in enumerate(classes) if label not in held]
    if absent:
        valid = "valid: at least one of each class in the domains that are dealt out"
        said = f"task.root: {dataset.name} has no training example of"
        raise DataError(*(f"{said} {name!r}; {valid}" for name in absent))


class _Held(NamedTuple):
    """A file or text on a side (`training` or `test`); its size is 0 if it cannot be read.

    The place is an identity, and `digest` returns the digest of its content.
    """

    side: str
    name: str
    label: int
    size: int
    place: tuple[Path | int, str | int]
    digest: Callable[[], list[bytes]]


def require_one_label(dataset: Dataset, train: Indices, test: Indices) -> tuple[str, ...]:
    """Refuse one image or text under two labels, and report training examples among test examples.

    Only files of equal size can be the same, so most files are not read. Images in memory are not
    compared: published arrays have such pairs. The rows are those that clients hold, and the
    sentences are for the report.
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
            (digest,) = held.digest()
            first = seen.setdefault(digest, held)
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
        digest = partial(content_digests, split, at)
        yield _Held(side, name, label, size, place, digest)


SHOWN: Final = 20
FEW: Final = 16
"""The largest number of shots in the papers."""
_BLOCK: Final = 256
_MOST_THREADS: Final = 4
"""Each may hold an image of the largest size in memory."""

_RARE: Final = 10
"""A class with this many times fewer examples may be a misspelling of a class with a like name."""
_LIKE: Final = 0.8
"""Share of letters in the same order in like names: of five, one is swapped or left out."""

FAULTS: Final = ("damaged", "repeated", "contradictory")
"""Images that cannot be opened, test examples that are training examples too, and examples that are
identical to one of another class."""
KINDS: Final = (*FAULTS, "copies", "few", "slips")
"""All findings. Beside faults: examples that are identical to another of their side and class,
classes with fewer than `FEW` training examples, and rare classes that may be misspelled."""

Telling = Callable[[int, int], None]
"""Takes the number of opened examples, and of all."""


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """The result of a check.

    Attributes:
        info: The facts about the data set that need no files.
        refusal: The lines with which a run would refuse the folder; None for a sound folder.
        found: Findings by `KINDS`, in words; empty if the data set could not be read.
    """

    info: DatasetInfo
    refusal: str | None
    dataset: Dataset | None
    found: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether there is no fault; few examples, copies and like names are no faults."""
        return self.refusal is None and not any(self.found.get(kind) for kind in FAULTS)

    def document(self) -> dict[str, Any]:
        """Return the report as plain data, with the first `SHOWN` findings of a kind."""
        found = {kind: list(self.found.get(kind, ())) for kind in KINDS}
        return {
            "dataset": self.info.name,
            "sound": self.is_sound,
            "expected": list(self.info.layout),
            "source": self.info.source,
            "refusal": self.refusal,
            "recognised": [] if self.dataset is None else list(self.dataset.recognised),
            "counts": None if self.dataset is None else counts(self.dataset),
            **{n: {"number": len(f), "first": f[:SHOWN]} for n, f in found.items()},
        }


def check_folder(name: str, request: DataRequest, tell: Telling) -> FolderReport:
    """Read a data set's folder, every image included; `tell` hears of progress."""
    info = dataset_info(name, request.plugins)
    try:
        dataset = load_dataset(name, request, with_faults=True)
        faults = _faults(dataset, dataset.classes)
    except ConfigError as error:
        return FolderReport(info=info, refusal=str(error), dataset=None)
    refusal = str(DataError(*faults)) if faults else None
    sizes: dict[str, int] = counts(dataset)["train"]["by_class"]
    found = examine(dataset, tell)
    found["few"] = [f"{name} ({number})" for name, number in sizes.items() if number < FEW]
    found["slips"] = []
    for name, number in sizes.items():
        many = [other for other, of in sizes.items() if of > 0 and of >= _RARE * number]
        for like in get_close_matches(name, many, n=1, cutoff=_LIKE):
            found["slips"].append(f"{name} ({number}), where {like} has {sizes[like]}")
    return FolderReport(info=info, refusal=refusal, dataset=dataset, found=found)


def counts(dataset: Dataset) -> dict[str, Any]:
    """Count the examples of each side (with validation, if any) in all, by class and by domain."""
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


def examine(dataset: Dataset, tell: Telling) -> dict[str, list[str]]:
    """Open every example, and return sentences by `FAULTS` and under `copies`."""
    total, done = dataset.train.num_examples + dataset.test.num_examples, 0
    # Side, label and name of the first example of some content, a training example if there is one.
    seen: dict[bytes, tuple[str, int, str]] = {}
    found: dict[str, list[str]] = {kind: [] for kind in (*FAULTS, "copies")}
    tell(0, total)
    for side, split in (("training", dataset.train), ("test", dataset.test)):
        for row, (digest, fault) in enumerate(_opened(split, np.arange(split.num_examples))):
            done += 1
            if done % _BLOCK == 0 or done == total:
                tell(done, total)
            if fault is not None:
                found["damaged"].append(fault)
            if digest is None:
                continue
            name = f"{side} example {row}"
            if isinstance(split.images, ImageFiles) and split.texts is None:
                name = f"{side} image {split.images.paths[row]!r}"
            one = (side, int(split.labels[row]), name)
            first = seen.setdefault(digest, one)
            line = f"{name} is the same as {first[2]}"
            if side != first[0]:
                found["repeated"].append(line)
            if one[1] != first[1]:
                mine, theirs = (repr(dataset.classes[each[1]]) for each in (one, first))
                found["contradictory"].append(f"{line}, but of class {mine} and not {theirs}")
            elif one is not first and side == first[0]:
                found["copies"].append(line)
    return found


def damaged(split: Split, rows: Indices) -> list[str]:
    """Open the examples of these rows, and return a sentence for each that cannot be opened."""
    return [fault for _, fault in _opened(split, rows) if fault is not None]


def _opened(split: Split, rows: Indices) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield each example's digest, and the fault of one that cannot be opened."""
    images, blocks = split.images, range(0, len(rows), _BLOCK)
    if split.texts is None and isinstance(images, ImageFiles):
        # Decoders let other threads run; blocks and few threads bound the memory.
        with ThreadPoolExecutor(_MOST_THREADS) as pool:
            for start in blocks:
                block = rows[start : start + _BLOCK].tolist()
                yield from pool.map(lambda row: _open(images, row), block)
    else:
        for start in blocks:
            digests = content_digests(split, rows[start : start + _BLOCK])
            yield from ((digest, None) for digest in digests)


def _open(files: ImageFiles, row: int) -> tuple[bytes | None, str | None]:
    digest = None
    try:
        data = files.bytes_of(row)
        digest = hashlib.sha256(data).digest()
        decode(data, files.paths[row])
    except DataError as error:
        return digest, str(error)
    return digest, None
