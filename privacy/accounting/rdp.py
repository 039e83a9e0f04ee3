"""Adapter: Renyi differential privacy (Mironov 2017) as computed by dp_accounting.

Convention: `RdpAccountant` reads a Gaussian event's multiplier as noise over *sensitivity* under
every relation and never doubles anything, so under replace_one it is handed sd / (2C). The relation
is passed along all the same: it is how the accountant knows to refuse Poisson sampling there.
"""

from __future__ import annotations

from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from privacy.accounting._events import compose_all
from privacy.accounting.composition import Composition

_CONVENTIONS = {
    "replace_one": (NeighboringRelation.REPLACE_ONE, 2.0),
    "add_or_remove_one": (NeighboringRelation.ADD_OR_REMOVE_ONE, 1.0),
}


def epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by Renyi divergences at dp_accounting's default orders.

    Args:
        composition: What was charged; all of it noised.
        delta: Strictly between 0 and 1.

    Returns:
        An upper bound on epsilon, looser than `pld`.

    Raises:
        UnsupportedEvent: dp_accounting refuses a term; its reason is in the message.
    """
    relation, sensitivity = _CONVENTIONS[composition.relation]
    accountant = RdpAccountant(neighboring_relation=relation)
    compose_all(accountant, composition, sensitivity)
    return float(accountant.get_epsilon(delta))
