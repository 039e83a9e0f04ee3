"""What is recognised in a folder of somebody's own images, and class folders read into that form.

A data holder's folder has a folder for each class, or folders for training and test (or validation)
images with the class folders in them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from platform.config.sections import Layout
from platform.data.dataset import ImageFiles
from platform.data.loaders._files import LONGEST_NAME, image_names, is_there, listed, subfolders
from platform.errors import DataError

Use = Literal["train", "validation", "test"]
"""What images are for."""
Owners = Literal["nobody", "domains", "clients"]
"""What the groups of images are: domains, the images of clients, or no groups at all."""

SPLIT_NAMES: Final[Mapping[str, Use]] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""What a folder or a part of a file is for, by its name in small letters."""
WORDS: Final[Mapping[Use, str]] = {"train": "training", "validation": "validation", "test": "test"}
"""How sentences call it."""
MOST_NAMED: Final = 3
"""More names than this are counted in a sentence."""


class Listed(NamedTuple):
    """An image.

    Attributes:
        path: Below the whole folder, with forward slashes.
        name: Its class, as the files spell it.
        use: What it is for; None where the files do not say.
    """

    path: str
    name: str
    use: Use | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Images of one domain or client, or all images where the files name neither.

    Attributes:
        root: Folder that paths are relative to, links followed.
        place: Where they lie, for errors.
        listed: All of them.
        sentence: What was recognised, for people.
        parts: The uses that its layout has places for, whether or not an image lies there: one
            image more or less must not decide how the others are used.
        files: How they are read.
    """

    root: Path
    place: str
    listed: tuple[Listed, ...]
    sentence: str
    parts: frozenset[Use] = frozenset()
    files: type[ImageFiles] = ImageFiles

    @property
    def says_tests(self) -> bool:
        """Whether the files say which images are for testing."""
        return "test" in self.parts


@dataclass(frozen=True, kw_only=True)
class OwnReading:
    """What was recognised in a folder.

    Attributes:
        root: The folder, links followed; what no path leaves.
        layout: Which layout it has.
        words: In which words each class is spoken of, by its name in the files; in label order.
        owners: What its groups are.
        groups: Images of each domain or client; without these a single group with an empty name.
        has_class_list: Whether a file lists the classes of all clients, so that none of them
            follows from what lies in a client's folder.
        remarks: What else is to be said of it.
    """

    root: Path
    layout: Layout
    words: Mapping[str, str]
    owners: Owners
    groups: Mapping[str, Group]
    has_class_list: bool = False
    remarks: tuple[str, ...] = field(default=())

    @property
    def files(self) -> type[ImageFiles]:
        """How its images are read."""
        return next(iter(self.groups.values())).files


def number(count: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {one if count == 1 else many}"


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = [repr(name) for name in names[:MOST_NAMED]]
    left = len(names) - len(shown)
    return conjoined([*shown, *([f"{left} more"] if left else [])])


def conjoined(parts: Iterable[str]) -> str:
    """Return parts of a sentence with commas and an `and`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


Kind = Literal["class_folders", "split_folders"]

LAYOUTS: Final = "CLASS/IMAGE, or train/CLASS/IMAGE with test/CLASS/IMAGE or val/CLASS/IMAGE"


@dataclass(frozen=True)
class FolderPart:
    """A folder whose folders are classes.

    Attributes:
        folder: Its name below the holder's folder, empty for that itself.
        use: What its images are for; None where no folder says.
        images: Names of each class folder's images, both in ASCII order.
    """

    folder: str
    use: Use | None
    images: Mapping[str, tuple[str, ...]]

    @property
    def above(self) -> str:
        """What stands before a path below the holder's folder."""
        return f"{self.folder}/" if self.folder else ""

    @property
    def num_images(self) -> int:
        """Count the images of all classes."""
        return sum(len(names) for names in self.images.values())


@dataclass(frozen=True, kw_only=True)
class FolderReading:
    """What was recognised in a data holder's folder.

    Attributes:
        root: The folder, links followed.
        kind: Which of the two layouts it has.
        parts: One of class folders; of split folders one each: training, validation, test.
    """

    root: Path
    kind: Kind
    parts: tuple[FolderPart, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the class folders of all parts, in ASCII order."""
        return tuple(sorted({name for part in self.parts for name in part.images}))

    @property
    def counts(self) -> Mapping[str, Mapping[Use | None, int]]:
        """Images of each class folder by what they are for, None where no folder says."""
        return {
            name: {part.use: len(part.images.get(name, ())) for part in self.parts}
            for name in self.classes
        }

    def listed(self, above: str = "") -> tuple[Listed, ...]:
        """Return all images.

        Args:
            above: What stands before each path: the folder in that of many, with a slash.
        """
        return tuple(
            Listed(f"{above}{part.above}{name}/{image}", name, part.use)
            for part in self.parts
            for name, images in part.images.items()
            for image in images
        )

    @property
    def uses(self) -> frozenset[Use]:
        """What it has folders for, empty ones included."""
        return frozenset(part.use for part in self.parts if part.use is not None)

    @property
    def sentence(self) -> str:
        """What was recognised, for people."""
        empty = [name for name, of in self.counts.items() if not any(of.values())]
        classes = number(len(self.classes) - len(empty), "class", "classes")
        none = f"; {some(empty)} {'is' if len(empty) == 1 else 'are'} empty" if empty else ""
        return f"{classes}, {self._images()}{none}"

    def _images(self) -> str:
        if self.kind == "class_folders":
            images = number(self.parts[0].num_images, "image", "images")
            return f"{images} in class folders, not split into training and test images"
        counts = [f"{part.num_images} {WORDS[part.use or 'train']}" for part in self.parts]
        noun = "image" if self.parts[-1].num_images == 1 else "images"
        folders = conjoined([f"{part.folder}/" for part in self.parts])
        lacks = "" if "test" in {part.use for part in self.parts} else ", without a test folder"
        return f"{conjoined(counts)} {noun} in {folders} folders{lacks}"


def recognise(root: Path, *, beside: Collection[str] = ()) -> FolderReading:
    """Say what a data holder's folder looks like; images are listed and not opened.

    Hidden files and what file managers leave behind are skipped.

    Args:
        root: The folder.
        beside: Names of files that may lie beside the folders in it.

    Raises:
        DataError: If it is not there, can be read in two ways or in none, holds no image, holds
            one class under two spellings, or has anything in it that is not called as an image,
            lies outside of a class's folder, or is a link out of the folder.
    """
    if not is_there(root, folder=True):
        raise DataError(f"task.root: {str(root)!r} is no folder; valid is one with {LAYOUTS}")
    root = root.resolve()
    folders = _folders(root, root, beside)
    split = {name: SPLIT_NAMES[name.casefold()] for name in folders if is_split_folder(name)}
    if split:
        _require_one_reading(root, folders, split)
        # In the order of the sentence: training, validation, test.
        order = sorted(split, key=lambda name: list(WORDS).index(split[name]))
        parts = tuple(_part(root, name, split[name]) for name in order)
    else:
        parts = (_part(root, "", None, folders),)
    kind: Kind = "split_folders" if split else "class_folders"
    reading = FolderReading(root=root, kind=kind, parts=parts)
    _require_one_spelling(reading)
    return reading


def is_split_folder(name: str) -> bool:
    """Return whether a folder of this name may hold the images of one side of a split."""
    return name.casefold() in SPLIT_NAMES


def require_no_split_folders(names: Sequence[str], where: Path, level: str) -> None:
    """Refuse folders of a split where a level of folders is to be something else.

    Args:
        names: Of the folders.
        where: Folder that they lie in.
        level: What they are to be, as layouts call it: `CLIENT` or `DOMAIN`.

    Raises:
        DataError: If one may be a folder of training, validation or test images.
    """
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
    """Return a class's name in one spelling for all: small letters, and spaces for "_" and "-".

    Umlauts, which systems write in two ways, are written in one.
    """
    # Again after folding, which may take a letter's mark from it.
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(text.replace("_", " ").replace("-", " ").split())


def _folders(folder: Path, root: Path, beside: Collection[str] = ()) -> tuple[str, ...]:
    """Return names of a folder's folders; it must hold nothing else."""
    folders, files = listed(folder, root)
    strange = [name for name in files if name not in beside]
    if strange:
        raise DataError(
            f"task.root: {str(folder / strange[0])!r} lies in no class's folder; valid are "
            f"{LAYOUTS}, and no other files"
        )
    if not folders:
        raise DataError(f"task.root: {str(folder)!r} is empty; valid are {LAYOUTS}")
    return folders


def _require_one_reading(root: Path, folders: Sequence[str], split: Mapping[str, Use]) -> None:
    """Refuse folders of a split that might be classes, or that are too many or too few."""
    for name, use in split.items():
        meant = f"the folder of {WORDS[use]} images"
        others = [other for other in folders if other not in split]
        if others:
            raise _ambiguous(root / name, f"lies beside {others[0]!r}", name, meant)
        inside, files = listed(root / name, root)
        if files and not inside:
            raise _ambiguous(root / name, "holds images and no class folders", name, meant)
    uses = list(split.values())
    for use in uses:
        twins = [other for other in split if split[other] == use]
        if len(twins) > 1:
            raise DataError(
                f"task.root: {str(root)!r} holds {conjoined([repr(one) for one in twins])}, each "
                f"of which may hold its {WORDS[use]} images; valid is one of them"
            )
    if "train" not in uses or len(uses) == 1:
        held = conjoined([repr(name) for name in split])
        raise DataError(
            f"task.root: {str(root)!r} holds {held} and no folder that goes with it; valid are "
            f"{LAYOUTS}"
        )


def _ambiguous(path: Path, why: str, name: str, meant: str) -> DataError:
    return DataError(
        f"task.root: {str(path)!r} {why}, so it may be a class called {name!r} or {meant}; valid "
        f"are {LAYOUTS}, where a class called {name!r} is train/{name}/IMAGE"
    )


def _part(
    root: Path, folder: str, use: Use | None, classes: Sequence[str] | None = None
) -> FolderPart:
    """List a folder of class folders."""
    base = root / folder
    names = _folders(base, root) if classes is None else classes
    part = FolderPart(folder, use, {name: _images(base / name, root) for name in names})
    # One image less must not make a folder that cannot be read of one that can.
    if not part.num_images and use in (None, "train"):
        raise DataError(
            f"task.root: {str(base)!r} holds class folders and no image; valid are {LAYOUTS}"
        )
    return part


def _images(folder: Path, root: Path) -> tuple[str, ...]:
    """Return names of a class folder's images."""
    name = folder.name
    if len(name) > LONGEST_NAME or not name.isprintable() or not folded(name):
        raise DataError(
            f"task.root: {str(folder.parent)!r} has a class folder {name[:80]!r}; valid are 1 to "
            f"{LONGEST_NAME} printable characters"
        )
    inside = subfolders(folder, root)
    if inside:
        raise DataError(
            f"task.root: {str(folder / inside[0])!r} is a folder in what should be a class's "
            f"folder; valid are {LAYOUTS}"
        )
    return image_names(folder, root)


def _require_one_spelling(reading: FolderReading) -> None:
    firsts: dict[str, str] = {}
    for name in reading.classes:
        first = firsts.setdefault(folded(name), name)
        if first != name:
            raise DataError(
                f"task.root: {str(reading.root)!r} has the class folders {first!r} and {name!r}, "
                "which are one class in two spellings; valid is one"
            )
