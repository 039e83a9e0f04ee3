"""The outcome of an audit of one channel: the verdict, and the scores for the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from platform.experiment.planning import RunPlan
from platform.parties.profile import ClientProfile
from privacy import Release
from privacy.auditing import AuditError, AuditResult

Vector = NDArray[np.float64]


Progress = Callable[[str, int, int], None]
"""Gets the channel, and how many of how many canaries were sent."""


@dataclass(frozen=True, kw_only=True)
class ChannelGame:
    """One channel of a run under audit.

    Attributes:
        profile: The client that sends the canaries.
        charge: The ledger's row for the channel.
        canaries: Number of canaries that are judged.
        error: Probability that a correct build fails here.
    """

    run: RunPlan
    profile: ClientProfile
    charge: Release
    canaries: int
    error: float


@dataclass(frozen=True, kw_only=True)
class Game:
    """The outcome of a game that compares observations and makes no guesses.

    Attributes:
        channel: The game's name, in place of a channel's.
        words: Description of the game, with the names of its numbers in braces.
        reasons: One sentence for each contradiction.
    """

    channel: ClassVar[str]
    words: ClassVar[str]
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the game found no difference between clients."""
        return not self.reasons

    @property
    def played(self) -> str:
        """Description of the game."""
        return self.words.format(**asdict(self))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = {**asdict(self), "reasons": list(self.reasons)}
        return {"channel": self.channel, **facts, "passed": self.passed}


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelAudit:
    """The outcome of the audit of one channel.

    Attributes:
        channel: Where the vector leaves the client: sum, pool or training.
        scores: The game's scores, shape (m,), as `standardise` returns them.
        included: The secret coins, shape (m,).
        problems: The failures of the direct tests of the noise; empty if all passed.
    """

    channel: str
    mechanism: str
    result: AuditResult
    scores: Vector
    included: NDArray[np.bool_]
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the audit found no contradiction to the claim."""
        return self.result.passed and not self.problems

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each contradiction."""
        return (*self.result.reasons, *self.problems)

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "channel": self.channel,
            "mechanism": self.mechanism,
            **self.result.document(),
            "passed": self.passed,
            "reasons": list(self.reasons),
        }


def standardise(scores: Vector, *, threshold: float, distance: float, mu: float) -> Vector:
    """Scale scores (m,) so that the claim is two normal laws of deviation 1 with threshold 0.

    They are mu apart. The distance is that of the two expected scores; above the threshold the
    guess is "in".
    """
    return (scores - threshold) * (mu / distance)


def problems_of(checks: tuple[Callable[[], float], ...]) -> tuple[str, ...]:
    """Return one sentence for each check that failed."""
    found = []
    for check in checks:
        try:
            check()
        except AuditError as error:
            found.append(str(error))
    return tuple(found)
