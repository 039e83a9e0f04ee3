"""Data sets of several domains, drawn small, in exactly the published folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.drawn._pictures import write_picture

PACS = (
    ("art_painting", "cartoon", "photo", "sketch"),
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
)
VLCS = (("Caltech101", "LabelMe", "SUN09", "VOC2007"), ("bird", "car", "chair", "dog", "person"))
OFFICE_HOME = (
    ("Art", "Clipart", "Product", "Real_World"),
    (
        *("Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator"),
        *("Calendar", "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains"),
        *("Desk_Lamp", "Drill", "Eraser", "Exit_Sign", "Fan", "File_Cabinet", "Flipflops"),
        *("Flowers", "Folder", "Fork", "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard"),
        *("Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug"),
        *("Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer"),
        *("Push_Pin", "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf"),
        *("Sink", "Sneakers", "Soda", "Speaker", "Spoon", "TV", "Table", "Telephone"),
        *("ToothBrush", "Toys", "Trash_Can", "Webcam"),
    ),
)
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def draw_folders(
    root: Path,
    domains: Sequence[str],
    classes: Sequence[str],
    *,
    per_class: int = 5,
    ending: str = ".jpg",
    size: int = 24,
) -> Path:
    """Draws `<root>/<domain>/<class>/<image>`, classes in label order, and gives the root."""
    for index, domain in enumerate(domains):
        for label, name in enumerate(classes):
            for number in range(per_class):
                path = root / domain / name / f"pic_{number:03d}{ending}"
                write_picture(path, label, 1000 * index + number, size)
    return root


def draw_pacs(root: Path, *, per_class: int = 5, folder: str = "pacs") -> Path:
    """Draws `pacs` as folders of domains."""
    return draw_folders(root / folder, *PACS, per_class=per_class)


def draw_vlcs(root: Path, *, per_class: int = 5) -> Path:
    """Draws `vlcs` as folders of domains."""
    return draw_folders(root / "vlcs", *VLCS, per_class=per_class)


def draw_office_home(root: Path, *, per_class: int = 5) -> Path:
    """Draws `office_home` as folders of domains, with all its 65 classes."""
    return draw_folders(root / "office-home", *OFFICE_HOME, per_class=per_class)


def draw_domainnet(root: Path, *, classes: int = 345, per_class: int = 2) -> Path:
    """Draws `domainnet` as folders of domains; its classes are called `thing_000` and so on."""
    names = [f"thing_{label:03d}" for label in range(classes)]
    return draw_folders(root / "domain_net", DOMAINNET, names, per_class=per_class)


def draw_pacs_lists(root: Path, *, train: int = 3, crossval: int = 2) -> Path:
    """Draws `pacs` with Dassl's k-fold lists, which count classes from 1."""
    base = root / "pacs"
    draw_folders(base / "images", *PACS, per_class=train + crossval, ending=".png")
    (base / "splits").mkdir()
    for domain in PACS[0]:
        for part, numbers in (
            ("train", range(train)),
            ("crossval", range(train, train + crossval)),
        ):
            lines = [
                f"{domain}/{name}/pic_{number:03d}.png {label}\n"
                for label, name in enumerate(PACS[1], start=1)
                for number in numbers
            ]
            (base / "splits" / f"{domain}_{part}_kfold.txt").write_text("".join(lines))
    return base


def draw_vlcs_parts(root: Path, *, train: int = 3, crossval: int = 1, test: int = 2) -> Path:
    """Draws `vlcs` with Dassl's parts, classes being numbered folders."""
    for part, count in (("train", train), ("crossval", crossval), ("test", test)):
        for domain in ("CALTECH", "LABELME", "PASCAL", "SUN"):
            draw_folders(
                root / "VLCS" / domain, (part,), [str(label) for label in range(5)], per_class=count
            )
    return root / "VLCS"


def draw_office_home_parts(root: Path, *, train: int = 2, val: int = 1) -> Path:
    """Draws `office_home` with Dassl's parts, in small letters."""
    base = root / "office_home_dg"
    for domain in OFFICE_HOME[0]:
        for part, count in (("train", train), ("val", val)):
            names = [name.lower() for name in OFFICE_HOME[1]]
            draw_folders(base / domain.lower(), (part,), names, per_class=count)
    return base


def draw_domainnet_lists(
    root: Path, names: Sequence[str], *, train: int = 2, test: int = 1
) -> Path:
    """Draws `domainnet` with its official lists, which number classes in an order of their own."""
    base = draw_folders(root / "domainnet", DOMAINNET, names, per_class=train + test)
    order = sorted(names, key=lambda name: name.casefold().replace("-", ""))
    for domain in DOMAINNET:
        for part, numbers in (("train", range(train)), ("test", range(train, train + test))):
            lines = [
                f"{domain}/{name}/pic_{number:03d}.jpg {order.index(name)}\n"
                for name in names
                for number in numbers
            ]
            (base / f"{domain}_{part}.txt").write_text("".join(lines))
    return base
