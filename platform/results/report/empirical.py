"""The lower bounds on epsilon that audits and canaries measured, if there were any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from platform.errors import ConfigError
from platform.experiment.caveats import lower_text
from platform.results.report.blocks import Basis, Block, Figure, Piece, Section, paragraph, table
from platform.results.report.spending import prices_alone
from platform.results.report.subject import Subject

TOLERANCE = 1e-6
"""Relative: two versions of a numerical library may differ in the last digits of a price."""
Word = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class SeenChannel(BaseModel):
    """The audit of one channel as its file states it, and the claim that it tried to refute.

    `power` is the probability that the audit notices noise that is half as large.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    channel: Literal["sum", "pool", "training"]
    mechanism: Word
    unit: Literal["client", "record"]
    epsilon_lower_bound_95: NotNegative
    claimed_epsilon: NotNegative
    delta: Share
    canaries: Annotated[int, Field(ge=1)]
    power: Share
    passed: bool


class SeenGame(BaseModel):
    """The verdict on offers, folders, clients that fail, or hostile peers."""

    model_config = ConfigDict(strict=True, frozen=True)

    channel: Literal["offers", "folders", "failures", "peers"]
    passed: bool


_FILE: TypeAdapter[list[SeenChannel | SeenGame]] = TypeAdapter(list[SeenChannel | SeenGame])
_VALID: Final = "valid is what `audit-privacy CONFIG --json` prints"


def read_audit(path: Path) -> tuple[SeenChannel, ...]:
    """Return the channels of an audit in a file that `audit-privacy --json` wrote."""
    try:
        found = _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--audit: {str(path)!r} cannot be read ({error.strerror}); {_VALID}"
        ) from error
    except ValidationError as error:
        raise ConfigError(f"--audit: {str(path)!r} is not valid; {_VALID}") from error
    channels = [one for one in found if isinstance(one, SeenChannel)]
    if not channels:
        raise ConfigError(f"--audit: {str(path)!r} is of no channel; {_VALID}")
    # An attacker who tells folders or failing clients apart does so on every channel.
    alike = all(one.passed for one in found if isinstance(one, SeenGame))
    return tuple(one.model_copy(update={"passed": one.passed and alike}) for one in channels)


def empirical_section(subject: Subject, seen: Sequence[SeenChannel]) -> Section:
    """Return the measured lower bounds with their power, or say that there was no audit."""
    found = None if subject.summary is None else subject.summary.get("canaries")
    blocks: list[Block] = []
    if found is not None:
        basis = subject.stated("canaries")
        verdict = "BLIND" if found["is_blind"] else "not refuted"
        if found["is_above_claim"]:
            verdict = "REFUTED" if found["is_refuted"] else "ABOVE THE CLAIM"
        blocks += [
            paragraph(
                f"{found['canaries']} clients of this run were canaries of an audit. Each had a "
                f"secret coin and one of {found['directions']} secret directions among "
                f"{found['dimension']}, fixed before the first round. Canaries are protected and "
                "charged like every other client, but do not count in means, smallest sums or "
                "claimed noise. The lower bound is for the whole run and follows from its final "
                "model. It exceeds the true epsilon at most one time in twenty, if noise is "
                "normal. The ceiling is the average result for as many canaries in a run that is "
                "exactly as claimed; more noise than claimed, and other clients' uploads, lower "
                "the bound. An audit can refute a claim, but cannot prove one."
            ),
            table(
                "What canaries saw of the whole run",
                (
                    *("Canaries", "Lower bound, 95%", "Share of the claim"),
                    *("Ceiling", "Claimed", "Verdict"),
                ),
                [
                    (
                        basis.count(found["canaries"]),
                        Figure(lower_text(found["lower_bound"]), found["lower_bound"], basis),
                        basis.share(found["share"]),
                        Figure(lower_text(found["ceiling"]), found["ceiling"], basis),
                        basis.epsilon(found["claimed"]),
                        verdict,
                    )
                ],
            ),
        ]
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
            table(
                "What the audit saw of one release",
                ("Channel", "Canaries", "Lower bound", "Claimed", "Power", "Verdict"),
                map(_seen_cells, seen),
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


def _seen_cells(one: SeenChannel) -> tuple[Piece, ...]:
    basis = Basis(
        what=f"an audit of one release on channel {one.channel}, as its file states it",
        check="sotto audit-privacy CONFIG --json",
    )
    bound = one.epsilon_lower_bound_95
    return (
        one.channel,
        basis.count(one.canaries),
        Figure(lower_text(bound), bound, basis),
        basis.epsilon(one.claimed_epsilon),
        basis.share(one.power),
        "not refuted" if one.passed else "REFUTED",
    )


class OtherClaim(ValueError):
    """The audit tested another claim than the run makes."""


def require_same_claim(subject: Subject, seen: Sequence[SeenChannel]) -> None:
    """Refuse an audit (`OtherClaim`) of another claim than the run's releases make."""
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
        claimed = one.claimed_epsilon
        if not any(math.isclose(claimed, price, rel_tol=TOLERANCE) for price in prices):
            raise OtherClaim(
                f"one release on channel {one.channel} claims epsilon {claimed:.6g} there, and no "
                "release of the run does"
            )
