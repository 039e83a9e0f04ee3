"""The lower bounds on epsilon that audits and canaries measured, if there were any."""

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
"""Relative: two versions of a numerical library may differ in the last digits of a price."""


@dataclass(frozen=True, kw_only=True)
class SeenChannel:
    """The audit of one channel, and the claim that it tried to refute.

    Attributes:
        channel: Where the vector leaves the client: sum, pool or training.
        mechanism: The mechanism that protects the release.
        unit: The unit of privacy.
        epsilon: The claimed epsilon of one release.
        delta: Delta of all epsilons of the audit.
        lower_bound: The measured lower bound on epsilon, at 95%.
        canaries: Number of guesses.
        power: Probability that the audit notices noise that is half as large.
        passed: Whether the claim was not refuted.
    """

    channel: str
    mechanism: str
    unit: str
    epsilon: float
    delta: float
    lower_bound: float
    canaries: int
    power: float
    passed: bool


def empirical_section(subject: Subject, seen: Sequence[SeenChannel]) -> Section:
    """Return the measured lower bounds with their power, or say that there was no audit."""
    found = None if subject.summary is None else subject.summary.get("canaries")
    blocks: list[Block] = [] if found is None else [*_canaries(subject, found)]
    if seen:
        blocks += [
            paragraph(
                "An audit sent canaries through the code that protects clients, and guessed from "
                "the released numbers which canaries took part. The lower bound is for one "
                "release, not for the run. It exceeds the true epsilon at most one time in twenty, "
                "and is far below it if canaries are few. An audit can refute a claim, but cannot "
                "prove one. Power is the probability that the audit notices halved noise: if "
                "power is low, a claim that was not refuted says little."
            ),
            Table(
                "What the audit saw of one release",
                ("Channel", "Canaries", "Lower bound", "Claimed", "Power", "Verdict"),
                tuple(_row(one) for one in seen),
            ),
            paragraph(
                "The run's log does not hold the audit. That the audit used this run's "
                "configuration is the word of the person who made this document. The ledger "
                "claims the same epsilon for a release as the audit does."
            ),
        ]
    elif found is None:
        blocks.append(
            paragraph(
                "No audit is in the records of this run, so no empirical lower bound is stated. "
                "The epsilons are proofs about the mechanism, not measurements. "
                "`audit-privacy CONFIG --json` sends canaries through the code that protects "
                "clients; `report RUN --audit FILE` then shows the result here."
                if subject.facts.claims
                else "Nothing is claimed, so there is nothing to refute."
            )
        )
    return Section("empirical", "Empirical lower bound", tuple(blocks))


def _canaries(subject: Subject, found: Mapping[str, Any]) -> Iterator[Block]:
    basis = subject.stated("canaries")
    yield paragraph(
        f"{found['canaries']} clients of this run were canaries of an audit. Each had a secret "
        f"coin and one of {found['directions']} secret directions among {found['dimension']}, "
        "fixed before the first round. Canaries are protected and charged like every other "
        "client, but do not count in means, smallest sums or claimed noise. The lower bound is "
        "for the whole run and follows from its final model. It exceeds the true epsilon at most "
        "one time in twenty, if noise is normal. The ceiling is the average result for as many "
        "canaries in a run that is exactly as claimed; more noise than claimed, and other "
        "clients' uploads, lower the bound. An audit can refute a claim, but cannot prove one."
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
    return Figure(lower_text(value), value, basis)


def _row(one: SeenChannel) -> tuple[Words, ...]:
    basis = Basis(
        what=f"an audit of one release on channel {one.channel}, as its file states it",
        check="sotto audit-privacy CONFIG --json",
    )
    return (
        words(one.channel),
        words(Figure(str(one.canaries), one.canaries, basis)),
        words(_down(one.lower_bound, basis)),
        words(epsilon_figure(one.epsilon, basis)),
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
    """The audit tested another claim than the run makes."""


def require_same_claim(subject: Subject, seen: Sequence[SeenChannel]) -> None:
    """Check that an audit tested the claim that the run's releases make.

    Raises:
        OtherClaim: If not; the text names the first difference.
    """
    prices = [price for found in prices_alone(subject) for price in found.values()]
    for one in seen:
        stated = {
            "mechanism": (one.mechanism, subject.facts.name),
            "unit": (one.unit, subject.facts.unit or "none"),
            "delta": (f"{one.delta:g}", f"{subject.delta:g}"),
        }
        for name, (theirs, ours) in stated.items():
            if theirs != ours:
                raise OtherClaim(f"{name} is {theirs!r} there, and {ours!r} in the run")
        if not any(math.isclose(one.epsilon, price, rel_tol=TOLERANCE) for price in prices):
            raise OtherClaim(
                f"one release on channel {one.channel} claims epsilon {one.epsilon:.6g} there, "
                "and no release of the run does"
            )
