"""Whether enough clients are left to open a sum, and who is to blame if not.

A client is left for a dealer if it holds that dealer's shares, is still there and has not said that
its box was unreadable. The server passes boxes on as they are, so a complaint is the fault of one
of the two. Where at most c clients are faulty, more than c complaints of one dealer, or more than c
dealers complained of by one client, decide between them; below that nobody is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from privacy.secure_aggregation.faults import TooFewLeft
from privacy.secure_aggregation.parameters import Phase, RoundParameters
from privacy.secure_aggregation.states import Complaints, Refusal


@dataclass(frozen=True)
class Standing:
    """What speaks against clients so far.

    Attributes:
        phase: Whose answers were collected last.
        refused: Messages not taken so far.
        complaints: By client that complained, the dealers whose shares it does not have.
    """

    phase: Phase
    refused: tuple[Refusal, ...]
    complaints: Complaints = field(default_factory=lambda: MappingProxyType({}))


def require_enough(
    parameters: RoundParameters,
    alive: Collection[int],
    standing: Standing,
    *,
    dealers: Collection[int],
) -> None:
    """Stop the round if a sum of those that are left would be too small or could not be opened.

    Args:
        parameters: The round.
        alive: The clients that answered.
        standing: What speaks against others.
        dealers: The clients whose secrets may be needed.

    Raises:
        TooFewLeft: With the phase and the clients to blame.
    """
    require_threshold(alive, standing, least=parameters.least_survivors)
    require_holders(parameters, alive, standing, dealers=dealers)


def require_threshold(alive: Collection[int], standing: Standing, *, least: int) -> None:
    """Stop the round if fewer than `least` clients answered.

    Raises:
        TooFewLeft: With the phase and the clients to blame.
    """
    if len(alive) < least:
        raise TooFewLeft(
            f"{len(alive)} valid answers came at phase {standing.phase.value!r}; "
            f"the threshold is {least}",
            phase=standing.phase,
            culprits=(each.client for each in standing.refused),
        )


def require_holders(
    parameters: RoundParameters,
    alive: Collection[int],
    standing: Standing,
    *,
    dealers: Collection[int],
) -> None:
    """Stop the round if some dealer's secrets could not be rebuilt by those that are left.

    Raises:
        TooFewLeft: With the phase and the clients to blame.
    """
    # On the complete graph everybody holds shares of everybody, so only complaints matter.
    if not parameters.degree and not standing.complaints:
        return
    present, without = frozenset(alive), defaultdict[int, set[int]](set)
    for client, withheld in standing.complaints.items():
        for dealer in withheld:
            without[dealer].add(client)
    for dealer in dealers:
        left = len(present.intersection(parameters.holders(dealer)) - without[dealer])
        if left < parameters.threshold:
            blamed = blame(parameters, standing.complaints)
            raise TooFewLeft(
                f"{left} holders of shares of client {dealer} are left at phase "
                f"{standing.phase.value!r}; the threshold is {parameters.threshold}",
                phase=standing.phase,
                culprits=(*(each.client for each in standing.refused), *blamed),
            )


def blame(parameters: RoundParameters, complaints: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return who must be at fault for these complaints, if at most `corrupt` clients are.

    Among semi-honest parties nobody lies and `corrupt` counts something else, but a client that
    can read hardly any box is more likely broken than all its dealers: complaints of most dealers
    count against their author there too.

    Args:
        parameters: The round.
        complaints: By client that complained, the dealers that it complains of.

    Returns:
        The clients named; never an honest one in an active round with at most c liars.
    """
    most = {client: len(parameters.holders(client)) // 2 for client in complaints}
    authors = {c for c, each in complaints.items() if len(each) > max(parameters.corrupt, most[c])}
    of_dealer = Counter(d for c, each in complaints.items() if c not in authors for d in each)
    return authors | {d for d, count in of_dealer.items() if count > parameters.corrupt}
