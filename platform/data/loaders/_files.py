"""Readers that all loaders of files share: they list folders, follow no link out, read whole files.

A reader lists a folder once (`os.scandir`), and the kind of an entry comes with the listing: half a
million images cost seconds, and no image is opened. A data set's own folder may be a link, as
CoOp's instructions suggest, and so may its folder of images; nothing in that folder may lead out of
it. An error describes the fault of a file in one sentence.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from platform.data.catalogue import DatasetInfo
from platform.data.dataset import ImageFiles, Split
from platform.errors import DataError, Faults

IMAGE_ENDINGS: Final = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif"),
    *(".webp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff"),
)
LONGEST_NAME: Final = 200
"""In characters; a class's name goes into captions and reports."""
LONGEST_PATH: Final = 1000
"""In characters, of a path in a split file."""

# Left behind by file managers and archivers in folders of any kind.
_CLUTTER: Final = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether a path, links followed, leads to something (with `folder`, to a folder)."""
    try:
        mode = path.stat().st_mode
    # Python calls a name with a zero byte a bad value; no file can have such a name.
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return stat.S_ISDIR(mode) or not folder


def read_bounded(path: Path, most: int) -> bytes:
    """Return a whole regular file of at most `most` bytes."""
    try:
        if not path.is_file():
            raise DataError(f"task.root: {str(path)!r} is not a file; valid is a regular file")
        with path.open("rb") as stream:
            # The size that the file system states may be old: the file may grow.
            data = stream.read(most + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > most:
        raise DataError(f"task.root: {str(path)!r} is too large; valid are at most {most:,} bytes")
    return data


def read_text(path: Path, most: int) -> str:
    """Return a whole UTF-8 file of at most `most` bytes."""
    try:
        return read_bounded(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"task.root: {str(path)!r} is no text; valid is UTF-8") from error


def table_lines(path: Path, most: int, signs: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield number and values of each line of a table of at most `most` bytes but empty ones.

    Of the signs that may part values, the one that the first line has most often parts them.
    """
    # Spreadsheets begin a file with a mark of byte order.
    text = read_text(path, most).removeprefix("\ufeff")
    sign = max(signs, key=text.partition("\n")[0].count)
    # Line ends inside quotes belong to the text.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True)
    try:
        yield from ((reader.line_num, values) for values in reader if values)
    except csv.Error as error:
        what = f"is no table at line {reader.line_num} ({error})"
        valid = "CSV, with quotes around values that have a quote or a comma in them"
        raise DataError.at(path, what, valid) from error


def listed(
    folder: Path, root: Path, faults: Faults | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of a folder's folders and of its files, in ASCII order, without clutter.

    No link may lead out of the resolved `root`; such entries are left out if `faults` are kept.
    """
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.lower() in _CLUTTER:
                    continue
                with nullcontext() if faults is None else faults:
                    if entry.is_symlink():
                        require_inside(Path(entry.path), root)
                    (folders if entry.is_dir() else files).append(entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error
    return tuple(sorted(folders)), tuple(sorted(files))


def subfolders(folder: Path, root: Path, faults: Faults | None = None) -> tuple[str, ...]:
    """Return names of a folder's folders in ASCII order (capitals first); see `listed`."""
    return listed(folder, root, faults)[0]


def image_names(folder: Path, root: Path, faults: Faults | None = None) -> tuple[str, ...]:
    """Return names of a folder's images in ASCII order; anything else but clutter is refused."""
    folders, files = listed(folder, root, faults)
    images = tuple(name for name in files if name.lower().endswith(IMAGE_ENDINGS))
    with nullcontext() if faults is None else faults:
        if wrong := [*folders, *sorted(set(files) - set(images))]:
            said = f"lies among images and is not one; valid endings: {', '.join(IMAGE_ENDINGS)}"
            raise DataError(*(f"task.root: {str(folder / name)!r} {said}" for name in wrong))
    return images


def require_printable(name: str, said: str) -> None:
    """Refuse a name that is blank, too long or not printable; `said` begins the sentence."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise DataError(f"{said}; valid are 1 to {LONGEST_NAME} printable characters")


def require_listed_path(path: str, where: str) -> None:
    """Refuse a listed path unless it plainly leads down from a folder."""
    steps = path.split("/")
    # A colon as second character is a drive of Windows.
    is_plain = path.isprintable() and "\\" not in path and path[1:2] != ":"
    if not is_plain or len(path) > LONGEST_PATH or any(step in ("", ".", "..") for step in steps):
        valid = "one that leads down from the data set's folder, such as 'class/image.jpg'"
        raise DataError.at(where, f"lists the path {path[:200]!r}", valid)


def require_distinct(paths: Iterable[str], where: str) -> None:
    """Refuse files that are listed twice, in one split or in two."""
    often = [(path, times) for path, times in Counter(paths).items() if times > 1]
    if often:
        said = "times; valid is once in all splits"
        raise DataError(*(f"task.root: {where} lists {p!r} {times} {said}" for p, times in often))


def require_present(root: Path, paths: Iterable[str], where: str) -> None:
    """Refuse missing files below a resolved root; list every folder once and open no file."""
    present: dict[str, frozenset[str]] = {}
    missing: list[str] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in present:
            present[folder] = frozenset()
            if is_there(root / folder, folder=True):
                # Each step to the folder may be a link, which the listing would not show.
                require_inside(root / folder, root)
                present[folder] = frozenset(listed(root / folder, root)[1])
        if name not in present[folder]:
            missing.append(path)
    if missing:
        said = f"which {str(root)!r} does not hold; valid is a list of files that are there"
        raise DataError(*(f"task.root: {where} lists {path!r}, {said}" for path in missing))


Row = tuple[int, int, str]
"""Domain, label and path of an image."""


def image_split(root: Path, rows: Sequence[Row], files: type[ImageFiles] = ImageFiles) -> Split:
    """Return a split of images that stay in their files."""
    return Split(
        files(root, tuple(path for _, _, path in rows)),
        np.array([label for _, label, _ in rows], dtype=np.int64),
        np.array([domain for domain, _, _ in rows], dtype=np.int64),
    )


def require_inside(path: Path, root: Path) -> None:
    """Refuse a path that leads out of a resolved root, or to nothing, once links are followed."""
    try:
        target = path.resolve(strict=True)
    except PermissionError as error:
        raise _unreadable(path, error) from error
    # A loop of links is a RuntimeError until Python 3.12.
    except (OSError, RuntimeError) as error:
        raise DataError.at(path, "is a link to nothing", "a file or a folder") from error
    if not target.is_relative_to(root):
        raise DataError.at(
            path, f"is a link that leaves {str(root)!r}", "one that stays in the data set's folder"
        )


def _unreadable(path: Path, error: OSError) -> DataError:
    what = f"cannot be read ({error.strerror})"
    return DataError.at(path, what, "one that this user may read")


MOST_BYTES: Final = 2**29
"""Twice the largest single file of the known data sets, the 154 MB of CIFAR-100."""
MOST_TEXT: Final = 2**26
"""Twice the largest text file of the known data sets, the 30 MB of AG News."""
MOST_CLASSES: Final = 1000


@dataclass(frozen=True)
class DataFolder:
    """A data set's own folder below `root`, the value of `task.root`; what is missing is refused.

    A name is a path below the folder.
    """

    info: DatasetInfo
    root: Path
    path: Path

    @classmethod
    def first(cls, info: DatasetInfo, root: Path, names: Sequence[str]) -> Self:
        """Return the first of these folders below the root that exists."""
        found = [root / name for name in names if is_there(root / name, folder=True)]
        (chosen := cls(info, root, [*found, root / names[0]][0])).require(chosen.path, folder=True)
        return chosen

    def require(self, path: Path, *, folder: bool = False) -> None:
        """Refuse a missing file or folder of the data set."""
        if not is_there(path, folder=folder):
            raise DataError(self.info.missing(path, self.root))

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, at most as many as any known file has."""
        self.require(self.path / name)
        # Python makes room for all bytes asked for, so the file's size is the limit.
        return read_bounded(self.path / name, min(os.path.getsize(self.path / name), MOST_BYTES))

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file that are not empty."""
        self.require(self.path / name)
        # Editors of some systems begin a file with a mark of byte order.
        text = read_text(self.path / name, MOST_TEXT).removeprefix("\ufeff")
        return [line for line in text.splitlines() if line.strip()]


def plain(name: str) -> str:
    """Return the letters and digits of a name, in small letters."""
    return "".join(character for character in name.casefold() if character.isalnum())


def class_words(
    names: Sequence[object], path: Path | str, known: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return class names, as a file has them in label order, in the words that captions use.

    They may differ from the published names, if these are `known`, in capitals and signs only.
    """
    if not 1 <= len(names) <= MOST_CLASSES:
        raise DataError.at(path, f"names {len(names)} classes", f"1 to {MOST_CLASSES}")
    words = []
    for name in names:
        word = ""
        # One long name may stand in a file a thousand times, so it is measured before it is copied.
        if isinstance(name, str | bytes) and len(name) <= LONGEST_NAME:
            text = name.decode("latin-1") if isinstance(name, bytes) else name
            word = text.replace("_", " ").strip()
        words.append(word)
    for label, word in enumerate(words):
        if not word or not word.isprintable():
            what = f"has no name for class {label}"
            raise DataError.at(path, what, f"a word of at most {LONGEST_NAME} characters")
        if word in words[:label]:
            what = f"names both class {words.index(word)} and class {label} {word!r}"
            raise DataError.at(path, what, "each name once")
    if not known:
        return tuple(words)
    if len(words) != len(known):
        raise DataError.at(path, f"names {len(words)} classes", f"the {len(known)} as published")
    # In another order labels would mean other classes.
    for label, pair in enumerate(zip(words, known, strict=True)):
        if plain(pair[0]) != plain(pair[1]):
            raise DataError.at(
                path, f"names class {label} {pair[0]!r}", f"{pair[1]!r}, as published"
            )
    return tuple(known)


def require_labels(
    labels: NDArray[np.int64], classes: Sequence[str], path: Path, *, first: int = 0
) -> None:
    """Refuse a label without a class; labels count from 0, and the file from `first`."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        what = f"has label {labels[wrong[0]] + first} at example {wrong[0]}"
        raise DataError.at(path, what, f"{first} to {len(classes) - 1 + first}")


def require_examples(
    name: str, classes: Sequence[str], train: NDArray[np.int64], test: NDArray[np.int64]
) -> None:
    """Refuse a data set without a training label of each class, or without any test label."""
    empty = np.flatnonzero(np.bincount(train, minlength=len(classes)) == 0)
    if len(empty):
        what = f"has no training example of class {classes[empty[0]]!r} (label {empty[0]})"
        raise DataError.at(name, what, f"at least one of each of its {len(classes)} classes")
    if not len(test):
        raise DataError(f"task.root: {name} has no test example; valid is at least one")
