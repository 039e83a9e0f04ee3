"""`sweep.json`: which cells a sweep has, so that its runs are found while it still goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from platform.errors import ConfigError
from platform.results.statistics import Axes

SWEEP_FILE: Final = "sweep.json"
VERSION: Final = 1
_LARGEST: Final = 1 << 26


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One run of a sweep, whether or not it has begun.

    Attributes:
        config: As tables call its configuration.
        method: By name.
        seed: Of the run.
        axes: Its values on the axes.
        identity: What its run is found again by.
        database: Its own, as a path from the sweep's folder; None for the database of the sweep.
    """

    config: str
    method: str
    seed: int
    axes: Axes
    identity: str
    database: str | None


def sweep_file(cells: Sequence[SweepCell]) -> str:
    """Return what `sweep.json` holds."""
    document = {"schema_version": VERSION, "cells": [asdict(cell) for cell in cells]}
    return json.dumps(document, indent=2) + "\n"


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is one of a sweep's results."""
    return (folder / SWEEP_FILE).is_file()


def read_sweep(folder: Path) -> tuple[SweepCell, ...]:
    """Return the cells of a sweep.

    Raises:
        ConfigError: If the folder has no such file, or it is not what a sweep writes.
    """
    path = folder / SWEEP_FILE
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_LARGEST))
        return tuple(_cell(one) for one in _cells(document))
    except FileNotFoundError as error:
        raise ConfigError(
            f"SWEEP: {str(folder)!r} has no {SWEEP_FILE}; valid is a folder that `sweep` has "
            "written to, and the same `sweep` command writes what is missing"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"SWEEP: {str(path)!r} cannot be read ({error.strerror}); valid is a file that can"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"SWEEP: {str(path)!r} is not what a sweep writes; the same `sweep` command writes it "
            "anew"
        ) from error


def _cells(document: Any) -> list[Any]:
    if document["schema_version"] != VERSION or not isinstance(document["cells"], list):
        raise ValueError("another version")
    return list(document["cells"])


def _cell(value: Any) -> SweepCell:
    axes = tuple((_text(key), _text(text)) for key, text in value["axes"])
    database = value["database"]
    if not isinstance(value["seed"], int):
        raise TypeError("a seed is no number")
    return SweepCell(
        config=_text(value["config"]),
        method=_text(value["method"]),
        seed=value["seed"],
        axes=axes,
        identity=_text(value["identity"]),
        database=None if database is None else _text(database),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value
