"""A data set that Hugging Face's `datasets` saved on disk (`save_to_disk`), read as plain data.

Read are the JSON files beside the Arrow files, and these themselves through `pyarrow` alone: the
library that wrote them brings thirty packages, a cache and the network, and may run what a data set
says. Images are those whose bytes are in the Arrow files; a path to a file elsewhere is refused.

Arrow files are mapped into memory and not copied; their columns are validated in full first, as
their offsets come from whoever wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from platform.data.images import MOST_BYTES, ImageFiles
from platform.data.loaders._files import is_there, read_text, require_inside
from platform.data.loaders._raw_files import MOST_CLASSES
from platform.data.own_reading import OwnReading, some
from platform.data.own_rows import Row, Source, reading_of_rows, require_class_name
from platform.errors import DataError

MARKS: Final = ("dataset_dict.json", "state.json")
"""One of these lies in a folder that `save_to_disk` made: of several splits, or of one."""
_MOST_TEXT: Final = 64_000_000
_VALID: Final = "a folder as save_to_disk of Hugging Face's datasets writes it"
_TEXTS: Final = ("split", "domain", "client")


class SavedImages(ImageFiles):
    """Images in the Arrow files of a saved data set, by file and row: `train/data-0.arrow/12`."""

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return {}

    def bytes_of(self, row: int) -> bytes:
        """Return an image's file as it was saved.

        Raises:
            DataError: If there is none in the row, or it is too large.
        """
        value = self._value(row)
        if value is None:
            raise DataError(
                f"task.root: {self.paths[row]!r} has no image in it; valid is one whose bytes are "
                "saved, and no path to a file elsewhere"
            )
        if len(value) > MOST_BYTES:
            raise DataError(
                f"task.root: {self.paths[row]!r} is too large; valid are at most {MOST_BYTES:,} "
                "bytes"
            )
        data: bytes = value.as_py()
        return data

    def size_of(self, row: int) -> int:
        """Return an image's size in bytes, 0 where there is none."""
        value = self._value(row)
        return 0 if value is None else len(value)

    def place_of(self, row: int) -> tuple[str, str]:
        """Return what tells an image from all others, wherever links lead to it."""
        return (str(self.root.resolve()), self.paths[row])

    def _value(self, row: int) -> Any:
        """Return an image's bytes where they lie, None without any."""
        name, _, position = self.paths[row].rpartition("/")
        # Two threads may both open it, and do no harm.
        if name not in self._columns:
            self._columns[name] = _image_column(_table(self.root / name), repr(name))
        value = self._columns[name][int(position)]
        inner = value["bytes"] if value.is_valid else None
        # `as_buffer` points into the mapped file.
        return None if inner is None or not inner.is_valid else _Bytes(inner)


class _Bytes:
    """Bytes of one value: their number without a copy."""

    def __init__(self, scalar: Any) -> None:
        self._scalar = scalar

    def __len__(self) -> int:
        return int(self._scalar.as_buffer().size)

    def as_py(self) -> bytes:
        return bytes(self._scalar.as_buffer())


def is_saved(files: Sequence[str]) -> bool:
    """Return whether a folder with these files is a saved data set's."""
    return any(mark in files for mark in MARKS)


def read_saved(root: Path) -> OwnReading:
    """List the images of a saved data set; none is decoded.

    Args:
        root: The folder; resolved.

    Raises:
        DataError: If `pyarrow` is not installed, or the files are not what they should be.
    """
    rows: list[Row] = []
    names: tuple[str, ...] | None = None
    splits = _splits(root)
    for split in splits:
        folder = root / split if split else root
        found, classes = _read(root, folder, split)
        if names not in (None, classes):
            raise DataError(
                f"task.root: {str(folder)!r} has other classes than the split before it; valid are "
                "the same in all splits"
            )
        rows, names = rows + found, classes
    source = Source(
        root=root,
        layout="saved",
        place=repr(str(root)),
        parts=tuple(filter(None, splits)),
        files=SavedImages,
    )
    return reading_of_rows(source, rows, names or sorted({row.name for row in rows}))


def _splits(root: Path) -> tuple[str, ...]:
    if not is_there(root / MARKS[0]):
        return ("",)
    splits = _document(root / MARKS[0], root).get("splits")
    if not isinstance(splits, list) or not splits:
        raise _unsaved(root / MARKS[0], "names no splits")
    for split in splits:
        _require_step(split, root / MARKS[0])
    return tuple(splits)


def _read(root: Path, folder: Path, split: str) -> tuple[list[Row], tuple[str, ...] | None]:
    """Return the rows of one split, and its classes where it has a list of them."""
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
        _require_bytes(_image_column(table, place), place)
        above = f"{split}/{name}" if split else str(name)
        rows += _rows(table, label, classes, place=place, above=above, split=split)
    return rows, classes


def _rows(
    table: Any,
    label: str,
    classes: tuple[str, ...] | None,
    *,
    place: str,
    above: str,
    split: str,
) -> list[Row]:
    if label not in table.column_names:
        raise DataError(f"task.root: {place} has no column {label!r}; valid is {_VALID}")
    told = {
        name: [str(value or "") for value in table.column(name).to_pylist()]
        for name in _TEXTS
        if name in table.column_names and not (name == "split" and split)
    }
    rows = []
    for position, value in enumerate(table.column(label).to_pylist()):
        name = _name(value, classes, f"row {position} of {place}")
        own = {column: values[position] for column, values in told.items()}
        rows.append(Row(f"{above}/{position}", name, **{"split": split, **own}))
    return rows


def _name(value: object, classes: tuple[str, ...] | None, where: str) -> str:
    if classes is not None:
        if not isinstance(value, int) or not 0 <= value < len(classes):
            raise DataError(
                f"task.root: {where} has the label {value!r}; valid: 0 to {len(classes) - 1}"
            )
        return classes[value]
    if isinstance(value, bool) or not isinstance(value, int | str) or value == -1:
        raise DataError(
            f"task.root: {where} has the label {str(value)[:40]!r}; valid is a name, or a number "
            "from 0"
        )
    require_class_name(where, str(value))
    return str(value)


def _label(features: Mapping[str, object], folder: Path) -> tuple[str, tuple[str, ...] | None]:
    """Return which column holds the labels, and their names where it says them."""
    known = {name: of for name, of in features.items() if isinstance(of, dict)}
    found = [name for name, of in known.items() if of.get("_type") == "ClassLabel"]
    if len(found) > 1 and "label" in found:
        found = ["label"]
    if not found and "label" in known:
        return "label", None
    if len(found) != 1:
        raise DataError(
            f"task.root: {str(folder)!r} has {some(found) if found else 'no column'} for the label;"
            " valid is one of the type ClassLabel, or one called label"
        )
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
        raise DataError(
            f"task.root: {place} has {some(found) if found else 'no column'} of images with their "
            "bytes; valid is one of the type Image"
        )
    return table.column(found[0])


def _require_bytes(column: Any, place: str) -> None:
    """Refuse images that are elsewhere: nothing outside of the folder is read."""
    missing = sum(chunk.null_count + chunk.field("bytes").null_count for chunk in column.chunks)
    if missing:
        raise DataError(
            f"task.root: {place} has {missing:,} rows without the image's bytes; valid are images "
            "that are saved in it, and no paths to files elsewhere"
        )


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
    """Refuse what is no plain name of a file or folder."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 200:
        raise _unsaved(path, f"names {str(name)[:40]!r}")
    if name.startswith(".") or "/" in name or "\\" in name:
        raise _unsaved(path, f"names {name[:80]!r}")


def _unsaved(path: Path, what: str) -> DataError:
    return DataError(f"task.root: {str(path)!r} {what}; valid is {_VALID}")
