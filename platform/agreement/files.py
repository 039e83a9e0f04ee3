"""Whether the files of a run's folder are those that its audit log saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from platform.agreement.reading import RunRecords, TrailEntry
from platform.disk.log_files import bytes_digest, document_digest
from platform.rounds.documents import summary_text

SUMMARY: Final = "summary.json"
FILES: Final = {
    "metrics.csv": "metrics_sha256",
    "metrics.jsonl": "metrics_jsonl_sha256",
    "config.yaml": "config_sha256",
    "effective.yaml": "effective_sha256",
}
"""Files of a run's folder, and what `run.finished` calls their digests."""


def finished_digests(
    folder: Path, summary: Mapping[str, Any], metrics: Mapping[str, str]
) -> dict[str, str | None]:
    """Return what `run.finished` says of the files, before summary and metrics are written.

    Args:
        folder: The run's.
        summary: What `summary.json` will hold, without the head of the audit log, which is not
            known before this is in it.
        metrics: What each file of metrics will hold.
    """
    known = {name: bytes_digest(text.encode("utf-8")) for name, text in metrics.items()}
    others = {name: _file_digest(folder / name) for name in FILES if name not in known}
    digests = {FILES[name]: digest for name, digest in {**known, **others}.items()}
    return {"summary_sha256": document_digest(summary), **digests}


def file_disagreements(records: RunRecords, folder: Path) -> Iterator[str]:
    """Yield where a file is not what the audit log saw.

    Of an unfinished run only its configuration.
    """
    ended = records.entries("run.finished")
    if not ended:
        config = _file_digest(folder / "config.yaml")
        if config not in (None, records.run.config_digest):
            yield "config.yaml is not the configuration that it was started with"
        return
    for name, key in FILES.items():
        if ended[0].detail.get(key) != _file_digest(folder / name):
            yield f"{name} is not the one that {ended[0].name} saw"


def read_summary(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a finished run's `summary.json`, as text and as what it says.

    Raises:
        ValueError: If it is missing or no JSON object.
    """
    try:
        text = (folder / SUMMARY).read_bytes().decode("utf-8")
        summary = json.loads(text)
    except FileNotFoundError as error:
        raise ValueError(f"{SUMMARY} is missing, though the run has finished") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{SUMMARY} is empty, cut or otherwise no JSON") from error
    if not isinstance(summary, dict):
        raise ValueError(f"{SUMMARY} is no JSON object")
    return text, summary


def summary_disagreements(
    text: str, summary: Mapping[str, Any], ended: TrailEntry
) -> Iterator[str]:
    """Yield where `summary.json` is not the one that the audit log saw, to the last byte."""
    head = {"count": ended.entry.sequence, "hash": ended.entry.hash}
    if summary.get("audit_head") != head:
        yield f"{SUMMARY} states another audit_head than that of {ended.name}"
    stated = {name: value for name, value in summary.items() if name != "audit_head"}
    if _digest_of(stated) != ended.detail.get("summary_sha256"):
        yield f"{SUMMARY} is not the one that {ended.name} saw"
    elif text != summary_text(summary):
        yield f"{SUMMARY} is not written as it was"


def _digest_of(document: Mapping[str, Any]) -> str | None:
    try:
        return document_digest(document)
    except ValueError:
        return None


def _file_digest(path: Path) -> str | None:
    try:
        return bytes_digest(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error
