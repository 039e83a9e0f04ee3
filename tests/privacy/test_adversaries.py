"""Each adversary is charged for what it sees, and the worst client speaks for the run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from privacy.accounting import epsilon, epsilons
from privacy.errors import UnsupportedEvent
from privacy.events import MechanismFacts, Release
from privacy.mechanisms import NoProtection, UploadNoise
from tests.privacy._rows import FACTS, release_of

NOISE = UploadNoise(clipping_norm=0.5, noise_multiplier=4.0)
DELTA = 1e-5


def row(pseudonym: str, **changes: Any) -> Release:
    fields = {"channel": "sum", "run_id": "r", "round_number": 1, "attempt": 0}
    return release_of(changes.pop("mechanism", NOISE), pseudonym=pseudonym, **fields | changes)


def cost(*releases: Release) -> float:
    return epsilon(releases, DELTA).epsilon


def test_one_noised_vector_for_sum_and_pool_is_one_charge_for_all() -> None:
    result = epsilons([row("a")], DELTA)
    assert result.server == result.peers == result.observer == cost(row("a"))
    assert result.accountant == "exact"


def test_metrics_do_not_reach_the_observer() -> None:
    ledger = [row("a"), row("a", channel="metrics")]
    result = epsilons(ledger, DELTA)
    assert result.server == result.peers == cost(*ledger) > cost(row("a"))
    assert result.observer == cost(row("a"))


def test_pool_entries_reach_the_observer() -> None:
    # An entry becomes an expert; what others train beside it is in the final parameters.
    ledger = [row("a"), row("a", channel="pool")]
    result = epsilons(ledger, DELTA)
    assert result.server == result.peers == result.observer == cost(*ledger) > cost(row("a"))


def test_the_maximum_is_over_clients_and_not_their_sum() -> None:
    ledger = [row("a"), row("b"), row("b", round_number=2), row("c")]
    assert epsilons(ledger, DELTA).server == cost(row("b"), row("b", round_number=2))


def test_the_worst_client_may_differ_by_adversary() -> None:
    ledger = [row("a"), row("b", channel="metrics"), row("b", channel="metrics", round_number=2)]
    result = epsilons(ledger, DELTA)
    assert result.server == cost(row("b"), row("b"))
    assert result.observer == cost(row("a"))


def test_a_retry_is_charged_and_an_unsent_attempt_is_not() -> None:
    retried = [row("a", status="aborted"), row("a", attempt=1)]
    assert epsilons(retried, DELTA).server == cost(row("a"), row("a"))


def test_none_is_infinite_for_who_sees_it_and_nothing_released_is_zero() -> None:
    bare = NoProtection(8.0)
    everything = epsilons([row("a", mechanism=bare)], DELTA)
    assert everything.server == everything.peers == everything.observer == math.inf
    assert everything.claimed == math.inf
    metrics_only = epsilons([row("a"), row("b", mechanism=bare, channel="metrics")], DELTA)
    assert metrics_only.server == metrics_only.peers == metrics_only.claimed == math.inf
    assert metrics_only.observer == cost(row("a"))
    pool_only = epsilons([row("a"), row("b", mechanism=bare, channel="pool")], DELTA)
    assert pool_only.observer == math.inf
    nothing = epsilons([], DELTA)
    assert (nothing.server, nothing.peers, nothing.observer, nothing.claimed) == (0.0,) * 4
    assert nothing.accountant == "exact"


@pytest.mark.parametrize("mechanism", [FACTS["upload_noise"], FACTS["central_noise"]])
def test_coins_for_records_amplify_no_client(mechanism: MechanismFacts) -> None:
    fields = {name: getattr(row("a"), name) for name in Release.__dataclass_fields__}
    sampled = {"mechanism": mechanism, "sampling": "poisson", "sampling_probability": 0.1}
    with pytest.raises(UnsupportedEvent, match="amplifies nothing"):
        epsilons([Release(**fields | sampled)], DELTA)
