"""The layout of a folder of a user's own images: recognised, or refused with both readings.

The data sets `images` and `client_folders`, the check of a folder, and a data holder on a machine
of its own all read such folders here. The reader looks at the names of files and folders, and at
the lists among them; it opens no image.

A file of class names gives words for classes that have only a code in the files: `n02084071` is a
dog. The file lies beside the images, or where the configuration says. It is text with a class in
each line, the name in the files before the words (a tab, ` -> ` or else the first space parts them,
as in the lists that come with ImageNet), or a JSON object. Every class has one entry, every entry a
class, and no two classes have the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from platform.config.sections import Layout
from platform.data.catalogue import Hints
from platform.data.loaders._files import (
    MOST_CLASSES,
    class_words,
    is_there,
    listed,
    read_text,
    require_printable,
    subfolders,
)
from platform.data.own_folders import (
    Group,
    Owners,
    OwnReading,
    folded,
    is_split_folder,
    recognise,
    require_no_split_folders,
    some,
)
from platform.data.own_lists import MARKS, read_saved, read_split, read_tables
from platform.errors import DataError, Faults

BESIDE: Final = ("class_names.txt", "class_names.json")
"""The names of a file of class names that lies beside images."""
_MOST_BYTES: Final = 1_000_000
_PARTED_BY: Final = ("\t", " -> ", " ")


def read_class_names(root: Path, given: Path | None) -> tuple[Path, Mapping[str, str]] | None:
    """Return the file of class names, `given` or beside the images, and its words by class."""
    beside = [root / name for name in BESIDE if is_there(root / name)]
    if given is None and not beside:
        return None
    if given is None and len(beside) > 1:
        raise DataError.at(
            root, f"holds both {' and '.join(map(repr, BESIDE))}", "one of them", "task.class_names"
        )
    path = beside[0] if given is None else given
    if not is_there(path):
        valid = "a file with a class and its words in each line, such as 'n02084071 dog'"
        raise DataError.at(path, "is not there", valid, "task.class_names")
    try:
        # Editors of some systems begin a file with a mark of byte order.
        text = read_text(path, _MOST_BYTES).removeprefix("\ufeff")
    except DataError as error:
        raise DataError(str(error).replace("task.root", "task.class_names", 1)) from error
    pairs = _from_json(path, text) if path.suffix.lower() == ".json" else _from_lines(path, text)
    words: dict[str, str] = {}
    spellings: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for name, called in pairs:
        said = f"task.class_names: {str(path)!r} calls {name[:80]!r} {called[:80]!r}"
        require_printable(called, said)
        first = spellings.setdefault(folded(name), name)
        if name in words or first != name:
            raise DataError.at(
                path, f"has two entries for {name[:80]!r}", "one for each class", "task.class_names"
            )
        other = firsts.setdefault(called.casefold(), name)
        if other != name:
            what = f"calls both {other[:80]!r} and {name[:80]!r} {called!r}"
            raise DataError.at(path, what, "other words for each class", "task.class_names")
        words[name] = called
    if not words:
        raise DataError.at(path, "has no entry", "one for each class", "task.class_names")
    return path, words


def words_of(
    names: Sequence[str], path: Path, words: Mapping[str, str], *, more: bool = False
) -> dict[str, str]:
    """Return the words of each class by its name in the files; refuse a class without an entry.

    An entry without a class is refused too, unless the file may name `more` of other holders.
    """
    spelled = {folded(name): text for name, text in words.items()}
    missing = [name for name in names if folded(name) not in spelled]
    if missing:
        what = f"has no entry for {some(missing)}"
        raise DataError.at(path, what, "one for each class of the images", "task.class_names")
    known = {folded(name) for name in names}
    unknown = [name for name in words if folded(name) not in known]
    if unknown and not more:
        what = f"has an entry for {some(unknown)}, but the folder has no such images"
        valid = f"the classes of the images: {some(names)}"
        raise DataError.at(path, what, valid, "task.class_names")
    return {name: spelled[folded(name)] for name in names}


def _from_lines(path: Path, text: str) -> list[tuple[str, str]]:
    pairs = []
    for position, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        sign = next((sign for sign in _PARTED_BY if sign in line.strip()), " ")
        name, _, words = line.strip().partition(sign)
        if not words.strip():
            where, what = f"line {position} of {str(path)!r}", f"has no words for {name[:80]!r}"
            valid = "a class and its words, such as 'n02084071 dog'"
            raise DataError.at(where, what, valid, "task.class_names")
        pairs.append((name.strip(), words.strip()))
    return pairs


def _from_json(path: Path, text: str) -> list[tuple[str, str]]:
    try:
        # As pairs, since a dictionary keeps the last of two equal keys in silence.
        pairs = json.loads(text, object_pairs_hook=list)
    # Too many digits are a ValueError too, and too many brackets a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DataError.at(path, "is not JSON", _OBJECT, "task.class_names") from error
    is_object = isinstance(pairs, list) and all(isinstance(pair, tuple) for pair in pairs)
    if not is_object or not all(isinstance(words, str) for _, words in pairs):
        raise DataError.at(path, "is no object of texts", _OBJECT, "task.class_names")
    return [(name, words.strip()) for name, words in pairs]


_OBJECT: Final = 'an object such as {"n02084071": "dog"}'


OWN_LAYOUTS: Final[Mapping[Layout, str]] = {
    "class_folders": "CLASS/IMAGE",
    "split_folders": "train/CLASS/IMAGE with test/CLASS/IMAGE or val/CLASS/IMAGE",
    "domain_folders": "DOMAIN/CLASS/IMAGE",
    "client_folders": "CLIENT/CLASS/IMAGE",
    "table": "a .csv file with the columns path and label, and split, domain, client if known",
    "split_file": "a .json file as CoOp splits data: train, val and test with [path, label, class]",
    "saved": "a data set of Hugging Face, as save_to_disk writes it",
}
"""Every layout in words."""
_ABOUT: Final = frozenset({"readme", "license", "licence"})
"""Files that many archives of images bring along, without their endings."""
_LISTS: Final[Mapping[str, Layout]] = {".csv": "table", ".json": "split_file"}
"""The kind of a list by its file's ending."""


def recognise_own(
    root: Path, hints: Hints, faults: Faults, *, one_holder: bool = False
) -> OwnReading:
    """Recognise the layout of a folder of images and list the images.

    If all images are `one_holder`'s, the folder has no clients in it, and the file of class names
    may also name classes of other holders. What is wrong with single images, classes and clients
    is kept in `faults`, and left out of the reading.
    """
    if not is_there(root, folder=True):
        raise DataError.at(root, "is no folder", f"one with {_layouts(one_holder)}")
    root = root.resolve()
    folders, files = listed(root, root, faults)
    about = {name for name in files if name in BESIDE or Path(name).stem.casefold() in _ABOUT}
    given = hints.class_names and hints.class_names.resolve()
    named = tuple(
        n for n in files if n not in about and not (given and (root / n).resolve() == given)
    )
    layout = hints.layout or _recognised(root, folders, named, one_holder)
    reading = _read(root, layout, folders, named, faults=faults)
    if one_holder and reading.owners != "nobody":
        what = f"has {len(reading.groups)} {reading.owners} in it and is one data holder's"
        valid = f"{_layouts(one_holder)}, without columns of clients or domains"
        raise DataError.at(root, what, valid)
    if not reading.words:
        faults.require_none()
    names, remarks = tuple(reading.words), reading.remarks
    found = read_class_names(root, hints.class_names)
    if found is None:
        # Two domains or clients may spell one class differently.
        firsts: dict[str, str] = {}
        for name in names:
            firsts.setdefault(folded(name), name)
        if len(firsts) > MOST_CLASSES:
            raise DataError.at(root, f"has {len(firsts):,} classes", f"1 to {MOST_CLASSES}")
        spelled = dict(zip(firsts, class_words(list(firsts.values()), root), strict=True))
        if all(name.isascii() and name.isdigit() for name in names):
            remarks += (
                "its class names are numbers, and prompts will say these numbers; words for them "
                f"can be given in {' or '.join(BESIDE)} or by task.class_names",
            )
        plain = {name: spelled[folded(name)] for name in names}
        return replace(reading, words=plain, remarks=remarks)
    path, words = found
    remarks += (f"the words for its classes are from {str(path)!r}",)
    # Where folders are clients' own, the file lists all classes, also those without images.
    is_list = reading.owners == "clients" or hints.partition == "domain"
    known = words_of(names, path, words, more=one_holder or is_list)
    if is_list:
        known = {**dict(sorted(words.items())), **known}
    return replace(reading, words=known, has_class_list=is_list, remarks=remarks)


def _layouts(one_holder: bool) -> str:
    names = [
        text
        for name, text in OWN_LAYOUTS.items()
        if not one_holder or name not in ("domain_folders", "client_folders")
    ]
    return "; ".join(names[:-1]) + f"; or {names[-1]}"


def _recognised(
    root: Path, folders: Sequence[str], files: Sequence[str], one_holder: bool
) -> Layout:
    if any(mark in files for mark in MARKS):
        return "saved"
    lists = [name for name in files if _list_layout(name) is not None]
    if lists:
        kinds = sorted({str(_list_layout(name)) for name in lists})
        if len(kinds) > 1:
            what = f"holds {some(lists)}, so its images may be listed by either"
            raise DataError.at(root, what, "task.layout: table, or task.layout: split_file")
        layout: Layout = "table" if kinds == ["table"] else "split_file"
        others = [name for name in files if name not in lists]
        if others or not folders:
            return layout
        strange = Faults()
        with strange:
            by_folders = _by_folders(root, files, strange)
        if strange:
            return layout
        # A single class may be a heap of images that the list tells apart.
        if len(by_folders.words) < 2:
            return layout
        one, other = _said(_read(root, layout, folders, files, faults=Faults())), _said(by_folders)
        # The list may say more than the folders, and must not contradict them.
        if one.keys() == other.keys() and all(
            name == one[path][0] and use in (None, one[path][1])
            for path, (name, use) in other.items()
        ):
            return layout
        raise DataError(
            f"task.root: {str(root)!r} holds {some(lists)} beside folders, and the two say "
            f"different things of the images; valid is task.layout: {layout}, which reads the "
            f"list, or task.layout: {by_folders.layout}, which reads the folders"
        )
    if any(is_split_folder(name) for name in folders):
        return "split_folders"
    # The reader names their faults.
    inner = [name for name in folders if subfolders(root / name, root, Faults())]
    images = [name for name in folders if listed(root / name, root, Faults())[1]]
    if not inner or images or files or one_holder:
        # The reader names the fault.
        return "class_folders"
    if len(inner) == 1:
        raise DataError(
            f"task.root: {str(root)!r} holds one folder of class folders, {inner[0]!r}, which "
            "may hold all images, or be the only domain or client so far; valid is task.root: "
            f"{str(root / inner[0])!r}, or task.layout: domain_folders or client_folders"
        )
    raise DataError(
        f"task.root: {str(root)!r} holds {some(inner)}, each with folders of classes in it, so "
        "these may be domains, whose images task.partition deals out to task.clients, or clients, "
        "who each hold what is in their own folder; valid is task.layout: domain_folders, or "
        "task.dataset: client_folders with task.partition.kind: domain, which `study --data DIR` "
        "sets; in a check --layout domain_folders or --layout client_folders"
    )


def _list_layout(name: str) -> Layout | None:
    return _LISTS.get(Path(name).suffix.lower())


def _said(reading: OwnReading) -> dict[str, tuple[str, str | None]]:
    """Return class and use of each image, by where it lies."""
    return {
        f"{group.root}/{image.path}": (folded(image.name), image.use)
        for group in reading.groups.values()
        for image in group.listed
    }


def _read(
    root: Path, layout: Layout, folders: Sequence[str], files: Sequence[str], *, faults: Faults
) -> OwnReading:
    match layout:
        case "saved":
            return read_saved(root, faults)
        case "table" | "split_file":
            names = [name for name in files if _list_layout(name) == layout]
            if not names or (layout == "split_file" and len(names) > 1):
                held = "no list of this kind" if not names else some(names)
                what = f"needs {OWN_LAYOUTS[layout]}, and {str(root)!r} holds {held}"
                raise DataError.at(layout, what, "one", "task.layout")
            if layout == "table":
                return read_tables(root, names, faults)
            return read_split(root, names[0], faults)
        case "domain_folders" | "client_folders":
            return _groups(root, layout, folders, faults)
        case _:
            reading = _by_folders(root, files, faults)
            if reading.layout != layout:
                has = f"{str(root)!r} has {OWN_LAYOUTS[reading.layout]}"
                what = f"is {OWN_LAYOUTS[layout]}, and {has}"
                raise DataError.at(layout, what, f"{reading.layout}, or null", "task.layout")
            return reading


def _by_folders(root: Path, files: Sequence[str], faults: Faults) -> OwnReading:
    # Lists may lie beside the folders and are read elsewhere; other files are refused.
    strange = {name for name in files if _list_layout(name) is None}
    found = recognise(root, faults, beside=set(listed(root, root, Faults())[1]) - strange)
    return OwnReading(
        root=root,
        layout="split_folders" if found.parts else "class_folders",
        words={name: name for name in found.classes},
        owners="nobody",
        groups={"": found},
    )


def _groups(root: Path, layout: Layout, folders: Sequence[str], faults: Faults) -> OwnReading:
    """Read each folder of a domain or client as if it were alone."""
    owners: Owners = "domains" if layout == "domain_folders" else "clients"
    level = owners[:-1].upper()
    if not folders:
        raise DataError.at(root, f"holds no folder of a {level}", OWN_LAYOUTS[layout])
    require_no_split_folders(folders, root, level)
    groups: dict[str, Group] = {}
    for name in folders:
        with faults:
            said = f"task.root: {str(root)!r} has a {owners[:-1]}'s folder {name[:80]!r}"
            require_printable(name, said)
            group = recognise(root / name, faults)
            # A link to another client's folder would make two clients of one.
            if not group.root.is_relative_to(root / name):
                what = f"is a link to {str(group.root)!r}"
                raise DataError.at(root / name, what, f"a folder of its own for each {owners[:-1]}")
            below = tuple(image._replace(path=f"{name}/{image.path}") for image in group.listed)
            groups[name] = replace(group, root=root, listed=below)
    names = sorted({name for group in groups.values() for name in group.classes})
    return OwnReading(
        root=root, layout=layout, words={name: name for name in names}, owners=owners, groups=groups
    )
