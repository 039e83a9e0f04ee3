"""Rows of a table, a split file or a saved data set, made into what was recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from platform.config.sections import Layout
from platform.data.images import ImageFiles
from platform.data.loaders._files import LONGEST_NAME, require_distinct
from platform.data.own_reading import (
    SPLIT_NAMES,
    WORDS,
    Group,
    Listed,
    Owners,
    OwnReading,
    Use,
    conjoined,
    count_uses,
    number,
)
from platform.errors import DataError


class Row(NamedTuple):
    """An image as a file lists it.

    Attributes:
        path: Below the folder.
        name: Its class.
        split: What part it is in, empty where the file does not say.
        domain: Its domain, empty where the file does not say.
        client: Who holds it, empty where the file does not say.
    """

    path: str
    name: str
    split: str = ""
    domain: str = ""
    client: str = ""


COLUMNS: Final = ("split", "domain", "client")
"""What a file may say beside a path and a label."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows come from.

    Attributes:
        root: Folder that paths are relative to, links followed.
        layout: Which layout it is.
        place: The file or folder, for errors and people.
        parts: The parts that it has files for; empty where a column says the part of an image, and
            so may say any.
        files: How its images are read.
        remarks: What is to be said of it.
    """

    root: Path
    layout: Layout
    place: str
    parts: tuple[str, ...] = ()
    files: type[ImageFiles] = ImageFiles
    remarks: tuple[str, ...] = ()


def reading_of_rows(source: Source, rows: Sequence[Row], names: Sequence[str]) -> OwnReading:
    """Return what rows say.

    Args:
        source: Where they come from.
        rows: At least one.
        names: The classes in label order, as the rows spell them.

    Raises:
        DataError: If an image is listed twice, a column is filled in some rows only, a split is
            none, or a name is no name.
    """
    if not rows:
        raise DataError(f"task.root: {source.place} lists no image; valid is at least one")
    require_distinct((row.path for row in rows), source.place)
    for column in COLUMNS:
        _require_in_all(source, rows, column)
    told = sorted({row.split for row in rows} - {""})
    uses: dict[str, Use | None] = {"": None, **{split: _use(source, split) for split in told}}
    owners: Owners = "nobody"
    if rows[0].client or rows[0].domain:
        owners = "clients" if rows[0].client else "domains"
    places = (source.parts or WORDS) if rows[0].split else ()
    parts = frozenset(_use(source, part) for part in places)
    groups: dict[str, list[Listed]] = {}
    for row in rows:
        group = {"nobody": "", "domains": row.domain, "clients": row.client}[owners]
        groups.setdefault(group, []).append(Listed(row.path, row.name, uses[row.split]))
    for name in groups if owners != "nobody" else ():
        _require_name(source, owners[:-1], name)
    both = owners == "clients" and rows[0].domain
    remark = "its column domain is not used, as clients hold what the column client says"
    return OwnReading(
        root=source.root,
        layout=source.layout,
        words={name: name for name in names},
        owners=owners,
        groups={name: _group(source, groups[name], parts) for name in sorted(groups)},
        remarks=(*source.remarks, *([remark] if both else ())),
    )


def require_class_name(place: str, name: str) -> None:
    """Refuse what is no name of a class.

    Raises:
        DataError: If it is empty, too long, or has characters that are not printed.
    """
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise DataError(
            f"task.root: {place} has the label {name[:80]!r}; valid are 1 to {LONGEST_NAME} "
            "printable characters"
        )


def _group(source: Source, listed: Sequence[Listed], parts: frozenset[Use]) -> Group:
    counts = count_uses(listed)
    classes = number(len({image.name for image in listed}), "class", "classes")
    told = [f"{counts[use]:,} {WORDS[use]}" for use in WORDS if counts.get(use)]
    images = number(len(listed), "image", "images")
    if told:
        images = f"{conjoined(told)} {'image' if len(listed) == 1 else 'images'}"
    unsplit = "" if told else ", not split into training and test images"
    return Group(
        root=source.root,
        place=source.place,
        listed=tuple(listed),
        sentence=f"{classes}, {images}{unsplit}",
        parts=parts,
        files=source.files,
    )


def _use(source: Source, split: str) -> Use:
    if split.strip().casefold() not in SPLIT_NAMES:
        raise DataError(
            f"task.root: {source.place} has the split {split[:80]!r}; valid: "
            f"{', '.join(SPLIT_NAMES)}"
        )
    return SPLIT_NAMES[split.strip().casefold()]


def _require_in_all(source: Source, rows: Sequence[Row], column: str) -> None:
    filled: Mapping[bool, str] = {bool(getattr(row, column)): row.path for row in rows}
    if len(filled) == 2:
        raise DataError(
            f"task.root: {source.place} has no {column} for {filled[False]!r} and has one for "
            f"{filled[True]!r}; valid is one for each image, or for none"
        )


def _require_name(source: Source, what: str, name: str) -> None:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise DataError(
            f"task.root: {source.place} has a {what} {name[:80]!r}; valid are 1 to {LONGEST_NAME} "
            "printable characters"
        )
