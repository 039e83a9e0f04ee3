"""Adapter: Renyi differential privacy (Mironov 2017) as computed by dp_accounting.

Convention: `RdpAccountant` reads a Gaussian event's multiplier as noise over *sensitivity* under
every relation and never doubles anything, so under replace_one it is handed sd / (2C). The relation
is passed along all the same: it is how the accountant knows to refuse Poisson sampling there, and
cohorts of fixed size under add_or_remove_one. Those it bounds under replace_one by Theorem 27 of
Wang, Balle and Kasiviswanathan 2019.
"""

from __future__ import annotations

from dp_accounting import NeighboringRelation, ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from privacy.accounting import integer
from privacy.accounting.composition import Composition, FixedSizeTerm
from privacy.accounting.dp_events import compose_all
from privacy.errors import UnsupportedEvent

_CONVENTIONS = {
    "replace_one": (NeighboringRelation.REPLACE_ONE, 2.0),
    "add_or_remove_one": (NeighboringRelation.ADD_OR_REMOVE_ONE, 1.0),
}

_FINE_ORDERS = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (step / 4)) for step in range(41)),
)
"""dp_accounting's own orders and a finer row from 64 to 65,536, for bounds that cost nothing."""


_FIXED_SIZE_NOISE = (1e-6, 1e3)
"""Over sensitivity. In between dp_accounting's alternating sums of the theorem on cohorts of fixed
size undercut it by less than 1e-8; below they overflow, and from 5,000 on they lose their digits.
"""


def epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by Renyi divergences at dp_accounting's default orders.

    Args:
        composition: What was charged; all of it noised.
        delta: Strictly between 0 and 1.

    Returns:
        An upper bound on epsilon, looser than `pld`.

    Raises:
        UnsupportedEvent: dp_accounting refuses a term, its reason is in the message; or it would
            be inaccurate, as for a cohort of fixed size with very little or very much noise.
    """
    relation, sensitivity = _CONVENTIONS[composition.relation]
    for term in composition.fixed_size_terms:
        _require_accurate(term, sensitivity)
    if composition.integer_terms:
        return _epsilon_of_integers(composition, delta)
    accountant = RdpAccountant(neighboring_relation=relation)
    compose_all(accountant, composition, sensitivity)
    return float(accountant.get_epsilon(delta))


def _require_accurate(term: FixedSizeTerm, sensitivity: float) -> None:
    low, high = _FIXED_SIZE_NOISE
    if not low <= term.noise_to_clip / sensitivity <= high:
        raise UnsupportedEvent(
            f"RdpAccountant bounds cohorts of fixed size for noise from {low:g} to {high:g} times "
            f"the sensitivity only, not {term.noise_to_clip / sensitivity:g}"
        )


def _epsilon_of_integers(composition: Composition, delta: float) -> float:
    relation, sensitivity = _CONVENTIONS[composition.relation]
    whole = any(term.noise.name == "skellam" for term in composition.integer_terms)
    orders = [order for order in _FINE_ORDERS if not whole or order == int(order)]
    found = []
    # Each choice bounds every release, so the smaller epsilon holds.
    for line in integer.LINES:
        accountant = RdpAccountant(orders, relation)
        compose_all(accountant, composition, sensitivity)
        for term in composition.integer_terms:
            rho, xi = line(term, sensitivity)
            accountant.compose(ZCDpEvent(rho, xi), term.count)
        found.append(float(accountant.get_epsilon(delta)))
    return min(found)
