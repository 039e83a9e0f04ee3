"""`cache list` and `cache clear`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platform.cli.output import console, print_json, table
from platform.data.cache import CachedRows, cached_rows, clear
from platform.disk.opening import database_file
from platform.errors import ConfigError

SHORT = 12
"""Digits of a fingerprint that people see."""


def list_command(storage: str, *, as_json: bool) -> None:
    """Show what is cached, by model and kind."""
    found = [_document(holding) for holding in cached_rows(_folder(storage))]
    if as_json:
        print_json(found)
        return
    if not found:
        console().print(f"nothing is cached beside {storage}")
        return
    rows = [
        (
            row["model"] or "unknown",
            (row["fingerprint"] or "-")[:SHORT],
            row["kind"],
            "-" if row["row_shape"] is None else " x ".join(map(str, row["row_shape"])),
            row["images"],
            _size(row["bytes"]),
            row["last_used"] or "-",
        )
        for row in found
    ]
    names = ("model", "weights", "kind", "of an image", "images", "size", "last used")
    out = console()
    out.print(table(None, names, rows))
    out.print(f"{_size(sum(row['bytes'] for row in found))} in all")


def clear_command(storage: str, *, model: str | None, everything: bool, as_json: bool) -> None:
    """Delete what is cached of one model, or all.

    Raises:
        ConfigError: If neither or both are asked for, or nothing is cached of the model.
    """
    if model is None and not everything:
        raise ConfigError("--model: is missing; valid is a model's name, or --all in its place")
    if model is not None and everything:
        raise ConfigError(f"--all: given beside --model {model!r}; valid is one of the two")
    images, removed = clear(_folder(storage), model)
    if as_json:
        print_json({"images": images, "bytes": removed})
        return
    console().print(f"deleted what was made of {images:,} images, {_size(removed)}")


def _folder(storage: str) -> Path:
    return database_file(storage).parent / "cache"


def _document(holding: CachedRows) -> dict[str, Any]:
    about, used = holding.about, datetime.fromtimestamp(holding.last_used, UTC)
    return {
        "model": None if about is None else about.model,
        "fingerprint": None if about is None else about.fingerprint,
        "kind": holding.kind,
        "row_shape": None if about is None else list(about.row_shape),
        "images": holding.images,
        "bytes": holding.num_bytes,
        "last_used": f"{used:%Y-%m-%dT%H:%M:%SZ}" if holding.images else None,
    }


def _size(value: int) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
