"""Lists of a user's own images: CSV tables, split files in CoOp's JSON, and saved data sets.

Hugging Face's `datasets` writes a saved data set with `save_to_disk`. This reader takes it as plain
data: the JSON files, and the Arrow files through `pyarrow` alone, because the library that wrote
them brings thirty packages, a cache and the network, and may run code of a data set. The images'
bytes must be in the Arrow files; a path to a file elsewhere is refused. Arrow files are mapped into
memory and not copied. Their columns are validated in full first, because their offsets come from an
unknown writer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from platform.config.sections import Layout
from platform.data.dataset import MOST_BYTES, ImageFiles
from platform.data.loaders._files import (
    MOST_CLASSES,
    is_there,
    read_text,
    require_distinct,
    require_inside,
    require_listed_path,
    require_present,
    require_printable,
    subfolders,
    table_lines,
)
from platform.data.loaders.coop_splits import read_split_file, split_classes
from platform.data.own_folders import (
    SPLIT_NAMES,
    WORDS,
    Group,
    Listed,
    Owners,
    OwnReading,
    Use,
    conjoined,
    number,
    require_one_spelling,
    some,
)
from platform.errors import DataError, Faults


class Row(NamedTuple):
    """One image as a file lists it, with its class; a text is empty where the file does not say."""

    path: str
    name: str
    split: str = ""
    domain: str = ""
    client: str = ""


COLUMNS: Final = ("split", "domain", "client")
"""Columns that a file may have beside a path and a label."""


def reading_of_rows(
    root: Path,
    rows: Sequence[Row],
    names: Sequence[str],
    faults: Faults,
    *,
    layout: Layout,
    place: str,
    parts: Sequence[str] = (),
    files: type[ImageFiles] = ImageFiles,
    remarks: tuple[str, ...] = (),
) -> OwnReading:
    """Return the reading of listed images; a column must be filled in all rows or in none.

    The parts are those that have files of their own; empty where a column says the part of an
    image, and so may say any part.
    """
    if not rows:
        faults.require_none()
        raise DataError(f"task.root: {place} lists no image; valid is at least one")
    with faults:
        require_distinct((row.path for row in rows), place)
    for column in COLUMNS:
        filled: Mapping[bool, str] = {bool(getattr(row, column)): row.path for row in rows}
        if len(filled) == 2:
            faults.append(
                f"task.root: {place} has no {column} for {filled[False]!r} and has one for "
                f"{filled[True]!r}; valid is one for each image, or for none"
            )
    uses: dict[str, Use | None] = {"": None}
    for split in sorted({row.split for row in rows} | set(parts if rows[0].split else ())):
        uses[split] = SPLIT_NAMES.get(split.strip().casefold())
        if split and uses[split] is None:
            faults.append(
                f"task.root: {place} has the split {split[:80]!r}; valid: {', '.join(SPLIT_NAMES)}"
            )
    owners: Owners = "nobody"
    if rows[0].client or rows[0].domain:
        owners = "clients" if rows[0].client else "domains"
    told = [SPLIT_NAMES.get(part.strip().casefold()) for part in parts or WORDS if rows[0].split]
    places = frozenset(use for use in told if use is not None)
    groups: dict[str, list[Listed]] = {}
    for row in rows:
        group = {"nobody": "", "domains": row.domain, "clients": row.client}[owners]
        groups.setdefault(group, []).append(Listed(row.path, row.name, uses[row.split]))
    for name in groups if owners != "nobody" else ():
        with faults:
            require_printable(name, f"task.root: {place} has a {owners[:-1]} {name[:80]!r}")
    if owners == "clients" and rows[0].domain:
        remarks += ("its column domain is not used, as clients hold what the column client says",)
    return OwnReading(
        root=root,
        layout=layout,
        words={name: name for name in names},
        owners=owners,
        groups={
            name: Group(
                root=root,
                listed=tuple(listed),
                sentence=_sentence(listed),
                parts=places,
                files=files,
            )
            for name, listed in sorted(groups.items())
        },
        remarks=remarks,
    )


def _sentence(listed: Sequence[Listed]) -> str:
    counts = Counter(image.use for image in listed)
    classes = number(len({image.name for image in listed}), "class", "classes")
    told = [f"{counts[use]:,} {WORDS[use]}" for use in WORDS if counts[use]]
    if told:
        return f"{classes}, {conjoined(told)} {'image' if len(listed) == 1 else 'images'}"
    images = number(len(listed), "image", "images")
    return f"{classes}, {images}, not split into training and test images"


def require_class_name(place: str, name: str) -> None:
    """Refuse a class name that is blank, too long, or cannot be printed."""
    require_printable(name, f"task.root: {place} has the label {name[:80]!r}")


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
_TABLE: Final = "the columns path and label, and, where they are known, split, domain and client"
_SIGNS: Final = (",", ";", "\t")


def read_tables(root: Path, names: Sequence[str], faults: Faults) -> OwnReading:
    """Read the CSV files of a folder: one of any name, or one a part, such as `train.csv`."""
    parts = [SPLIT_NAMES.get(Path(name).stem.casefold()) for name in names]
    if len(names) > 1 and (None in parts or len(set(parts)) < len(parts)):
        what = f"holds {conjoined(map(repr, names))}, and any of them may list its images"
        raise DataError.at(root, what, "one .csv file, or train.csv with test.csv or val.csv")
    told = tuple(Path(name).stem for name in names) if len(names) > 1 else ()
    rows: list[Row] = []
    ignored: set[str] = set()
    for name, part in zip(names, told or ("",), strict=True):
        path = root / name
        require_inside(path, root)
        all_lines = table_lines(path, _MOST_BYTES, _SIGNS)
        lines = ((at, values) for at, values in all_lines if any(map(str.strip, values)))
        _, header = next(lines, (1, []))
        columns = _columns(header, repr(str(path)), bool(part))
        for at, values in lines:
            where = f"line {at} of {str(path)!r}"
            with faults:
                if len(values) <= max(columns.values()):
                    raise DataError.at(where, f"has {len(values)} values", "as many as columns")
                listed, label = values[columns["path"]].strip(), values[columns["label"]].strip()
                require_listed_path(listed, where)
                require_class_name(where, label)
                said = {name: values[columns[name]].strip() for name in COLUMNS if name in columns}
                rows.append(Row(listed, label, **{"split": part, **said}))
        for column in header:
            shown = repr(column.strip()[:40])
            known = column.strip().casefold() in columns
            if not known and shown.strip("'").casefold() not in _ALIASES:
                ignored.add(shown)
    place = conjoined(repr(str(root / name)) for name in names)
    labels = _in_order({row.name for row in rows}, place, faults)
    noun = "column" if len(ignored) == 1 else "columns"
    return reading_of_rows(
        _base(root, [row.path for row in rows], place),
        rows,
        labels,
        faults,
        layout="table",
        place=place,
        parts=told,
        remarks=(f"not read: {noun} {', '.join(sorted(ignored))}",) if ignored else (),
    )


def read_split(root: Path, name: str, faults: Faults) -> OwnReading:
    """Read a split file; no image is opened, and one that is missing or outside is refused."""
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
    return reading_of_rows(base, rows, classes, faults, layout="split_file", place=place)


def _columns(header: Sequence[str], place: str, has_part: bool) -> dict[str, int]:
    """Return the position of each known column."""
    columns: dict[str, int] = {}
    for position, name in enumerate(header):
        meaning = _ALIASES.get(name.strip().casefold())
        if meaning is None:
            continue
        if meaning in columns:
            raise DataError.at(
                place, f"has two columns for the {meaning}", f"one of each: {_TABLE}"
            )
        columns[meaning] = position
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        shown = ", ".join(repr(name.strip()[:40]) for name in header[:8]) or "no columns"
        raise DataError.at(place, f"has no column {conjoined(missing)} but {shown}", _TABLE)
    if has_part and "split" in columns:
        raise DataError.at(
            place, "has a column split, but its name states a split too", "one of the two"
        )
    return columns


def _in_order(names: set[str], place: str, faults: Faults) -> list[str]:
    """Return classes in label order: numbers by their size, names in ASCII order."""
    if len(names) > MOST_CLASSES:
        raise DataError.at(place, f"has {len(names):,} different labels", f"1 to {MOST_CLASSES}")
    numbers = [name for name in names if name.lstrip("-").isascii() and name.lstrip("-").isdigit()]
    for name in sorted(numbers):
        if name.startswith("-") and len(numbers) == len(names):
            raise DataError.at(place, f"has the label {name[:40]}", "numbers from 0, or names")
    if len(numbers) == len(names):
        return sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name))
    with faults:
        require_one_spelling(sorted(names), f"task.root: {place} has the labels")
    return sorted(names)


def _base(root: Path, paths: Sequence[str], place: str) -> Path:
    """Return the folder that paths are relative to: the root, or the folder in it that has them."""
    base = root
    if paths and not is_there(root / paths[0]):
        inside = (root / name for name in subfolders(root, root))
        base = next((folder for folder in inside if is_there(folder / paths[0])), root).resolve()
    require_present(base, paths, place)
    return base


MARKS: Final = ("dataset_dict.json", "state.json")
"""One of these lies in a folder that `save_to_disk` made: of several splits, or of one."""
_MOST_TEXT: Final = 64_000_000
_SAVED: Final = "a folder as save_to_disk of Hugging Face's datasets writes it"


class SavedImages(ImageFiles):
    """Images in the Arrow files of a saved data set, by file and row: `train/data-0.arrow/12`."""

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return {}

    def bytes_of(self, row: int) -> bytes:
        """Return an image's file as it was saved."""
        value = self._value(row)
        if value is None:
            valid = "one whose bytes are saved, and no path to a file elsewhere"
            raise DataError.at(repr(self.paths[row]), "has no image in it", valid)
        if len(value) > MOST_BYTES:
            what = "is too large"
            raise DataError.at(repr(self.paths[row]), what, f"at most {MOST_BYTES:,} bytes")
        return bytes(value)

    def size_of(self, row: int) -> int:
        """Return an image's size in bytes, 0 without an image."""
        value = self._value(row)
        return 0 if value is None else len(value)

    def place_of(self, row: int) -> tuple[str, str]:
        """Return the image's place, which is the same for all links to it."""
        return (str(self.root.resolve()), self.paths[row])

    def _value(self, row: int) -> memoryview | None:
        """Return an image's bytes where they lie in the mapped file, None without any."""
        name, _, position = self.paths[row].rpartition("/")
        # Two threads may both open the file, which does no harm.
        if name not in self._columns:
            self._columns[name] = _image_column(_table(self.root / name), repr(name))
        value = self._columns[name][int(position)]
        inner = value["bytes"] if value.is_valid else None
        return None if inner is None or not inner.is_valid else memoryview(inner.as_buffer())


def read_saved(root: Path, faults: Faults) -> OwnReading:
    """List the images of a saved data set without decoding one."""
    rows: list[Row] = []
    names: tuple[str, ...] | None = None
    splits: Sequence[Any] = ("",)
    if is_there(root / MARKS[0]):
        splits = _document(root / MARKS[0], root).get("splits") or ()
        if not isinstance(splits, list) or not splits:
            raise _unsaved(root / MARKS[0], "names no splits")
        for split in splits:
            _require_step(split, root / MARKS[0])
    for split in splits:
        folder = root / split if split else root
        found, classes = _part(root, folder, split, faults)
        if names not in (None, classes):
            raise DataError.at(
                folder, "has other classes than the split before it", "the same in all splits"
            )
        rows, names = rows + found, classes
    return reading_of_rows(
        root,
        rows,
        names or sorted({row.name for row in rows}),
        faults,
        layout="saved",
        place=repr(str(root)),
        parts=tuple(filter(None, splits)),
        files=SavedImages,
    )


def _part(
    root: Path, folder: Path, split: str, faults: Faults
) -> tuple[list[Row], tuple[str, ...] | None]:
    """Return the sound rows of one split, and its classes where it has a list of them."""
    state = _document(folder / MARKS[1], root)
    features = _document(folder / "dataset_info.json", root).get("features")
    if not isinstance(features, dict):
        raise _unsaved(folder / "dataset_info.json", "has no features")
    label, classes = _label(features, folder)
    rows: list[Row] = []
    files = state.get("_data_files")
    for entry in files if isinstance(files, list) else ():
        name = entry.get("filename") if isinstance(entry, dict) else None
        _require_step(name, folder / MARKS[1])
        require_inside(folder / str(name), root)
        table, place = _table(folder / str(name)), repr(str(folder / str(name)))
        chunks = _image_column(table, place).chunks
        missing = sum(chunk.null_count + chunk.field("bytes").null_count for chunk in chunks)
        # Nothing outside the folder is read.
        if missing:
            valid = "images that are saved in it, and no paths to files elsewhere"
            raise DataError.at(place, f"has {missing:,} rows without the image's bytes", valid)
        if label not in table.column_names:
            raise DataError(f"task.root: {place} has no column {label!r}; valid is {_SAVED}")
        told = {
            column: [str(value or "") for value in table.column(column).to_pylist()]
            for column in COLUMNS
            if column in table.column_names and not (column == "split" and split)
        }
        above = f"{split}/{name}" if split else str(name)
        for position, value in enumerate(table.column(label).to_pylist()):
            where = f"row {position} of {place}"
            with faults:
                said = f"has the label {str(value)[:40]!r}"
                if classes is not None:
                    if not isinstance(value, int) or not 0 <= value < len(classes):
                        raise DataError.at(where, said, f"0 to {len(classes) - 1}")
                elif isinstance(value, bool) or not isinstance(value, int | str) or value == -1:
                    raise DataError.at(where, said, "a name, or a number from 0")
                else:
                    require_class_name(where, str(value))
                called = str(value) if classes is None else classes[value]
                own = {column: values[position] for column, values in told.items()}
                rows.append(Row(f"{above}/{position}", called, **{"split": split, **own}))
    return rows, classes


def _label(features: Mapping[str, object], folder: Path) -> tuple[str, tuple[str, ...] | None]:
    """Return the column of the labels, and the labels' names where the features say them."""
    known = {name: of for name, of in features.items() if isinstance(of, dict)}
    found = [name for name, of in known.items() if of.get("_type") == "ClassLabel"]
    if len(found) > 1 and "label" in found:
        found = ["label"]
    if not found and "label" in known:
        return "label", None
    if len(found) != 1:
        what = f"has {some(found) if found else 'no column'} for the label"
        raise DataError.at(folder, what, "one of the type ClassLabel, or one called label")
    names = known[found[0]].get("names")
    if not isinstance(names, list) or not 1 <= len(names) <= MOST_CLASSES:
        raise _unsaved(folder / "dataset_info.json", f"has no names for {found[0]!r}")
    for name in names:
        require_class_name(repr(str(folder)), name if isinstance(name, str) else "")
    if len(set(names)) < len(names):
        raise _unsaved(folder / "dataset_info.json", "names a class twice")
    return found[0], tuple(names)


def _table(path: Path) -> Any:
    """Return an Arrow file's table, mapped and validated."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            "task.root: saved data sets of Hugging Face are read with pyarrow, which is not "
            "installed; valid after `.venv/bin/pip install -e '.[hf]'` in the checkout"
        ) from error
    try:
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
    # Arrow's own errors are also ValueErrors, KeyErrors and others.
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise _unsaved(path, f"is no Arrow stream ({reason})") from error
    return table


def _image_column(table: Any, place: str) -> Any:
    import pyarrow as pa

    found = [
        field.name
        for field in table.schema
        if pa.types.is_struct(field.type)
        and field.type.get_field_index("bytes") >= 0
        and pa.types.is_binary(field.type.field("bytes").type)
    ]
    if len(found) != 1:
        what = f"has {some(found) if found else 'no column'} of images with their bytes"
        raise DataError.at(place, what, "one of the type Image")
    return table.column(found[0])


def _document(path: Path, root: Path) -> Mapping[str, Any]:
    if not is_there(path):
        raise _unsaved(path, "is not there")
    require_inside(path, root)
    try:
        document = json.loads(read_text(path, _MOST_TEXT))
    except (ValueError, RecursionError) as error:
        raise _unsaved(path, "is not JSON") from error
    if not isinstance(document, dict):
        raise _unsaved(path, "holds no object")
    return document


def _require_step(name: object, path: Path) -> None:
    """Refuse anything but a plain name of a file or folder."""
    is_text = isinstance(name, str) and name.isprintable() and 0 < len(name) <= 200
    if not is_text or str(name).startswith(".") or {"/", "\\"} & set(str(name)):
        raise _unsaved(path, f"names {str(name)[: 80 if is_text else 40]!r}")


def _unsaved(path: Path, what: str) -> DataError:
    return DataError(f"task.root: {str(path)!r} {what}; valid is {_SAVED}")
