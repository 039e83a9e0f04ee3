"""All entries that the coordinator writes into the audit log, in one place.

An entry names at most pseudonyms, and numbers of a federation's clients. It never names a pool
handle, an entry or its digest, served experts, a vector, a size or a class. The digests by which
entries bind other records are in `platform.disk.log_files`. The log holds only commitments to a
cohort that was drawn in secret. Their salts are in the database: in the plan of the attempt and in
the document of the round. The text of an entry must hide the draw by itself, because readers see
whole chains of hashes, and not only single leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from platform.disk.log_files import SALT, bytes_digest, document_digest, rows_digest
from platform.errors import RoundAborted
from platform.protection.charging import as_row
from platform.rounds.plan import RoundOutcome, RoundPlan
from privacy import GAUSSIAN, NO_NOISE, IntegerNoise, Release
from storage import AuditEntry
from storage.audit import AuditRepository

COORDINATOR = "coordinator"
PRUNED = "run.pruned"
"""The action of a run whose models were erased on request: no run goes on from it."""


@dataclass(frozen=True)
class AuditTrail:
    """Writes one run's entries."""

    log: AuditRepository
    run_id: str

    def run_created(
        self,
        config_digest: str,
        enrolment: str | None = None,
        phase_two_of: str | None = None,
        *,
        method: Mapping[str, str] | None = None,
        plugins: Mapping[str, Mapping[str, str]] | None = None,
        canaries: str | None = None,
    ) -> None:
        """Note that a run was set up, its enrolment's fingerprint, and its first phase's run.

        A method from outside the package adds the place and the digest of its code, and so do
        other plug-ins, by their roles. An audit adds the commitment to the key of its canaries.

        The entry names the run that was set up before it and the end of that run's chain, so that
        only the newest run can be erased without a trace.
        """
        before: dict[str, Any] | None = None
        if earlier := self.log.beginnings():
            number, run_id = max((run_number(parsed_detail(e)), e.run) for e in earlier)
            head = self.log.head(run_id)
            before = {"number": number, "run": run_id, "count": head.count, "hash": head.hash}
        facts = {
            "enrolment": enrolment,
            "phase_two_of": phase_two_of,
            "method": method,
            "plugins": plugins,
            "canaries": canaries,
            "before": before,
        }
        known = {name: value for name, value in facts.items() if value is not None}
        self._append("run.created", detail={"config_sha256": config_digest, **known})

    def run_begins(self, completed: int) -> None:
        """Note that a run starts, or goes on after some committed rounds."""
        action = "run.resumed" if completed else "run.started"
        self._append(action, detail={"completed_rounds": completed})

    def restored(self, made: str) -> None:
        """Note that the database came back from a backup, and when that was made."""
        self._append("database.restored", detail={"made": made})

    def run_finished(self, reason: str | None, digests: Mapping[str, str | None]) -> None:
        """Note that a run finished, maybe early, with the digests of its results."""
        known = {"reason": reason} if reason else {}
        self._append("run.finished", detail={**known, **digests})

    def run_pruned(self, states: Sequence[int], generations: Sequence[int]) -> None:
        """Note the rounds whose models were erased; the run's records and ledger stay."""
        detail = {"states": list(states), "generations": list(generations)}
        self._append(PRUNED, detail=detail)

    def canaries_revealed(self, key: bytes, verdict: Mapping[str, Any]) -> None:
        """Note the result of a run's canaries, and the key of their coins."""
        self._append("canaries.revealed", detail={"key": key.hex(), **verdict})

    def reserved(self, releases: Sequence[Release]) -> None:
        """Note that a round's spend is in the ledger; one entry a channel."""
        for channel in sorted({release.channel for release in releases}):
            of_channel = [release for release in releases if release.channel == channel]
            self._append(
                "release.reserved",
                round_number=of_channel[0].round_number,
                channel=channel,
                detail=reserved_detail(of_channel),
            )

    def round_opened(self, plan: RoundPlan, fixed: Mapping[str, Any]) -> None:
        """Note that invitations are about to go out; `fixed` is the attempt's plan as stored."""
        detail: dict[str, Any] = {"attempt": plan.attempt, "cohort": len(plan.cohort)}
        if SALT in fixed:
            detail = {"attempt": plan.attempt, "plan_sha256": document_digest(fixed)}
        self._append("round.opened", round_number=plan.round_number, detail=detail)

    def round_aborted(self, plan: RoundPlan, error: RoundAborted) -> None:
        """Note that a round ended without a result."""
        detail = {"attempt": plan.attempt, "charged": error.uploads_asked, "phase": error.phase}
        self._append("round.aborted", round_number=plan.round_number, detail=detail)

    def round_committed(
        self,
        plan: RoundPlan,
        outcome: RoundOutcome,
        *,
        document: Mapping[str, Any],
        state: bytes | None,
    ) -> None:
        """Note that a round's result is kept.

        `document` is the round's row and `state` the state's blob, as they are stored; the state is
        None where the round leaves it as it was.
        """
        number, attempt = plan.round_number, plan.attempt
        detail: dict[str, Any] = {"attempt": attempt, **_digests(document, state)}
        if SALT not in document:
            detail["survivors"] = len(outcome.survivors)
        channel = "pool" if plan.collects else "sum"
        self._append("round.committed", round_number=number, channel=channel, detail=detail)
        if outcome.entries:
            detail = {"attempt": attempt, "entries": len(outcome.entries)}
            self._append("pool.committed", round_number=number, channel="pool", detail=detail)
        if outcome.entries_void is not None:
            voided = {"attempt": attempt, "reason": outcome.entries_void}
            self._append("pool.discarded", round_number=number, channel="pool", detail=voided)

    def round_lost(
        self, plan: RoundPlan, reason: str, *, document: Mapping[str, Any], state: bytes | None
    ) -> None:
        """Note that a round stays without a result; its row has no survivors."""
        detail = {"attempt": plan.attempt, "reason": reason, **_digests(document, state)}
        self._append("round.lost", round_number=plan.round_number, detail=detail)

    def client_joined(self, *, number: int, pseudonym: str) -> None:
        """Note that a federation's client, counted from 1, introduced itself."""
        self._append("client.joined", detail={"client": number, "pseudonym": pseudonym})

    def client_gone(
        self,
        action: str,
        *,
        number: int,
        pseudonym: str | None,
        generations: Sequence[int],
        signature: bytes = b"",
    ) -> None:
        """Note that a client has left the run for good, or was removed from it.

        `action` is `client.left` or `client.removed`. `number` counts from 1, `pseudonym` is None
        for a client that never introduced itself, and `generations` are the rounds whose pool
        entries were all erased with it. The client's signature proves to others that it left.
        """
        detail = {"client": number, "pseudonym": pseudonym, "generations": list(generations)}
        signed = {"signature": signature.hex()} if signature else {}
        self._append(action, detail={**detail, **signed})

    def exported(self, what: str) -> None:
        """Note that trained prompts were written to a file."""
        self._append("model.exported", detail={"part": what})

    def _append(
        self,
        action: str,
        *,
        detail: dict[str, Any],
        round_number: int | None = None,
        channel: str | None = None,
    ) -> None:
        self.log.append(
            self.run_id,
            actor=COORDINATOR,
            action=action,
            round=round_number,
            channel=channel,
            detail=detail,
        )


def reserved_detail(releases: Sequence[Release]) -> dict[str, Any]:
    """Return the log's detail of a round's releases on one channel; only their clients differ."""
    return {
        "clients": len(releases),
        "rows_sha256": rows_digest(map(as_row, releases), with_status=False),
        **release_facts(releases[0]),
    }


def release_facts(release: Release) -> dict[str, Any]:
    """Return the facts on which one release's price depends."""
    found: dict[str, Any] = {
        "attempt": release.attempt,
        "clipping_norm": release.clipping_norm,
        "mechanism": release.mechanism.name,
        "relation": release.relation,
        "standard_deviation": release.standard_deviation,
    }
    # The entry names the other facts only if they differ from the plain case.
    if release.count > 1:
        found["count"] = release.count
    if release.sampling != "none":
        found |= {"sampling": release.sampling, "probability": release.sampling_probability}
    if release.law not in (GAUSSIAN, NO_NOISE):
        found["noise"] = release.law.name
    if isinstance(release.law, IntegerNoise):
        found["shares"] = release.law.shares
    if release.cohort is not None:
        found |= {"cohorts": release.cohort.kind, "size": release.cohort.size}
    return found


def parsed_detail(entry: AuditEntry) -> dict[str, Any]:
    """Return the JSON object in an entry's detail, an empty one if there is none."""
    try:
        detail = json.loads(entry.detail)
    except (ValueError, RecursionError):
        return {}
    return detail if isinstance(detail, dict) else {}


def run_number(created: Mapping[str, Any]) -> int:
    """Return the number of a run from the detail of its entry `run.created`."""
    before = created.get("before")
    number = before.get("number") if isinstance(before, Mapping) else 0
    return number + 1 if isinstance(number, int) else 1


def _digests(document: Mapping[str, Any], state: bytes | None) -> dict[str, str]:
    kept = {} if state is None else {"state_sha256": bytes_digest(state)}
    return {"document_sha256": document_digest(document), **kept}
