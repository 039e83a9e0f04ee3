"""What a run's masked sums withstand, from its configuration, and sums on the k-regular graph."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.config import RunConfig, parse_config
from platform.errors import ConfigError
from platform.parties.identities import client_names
from platform.protection.building import protect_run
from platform.protection.sums import SecureTerms, meets, secure_terms
from platform.rounds.attempts import Attempts, Spending
from platform.rounds.observing import SilentObserver
from privacy import DistributedNoise
from privacy.secure_aggregation import Adversary, RoundParameters, plan
from tests.trunk._runs import opened
from tests.trunk._seams import overrides, seam_storage
from tests.trunk._secure import Numbered, cohort

LARGE = 66
"""The smallest cohort for which `secagg-plan` prefers the k-regular graph by a margin of one."""


def configured(clients: int, *, cohort: dict[str, Any] | None = None, **section: Any) -> RunConfig:
    tree = {"name": "c", "method": {"name": "coop"}, "training": {"local_steps": 1}}
    sections = {"task": {"clients": clients}, "cohort": cohort or {}}
    return parse_config({**tree, **sections, "secure_aggregation": {"enabled": True, **section}})


ACTIVE = {"adversary": "active", "enrolment": "enrolment.json"}


@pytest.mark.parametrize(
    ("clients", "cohort", "section", "expected"),
    [
        # floor(2n/3) + 1, and a sum holds at least as many.
        (10, {}, {}, (7, 7, 0)),
        (10, {"minimum": 5}, {"threshold": 3}, (3, 5, 0)),
        (10, {"size": 6}, {"corrupt": 4}, (5, 5, 4)),
        # 2t > n + c.
        (10, {}, ACTIVE, (7, 7, 0)),
        (10, {}, {**ACTIVE, "threshold": 6}, (6, 6, 0)),
        (10, {}, {**ACTIVE, "threshold": 8, "corrupt": 5}, (8, 8, 5)),
    ],
)
def test_the_complete_graph_by_hand(clients, cohort, section, expected):
    found = secure_terms(configured(clients, cohort=cohort, **section))
    assert (found.threshold, found.smallest_sum, found.corrupt) == expected
    assert found.degree == 0
    assert found.clients == cohort.get("size", clients)
    assert found.active == ("adversary" in section)


@pytest.mark.parametrize("corrupt", [0, 7])
def test_a_large_cohort_has_the_planned_graph(corrupt: int) -> None:
    """What `secagg-plan` prints for this rate is what the run takes; the count is exact."""
    found = secure_terms(configured(100, corrupt=corrupt))
    planned = plan(100, corrupt_rate=corrupt / 100, dropout_rate=0.1)
    terms = {"threshold": planned.threshold, "corrupt": corrupt, "degree": planned.degree}
    expected = SecureTerms(clients=100, active=False, smallest_sum=90, **terms)
    assert found == expected and 0 < found.degree < 99


@pytest.mark.parametrize(("clients", "corrupt"), [(70, 3), (69, 11), (83, 7)])
def test_as_many_may_collude_as_are_configured(clients: int, corrupt: int) -> None:
    """No rounding of a rate may lose one, though c / n x n is below c for most of these."""
    assert secure_terms(configured(clients, corrupt=corrupt)).corrupt == corrupt


def test_a_threshold_or_complete_keeps_the_complete_graph_and_a_minimum_binds_on_any() -> None:
    assert secure_terms(configured(LARGE)).degree > 0
    for section in ({"graph": "complete"}, {"threshold": 40}, ACTIVE):
        assert secure_terms(configured(LARGE, **section)).degree == 0
    assert secure_terms(configured(LARGE, cohort={"minimum": 65})).smallest_sum == 65


@pytest.mark.parametrize(
    ("clients", "section", "words"),
    [
        (10, {"adversary": "active"}, "enrolment: "),
        (10, {"adversary": "active", "enabled": False}, "adversary: active .*enabled"),
        (10, {**ACTIVE, "threshold": 5}, "threshold: 5.*6 to 10"),
        (10, {**ACTIVE, "threshold": 7, "corrupt": 4}, "threshold: 7.*8 to 10"),
        (10, {**ACTIVE, "graph": "k_regular"}, "graph: k_regular"),
        (4, {"graph": "k_regular"}, "graph: "),
        (LARGE, {"graph": "k_regular", "threshold": 50}, "threshold: 50"),
    ],
    ids=str,
)
def test_what_withstands_nothing_is_refused(clients, section, words):
    with pytest.raises(ConfigError, match=rf"secure_aggregation\.{words}"):
        secure_terms(configured(clients, **section))


@pytest.mark.parametrize("clients", [66, 83, 120])
@pytest.mark.parametrize("rate", [0.0, 0.07, 0.13, 0.29])
def test_simulated_losses_are_always_tolerated(clients: int, rate: float) -> None:
    """Else every round would be lost, however the shares round to whole clients."""
    config = configured(clients, cohort={"dropout_rate": rate})
    found = secure_terms(config)
    assert found.smallest_sum <= clients - config.lost_per_round
    if found.degree:
        assert found.smallest_sum == clients - math.ceil(max(rate, 0.1) * clients)


@pytest.mark.parametrize(
    ("clients", "section"), [(10, {}), (LARGE, {}), (LARGE, {"graph": "complete"})]
)
def test_shared_out_noise_counts_on_the_smallest_sum(clients: int, section: dict[str, Any]) -> None:
    """With more lost the noise would be too little, so the smallest sum is what it is split by."""
    tree = configured(clients, **section).model_dump()
    tree["privacy"].update(mechanism="distributed_noise", clipping_norm=1.0, noise_multiplier=2.0)
    config = parse_config(tree)
    found, terms = protect_run(config, Numbered())[0], secure_terms(config)
    assert found.terms == terms
    assert isinstance(found.mechanism, DistributedNoise)
    assert found.mechanism.minimum_survivors == terms.smallest_sum
    assert terms.smallest_sum == {(10, 0): 7, (66, 0): 45}.get((clients, terms.degree), 59)


TERMS = SecureTerms(clients=6, active=True, threshold=5, smallest_sum=6, corrupt=1)


def offered(terms: SecureTerms, **others: Any) -> RoundParameters:
    keys = tuple(bytes([i]) * 32 for i in range(terms.clients)) if terms.active else ()
    return RoundParameters(
        run_id="r",
        round_number=1,
        attempt=1,
        vector_length=1,
        ring_bits=16,
        clients=tuple(range(1, terms.clients + 1)),
        threshold=terms.threshold,
        corrupt=terms.corrupt,
        smallest_sum=terms.smallest_sum,
        adversary=Adversary.ACTIVE if terms.active else Adversary.SEMI_HONEST,
        identities=keys,
        **others,
    )


def test_an_invitation_meets_the_terms_in_every_number_or_not_at_all() -> None:
    """Stricter terms are refused too: all of a run's rounds are run under the same."""
    assert meets(offered(TERMS), TERMS)
    for change in (
        *({"threshold": 6}, {"threshold": 4}, {"smallest_sum": 5}, {"corrupt": 0}),
        *({"corrupt": 2}, {"active": False}, {"clients": 7}),
    ):
        assert not meets(offered(replace(TERMS, **change)), TERMS), change


def test_a_thinner_graph_does_not_meet_the_terms() -> None:
    terms = secure_terms(configured(LARGE))
    same = {"degree": terms.degree, "graph_seed": bytes(32)}
    assert meets(offered(terms, **same), terms)
    assert meets(offered(terms, **{**same, "graph_seed": bytes([1]) * 32}), terms)
    assert not meets(offered(terms, degree=terms.degree + 2, graph_seed=bytes(32)), terms)
    assert not meets(offered(terms), terms)


REGULAR = secure_terms(configured(LARGE))
NAMES = client_names(LARGE)
STEP = 2 * 256.0 / (2**20 - 1)
SPARE = LARGE - REGULAR.smallest_sum


@pytest.mark.slow
def test_the_sum_is_exact_with_as_many_lost_as_are_tolerated(stores: Path) -> None:
    """1 + ... + 66 = 2,211, less every ninth, which is lost before its upload."""
    assert (LARGE, SPARE) == (66, 7) and 0 < REGULAR.degree < LARGE - 1
    found = cohort(stores, REGULAR)
    lost = NAMES[4::9][:SPARE]
    outcome = found.run(found.transport(lost, "train"))
    assert outcome.survivors == tuple(name for name in NAMES if name not in lost)
    expected = 2_211 - sum(range(5, 67, 9))
    np.testing.assert_allclose(outcome.summed.vector, expected, atol=LARGE * STEP / 2)


def test_every_attempt_has_a_graph_of_its_own(tmp_path: Path) -> None:
    """Drawn once the cohort is, and never given out for a complete graph."""
    chosen = overrides("upload_noise", "semi_honest", tmp_path)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        run = simulation.run
        complete = Attempts(run, SilentObserver(), Spending(run=run))
        protection = run.terms.protection
        sums = replace(protection.sums, terms=replace(protection.terms, degree=2))
        terms = replace(run.terms, protection=replace(protection, sums=sums))
        regular = replace(complete, run=replace(run, terms=terms))
        seeds = [bytes.fromhex(regular._draw(1, attempt).plan["graph_seed"]) for attempt in (1, 2)]
        assert complete._draw(1, 1).plan["graph_seed"] == ""
    assert [len(seed) for seed in seeds] == [32, 32]
    assert seeds[0] != seeds[1]
