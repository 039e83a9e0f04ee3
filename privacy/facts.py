"""What a mechanism's name means in a ledger: facts that each mechanism declares and pricing reads.

Whoever prices a release asks these facts and never the name, so that a mechanism that is added is
priced by what it does. A name without facts cannot be in a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from privacy._validate import require_member

Unit = Literal["client", "record"]

UNITS: tuple[str, ...] = get_args(Unit)


@dataclass(frozen=True, kw_only=True)
class MechanismFacts:
    """What a ledger row of one mechanism means. Nothing has a default: all of it is declared.

    Attributes:
        name: The word in the ledger.
        unit: Whom its epsilon is about; None where it claims none, as there is no noise.
        is_in_steps: Whether the noise is in the local steps, of which all that a client sends is
            computed: each row is charged against everybody, on whatever channel, and Poisson
            batches amplify.
        is_shared_out: Whether each client adds a share of the noise and only the sum has enough
            of it: a peer knows its own share, and nothing but sums is protected.
        is_bare_to_server: Whether the noise is added after the server has seen what is released.
        may_amplify: Whether cohorts that are drawn in secret may amplify a sum.
        keeps_state: Whether noise depends on noise that was drawn before: what protects one release
            hands a state on to the next of the same run.
    """

    name: str
    unit: Unit | None
    is_in_steps: bool
    is_shared_out: bool
    is_bare_to_server: bool
    may_amplify: bool
    keeps_state: bool

    def __post_init__(self) -> None:
        """Refuse facts that contradict each other; each would make a number too small."""
        if not self.name.isidentifier():
            raise ValueError(f"name is {self.name!r}; it must be one word")
        if self.unit is not None:
            require_member(UNITS, unit=self.unit)
        kinds = (self.is_in_steps, self.is_shared_out, self.is_bare_to_server)
        if sum(kinds) > (self.unit is not None):
            raise ValueError(
                f"{self.name}: noise is in the steps, shared out, or added after the server saw "
                "the sum, at most one of them, and none where nothing is claimed"
            )
        if self.is_in_steps != (self.unit == "record"):
            # Clipping and noise for single records are built into training and nowhere else.
            raise ValueError(f"{self.name}: unit must be 'record' exactly where is_in_steps")
        if self.may_amplify and not self.is_bare_to_server:
            # Who sends is known to the server; only what follows the sum can hide the draw.
            raise ValueError(f"{self.name}: may_amplify needs is_bare_to_server")

    @property
    def claims(self) -> bool:
        """Whether it claims any epsilon."""
        return self.unit is not None

    @property
    def noises_alone(self) -> bool:
        """Whether what one client sends has all the noise, whoever looks at it alone."""
        return not (self.is_shared_out or self.is_bare_to_server)
