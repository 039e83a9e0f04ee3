"""Words for classes whose names in files are none: `n02084071` is a dog.

A file of class names lies beside the images, or where the configuration says. It is text with a
class in each line, its name in the files before its words (a tab, ` -> ` or else the first space
parts them, as in the lists that come with ImageNet), or a JSON object. Every class has one entry,
every entry a class, and no two classes the same words; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from platform.data.holder_folder import folded
from platform.data.loaders._files import LONGEST_NAME, is_there, read_text
from platform.data.own_reading import some
from platform.errors import DataError

BESIDE: Final = ("class_names.txt", "class_names.json")
"""Under which names a file of class names is found beside images."""
_MOST_BYTES: Final = 1_000_000
_PARTED_BY: Final = ("\t", " -> ", " ")


def read_class_names(root: Path, given: Path | None) -> tuple[Path, Mapping[str, str]] | None:
    """Return the file of class names and its words by the classes' names in files.

    Args:
        root: Folder of the images.
        given: The file that a configuration names; None for one beside the images.

    Returns:
        None where there is no such file.

    Raises:
        DataError: If it is named and not there, cannot be read, there are two, or it has an entry
            twice, without words, or with words that are no words.
    """
    beside = [root / name for name in BESIDE if is_there(root / name)]
    if given is None and not beside:
        return None
    if given is None and len(beside) > 1:
        raise DataError(
            f"task.class_names: {str(root)!r} holds both {' and '.join(map(repr, BESIDE))}; valid "
            "is one of them"
        )
    path = beside[0] if given is None else given
    if not is_there(path):
        raise DataError(
            f"task.class_names: {str(path)!r} is not there; valid is a file with a class and its "
            "words in each line, such as 'n02084071 dog'"
        )
    text = _text(path)
    pairs = _from_json(path, text) if path.suffix.lower() == ".json" else _from_lines(path, text)
    return path, _checked(path, pairs)


def words_of(
    names: Sequence[str], path: Path, words: Mapping[str, str], *, more: bool = False
) -> dict[str, str]:
    """Return the words of each class by its name in the files.

    Args:
        names: The classes, as files spell them.
        path: The file of class names.
        words: What it says.
        more: Whether it may name classes that are not among these: those of other holders.

    Raises:
        DataError: If a class has no entry, or an entry no class.
    """
    spelled = {folded(name): text for name, text in words.items()}
    missing = [name for name in names if folded(name) not in spelled]
    if missing:
        raise DataError(
            f"task.class_names: {str(path)!r} has no entry for {some(missing)}; valid is one for "
            "each class of the images"
        )
    known = {folded(name) for name in names}
    unknown = [name for name in words if folded(name) not in known]
    if unknown and not more:
        raise DataError(
            f"task.class_names: {str(path)!r} has an entry for {some(unknown)}, of which there are "
            f"no images; valid are the classes of the images: {some(names)}"
        )
    return {name: spelled[folded(name)] for name in names}


def _text(path: Path) -> str:
    try:
        # Editors of some systems begin a file with a mark of byte order.
        return read_text(path, _MOST_BYTES).removeprefix("\ufeff")
    except DataError as error:
        raise DataError(str(error).replace("task.root", "task.class_names", 1)) from error


def _from_lines(path: Path, text: str) -> list[tuple[str, str]]:
    pairs = []
    for position, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        sign = next((sign for sign in _PARTED_BY if sign in line.strip()), " ")
        name, _, words = line.strip().partition(sign)
        if not words.strip():
            raise DataError(
                f"task.class_names: line {position} of {str(path)!r} has no words for "
                f"{name[:80]!r}; valid is a class and its words, such as 'n02084071 dog'"
            )
        pairs.append((name.strip(), words.strip()))
    return pairs


def _from_json(path: Path, text: str) -> list[tuple[str, str]]:
    try:
        # As pairs, since a dictionary keeps the last of two equal keys in silence.
        pairs = json.loads(text, object_pairs_hook=list)
    # Too many digits are a ValueError as well, and too many brackets the other one.
    except (ValueError, RecursionError) as error:
        raise DataError(f"task.class_names: {str(path)!r} is not JSON; valid is {_OBJECT}") from (
            error
        )
    is_object = isinstance(pairs, list) and all(isinstance(pair, tuple) for pair in pairs)
    if not is_object or not all(isinstance(words, str) for _, words in pairs):
        raise DataError(
            f"task.class_names: {str(path)!r} is no object of texts; valid is {_OBJECT}"
        )
    return [(name, words.strip()) for name, words in pairs]


_OBJECT: Final = 'an object such as {"n02084071": "dog"}'


def _checked(path: Path, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    words: dict[str, str] = {}
    spellings: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for name, text in pairs:
        if not text or len(text) > LONGEST_NAME or not text.isprintable():
            raise DataError(
                f"task.class_names: {str(path)!r} calls {name[:80]!r} {text[:80]!r}; valid are 1 "
                f"to {LONGEST_NAME} printable characters"
            )
        first = spellings.setdefault(folded(name), name)
        if name in words or first != name:
            raise DataError(
                f"task.class_names: {str(path)!r} has two entries for {name[:80]!r}; valid is one "
                "for each class"
            )
        other = firsts.setdefault(text.casefold(), name)
        if other != name:
            raise DataError(
                f"task.class_names: {str(path)!r} calls both {other[:80]!r} and {name[:80]!r} "
                f"{text!r}; valid are other words for each class"
            )
        words[name] = text
    if not words:
        raise DataError(
            f"task.class_names: {str(path)!r} has no entry; valid is one for each class"
        )
    return words
