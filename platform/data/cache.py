"""The cache folder as a whole: what it holds, how large it may be, and how it is emptied.

Below it lies one folder for each kind of rows, below that one for each model and transform, which
holds segments and an `about.json` for people. Nothing else is ever removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from platform.config import RunConfig
from platform.data.segments import (
    DIGESTS,
    PART,
    ROWS,
    Segment,
    find_segments,
    names_in,
    remove_segment,
)
from platform.disk.files import write_text
from platform.disk.opening import make_beside
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

    def model_folder(self, kind: Kind, computation: Sequence[str]) -> Path:
        """Return where the rows of one kind lie that are computed in one way.

        Args:
            kind: What the rows are.
            computation: All that they depend on beside the image: weights, preprocessing, versions.
        """
        text = "\0".join((kind, *computation))
        return self.path / kind / hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def cache_folder(config: RunConfig) -> CacheFolder:
    """Return the cache beside a configuration's database, its folder made if missing.

    Raises:
        ConfigError: If it cannot be made.
    """
    folder = make_beside(config.storage.url, "cache")
    return CacheFolder(folder, int(config.storage.cache_gib * 2**30))


@dataclass(frozen=True)
class About:
    """What the rows of a folder are, for people.

    Attributes:
        model: The model's name.
        fingerprint: Digest of its weights and architecture.
        kind: What the rows are.
        row_shape: Shape of one row.
    """

    model: str
    fingerprint: str
    kind: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CachedRows:
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
        """Return whether a user means it: by the model's name, or by how its fingerprint starts."""
        if self.about is None:
            return False
        return model == self.about.model or (
            len(model) >= 8 and self.about.fingerprint.startswith(model)
        )


def write_about(folder: Path, about: About) -> None:
    """Say what the rows of a folder are, if nothing says it yet.

    Raises:
        OSError: If it cannot be written.
    """
    path = folder / ABOUT
    if path.exists():
        return
    # The folder may be cleared at any moment.
    with suppress(FileNotFoundError):
        write_text(path, json.dumps(asdict(about), indent=2) + "\n")


def cached_rows(path: Path) -> list[CachedRows]:
    """Return what a cache holds, by model and kind; nothing where there is no such folder."""
    found = [_cached(kind, folder) for kind, folder in _model_folders(path)]
    return sorted(
        found, key=lambda holding: (holding.about is None, str(holding.about), holding.kind)
    )


def evict(cache: CacheFolder, keep: Collection[Segment]) -> None:
    """Remove the segments that were not used for longest until the rest is within the limit.

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
    """Remove the cached rows of a model, or all.

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
    found = cached_rows(path)
    chosen = [holding for holding in found if model is None or holding.is_of(model)]
    if model is not None and not chosen:
        raise ConfigError(f"--model: nothing of {model!r} is cached; valid: {_models(found)}")
    errors = [error for holding in chosen for error in _remove(holding.folder)]
    if errors:
        raise ConfigError(
            f"--storage: what lies in the cache folder {str(path)!r} cannot be removed "
            f"({errors[0].strerror}); valid is a folder that can be written to"
        ) from errors[0]
    return sum(holding.images for holding in chosen), sum(holding.num_bytes for holding in chosen)


def _models(found: Sequence[CachedRows]) -> str:
    if not found:
        return "none, the cache is empty"
    known = sorted({holding.about.model for holding in found if holding.about is not None})
    if any(holding.about is None for holding in found):
        known.append("--all in its place for what is not described")
    return ", ".join(known)


def _remove(folder: Path) -> list[OSError]:
    """Remove what is the cache's in a folder, as far as it can be, and tell what went wrong."""
    names = names_in(folder)
    # Digests first: rows without them are no segment any more.
    ours = [name for name in names if name.endswith(DIGESTS)]
    ours += [name for name in names if name.endswith((ROWS, PART)) or name == ABOUT]
    errors = []
    for name in ours:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            errors.append(error)
    # A user's own file in it keeps the folder, and another process may have been faster.
    for path in (folder, folder.parent):
        with suppress(OSError):
            path.rmdir()
    return errors


def _model_folders(path: Path) -> Iterator[tuple[Kind, Path]]:
    for kind in KINDS:
        parent = path / kind
        if parent.is_symlink():
            continue
        for name in names_in(parent):
            is_ours = len(name) == KEY_DIGITS and set(name) <= set("0123456789abcdef")
            if is_ours and (parent / name).is_dir() and not (parent / name).is_symlink():
                yield kind, parent / name


def _cached(kind: Kind, folder: Path) -> CachedRows:
    segments = find_segments(folder)
    return CachedRows(
        folder=folder,
        kind=kind,
        about=_read_about(folder / ABOUT),
        images=sum(segment.num_images() for segment in segments),
        num_bytes=sum(segment.num_bytes() for segment in segments),
        last_used=max((segment.last_used() for segment in segments), default=0.0),
    )


def _read_about(path: Path) -> About | None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        shape = tuple(int(length) for length in known["row_shape"])
        return About(str(known["model"]), str(known["fingerprint"]), str(known["kind"]), shape)
    # It only informs people, so one that cannot be read is no reason to stop.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
