"""Adapter: privacy loss distributions (Doroshenko et al. 2022) as computed by dp_accounting.

Convention: `PLDAccountant` takes noise relative to C *and* the relation, and doubles the
sensitivity itself under REPLACE_ONE. Its discretisation rounds losses up, so the result is a bound.
"""

from __future__ import annotations

from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from privacy.accounting.composition import Composition
from privacy.accounting.dp_events import compose_all
from privacy.errors import UnsupportedEvent

_RELATIONS = {
    "replace_one": NeighboringRelation.REPLACE_ONE,
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
}

SMALLEST_NOISE = 0.02
"""Over C. At 0.05 ten releases take a minute; time and memory grow with the inverse square."""


def epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by privacy loss distributions.

    Args:
        composition: What was charged; all of it noised.
        delta: Strictly between 0 and 1.

    Returns:
        An upper bound on epsilon, within about 1e-4 times the root of the number of terms.

    Raises:
        UnsupportedEvent: dp_accounting refuses a term; its reason is in the message.
    """
    if composition.integer_terms:
        # dp_accounting would say so too, in words that name its own types only.
        raise UnsupportedEvent("PLDAccountant refuses concentrated DP, which prices integer noise")
    if composition.fixed_size_terms:
        raise UnsupportedEvent("PLDAccountant refuses cohorts of fixed size")
    if min(term.noise_to_clip for term in composition.terms) < SMALLEST_NOISE:
        raise UnsupportedEvent(
            f"PLDAccountant takes gigabytes at noise below {SMALLEST_NOISE:g} of the clipping norm"
        )
    accountant = PLDAccountant(_RELATIONS[composition.relation])
    compose_all(accountant, composition, 1.0)
    return float(accountant.get_epsilon(delta))
