"""What an attack on the real code has seen of the claim, where one was made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from platform.experiment.caveats import lower_text
from platform.reports.blocks import (
    Basis,
    Block,
    Figure,
    Section,
    Table,
    Words,
    paragraph,
    share_text,
    words,
)
from platform.reports.spending import prices_alone
from platform.reports.subject import Subject, epsilon_figure

TOLERANCE = 1e-6
"""Relative: another version of a numerical library may price the last digits otherwise."""


@dataclass(frozen=True, kw_only=True)
class AuditedClaim:
    """What was to be refuted.

    Attributes:
        mechanism: What protects the release.
        unit: Whose presence the canaries stand for.
        epsilon: Of one release, at delta.
        delta: Of all epsilons of the audit.
    """

    mechanism: str
    unit: str
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class SeenChannel:
    """What the audit of one channel gave.

    Attributes:
        channel: Where the vector leaves the client: sum, pool or training.
        claim: What was to be refuted there.
        lower_bound: On epsilon, at 95%.
        canaries: Guessed coins.
        power: Probability that halved noise would have been noticed.
        passed: Whether nothing contradicts the claim.
    """

    channel: str
    claim: AuditedClaim
    lower_bound: float
    canaries: int
    power: float
    passed: bool


def empirical_section(subject: Subject, seen: Sequence[SeenChannel]) -> Section:
    """Return the empirical lower bound with its power, or the statement that no audit was made."""
    found = None if subject.summary is None else subject.summary.get("canaries")
    blocks: list[Block] = [] if found is None else [*_canaries(subject, found)]
    if seen:
        blocks += _audited(seen)
    elif found is None:
        blocks.append(
            paragraph(
                "No audit is in the records of this run, so no empirical lower bound is stated: "
                "the epsilons are proofs about the mechanism as it is written, not measurements "
                "of it. `audit-privacy CONFIG --json` plays canaries against the code that "
                "protects clients; `report RUN --audit FILE` then shows here what it saw."
                if subject.facts.claims
                else "Nothing is claimed, so there is nothing to refute."
            )
        )
    return Section("empirical", "Empirical lower bound", tuple(blocks))


def _audited(seen: Sequence[SeenChannel]) -> Iterator[Block]:
    yield paragraph(
        "An audit played canaries against the code that protects clients, and guessed from what "
        "left. The lower bound is on one release, not on the run: above the truth at most one time "
        "in twenty, and far below it where canaries are few. It proves no privacy; it can only "
        "refute some. Power is the probability with which halved noise would have been noticed: "
        "where that is low, a claim that was not refuted says little."
    )
    yield Table(
        "What the audit saw of one release",
        ("Channel", "Canaries", "Lower bound", "Claimed", "Power", "Verdict"),
        tuple(_row(one) for one in seen),
    )
    yield paragraph(
        "The audit is not in the run's log: that it was made of this run's configuration is the "
        "word of whoever made this document. What it claims per release is what the ledger claims."
    )


def _canaries(subject: Subject, found: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the bound that canaries measured in this run, and the most that they could measure."""
    basis = subject.stated("canaries")
    yield paragraph(
        f"{found['canaries']} clients of this run were canaries of an audit, with secret coins and "
        f"{found['directions']} secret directions among {found['dimension']}, fixed before the "
        "first round. They went through all that protects clients, were charged as everybody is, "
        "and count in no mean, smallest sum or claimed noise. The lower bound is on the whole run, "
        "by what its final model shows: above the truth at most one time in twenty, if noise is "
        "normal. The ceiling is what a run that is exactly as claimed shows on average to as many "
        "canaries; noise beyond what is claimed, and what other clients upload, lower the bound. "
        "It proves no privacy; it can only refute some."
    )
    verdict = "BLIND" if found["is_blind"] else "not refuted"
    if found["is_above_claim"]:
        verdict = "REFUTED" if found["is_refuted"] else "ABOVE THE CLAIM"
    yield Table(
        "What canaries saw of the whole run",
        ("Canaries", "Lower bound, 95%", "Share of the claim", "Ceiling", "Claimed", "Verdict"),
        (
            (
                words(Figure(str(found["canaries"]), found["canaries"], basis)),
                words(_down(found["lower_bound"], basis)),
                words(Figure(share_text(found["share"]), found["share"], basis)),
                words(_down(found["ceiling"], basis)),
                words(epsilon_figure(found["claimed"], basis)),
                words(verdict),
            ),
        ),
    )


def _down(value: float, basis: Basis) -> Figure:
    """Return a lower bound, rounded to its side."""
    return Figure(lower_text(value), value, basis)


def _row(one: SeenChannel) -> tuple[Words, ...]:
    basis = Basis(
        what=f"an audit of one release on channel {one.channel}, as its file states it",
        check="python -m platform.coordinator audit-privacy CONFIG --json",
    )
    return (
        words(one.channel),
        words(Figure(str(one.canaries), one.canaries, basis)),
        words(_down(one.lower_bound, basis)),
        words(epsilon_figure(one.claim.epsilon, basis)),
        words(Figure(share_text(one.power), one.power, basis)),
        words("not refuted" if one.passed else "REFUTED"),
    )


def refuted(seen: Sequence[SeenChannel]) -> Iterator[str]:
    """Yield one warning for each claim that an audit has refuted."""
    for one in seen:
        if not one.passed:
            yield (
                f"an audit has refuted the claim on channel {one.channel}: the epsilons of this "
                "document do not hold"
            )


class OtherClaim(ValueError):
    """An audit is of another claim than the run's."""


def require_same_claim(subject: Subject, seen: Sequence[SeenChannel]) -> None:
    """Check that an audit tested the same claim as the run's releases make.

    Raises:
        OtherClaim: Naming the first difference.
    """
    prices = [price for found in prices_alone(subject) for price in found.values()]
    for one in seen:
        stated = {
            "mechanism": (one.claim.mechanism, subject.facts.name),
            "unit": (one.claim.unit, subject.facts.unit or "none"),
            "delta": (f"{one.claim.delta:g}", f"{subject.delta:g}"),
        }
        for name, (theirs, ours) in stated.items():
            if theirs != ours:
                raise OtherClaim(f"{name} is {theirs!r} there, and {ours!r} in the run")
        claimed = one.claim.epsilon
        if not any(math.isclose(claimed, price, rel_tol=TOLERANCE) for price in prices):
            raise OtherClaim(
                f"one release on channel {one.channel} claims epsilon {claimed:.6g} there, "
                "and no release of the run does"
            )
