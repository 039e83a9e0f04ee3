"""The words for a folder of a user's own images, and the reader of folders of classes.

One data holder's folder has a folder for each class, or folders for training and test (or
validation) images with the folders of classes in them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from platform.config.sections import Layout
from platform.data.dataset import ImageFiles
from platform.data.loaders._files import (
    image_names,
    is_there,
    listed,
    require_printable,
    subfolders,
)
from platform.errors import DataError, Faults

Use = Literal["train", "validation", "test"]
"""What an image is for."""
Owners = Literal["nobody", "domains", "clients"]
"""What the groups of images are: domains, clients, or one group of all images."""

SPLIT_NAMES: Final[Mapping[str, Use]] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""The use of a folder, or of a part of a file, by its name in small letters."""
WORDS: Final[Mapping[Use, str]] = {"train": "training", "validation": "validation", "test": "test"}
"""The word for each use in sentences; recognised folders are listed in this order."""
LAYOUTS: Final = "CLASS/IMAGE, or train/CLASS/IMAGE with test/CLASS/IMAGE or val/CLASS/IMAGE"
_MOST_NAMED: Final = 3
"""A sentence names this many and counts the others."""


class Listed(NamedTuple):
    """One image.

    Attributes:
        path: Below the whole folder, with forward slashes.
        name: Its class, as the files spell it.
        use: What the image is for; None where the files do not say.
    """

    path: str
    name: str
    use: Use | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The images of one domain or client, or all images where the files name neither.

    Attributes:
        root: Folder that paths are relative to, links followed.
        sentence: The reading of the files, for people.
        parts: The uses that the layout has places for, whether or not an image lies there: one
            image more or less must not decide how the others are used.
        classes: Where folders name the classes, all of these names in ASCII order, also those of
            empty folders.
    """

    root: Path
    listed: tuple[Listed, ...]
    sentence: str
    parts: frozenset[Use] = frozenset()
    classes: tuple[str, ...] = ()
    files: type[ImageFiles] = ImageFiles

    @property
    def says_tests(self) -> bool:
        """Whether the files say which images are for testing."""
        return "test" in self.parts


@dataclass(frozen=True, kw_only=True)
class OwnReading:
    """The reading of a whole folder.

    Attributes:
        root: The folder, links followed; no path leaves it.
        words: The words for each class by its name in the files, in label order.
        owners: What its groups are.
        groups: The images of each domain or client; else a single group with an empty name.
        has_class_list: Whether a file lists the classes of all clients, so that the list does not
            depend on any client's folder.
    """

    root: Path
    layout: Layout
    words: Mapping[str, str]
    owners: Owners
    groups: Mapping[str, Group]
    has_class_list: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def files(self) -> type[ImageFiles]:
        """The reader of its images."""
        return next(iter(self.groups.values())).files


def number(count: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {one if count == 1 else many}"


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    left = len(names) - _MOST_NAMED
    return conjoined([*map(repr, names[:_MOST_NAMED]), *([f"{left} more"] if left > 0 else [])])


def conjoined(parts: Iterable[str]) -> str:
    """Return parts of a sentence with commas and an `and`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def is_split_folder(name: str) -> bool:
    """Return whether a folder of this name may hold the images of one use."""
    return name.casefold() in SPLIT_NAMES


def require_no_split_folders(names: Sequence[str], where: Path, level: str) -> None:
    """Refuse training and test folders where the folders must be domains or clients (`level`)."""
    split = [repr(name) for name in names if is_split_folder(name)]
    if split:
        raise DataError(
            f"task.root: {str(where)!r} holds {conjoined(split)}, each of which may be a "
            f"{level.lower()} or a part of one holder's images; valid are {level}/CLASS/IMAGE with "
            "other names, or, where folders split the images, task.dataset: images with "
            "train/CLASS/IMAGE and test/CLASS/IMAGE, or task.dataset: client_folders with "
            "CLIENT/train/CLASS/IMAGE and CLIENT/test/CLASS/IMAGE"
        )


def folded(name: str) -> str:
    """Return a class's name in one spelling for all: small letters, and spaces for "_" and "-"."""
    # Systems write umlauts in two ways. Again after folding, which may take a letter's mark.
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(text.replace("_", " ").replace("-", " ").split())


def require_one_spelling(names: Sequence[str], said: str) -> None:
    """Refuse two spellings of one class among sorted names; `said` begins the sentence."""
    firsts: dict[str, str] = {}
    pairs = [(firsts.setdefault(folded(name), name), name) for name in names]
    if twice := [pair for pair in pairs if pair[0] != pair[1]]:
        why = "which are one class in two spellings; valid is one"
        raise DataError(*(f"{said} {first!r} and {name!r}, {why}" for first, name in twice))


def recognise(root: Path, faults: Faults, *, beside: Collection[str] = ()) -> Group:
    """Read a data holder's folder; images are listed and not opened.

    Files called as in `beside` may lie beside the folders. The group has `parts` exactly where
    folders split the images. A folder that can be read in two ways is refused. Anything else than
    images in folders of classes is kept in `faults`, and left out.
    """
    if not is_there(root, folder=True):
        raise DataError(f"task.root: {str(root)!r} is no folder; valid is one with {LAYOUTS}")
    root = root.resolve()
    folders = _folders(root, root, faults, beside)
    split = {name: SPLIT_NAMES[name.casefold()] for name in folders if is_split_folder(name)}
    if split:
        _require_one_reading(root, folders, split)
    found: list[Listed] = []
    names: set[str] = set()
    # In the order of the sentence: training, validation, test.
    parts = sorted(split, key=lambda name: list(WORDS).index(split[name]))
    for part in parts or ("",):
        base, use, before, known = root / part, split.get(part), len(found), len(faults)
        inside: tuple[str, ...] = () if part else folders
        with faults:
            inside = inside or _folders(base, root, faults)
        for name in inside:
            path = f"{part}/{name}" if part else name
            word = name if folded(name) else ""
            with faults:
                said = f"task.root: {str(base)!r} has a class folder {name[:80]!r}"
                require_printable(word, said)
                if deeper := subfolders(root / path, root, Faults()):
                    what = "is a folder in what should be a class's folder"
                    raise DataError.at(root / path / deeper[0], what, LAYOUTS)
                images = image_names(root / path, root, faults)
                found += [Listed(f"{path}/{one}", name, use) for one in images]
                names.add(name)
        # One image less must not make an unreadable folder readable.
        if len(found) == before and len(faults) == known and use in (None, "train"):
            faults.append(
                f"task.root: {str(base)!r} holds class folders and no image; valid are {LAYOUTS}"
            )
    classes = tuple(sorted(names))
    with faults:
        require_one_spelling(classes, f"task.root: {str(root)!r} has the class folders")
    counted = f"{number(len(found), 'image', 'images')} in class folders, not split into training "
    counted += "and test images"
    if split:
        counts = [sum(image.use == split[part] for image in found) for part in parts]
        pairs = zip(counts, parts, strict=True)
        counted = conjoined([f"{count} {WORDS[split[part]]}" for count, part in pairs])
        counted += f" {'image' if counts[-1] == 1 else 'images'} in "
        counted += f"{conjoined([f'{part}/' for part in parts])} folders"
        counted += "" if "test" in split.values() else ", without a test folder"
    held = {image.name for image in found}
    empty = [name for name in classes if name not in held]
    said = f"{number(len(held), 'class', 'classes')}, {counted}"
    if empty:
        said += f"; {some(empty)} {'is' if len(empty) == 1 else 'are'} empty"
    return Group(
        root=root,
        listed=tuple(found),
        sentence=said,
        parts=frozenset(split.values()),
        classes=classes,
    )


def _folders(
    folder: Path, root: Path, faults: Faults, beside: Collection[str] = ()
) -> tuple[str, ...]:
    """Return names of a folder's folders; it may hold nothing else."""
    folders, files = listed(folder, root, faults)
    faults += [
        f"task.root: {str(folder / name)!r} lies in no class's folder; valid are {LAYOUTS}, and no "
        "other files"
        for name in files
        if name not in beside
    ]
    if not folders:
        raise DataError(f"task.root: {str(folder)!r} is empty; valid are {LAYOUTS}")
    return folders


def _require_one_reading(root: Path, folders: Sequence[str], split: Mapping[str, Use]) -> None:
    """Refuse folders of a split that might be classes, or that are too many or too few."""
    others = [name for name in folders if name not in split]
    for name, use in split.items():
        inside, files = ((), ()) if others else listed(root / name, root)
        why = f"lies beside {others[0]!r}" if others else "holds images and no class folders"
        if others or (files and not inside):
            raise DataError(
                f"task.root: {str(root / name)!r} {why}, so it may be a class called {name!r} or "
                f"the folder of {WORDS[use]} images; valid are {LAYOUTS}, where a class called "
                f"{name!r} is train/{name}/IMAGE"
            )
    uses = list(split.values())
    for use in uses:
        twins = [other for other in split if split[other] == use]
        if len(twins) > 1:
            both = conjoined(map(repr, twins))
            what = f"holds {both}, each of which may hold its {WORDS[use]} images"
            raise DataError.at(root, what, "one of them")
    if "train" not in uses or len(uses) == 1:
        what = f"holds {conjoined(map(repr, split))} without the folder that belongs to it"
        raise DataError.at(root, what, LAYOUTS)
