"""What the audit of one channel gave: the verdict, and the scores behind it for the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.auditing import AuditError, AuditResult

Vector = NDArray[np.float64]


class Progress(Protocol):
    """Told how far the audit has come."""

    def __call__(self, channel: str, done: int, total: int) -> None:
        """Take the channel and how many of its canaries were sent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Game:
    """The outcome of a game that compares observations; it makes no guesses.

    Attributes:
        channel: The game's name, in the place of a channel's.
        words: What was played, with the names of its numbers in braces.
        reasons: One sentence for each contradiction.
    """

    channel: ClassVar[str]
    words: ClassVar[str]
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing tells clients apart."""
        return not self.reasons

    @property
    def played(self) -> str:
        """What was played, in words."""
        return self.words.format(**asdict(self))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = {**asdict(self), "reasons": list(self.reasons)}
        return {"channel": self.channel, **facts, "passed": self.passed}


@dataclass(frozen=True, eq=False)
class Guesses:
    """Scores on the scale on which the claim is two normal laws of deviation 1, mu apart.

    Attributes:
        scores: Of shape (m,), 0 being the threshold: above it the guess is "in".
        included: Of shape (m,), the coins.
    """

    scores: Vector
    included: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelAudit:
    """What the audit of one channel gave.

    Attributes:
        channel: Where the vector leaves the client: sum, pool or training.
        mechanism: What protects it.
        result: Of the game.
        guesses: The game's scores.
        problems: What the direct tests of the noise found; empty where they passed.
    """

    channel: str
    mechanism: str
    result: AuditResult
    guesses: Guesses
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the claim."""
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
    """Bring scores to the scale of `Guesses`.

    Args:
        scores: Of shape (m,).
        threshold: Above it the guess is "in".
        distance: Between the two expected scores.
        mu: Of the claim.
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
