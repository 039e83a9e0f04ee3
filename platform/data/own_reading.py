"""What was recognised in a folder of somebody's own images, whatever its layout was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from platform.config.sections import Layout
from platform.data.images import ImageFiles

Use = Literal["train", "validation", "test"]
"""What images are for."""
Owners = Literal["nobody", "domains", "clients"]
"""What groups of images are: none at all, domains, or what clients hold."""

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
        use: What it is for; None where nothing says.
    """

    path: str
    name: str
    use: Use | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Images that nothing tells apart by whose they are.

    Attributes:
        root: Folder that paths are relative to, links followed.
        place: Where they lie, for errors.
        listed: All of them.
        sentence: What was recognised, for people.
        parts: What its layout has places for, whether or not an image lies there: one image more or
            less must not decide what becomes of the others.
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
        groups: Images of each domain or client; of nobody a single group with an empty name.
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


def count_uses(listed: Iterable[Listed]) -> Mapping[Use | None, int]:
    """Count images by what files say of their use."""
    return Counter(image.use for image in listed)


def number(count: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {one if count == 1 else many}"


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = [repr(name) for name in names[:MOST_NAMED]]
    left = len(names) - len(shown)
    return conjoined([*shown, *([f"{left} more"] if left else [])])


def conjoined(parts: Iterable[str]) -> str:
    """Return parts of a sentence with commas and an `and`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
