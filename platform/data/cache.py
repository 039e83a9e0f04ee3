"""The cache folder as a whole: what it holds, how large it may be, and how it is emptied.

Below it lies one folder for each kind of rows, below that one for each model and transform, which
holds segments and an `about.json` for people. Nothing else is ever removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from platform.data.segments import (
    DIGESTS,
    PART,
    ROWS,
    Segment,
    find_segments,
    remove_segment,
)
from platform.errors import ConfigError

Kind = Literal["features", "tokens", "pixels"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ABOUT: Final = "about.json"
KEY_DIGITS: Final = 32


@dataclass(frozen=True)
class CacheFolder:
    """Where the cache lies and how large it may be.

    Attributes:
        path: The folder; made when something is written.
        limit: Most bytes that all segments together may take.
    """

    path: Path
    limit: int

    def model_folder(self, kind: Kind, fingerprint: str, transform_digest: str) -> Path:
        """Where the rows of one kind and model lie.

        Args:
            kind: What the rows are.
            fingerprint: Digest of the model's name and weights.
            transform_digest: Digest of the model's preprocessing.
        """
        text = "\0".join((kind, fingerprint, transform_digest))
        return self.path / kind / hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class About:
    """What the rows of a folder are, for people.

    Attributes:
        model: The model's name.
        fingerprint: Digest of its weights.
        kind: What the rows are.
        row_shape: Shape of one row.
    """

    model: str
    fingerprint: str
    kind: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True)
class Holding:
    """What a cache holds of one kind and model.

    Attributes:
        folder: Where it lies.
        kind: What the rows are.
        about: What `about.json` says, None where there is none that can be read.
        images: Number of rows.
        num_bytes: Size of all segments.
        last_used: In seconds since 1970, 0 where there is no segment.
    """

    folder: Path
    kind: Kind
    about: About | None
    images: int
    num_bytes: int
    last_used: float

    def is_of(self, model: str) -> bool:
        """Whether a user means it: by the model's name, or by how its fingerprint starts."""
        if self.about is None:
            return False
        return model == self.about.model or (
            len(model) >= 8 and self.about.fingerprint.startswith(model)
        )


def write_about(folder: Path, about: About) -> None:
    """Says what the rows of a folder are, if nothing says it yet.

    Raises:
        OSError: If it cannot be written.
    """
    path = folder / ABOUT
    if path.exists():
        return
    part = folder / f"{secrets.token_hex(16)}{PART}"
    # The folder may be cleared at any moment.
    with suppress(FileNotFoundError):
        try:
            part.write_text(json.dumps(asdict(about), indent=2) + "\n", encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def holdings(path: Path) -> list[Holding]:
    """What a cache holds, by model and kind; nothing where there is no such folder."""
    found = [_holding(kind, folder) for kind, folder in _model_folders(path)]
    return sorted(
        found, key=lambda holding: (holding.about is None, str(holding.about), holding.kind)
    )


def evict(cache: CacheFolder, keep: Collection[Segment]) -> None:
    """Removes the segments that were not used for longest until the rest is within the limit.

    Args:
        cache: The folder and its limit.
        keep: What is never removed, even if it is more than the limit.
    """
    found = [s for _, folder in _model_folders(cache.path) for s in find_segments(folder)]
    sizes = {segment: segment.num_bytes() for segment in found}
    total = sum(sizes.values())
    for segment in sorted(found, key=Segment.last_used):
        if total <= cache.limit:
            return
        if segment not in keep:
            # Another user's may not be ours to remove.
            with suppress(OSError):
                remove_segment(segment)
                total -= sizes[segment]


def clear(path: Path, model: str | None) -> tuple[int, int]:
    """Removes the cached rows of a model, or all.

    Args:
        path: The cache folder.
        model: The model's name or the start of its fingerprint; None for all.

    Returns:
        How many images and how many bytes were removed.

    Raises:
        ConfigError: If the folder is a link, nothing in it is of this model, or it cannot be
            removed.
    """
    if path.is_symlink():
        raise ConfigError(
            f"--storage: the cache folder {str(path)!r} is a link, and nothing behind it is "
            "removed; valid is a folder of its own"
        )
    found = holdings(path)
    chosen = [holding for holding in found if model is None or holding.is_of(model)]
    if model is not None and not chosen:
        raise ConfigError(f"--model: nothing of {model!r} is cached; valid: {_models(found)}")
    try:
        for holding in chosen:
            _remove(holding.folder)
    except OSError as error:
        raise ConfigError(
            f"--storage: what lies in the cache folder {str(path)!r} cannot be removed "
            f"({error.strerror}); valid is a folder that can be written to"
        ) from error
    return sum(holding.images for holding in chosen), sum(holding.num_bytes for holding in chosen)


def _models(found: Sequence[Holding]) -> str:
    known = sorted({holding.about.model for holding in found if holding.about is not None})
    return ", ".join(known) or "none, the cache is empty"


def _remove(folder: Path) -> None:
    for segment in find_segments(folder):
        remove_segment(segment)
    for pattern in (f"*{ROWS}", f"*{DIGESTS}", f"*{PART}", ABOUT):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    # A user's own file in it keeps the folder.
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _model_folders(path: Path) -> Iterator[tuple[Kind, Path]]:
    for kind in KINDS:
        parent = path / kind
        if not parent.is_dir() or parent.is_symlink():
            continue
        with os.scandir(parent) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        for name in names:
            if len(name) == KEY_DIGITS and set(name) <= set("0123456789abcdef"):
                yield kind, parent / name


def _holding(kind: Kind, folder: Path) -> Holding:
    segments = find_segments(folder)
    return Holding(
        folder,
        kind,
        _read_about(folder / ABOUT),
        sum(segment.num_images() for segment in segments),
        sum(segment.num_bytes() for segment in segments),
        max((segment.last_used() for segment in segments), default=0.0),
    )


def _read_about(path: Path) -> About | None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        shape = tuple(int(length) for length in known["row_shape"])
        return About(str(known["model"]), str(known["fingerprint"]), str(known["kind"]), shape)
    # It only informs people, so one that cannot be read is no reason to stop.
    except (OSError, ValueError, KeyError, TypeError):
        return None
