"""Whether a run's own row and its end are what the audit log saw."""

from __future__ import annotations

import json
from collections.abc import Iterator

from platform.agreement.reading import RunRecords, TrailEntry
from platform.config import dump_tree
from platform.disk.log_files import bytes_digest, config_digest, rows_digest
from platform.rounds.audit_trail import PRUNED

AFTER_THE_END = ("model.exported", "client.left", "client.removed", PRUNED)
"""What may follow once a run has finished."""


def run_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the run's own row is not what its audit log tells."""
    created = records.entries("run.created")
    if len(created) != 1 or created[0].entry.sequence != 1:
        yield f"its audit log has {len(created)} entries run.created and not one, at its beginning"
        return
    recorded = records.run.config_digest
    if created[0].detail.get("config_sha256") != recorded:
        yield f"the SHA-256 of its configuration is not in {created[0].name} what it is in its row"
    if not _is_config(records.run.config_json, recorded):
        yield (
            "its configuration is not the one that it was started with, whose SHA-256 is "
            f"{recorded[:16]}..."
        )


def _is_config(text: str, recorded: str) -> bool:
    # The stored text, not what became of it: a later version may have keys that it has not.
    try:
        return config_digest(dump_tree(json.loads(text))) == recorded
    except (TypeError, ValueError):
        return False


def ending_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the run is not left as its audit log says that it ended."""
    ended = records.entries("run.finished")
    if (records.run.status == "finished") != bool(ended):
        told = ended[0].name if ended else "no audit entry says so"
        yield f"its status is {records.run.status!r}, but {told}"
    if len(ended) > 1:
        yield f"it finished twice, in {ended[0].name} and in {ended[1].name}"
    if not ended:
        return
    last = ended[0]
    for item in records.trail[last.entry.sequence :]:
        if item.entry.action not in AFTER_THE_END:
            yield f"{item.name} follows {last.name}"
            break
    yield from _left_behind(records, last)


def _left_behind(records: RunRecords, last: TrailEntry) -> Iterator[str]:
    if last.detail.get("ledger_sha256") != rows_digest(records.ledger, with_status=True):
        yield f"its ledger is not the one that {last.name} saw"
    if records.is_pruned:
        return
    state = None if records.state is None else bytes_digest(records.state.blob)
    if last.detail.get("state_sha256") != state:
        yield f"its last state is not the one that {last.name} saw"
