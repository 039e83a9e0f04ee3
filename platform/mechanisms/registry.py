"""The mechanisms that a run may be configured with: a closed list, which an argument may extend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from platform.mechanisms.central_noise import CENTRAL_NOISE
from platform.mechanisms.distributed_noise import DISTRIBUTED_NOISE
from platform.mechanisms.dp_sgd import DP_SGD
from platform.mechanisms.mechanism import Mechanism
from platform.mechanisms.none import NONE
from platform.mechanisms.upload_noise import UPLOAD_NOISE
from privacy import MechanismFacts, UnknownMechanism


@dataclass(frozen=True)
class Mechanisms:
    """Mechanisms by their names.

    Attributes:
        all: The mechanisms, in the order in which sentences list them.
    """

    all: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        """Refuse two mechanisms of one name: a ledger row could mean either."""
        if len(set(self.names)) != len(self.all):
            raise ValueError(f"two mechanisms have one name: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(mechanism.name for mechanism in self.all)

    def __iter__(self) -> Iterator[Mechanism]:
        """Yield all of them."""
        return iter(self.all)

    def named(self, name: str) -> Mechanism:
        """Return the mechanism of this name, or `UnknownMechanism`."""
        for mechanism in self.all:
            if mechanism.name == name:
                return mechanism
        raise UnknownMechanism(f"mechanism is {name!r}; valid are {', '.join(self.names)}")

    def facts_of(self, name: str) -> MechanismFacts:
        """Return the meaning of a ledger row of this name; `UnknownMechanism` has no price."""
        return self.named(name).facts

    def claims_nothing(self, name: object) -> bool:
        """Return whether this is the name of a mechanism without noise."""
        return any(m.name == name and not m.facts.claims for m in self.all)

    def adding(self, *mechanisms: Mechanism) -> Mechanisms:
        """Return these mechanisms and others, whose names must be new."""
        return Mechanisms((*self.all, *mechanisms))


BUILT_IN = Mechanisms((NONE, DP_SGD, UPLOAD_NOISE, DISTRIBUTED_NOISE, CENTRAL_NOISE))
"""The mechanisms of this package. A configuration can name only mechanisms that are listed."""
