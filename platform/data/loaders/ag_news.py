"""`ag_news`: 127,600 news texts of four topics, as comma-separated tables.

Each line has the number of its class, counted from 1, a title and a description (Zhang, Zhao and
LeCun, 2015); the text is both, with a space between them.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Split
from platform.data.loaders._files import is_there, read_text
from platform.data.loaders._raw_files import (
    MOST_TEXT,
    class_words,
    first_folder,
    one_domain,
    read_lines,
    require_examples,
    require_labels,
    require_there,
)
from platform.errors import DataError

_TOPICS: Final = ("World", "Sports", "Business", "Sci/Tech")
_FOLDERS: Final = ("ag_news", "ag_news_csv")

INFOS = (
    DatasetInfo(
        name="ag_news",
        title="AG News: 127,600 news texts of four topics",
        classes=_TOPICS,
        domains=("news",),
        source="to be had from the page that its paper names, http://goo.gl/JyCnZq",
        layout=(
            "ag_news/{train,test}.csv with class, title and description in each line",
            "where wanted ag_news/classes.txt",
            "or the same files in ag_news_csv",
        ),
        modality="texts",
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Read all texts into memory.

    Raises:
        ConfigError: If a file is missing or damaged, a label is none of a class, a class is empty,
            or a domain is unknown.
    """
    (info,) = INFOS
    domains = request.chosen_domains(name, info.domains)
    folder = first_folder(info, request.root, _FOLDERS)
    path = folder / "classes.txt"
    if is_there(path):
        class_words(read_lines(info, request.root, path), path, info.classes)
    train, test = (_split(info, request.root, folder / f"{part}.csv") for part in ("train", "test"))
    require_examples(name, info.classes, train.labels, test.labels)
    return Dataset(name=name, classes=info.classes, domains=domains, train=train, test=test)


def _split(info: DatasetInfo, root: Path, path: Path) -> Split:
    require_there(info, root, path)
    numbers, texts = [], []
    for line, row in _rows(path):
        if len(row) != 3 or not (row[0].isascii() and row[0].isdigit() and len(row[0]) < 5):
            raise DataError(
                f"task.root: {str(path)!r} has no class, title and description at line {line}; "
                "valid is a class's number and two texts"
            )
        numbers.append(int(row[0]))
        texts.append(" ".join(part.strip() for part in row[1:]).strip())
    # Labels count from 0, the file from 1.
    labels = np.array(numbers, np.int64) - 1
    require_labels(labels, info.classes, path, first=1)
    return Split(np.zeros((0, 0, 0, 3), np.uint8), labels, one_domain(labels), tuple(texts))


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return each row that is not empty, with the number of the line at which it ends."""
    text = read_text(path, MOST_TEXT).removeprefix("\ufeff")
    # Line ends inside of quotes belong to the text, and are left as they are.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise DataError(
            f"task.root: {str(path)!r} is damaged at line {reader.line_num} ({error}); valid is a "
            "comma-separated table with quotes around texts"
        ) from error
