"""Aborts that say at which phase the round stopped and on whose account."""

from __future__ import annotations

from collections.abc import Iterable

from privacy.errors import InvalidShare, ThresholdNotMet
from privacy.secure_aggregation.parameters import Phase


class TooFewLeft(ThresholdNotMet):
    """Fewer clients are left than the threshold needs, so the sum stays masked.

    Attributes:
        phase: Where too few answered.
        culprits: The clients whose messages were refused so far; those who said nothing are
            missing here.
    """

    def __init__(self, message: str, *, phase: Phase, culprits: Iterable[int] = ()) -> None:
        """Keep phase and culprits beside the sentence."""
        self.culprits = tuple(sorted(set(culprits)))
        super().__init__(message + _blame(self.culprits), phase=phase)


class FaultyShares(InvalidShare):
    """Shares do not rebuild what their dealer published, so the sum stays masked.

    Attributes:
        phase: Always unmasking.
        culprits: Against an active adversary, the dealers and holders that lied; between a dealer
            and the holders that say they got nothing usable from it, the server cannot tell.
    """

    def __init__(self, message: str, *, culprits: Iterable[int] = ()) -> None:
        """Keep phase and culprits beside the sentence."""
        self.phase = Phase.UNMASKING
        self.culprits = tuple(sorted(set(culprits)))
        super().__init__(f"{message}, at phase {self.phase.value!r}{_blame(self.culprits)}")


def _blame(culprits: tuple[int, ...]) -> str:
    return f" (refused or faulty: {', '.join(map(str, culprits))})" if culprits else ""
