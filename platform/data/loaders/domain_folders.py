"""Data sets of several domains: PACS, Office-Home, VLCS, DomainNet, and any folder of such a form.

They lie on disks in three forms, which are read into one:

- folders: `<domain>/<class>/<image>`, without a split into training and test images (TRIP's code);
- parts: `<domain>/<part>/<class>/<image>`, where the part's name says the use (VLCS and
  Office-Home in Dassl);
- lists: folders, and `<domain>_<part>.txt` beside them with a path and a number in each line (PACS
  in Dassl, and DomainNet's official lists).

Names of folders match whatever their capitals, spaces, "-" and "_", because "Real World",
"real_world" and "Real_World" are all published. Labels are in the ASCII order of the classes'
folders (capitals first), and "_" in a class's name becomes " ".

Where files tell no split, a fifth of the images of each class and domain, drawn by `seeds.split`,
are test images (80/20 in TRIP). Under the partition `domain`, where a domain is one client's own,
each image has a chance of a fifth, by its path below the domain's name, so that one image more
changes the side of no other. Parts for validation are not used (see `task.validation_share`). All
images of a held-out domain are test images, those of the validation parts included.

Each domain must have a folder of each class, because a misspelled folder looks like a missing
class. Lists may leave a class out of a domain's training images, as DomainNet's official lists do
(t-shirt in painting); in all domains together each class needs a training image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from platform.config.randomness import key_of, stream
from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.loaders._files import (
    DataFolder,
    Row,
    class_words,
    image_names,
    image_split,
    is_there,
    plain,
    read_text,
    require_distinct,
    require_inside,
    require_listed_path,
    require_present,
    subfolders,
)
from platform.data.own_folders import Listed, Use, require_no_split_folders
from platform.data.partition import TEST_SHARE, draw_below, draw_tests
from platform.errors import DataError

# The largest, of DomainNet's quickdraw, has 6 MB.
_MOST_BYTES: Final = 64_000_000


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """How one data set may lie below `task.root`.

    Attributes:
        folders: Names of its folder; the loader reads the first that exists.
        inner: Folder inside that one, which may hold the domains.
        aliases: Other names of domains, spelled as `plain` does.
        parts: The use of each part's folder or list; validation images are not used.
        lists: Places of lists, with `{domain}` and `{part}` for their names.
        damaged: Listed images that are known to be bad and are left out.
        numbered: Whether the folders of classes may be named by their labels.
    """

    folders: tuple[str, ...]
    inner: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Use] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    damaged: frozenset[str] = frozenset()
    numbered: bool = False


def matched(
    folders: Iterable[str], names: Sequence[str], where: Path, aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return the folder of each name that has one; two folders of one name are refused."""
    by_plain = {plain(name): name for name in names}
    found: dict[str, str] = {}
    for folder in folders:
        spelling = plain(folder)
        name = by_plain.get(plain(aliases.get(spelling, spelling)))
        if name is None:
            continue
        if name in found:
            raise DataError.at(
                where, f"holds both {found[name]!r} and {folder!r}", f"one folder for {name!r}"
            )
        found[name] = folder
    return found


def find_images(
    base: Path, images: Path, folders: Mapping[str, str], layouts: Layouts
) -> tuple[dict[str, tuple[Listed, ...]], bool]:
    """List the images of each domain in the order of their paths, and say whether lists told them.

    Paths are relative to `images`, the resolved base or a folder in it, which has the domains'.
    """
    found: dict[str, list[Listed]] = {domain: [] for domain in folders}
    lists: Mapping[tuple[str, str], Path] = {}
    for pattern in layouts.lists:
        lists = lists or _lists(base, pattern, folders, layouts)
    numbers: dict[str, int] = {}
    for (domain, part), path in lists.items():
        rows = [
            row
            for number, line in enumerate(read_text(path, _MOST_BYTES).splitlines(), start=1)
            if (row := _row(line, f"line {number} of {str(path)!r}", folders[domain], numbers))
            and row not in layouts.damaged
        ]
        require_present(images, rows, repr(str(path)))
        found[domain] += [Listed(row, row.split("/")[1], layouts.parts[part]) for row in rows]
    for domain, folder in folders.items():
        if lists:
            where = " and ".join(repr(str(path)) for key, path in lists.items() if key[0] == domain)
            require_distinct((row.path for row in found[domain]), where)
            continue
        inside = subfolders(images / folder, images)
        if not inside:
            raise DataError.at(images / folder, "holds no folder of a class", "DOMAIN/CLASS/IMAGE")
        if not (layouts.parts and set(inside) <= {*layouts.parts, "full"}):
            found[domain] = _in_classes(images, folder, None)
            continue
        missing = sorted(set(layouts.parts) - set(inside))
        if missing:
            raise DataError.at(
                images / folder, f"has no folder {missing[0]!r}", f"{', '.join(layouts.parts)}"
            )
        for part, use in layouts.parts.items():
            found[domain] += _in_classes(images, f"{folder}/{part}", use)
    return {domain: tuple(sorted(rows)) for domain, rows in found.items()}, bool(lists)


def _in_classes(images: Path, folder: str, use: Use | None) -> list[Listed]:
    found: list[Listed] = []
    for name in subfolders(images / folder, images):
        files = image_names(images / folder / name, images)
        if not files:
            raise DataError.at(
                images / folder / name, "is an empty folder of a class", "at least one image"
            )
        found += [Listed(f"{folder}/{name}/{file}", name, use) for file in files]
    return found


def _lists(
    base: Path, pattern: str, folders: Mapping[str, str], layouts: Layouts
) -> dict[tuple[str, str], Path]:
    """Return the lists by domain and part; empty where no domain has a list."""
    lists = {
        (domain, part): base / pattern.format(domain=domain, part=part)
        for domain in folders
        for part in layouts.parts
    }
    present = {key for key, path in lists.items() if is_there(path)}
    for key in present:
        require_inside(lists[key], base)
    for key in (key for key in lists if present and key not in present):
        valid = f"one for each domain and each of {', '.join(layouts.parts)}"
        raise DataError.at(lists[key], "is not there, but other lists of the data set are", valid)
    return lists if present else {}


def _row(line: str, where: str, domain: str, numbers: dict[str, int]) -> str | None:
    """Return the path in a line, and check that each class has one number in all lists.

    Published lists count from 0 or 1 and in an order of their own; labels here follow the folders'
    names, so that they are the same with and without lists.
    """
    if not line.strip():
        return None
    path, _, number = line.strip().rpartition(" ")
    require_listed_path(path, where)
    steps = path.split("/")
    if len(steps) != 3 or steps[0] != domain:
        raise DataError.at(where, f"lists {path!r}", f"'{domain}/class/image' and a number")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise DataError.at(where, f"ends in {number[:40]!r}", "a path, a space and a whole number")
    if (first := numbers.setdefault(steps[1], int(number))) != int(number):
        what = f"gives the number {int(number)} to the class {steps[1]!r}, which was {first} before"
        raise DataError.at(where, what, "one number for each class")
    return path


_OFFICE_HOME: Final = (
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair "
    "Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet "
    "Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop "
    "Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer "
    "Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon "
    "TV Table Telephone ToothBrush Toys Trash_Can Webcam"
)
_LAYOUTS: Final = {
    "domainnet": Layouts(
        folders=("domain_net", "domainnet"),
        parts={"train": "train", "test": "test"},
        lists=("{domain}_{part}.txt", "splits/{domain}_{part}.txt"),
    ),
    "folders": Layouts(folders=("",)),
    "office_home": Layouts(
        folders=("office-home", "office_home", "office_home_dg", "OfficeHome"),
        parts={"train": "train", "val": "test"},
    ),
    "pacs": Layouts(
        folders=("pacs", "PACS"),
        inner="images",
        parts={"train": "train", "crossval": "test"},
        lists=("splits/{domain}_{part}_kfold.txt",),
        # Dassl leaves it out as well.
        damaged=frozenset({"sketch/dog/n02103406_4068-1.png"}),
    ),
    "vlcs": Layouts(
        folders=("vlcs", "VLCS"),
        aliases={"caltech": "Caltech101", "pascal": "VOC2007", "sun": "SUN09"},
        parts={"train": "train", "crossval": "validation", "test": "test"},
        # As Dassl reads it.
        numbered=True,
    ),
}

INFOS = (
    DatasetInfo(
        name="domainnet",
        title="DomainNet: 345 classes in six domains (Peng et al. 2019)",
        classes=(),
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        source="the images and lists are on the data set's own page (https://ai.bu.edu/M3SDA/, the "
        "cleaned version)",
        layout=(
            "domain_net/ or domainnet/ with DOMAIN/CLASS/IMAGE",
            "and, if the official split is wanted, DOMAIN_train.txt and DOMAIN_test.txt in it or "
            "in its splits/",
        ),
    ),
    DatasetInfo(
        name="folders",
        title="Any folder of the form DOMAIN/CLASS/IMAGE, task.root being that folder",
        classes=(),
        domains=(),
        source="the images are the user's own",
        layout=(
            "DOMAIN/CLASS/IMAGE, with the same classes in all domains, none of which is called "
            "train, val or test",
        ),
    ),
    DatasetInfo(
        name="office_home",
        title="Office-Home: 65 classes in four domains (Venkateswara et al. 2017)",
        classes=tuple(name.replace("_", " ") for name in _OFFICE_HOME.split()),
        domains=("Art", "Clipart", "Product", "Real_World"),
        source="the images are on the data set's own page (https://www.hemanthdv.org/officeHomeDataset.html)",
        layout=(
            "office-home/DOMAIN/CLASS/IMAGE",
            "or office_home_dg/DOMAIN/{train,val}/CLASS/IMAGE",
        ),
    ),
    DatasetInfo(
        name="pacs",
        title="PACS: seven classes in four domains (Li et al. 2017)",
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        domains=("art_painting", "cartoon", "photo", "sketch"),
        source="the images are on the data set's own page (https://domaingeneralization.github.io/#data)",
        layout=(
            "pacs/DOMAIN/CLASS/IMAGE",
            "or pacs/images/DOMAIN/CLASS/IMAGE with pacs/splits/DOMAIN_train_kfold.txt and "
            "DOMAIN_crossval_kfold.txt",
        ),
    ),
    DatasetInfo(
        name="vlcs",
        title="VLCS: five classes in four domains, each a data set of its own (Fang et al. 2013)",
        classes=("bird", "car", "chair", "dog", "person"),
        domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        source="the images are linked from the page that their compilers point to "
        "(https://github.com/belaalb/G2DM#download-vlcs)",
        layout=(
            "vlcs/DOMAIN/CLASS/IMAGE",
            "or VLCS/{CALTECH,LABELME,SUN,PASCAL}/{train,crossval,test}/CLASS/IMAGE",
        ),
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """List a data set's folders; images stay in their files."""
    info, layouts = {info.name: info for info in INFOS}[name], _LAYOUTS[name]
    base = DataFolder.first(info, request.root, layouts.folders).path.resolve()
    inner = base / layouts.inner
    images = inner.resolve() if is_there(inner, folder=True) else base
    if not info.domains:
        info = replace(info, domains=subfolders(images, images))
        if not info.domains:
            raise DataError(info.missing(images / "DOMAIN", request.root))
        require_no_split_folders(info.domains, images, "DOMAIN")
    domains = request.chosen_domains(name, info.domains)
    # The names of `folders` are the user's own, and two may differ in a capital only.
    folders = {domain: domain for domain in domains}
    if name != "folders":
        matching = matched(subfolders(images, images), domains, images, layouts.aliases)
        for domain in domains:
            if domain not in matching:
                raise DataError(info.missing(images / domain, request.root))
        folders = {domain: matching[domain] for domain in domains}
    found, is_listed = find_images(base, images, folders, layouts)
    classes, labels = _classes(info, found, images)
    for domain, rows in () if is_listed else found.items():
        present = {labels[image.name] for image in rows}
        for label, class_name in enumerate(classes):
            if label not in present:
                what = f"has no images of class {class_name!r} in domain {domain!r}"
                raise DataError.at(images, what, "the same classes in all domains")
    sides: dict[Use, list[Row]] = {"train": [], "test": [], "validation": []}
    for index, (domain, of_domain) in enumerate(found.items()):
        held_out = domain == request.held_out_domain
        drawn = frozenset[str]() if held_out else _drawn(domain, of_domain, request)
        for image in of_domain:
            use = "test" if held_out or image.path in drawn else image.use
            sides[use or "train"].append((index, labels[image.name], image.path))
    train, test = sorted(sides["train"]), sorted(sides["test"])
    trained = {label for _, label, _ in train}
    # Without any training image the only domain is held out, and the run says so.
    for label in (label for label in range(len(classes)) if train and label not in trained):
        what = f"has no training image of class {classes[label]!r}"
        raise DataError.at(images, what, "at least one in the domains that are not held out")
    if not test:
        valid = "at least two images of a class, or a list or folder of test images"
        raise DataError.at(images, "has no test image", valid)
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=image_split(images, train),
        test=image_split(images, test),
    )


def _classes(
    info: DatasetInfo, found: Mapping[str, Sequence[Listed]], images: Path
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the classes by label, and the label of each folder."""
    folders = sorted({image.name for rows in found.values() for image in rows})
    if info.classes:
        names = [plain(name) for name in info.classes]
        # In other data sets a number is an unknown class.
        numbers = list(map(str, range(len(names)))) if _LAYOUTS[info.name].numbered else []
        labels: dict[str, int] = {}
        for folder in folders:
            if plain(folder) not in (*names, *numbers):
                what = f"has a class folder {folder!r}, which is no class of {info.name}"
                raise DataError.at(images, what, ", ".join(info.classes))
            is_name = plain(folder) in names
            labels[folder] = names.index(plain(folder)) if is_name else int(folder)
        return info.classes, labels
    classes = class_words(folders, images)
    return classes, {folder: label for label, folder in enumerate(folders)}


def _drawn(domain: str, images: Sequence[Listed], request: DataRequest) -> frozenset[str]:
    """Draw a domain's test images, of those that files put into no split."""
    unsplit = [image for image in images if image.use is None]
    if request.hints.partition == "domain":
        # Each by its path alone, as the domain is one client's own.
        paths = [image.path for image in unsplit]
        digests = [hashlib.sha256(path.encode()).digest() for path in paths]
        key = key_of(request.split_seed, "split", domain)
        return draw_below(TEST_SHARE, paths, digests, key)
    by_class: dict[str, list[list[str]]] = {}
    for image in unsplit:
        by_class.setdefault(image.name, []).append([image.path])
    # Each class has a stream of its own, so that its draw does not depend on other folders.
    return frozenset(
        path
        for folder, pieces in by_class.items()
        for path in draw_tests(pieces, stream(request.split_seed, "test images", domain, folder))
    )
