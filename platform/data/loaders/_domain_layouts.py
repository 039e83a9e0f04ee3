"""The ways in which data sets of several domains lie on disks, read into one form.

Three are known:

- folders: `<domain>/<class>/<image>`, without a split into training and test images;
- parts: `<domain>/<part>/<class>/<image>`, the part's name telling what it is for;
- lists: folders, and `<domain>_<part>.txt` beside them with a path and a number in each line.

Folders of domains and classes are found whatever their capitals, spaces, "-" and "_" are, since
"Real World", "real_world" and "Real_World" are all published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from platform.data.loaders._files import (
    image_names,
    is_there,
    read_text,
    require_distinct,
    require_inside,
    require_listed_path,
    require_present,
    subfolders,
)
from platform.errors import DataError

Use = Literal["train", "test", "unused", "unsplit"]
"""What files say an image is for; unsplit where they say nothing."""

# The largest, of DomainNet's quickdraw, has 6 MB.
_MOST_BYTES: Final = 64_000_000


class Found(NamedTuple):
    """An image of a domain.

    Attributes:
        path: Below the data set's folder.
        folder: Its class, by the name of a folder.
        use: What it is for.
    """

    path: str
    folder: str
    use: Use


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """How one data set may lie below `task.root`.

    Attributes:
        folders: The names that its folder goes by; the first that is there is read.
        inner: Folder in that which may hold the domains.
        aliases: Other names of domains, spelled as `plain` does.
        parts: What a folder of a part, or a list, is for.
        lists: Where lists may lie, `{domain}` and `{part}` standing for their names.
        damaged: Listed images that are known to be bad and are left out.
        numbered: Whether folders of classes may go by their labels.
    """

    folders: tuple[str, ...]
    inner: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Use] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    damaged: frozenset[str] = frozenset()
    numbered: bool = False


def plain(name: str) -> str:
    """Return a name without what spellings differ in."""
    return "".join(character for character in name.casefold() if character.isalnum())


def matched(
    folders: Iterable[str], names: Sequence[str], where: Path, aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return folder by name, for the names that have one.

    Args:
        folders: Names of folders.
        names: Names that are looked for.
        where: Folder that they lie in, for errors.
        aliases: Names by other spellings of them, as `plain` spells.

    Raises:
        DataError: If two folders are spellings of one name.
    """
    by_plain = {plain(name): name for name in names}
    found: dict[str, str] = {}
    for folder in folders:
        spelling = plain(folder)
        name = by_plain.get(plain(aliases.get(spelling, spelling)))
        if name is None:
            continue
        if name in found:
            raise DataError(
                f"task.root: {str(where)!r} holds both {found[name]!r} and {folder!r}; valid is "
                f"one folder for {name!r}"
            )
        found[name] = folder
    return found


def find_images(
    base: Path, images: Path, folders: Mapping[str, str], layouts: Layouts
) -> tuple[dict[str, tuple[Found, ...]], bool]:
    """Return the images of each domain, in the order of their paths, and whether lists told them.

    None is opened.

    Args:
        base: The data set's folder; resolved.
        images: What all paths are relative to, the base or a folder in it; resolved.
        folders: Folder below `images` of each domain.
        layouts: How the data set may lie.

    Raises:
        DataError: If a folder or a list is not what it should be.
    """
    for pattern in layouts.lists:
        lists = _lists(base, pattern, folders, layouts)
        if lists:
            return _read_lists(images, lists, folders, layouts), True
    found = {
        domain: tuple(sorted(_in_folders(images, folder, layouts)))
        for domain, folder in folders.items()
    }
    return found, False


def _in_folders(images: Path, domain: str, layouts: Layouts) -> list[Found]:
    """Return the images of a domain's folder, with or without folders of parts."""
    inside = subfolders(images / domain, images)
    if not inside:
        raise DataError(
            f"task.root: {str(images / domain)!r} holds no folder of a class; valid is "
            "DOMAIN/CLASS/IMAGE"
        )
    if layouts.parts and set(inside) <= {*layouts.parts, "full"}:
        missing = sorted(set(layouts.parts) - set(inside))
        if missing:
            raise DataError(
                f"task.root: {str(images / domain)!r} has no folder {missing[0]!r}; valid: "
                f"{', '.join(layouts.parts)}"
            )
        return [
            found
            for part, use in layouts.parts.items()
            for found in _in_classes(images, f"{domain}/{part}", use)
        ]
    return _in_classes(images, domain, "unsplit", inside)


def _in_classes(
    images: Path, folder: str, use: Use, classes: Sequence[str] | None = None
) -> list[Found]:
    found: list[Found] = []
    for name in classes if classes is not None else subfolders(images / folder, images):
        files = image_names(images / folder / name, images)
        if not files:
            raise DataError(
                f"task.root: {str(images / folder / name)!r} is an empty folder of a class; valid "
                "is at least one image"
            )
        found += [Found(f"{folder}/{name}/{file}", name, use) for file in files]
    return found


def _lists(
    base: Path, pattern: str, folders: Mapping[str, str], layouts: Layouts
) -> dict[tuple[str, str], Path]:
    """List by domain and part; none at all where no domain has one."""
    lists = {
        (domain, part): base / pattern.format(domain=domain, part=part)
        for domain in folders
        for part in layouts.parts
    }
    present = {key for key, path in lists.items() if is_there(path)}
    for key in present:
        require_inside(lists[key], base)
    for key in (key for key in lists if present and key not in present):
        raise DataError(
            f"task.root: {str(lists[key])!r} is not there and other lists of the data set are; "
            f"valid is one for each domain and each of {', '.join(layouts.parts)}"
        )
    return lists if present else {}


def _read_lists(
    images: Path,
    lists: Mapping[tuple[str, str], Path],
    folders: Mapping[str, str],
    layouts: Layouts,
) -> dict[str, tuple[Found, ...]]:
    numbers: dict[str, int] = {}
    found: dict[str, list[Found]] = {domain: [] for domain in folders}
    for (domain, part), path in lists.items():
        rows = [
            row
            for number, line in enumerate(read_text(path, _MOST_BYTES).splitlines(), start=1)
            if (row := _row(line, f"line {number} of {str(path)!r}", folders[domain], numbers))
            and row not in layouts.damaged
        ]
        require_present(images, rows, repr(str(path)))
        found[domain] += [Found(row, row.split("/")[1], layouts.parts[part]) for row in rows]
    for domain, rows_of_domain in found.items():
        where = " and ".join(repr(str(path)) for key, path in lists.items() if key[0] == domain)
        require_distinct((row.path for row in rows_of_domain), where)
    return {domain: tuple(sorted(rows)) for domain, rows in found.items()}


def _row(line: str, where: str, domain: str, numbers: dict[str, int]) -> str | None:
    """Return the path in a line, after its number has been compared with the others of its class.

    Published lists count from 0 or 1 and in an order of their own; labels are in the order of the
    folders' names, so that they are the same with and without lists.
    """
    if not line.strip():
        return None
    path, _, number = line.strip().rpartition(" ")
    require_listed_path(path, where)
    steps = path.split("/")
    if len(steps) != 3 or steps[0] != domain:
        raise DataError(
            f"task.root: {where} lists {path!r}; valid is '{domain}/class/image' and a number"
        )
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise DataError(
            f"task.root: {where} ends in {number[:40]!r}; valid is a path, a space and a whole "
            "number"
        )
    if numbers.setdefault(steps[1], int(number)) != int(number):
        raise DataError(
            f"task.root: {where} gives the number {int(number)} to the class {steps[1]!r}, which "
            f"was {numbers[steps[1]]} before; valid is one number for each class"
        )
    return path
