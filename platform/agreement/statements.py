"""Compares the files of a run's folder with its audit log, its ledger and its rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from platform.agreement.attempts import stopping_document, training_rounds
from platform.agreement.reading import Agreed, RunRecords, TrailEntry
from platform.config import RunConfig
from platform.disk.log_files import bytes_digest, document_digest
from platform.protection.charging import as_releases, is_by_source
from platform.rounds.documents import (
    ADVERSARIES,
    SCHEMA_VERSION,
    epsilon_document,
    shown_round,
    summary_text,
)
from privacy import Epsilons, RunningLedger, epsilons
from storage import LedgerRow

SUMMARY: Final = "summary.json"
FILES: Final = {
    "metrics.csv": "metrics_sha256",
    "metrics.jsonl": "metrics_jsonl_sha256",
    "config.yaml": "config_sha256",
    "effective.yaml": "effective_sha256",
}
"""Files of a run's folder, and the keys of their digests in `run.finished`."""


def finished_digests(
    folder: Path, summary: Mapping[str, Any], metrics: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the files' digests for `run.finished`, before summary and metrics are written.

    `summary` is the future content of `summary.json` without the head of the audit log, because
    that head covers these digests; `metrics` is that of each file of metrics.
    """
    known = {name: bytes_digest(text.encode("utf-8")) for name, text in metrics.items()}
    others = {name: _file_digest(folder / name) for name in FILES if name not in known}
    digests = {FILES[name]: digest for name, digest in {**known, **others}.items()}
    return {"summary_sha256": document_digest(summary), **digests}


def file_disagreements(records: RunRecords, folder: Path) -> Iterator[str]:
    """Yield files that differ from the audit log; of an unfinished run, its configuration."""
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
    """Return a finished run's `summary.json`, as text and as an object, or `ValueError`."""
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
    """Yield where `summary.json` differs from the file that the audit log saw, in any byte."""
    head = {"count": ended.entry.sequence, "hash": ended.entry.hash}
    if summary.get("audit_head") != head:
        yield f"{SUMMARY} states another audit_head than that of {ended.name}"
    stated = {name: value for name, value in summary.items() if name != "audit_head"}
    digest = None
    with suppress(ValueError):
        digest = document_digest(stated)
    if digest != ended.detail.get("summary_sha256"):
        yield f"{SUMMARY} is not the one that {ended.name} saw"
    elif text != summary_text(summary):
        yield f"{SUMMARY} is not written as it was"


def _file_digest(path: Path) -> str | None:
    try:
        return bytes_digest(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


TOLERANCE: Final = 1e-6
"""Relative: another version of a numerical library may compute other last digits."""


def price(rows: Sequence[LedgerRow], config: RunConfig) -> Epsilons:
    """Return the worst client's epsilon against each adversary, for a ledger."""
    section = config.privacy
    return epsilons(as_releases(rows, config.mechanisms), section.target_delta, section.accountant)


def right_guesses(rows: Sequence[LedgerRow], config: RunConfig) -> dict[str, float]:
    """Return the largest share of right guesses about any client at even odds, by adversary."""
    ledger = RunningLedger(as_releases(rows, config.mechanisms))
    shares = ledger.right_guesses(config.privacy.accountant)
    return {name: share for name, share in shares.items() if name in ADVERSARIES}


def guesses_of(agreed: Agreed) -> dict[str, float] | None:
    """Return `right_guesses` of a run, or None if the first release will cost infinity."""
    if agreed.is_unpriced:
        return None
    return right_guesses(agreed.spending.ledger, agreed.config)


def stopping_of(records: RunRecords, config: RunConfig) -> dict[str, Any] | None:
    """Return, from a run's records, the epsilon that holds at every end of the run."""
    training = training_rounds(records, config.rounds)
    return stopping_document(records.ledger, config, training)


def statement_disagreements(
    summary: Mapping[str, Any], records: RunRecords, config: RunConfig
) -> Iterator[str]:
    """Yield where a summary's number differs from the number that follows from the records.

    The records are those of the run whose rounds and ledger count.
    """
    spent = price(records.ledger, config)
    expected = {
        "delta": config.privacy.target_delta,
        "accountant": spent.accountant,
        "final": {"epsilon": epsilon_document(spent)},
        "rounds": [
            {
                **shown_round(row.document),
                # Priced from the ledger as it was then.
                "epsilon": epsilon_document(
                    price([r for r in records.ledger if r.round_number <= row.round_number], config)
                ),
            }
            for row in records.rounds
        ],
    }
    # Summaries of earlier versions do not have these.
    if "stopping" in summary:
        expected["stopping"] = stopping_of(records, config)
    if "right_guesses" in summary:
        expected["right_guesses"] = right_guesses(records.ledger, config)
    stated = {name: summary.get(name) for name in expected}
    final = summary.get("final")
    # The other keys describe models, and no record repeats them.
    stated["final"] = {"epsilon": final.get("epsilon")} if isinstance(final, dict) else final
    for path, found, right in differences(stated, expected):
        yield f"summary.json: {path} is {found!r} there, but {right!r} follows from the records"


def stated_document(agreed: Agreed) -> Mapping[str, Any]:
    """Return a run's summary, or the document of an unfinished run."""
    return unfinished_document(agreed) if agreed.summary is None else agreed.summary


def unfinished_document(agreed: Agreed) -> dict[str, Any]:
    """Return the rounds of a run that has not finished, and its spending so far.

    Epsilon counts reservations too, because these releases may have left a client. Without noise
    and before the first attempt it is None, because 0 would mislead.
    """
    config, run, newest = agreed.config, agreed.records.run, agreed.spending.attempt
    facts, spent = config.mechanism.facts, price(agreed.spending.ledger, config)
    epsilon: dict[str, Any] = {**epsilon_document(spent)}
    if agreed.is_unpriced:
        epsilon = dict.fromkeys(epsilon)
    open_attempt = None
    if newest is not None and newest.is_open:
        open_attempt = {"round": newest.round_number, "attempt": newest.attempt}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "status": run.status,
        "finished": False,
        "config": config.name,
        "method": config.method.name,
        "dataset": config.task.dataset,
        "mechanism": config.privacy.mechanism,
        "unit": facts.unit,
        "relation": config.relation if facts.claims else None,
        "delta": config.privacy.target_delta,
        "accountant": spent.accountant,
        "epsilon": epsilon,
        "right_guesses": guesses_of(agreed),
        "stopping": stopping_of(agreed.spending, config),
        "planned_rounds": config.rounds,
        "open_attempt": open_attempt,
        "rounds": [shown_round(row.document) for row in agreed.spending.rounds],
    }


def differences(found: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where one JSON value differs from another: path, value found, value expected."""
    if isinstance(found, Mapping) and isinstance(right, Mapping):
        for name in {**right, **found}:
            inner = f"{path}.{name}" if path else str(name)
            yield from differences(found.get(name), right.get(name), inner)
    elif isinstance(found, list) and isinstance(right, list) and len(found) == len(right):
        for index, (mine, theirs) in enumerate(zip(found, right, strict=True)):
            yield from differences(mine, theirs, f"{path}[{index}]")
    elif _is_number(found) and _is_number(right):
        if not math.isclose(found, right, rel_tol=TOLERANCE):
            yield path, found, right
    elif type(found) is not type(right) or found != right:
        yield path, _short(found), _short(right)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> Any:
    # A list or an object would fill the sentence.
    if isinstance(value, (list, Mapping)):
        return f"{type(value).__name__} of {len(value)}"
    return value


def lifetime_of(config: RunConfig) -> str:
    """Return, in words, which runs a client's lifetime covers."""
    if config.federation is not None:
        return (
            "all runs of this database that the client took part in; what it spent with other "
            "coordinators only its own ledger knows: sotto client budget CONFIG"
        )
    if is_by_source(config):
        return (
            "all runs of this database on the same data, each at what it charged the client that "
            "it charged most, as clients of two runs may hold each other's images"
        )
    return "this run, as without privacy.lifetime_budget each simulation makes clients anew"
