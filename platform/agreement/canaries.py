"""Whether what a run's canaries showed is what its audit log has, under the key it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from platform.agreement.reading import RunRecords, TrailEntry
from platform.config import RunConfig
from privacy.auditing import commitment_to

REVEALED: Final = "canaries.revealed"


def canary_disagreements(records: RunRecords, config: RunConfig) -> Iterator[str]:
    """Yield where an audit's key is not the one that was committed to, or is open too early."""
    begun = records.entries("run.created")
    committed = begun[0].detail.get("canaries") if begun else None
    if (committed is not None) is not (config.audit is not None):
        stated = "no" if committed is None else "a"
        yield f"its audit log commits to {stated} key of canaries, and its configuration differs"
    revealed = records.entries(REVEALED)
    if len(revealed) > 1:
        yield f"its canaries were revealed twice, in {revealed[0].name} and in {revealed[1].name}"
    for item in revealed[:1]:
        if _commitment(item) != committed:
            yield f"the key of canaries in {item.name} is not the one that the run began with"
        last = records.trail[item.entry.sequence :]
        if not last or last[0].entry.action != "run.finished":
            yield f"{item.name} comes before the run's end, when coins were still in use"


def shown_disagreements(records: RunRecords, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a finished run states of its canaries what its audit log does not."""
    revealed = records.entries(REVEALED)
    told = None
    if revealed:
        told = {name: value for name, value in revealed[0].detail.items() if name != "key"}
    if summary.get("canaries") != told:
        yield "summary.json: what canaries showed is not what the audit log has of them"


def _commitment(item: TrailEntry) -> str | None:
    try:
        return commitment_to(bytes.fromhex(item.detail["key"]))
    except (KeyError, TypeError, ValueError):
        return None
