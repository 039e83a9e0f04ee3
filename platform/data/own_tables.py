"""Lists of a user's own images: CSV files with a column each, and split files in CoOp's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from platform.data.holder_folder import folded
from platform.data.loaders._files import (
    is_there,
    read_text,
    require_inside,
    require_listed_path,
    require_present,
    subfolders,
)
from platform.data.loaders._raw_files import MOST_CLASSES
from platform.data.loaders.coop_splits import read_split_file, split_classes
from platform.data.own_reading import SPLIT_NAMES, OwnReading, conjoined
from platform.data.own_rows import COLUMNS, Row, Source, reading_of_rows, require_class_name
from platform.errors import DataError

_MOST_BYTES: Final = 256_000_000
"""A line has some hundred bytes, and a million images are more than most people have."""
_ALIASES: Final[Mapping[str, str]] = {
    "path": "path",
    "file_name": "path",
    "filename": "path",
    "label": "label",
    "class": "label",
    "split": "split",
    "domain": "domain",
    "client": "client",
}
_VALID: Final = "the columns path and label, and, where they are known, split, domain and client"
_SIGNS: Final = (",", ";", "\t")


def read_tables(root: Path, names: Sequence[str]) -> OwnReading:
    """Read the CSV files of a folder; no image is opened.

    Args:
        root: The folder; resolved.
        names: Of the files: one of any name, or one for each part, such as `train.csv`.

    Raises:
        DataError: If they are not what they should be, or list what is not there or lies outside.
    """
    parts = [SPLIT_NAMES.get(Path(name).stem.casefold()) for name in names]
    if len(names) > 1 and (None in parts or len(set(parts)) < len(parts)):
        raise DataError(
            f"task.root: {str(root)!r} holds {conjoined(map(repr, names))}, and it is not said "
            "which lists its images; valid is one .csv file, or train.csv with test.csv or val.csv"
        )
    rows: list[Row] = []
    remarks: set[str] = set()
    for name in names:
        found, ignored = _read(root / name, Path(name).stem if len(names) > 1 else "")
        rows += found
        remarks |= set(ignored)
    place = conjoined(repr(str(root / name)) for name in names)
    labels = _in_order({row.name for row in rows}, place)
    said = f"not read: {'column' if len(remarks) == 1 else 'columns'} {', '.join(sorted(remarks))}"
    source = Source(
        root=_base(root, [row.path for row in rows], place),
        layout="table",
        place=place,
        parts=tuple(Path(name).stem for name in names) if len(names) > 1 else (),
        remarks=(said,) if remarks else (),
    )
    return reading_of_rows(source, rows, labels)


def read_split(root: Path, name: str) -> OwnReading:
    """Read a split file; no image is opened.

    Args:
        root: The folder; resolved.
        name: Of the file.

    Raises:
        DataError: If it is not what it should be, or lists what is not there or lies outside.
    """
    path = root / name
    require_inside(path, root)
    parts = read_split_file(path)
    place = repr(str(path))
    classes = split_classes(parts, place)
    rows = [
        Row(entry.path, classes[entry.label], part)
        for part, entries in parts.items()
        for entry in entries
    ]
    base = _base(root, [row.path for row in rows], place)
    return reading_of_rows(Source(root=base, layout="split_file", place=place), rows, classes)


def _read(path: Path, part: str) -> tuple[list[Row], tuple[str, ...]]:
    """Return a table's rows, and which of its columns are not read."""
    require_inside(path, path.parent)
    place = repr(str(path))
    # Spreadsheets begin a file with a mark of byte order.
    text = read_text(path, _MOST_BYTES).removeprefix("\ufeff")
    head = text.partition("\n")[0]
    sign = max(_SIGNS, key=head.count)
    lines = _lines(text, sign, place)
    _, header = next(lines, (1, []))
    columns = _columns(header, place, bool(part))
    rows = [_row(values, columns, f"line {number} of {place}", part) for number, values in lines]
    ignored = [repr(name.strip()[:40]) for name in header if name.strip().casefold() not in columns]
    return rows, tuple(name for name in ignored if name.strip("'").casefold() not in _ALIASES)


def _lines(text: str, sign: str, place: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and values, without empty lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True)
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield reader.line_num, values
    except csv.Error as error:
        raise DataError(
            f"task.root: line {reader.line_num} of {place} is no line of a table ({error}); valid "
            "is CSV, with quotes around values that have a quote or a comma in them"
        ) from error


def _columns(header: Sequence[str], place: str, has_part: bool) -> dict[str, int]:
    """Return which column is which."""
    columns: dict[str, int] = {}
    for position, name in enumerate(header):
        meaning = _ALIASES.get(name.strip().casefold())
        if meaning is None:
            continue
        if meaning in columns:
            raise DataError(
                f"task.root: {place} has two columns for the {meaning}; valid is one of each: "
                f"{_VALID}"
            )
        columns[meaning] = position
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        shown = ", ".join(repr(name.strip()[:40]) for name in header[:8]) or "no columns"
        raise DataError(
            f"task.root: {place} has no column {conjoined(missing)} but {shown}; valid are {_VALID}"
        )
    if has_part and "split" in columns:
        raise DataError(
            f"task.root: {place} has a column split, and its name says a split too; valid is one "
            "of the two"
        )
    return columns


def _row(values: Sequence[str], columns: Mapping[str, int], where: str, part: str) -> Row:
    if len(values) <= max(columns.values()):
        raise DataError(
            f"task.root: {where} has {len(values)} values; valid are as many as columns"
        )
    path, label = values[columns["path"]].strip(), values[columns["label"]].strip()
    require_listed_path(path, where)
    require_class_name(where, label)
    told = {name: values[columns[name]].strip() for name in COLUMNS if name in columns}
    return Row(path, label, **{"split": part, **told})


def _in_order(names: set[str], place: str) -> list[str]:
    """Return classes in label order: numbers by their size, names in ASCII order."""
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"task.root: {place} has {len(names):,} different labels; valid: 1 to {MOST_CLASSES}"
        )
    numbers = [name for name in names if name.lstrip("-").isascii() and name.lstrip("-").isdigit()]
    for name in sorted(numbers):
        if name.startswith("-") and len(numbers) == len(names):
            raise DataError(
                f"task.root: {place} has the label {name[:40]}; valid are numbers from 0, or names"
            )
    if len(numbers) == len(names):
        return sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name))
    firsts: dict[str, str] = {}
    for name in sorted(names):
        first = firsts.setdefault(folded(name), name)
        if first != name:
            raise DataError(
                f"task.root: {place} has the labels {first!r} and {name!r}, which are one class "
                "in two spellings; valid is one"
            )
    return sorted(names)


def _base(root: Path, paths: Sequence[str], place: str) -> Path:
    """Return what paths are relative to: the folder itself, or the one in it that has them."""
    base = root
    if paths and not is_there(root / paths[0]):
        inside = (root / name for name in subfolders(root, root))
        base = next((folder for folder in inside if is_there(folder / paths[0])), root).resolve()
    require_present(base, paths, place)
    return base
