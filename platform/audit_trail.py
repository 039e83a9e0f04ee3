"""What the coordinator writes into the audit log, in one place, so that it can be read as a whole.

An entry names pseudonyms at most; never a pool handle, an entry, which experts were served, a
vector, a size or a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from platform.attempt import RoundOutcome, RoundPlan
from platform.errors import RoundAborted
from privacy import Release
from storage.audit import AuditRepository

COORDINATOR = "coordinator"


@dataclass(frozen=True)
class AuditTrail:
    """Writes one run's entries."""

    log: AuditRepository
    run_id: str

    def run_created(
        self, config_digest: str, enrolment: str | None = None, phase_two_of: str | None = None
    ) -> None:
        """A run was set up, with its enrolment's fingerprint, and whose second phase it is."""
        facts = {"enrolment": enrolment, "phase_two_of": phase_two_of}
        known = {name: value for name, value in facts.items() if value is not None}
        self._append("run.created", detail={"config_sha256": config_digest, **known})

    def run_begins(self, completed: int) -> None:
        """A run starts, or goes on after some committed rounds."""
        action = "run.resumed" if completed else "run.started"
        self._append(action, detail={"completed_rounds": completed})

    def run_ended(self, status: str, reason: str | None) -> None:
        """A run finished, or stopped for a reason."""
        self._append(f"run.{status}", detail={"reason": reason} if reason else {})

    def reserved(self, releases: Sequence[Release]) -> None:
        """A round's spend is in the ledger; one entry a channel."""
        for channel in sorted({release.channel for release in releases}):
            of_channel = [release for release in releases if release.channel == channel]
            first = of_channel[0]
            self._append(
                "release.reserved",
                round_number=first.round_number,
                channel=channel,
                detail={
                    "attempt": first.attempt,
                    "clients": len(of_channel),
                    "clipping_norm": first.clipping_norm,
                    "mechanism": first.mechanism,
                    "relation": first.relation,
                    "standard_deviation": first.standard_deviation,
                    **_particulars(first),
                },
            )

    def round_opened(self, plan: RoundPlan) -> None:
        """Invitations are about to go out."""
        detail = {"attempt": plan.attempt, "cohort": len(plan.cohort)}
        self._append("round.opened", round_number=plan.round_number, detail=detail)

    def round_aborted(self, plan: RoundPlan, error: RoundAborted) -> None:
        """A round ended without a result."""
        detail = {
            "attempt": plan.attempt,
            "charged": error.uploads_asked,
            "phase": error.phase,
        }
        self._append("round.aborted", round_number=plan.round_number, detail=detail)

    def round_committed(self, plan: RoundPlan, outcome: RoundOutcome) -> None:
        """A round's result is kept."""
        number, attempt = plan.round_number, plan.attempt
        survivors = len(outcome.survivors)
        detail = {"attempt": attempt, "survivors": survivors}
        channel = "pool" if plan.collects else "sum"
        self._append("round.committed", round_number=number, channel=channel, detail=detail)
        if outcome.entries:
            detail = {"attempt": attempt, "entries": len(outcome.entries)}
            self._append("pool.committed", round_number=number, channel="pool", detail=detail)
        if outcome.entries_void is not None:
            voided = {"attempt": attempt, "reason": outcome.entries_void}
            self._append("pool.discarded", round_number=number, channel="pool", detail=voided)

    def round_lost(self, plan: RoundPlan, reason: str) -> None:
        """A round stays without a result."""
        detail = {"attempt": plan.attempt, "reason": reason}
        self._append("round.lost", round_number=plan.round_number, detail=detail)

    def exported(self, what: str) -> None:
        """Trained prompts were written to a file."""
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


def _particulars(release: Release) -> dict[str, Any]:
    """What else a price depends on, where it is not the plain case."""
    found: dict[str, Any] = {}
    if release.count > 1:
        found["count"] = release.count
    if release.sampling != "none":
        found |= {"sampling": release.sampling, "probability": release.sampling_probability}
    if release.integer_noise is not None:
        found |= {"noise": release.integer_noise.kind, "shares": release.integer_noise.shares}
    if release.cohort is not None:
        found |= {"cohorts": release.cohort.kind, "size": release.cohort.size}
    return found
