"""Central noise and secret draws: who is amplified against, by how much, and when no longer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import pytest

from docs.pages.accountants import support_table
from privacy.accounting import (
    calibrate,
    claimed_epsilon,
    epsilon,
    epsilons,
    require_affordable,
)
from privacy.accounting.composition import FixedSizeTerm, compose, no_cohort
from privacy.accounting.gaussian import epsilon_at
from privacy.errors import BudgetExhausted, UnsupportedEvent
from privacy.events import NO_NOISE, CohortSampling, IntegerNoise
from tests.privacy._rows import FACTS, released

DELTA = 1e-5
relations = pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])


def drawn(kind="poisson", size=10, population=100):
    return CohortSampling(kind=kind, size=size, population=population, is_drawn=True)


def missed(*which, **size):
    return dataclasses.replace(drawn(*which, **size), is_drawn=False)


def row(z=4.0, **changes):
    return released(z, **{"mechanism": FACTS["central_noise"], "cohort": drawn()} | changes)


def entry(**changes):
    return released(**{"channel": "pool"} | changes)


def rounds(count, **changes):
    return [row(round_number=number, **changes) for number in range(count)]


def gaussian(z, count, relation="replace_one"):
    sensitivity = 2.0 if relation == "replace_one" else 1.0
    return epsilon_at(math.sqrt(count) * sensitivity / z, DELTA)


EXACTLY = Context(prec=260, Emax=MAX_EMAX, Emin=MIN_EMIN)


@lru_cache
def moments_and_differences(noise):
    """e^((i - 1) eps(i)) of the Gaussian for i up to 64, and their forward differences at 0."""
    with localcontext(EXACTLY):
        variance = Decimal(noise) ** 2
        moments = [(Decimal(i * (i - 1)) / (2 * variance)).exp() for i in range(65)]
        differences, left = [moments[0]], moments
        while len(left) > 1:
            left = [after - before for before, after in itertools.pairwise(left)]
            differences.append(left[0])
    return moments, differences


@lru_cache(maxsize=4096)
def log_moment(q, noise, order):
    """Wang, Balle and Kasiviswanathan 2019, Theorem 27, times (order - 1), in exact digits.

    For the Gaussian, of unbounded loss, the factor min(2, (e^eps(inf) - 1)^j) is 2.
    """
    moments, difference = moments_and_differences(noise)
    with localcontext(EXACTLY):
        chance = Decimal(q.numerator) / q.denominator
        total = Decimal(1)
        for j in range(2, order + 1):
            # At j = 2 both formulas of the theorem are one: the difference is e^eps(2) - 1.
            around = difference[j - j % 2] * difference[j + j % 2]
            total += chance**j * math.comb(order, j) * min(4 * around.sqrt(), 2 * moments[j])
        return float(total.ln())


def fixed_size_epsilon(rows, delta):
    """The best order's bound, converted by Canonne, Kamath and Steinke 2020, Proposition 12."""
    orders = [1 + tenth / 10 for tenth in range(1, 100)] + [float(n) for n in range(11, 64)]

    def divergence(q, noise, order):
        whole, part = math.floor(order), order - math.floor(order)
        # Corollary 10: the logarithm of the moment is convex in the order.
        below, beyond = (log_moment(q, noise, n) for n in (whole, whole + (part > 1e-9)))
        return ((1 - part) * below + part * beyond) / (order - 1)

    def at(order):
        spent = sum(count * divergence(q, noise, order) for q, noise, count in rows)
        return spent + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    return min(map(at, orders))


@pytest.mark.parametrize(
    ("z", "size", "population", "count", "delta"),
    [
        pytest.param(2.0, 10, 1_000, 1_000, 1e-5, marks=pytest.mark.slow),
        pytest.param(4.0, 100, 1_000, 50, 1e-3, marks=pytest.mark.slow),
        (1.0, 1, 2, 3, 1e-5),
        pytest.param(10.0, 3, 7, 20, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_cohorts_of_fixed_size_cost_what_the_theorem_says(z, size, population, count, delta):
    cohort = drawn("fixed_size", size, population)
    result = epsilon(rounds(count, z=z, cohort=cohort), delta)
    # z is noise over C; the theorem's is noise over the sensitivity, 2C.
    expected = fixed_size_epsilon([(Fraction(size, population), z / 2, count)], delta)
    assert result.accountant == "rdp"
    assert result.epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "size", "count", "delta", "expected"),
    [(1, 10, 1_000, 1e-5, 3.5761), (1, 100, 50, 1e-5, 9.4277), (2, 100, 50, 1e-3, 2.6646)],
)
def test_published_numbers_without_replacement(noise, size, count, delta, expected):
    ledger = rounds(count, z=2 * noise, cohort=drawn("fixed_size", size, 1_000))
    assert epsilon(ledger, delta).epsilon == pytest.approx(expected, abs=1e-4)


@relations
def test_the_coordinator_sees_bare_sums_and_peers_the_noised_ones(relation):
    result = epsilons(rounds(3, cohort=None, relation=relation), DELTA)
    assert result.server == math.inf
    assert result.peers == result.observer == result.claimed == gaussian(4.0, 3, relation)
    assert result.accountant == "exact"


def test_peers_count_the_rounds_of_a_client_and_nothing_amplifies():
    ledger = [row(round_number=n, cohort=drawn() if n in (2, 5) else missed()) for n in range(9)]
    result = epsilons(ledger, DELTA)
    assert result.server == math.inf
    assert result.peers == result.claimed == gaussian(4.0, 2)
    assert result.observer == epsilon(ledger, DELTA).epsilon < gaussian(4.0, 9)


def amplified(ledger):
    plain = [dataclasses.replace(release, cohort=None) for release in ledger]
    return epsilons(ledger, DELTA).observer < epsilons(plain, DELTA).observer


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
@pytest.mark.parametrize("status", ["released", "aborted", "reserved"])
def test_a_round_drawn_twice_voids_the_run_s_amplification(kind, status):
    ledger = rounds(4, cohort=drawn(kind))
    assert amplified(ledger)
    redrawn = [*ledger, row(round_number=2, attempt=2, status=status, cohort=missed(kind))]
    assert not amplified(redrawn)
    assert epsilons(redrawn, DELTA).observer == gaussian(4.0, 5)


def test_a_second_draw_of_one_client_voids_it_for_all():
    others = rounds(2, pseudonym="b", cohort=missed())
    assert amplified(others)
    assert not amplified([*others, *rounds(2, pseudonym="a"), row(attempt=2, pseudonym="a")])


def test_throwing_a_draw_away_for_free_is_still_a_choice():
    silent = row(round_number=2, status="aborted", left_client=False)
    redrawn = row(round_number=2, attempt=2)
    assert not amplified([row(), silent, redrawn])
    # Without a second draw the round just did not happen.
    assert epsilons([row(), silent], DELTA) == epsilons([row()], DELTA)
    # A second draw that nothing left either changes nothing.
    undone = dataclasses.replace(redrawn, status="aborted", left_client=False)
    assert epsilons([row(), row(round_number=2), undone], DELTA) == epsilons(rounds(2), DELTA)


def test_a_pool_entry_tells_that_its_client_was_drawn():
    ledger = rounds(3)
    result = epsilons([*ledger, entry(round_number=0)], DELTA)
    assert result.observer == result.peers == gaussian(4.0, 4)
    unsent = entry(round_number=0, status="aborted", left_client=False)
    assert epsilons([*ledger, unsent], DELTA).observer == epsilons(ledger, DELTA).observer
    # Nothing is said of another client.
    elsewhere = [*ledger, entry(pseudonym="b")]
    assert epsilons(elsewhere, DELTA).observer == max(
        epsilons(ledger, DELTA).observer, gaussian(4.0, 1)
    )


@pytest.mark.parametrize(
    ("changes", "accountant"),
    [
        ({"relation": "add_or_remove_one", "cohort": drawn("fixed_size")}, "auto"),
        ({"relation": "replace_one", "cohort": drawn("fixed_size")}, "pld"),
        ({"relation": "replace_one", "cohort": drawn("poisson")}, "rdp"),
    ],
)
def test_without_a_theorem_the_observer_is_charged_in_full(changes, accountant):
    ledger = rounds(3, **changes)
    with pytest.raises(UnsupportedEvent, match=r"refuses|exact Gaussian"):
        epsilon(ledger, DELTA, accountant)
    plain = [dataclasses.replace(release, cohort=None) for release in ledger]
    result = epsilons(ledger, DELTA, accountant)
    assert result.observer == result.peers == epsilon(plain, DELTA, accountant).epsilon


def test_kinds_that_no_accountant_knows_together_are_charged_in_full():
    ledger = [row(), row(round_number=2, cohort=drawn("fixed_size"))]
    assert epsilons(ledger, DELTA).observer == gaussian(4.0, 2)


def test_integer_noise_is_not_amplified():
    noise = IntegerNoise(name="discrete_gaussian", share_deviation=1_000.0, shares=1, dimension=64)
    ledger = rounds(3, law=noise)
    with pytest.raises(UnsupportedEvent, match="amplifies integer noise"):
        epsilon(ledger, DELTA)
    result = epsilons(ledger, DELTA)
    plain = epsilon([dataclasses.replace(release, cohort=None) for release in ledger], DELTA)
    assert result.observer == result.peers == plain.epsilon


def test_little_noise_may_cost_less_without_the_theorem():
    # Theorem 27 has constants; where almost everybody is drawn the exact Gaussian is below it.
    ledger = rounds(5, z=3.0, cohort=drawn("fixed_size", 95))
    assert epsilon(ledger, DELTA).epsilon > gaussian(3.0, 5)
    result = epsilons(ledger, DELTA)
    assert result.observer == result.peers == pytest.approx(gaussian(3.0, 5), rel=1e-12)
    assert result.accountant == "exact"


@pytest.mark.parametrize("z", [1e-7, 2.1e3])
def test_noise_at_which_the_theorem_s_sums_fail_is_charged_in_full(z):
    ledger = rounds(2, z=z, cohort=drawn("fixed_size"))
    with pytest.raises(UnsupportedEvent, match="1e-06 to 1000"):
        epsilon(ledger, DELTA)
    assert epsilons(ledger, DELTA).observer == pytest.approx(gaussian(z, 2), rel=1e-12)


@pytest.mark.parametrize(
    ("noise", "size"),
    [
        (1e-6, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1e3, 100), (1e-6, 100), (0.5, 1), (0.5, 100), (1e3, 1))
        ),
    ],
)
def test_the_theorem_s_sums_keep_their_digits_in_between(noise, size):
    ledger = [row(2 * noise, cohort=drawn("fixed_size", size, 1_000))]
    exact = fixed_size_epsilon([(Fraction(size, 1_000), noise, 1)], 0.3)
    found = epsilon(ledger, 0.3).epsilon
    assert found >= max(0.0, exact) * (1 - 1e-8) - 1e-12
    assert found == pytest.approx(max(0.0, exact), rel=1e-6, abs=1e-6)


def test_the_claim_is_against_the_strongest_adversary_that_it_names():
    upload = released()
    assert epsilons([upload], DELTA).claimed == epsilons([upload], DELTA).server < math.inf
    central = rounds(2)
    assert epsilons(central, DELTA).claimed == epsilons(central, DELTA).peers == gaussian(4.0, 2)
    # Two clients, each by its own.
    other = dataclasses.replace(upload, pseudonym="b", standard_deviation=0.3)
    both = epsilons([*central, other], DELTA)
    assert both.server == math.inf
    assert both.claimed == both.peers == gaussian(1.0, 1)
    # Across runs of one client, peers see both.
    assert epsilons([upload, row(run_id="s")], DELTA).claimed == gaussian(4.0, 2)


def shared_noise(corrupt):
    noise = IntegerNoise(
        name="skellam", share_deviation=1_000.0, shares=50, dimension=64, corrupt=corrupt
    )
    return released(mechanism=FACTS["distributed_noise"], law=noise)


BARE = released(mechanism=FACTS["none"], standard_deviation=0.0, law=NO_NOISE)
UNNOISED = row(standard_deviation=0.0, law=NO_NOISE)


def test_shared_noise_claims_against_the_server():
    alone = epsilons([shared_noise(0)], DELTA)
    assert alone.peers == math.inf
    assert alone.claimed == alone.server < math.inf
    # Bare to peers in one run and to the server in another: nobody is left to claim against.
    assert epsilons([shared_noise(0), row()], DELTA).claimed == math.inf
    assert epsilons([shared_noise(1), row()], DELTA).claimed < math.inf


@pytest.mark.parametrize(
    "ledger",
    [
        [],
        rounds(3),
        [row(), BARE],
        [UNNOISED],
        [shared_noise(0), row(pseudonym="b")],
        [row(cohort=missed()), entry(pseudonym="b")],
    ],
)
def test_the_claim_alone_is_the_claim_among_all(ledger):
    assert claimed_epsilon(ledger, DELTA).epsilon == epsilons(ledger, DELTA).claimed


def test_without_noise_everything_is_infinite_for_who_sees_it():
    result = epsilons([UNNOISED], DELTA)
    assert result.server == result.peers == result.observer == result.claimed == math.inf
    unseen = epsilons([dataclasses.replace(UNNOISED, cohort=missed())], DELTA)
    assert (unseen.server, unseen.peers, unseen.observer) == (0.0, 0.0, math.inf)


def test_a_budget_under_central_noise_limits_what_peers_learn():
    spent, target = rounds(4), gaussian(4.0, 4)
    require_affordable(spent[:3], spent[3:], DELTA, target_epsilon=target)
    unseen = [row(round_number=5, cohort=missed())]
    require_affordable(spent, unseen, DELTA, target_epsilon=target)
    with pytest.raises(BudgetExhausted, match=r"^privacy.target_epsilon .* nothing"):
        require_affordable(spent, [row(round_number=5)], DELTA, target_epsilon=target)
    limits = {"target_epsilon": 1.0, "limit_name": "privacy.lifetime_budget"}
    with pytest.raises(BudgetExhausted, match=r"^privacy.lifetime_budget is 1"):
        require_affordable([], rounds(3), DELTA, **limits)


def test_calibration_trusts_in_no_draw():
    def planned(z):
        return rounds(10, z=z)

    z = calibrate(planned, 3.0, DELTA, smallest=1e-3)
    assert gaussian(z, 10) <= 3.0 < gaussian(z * (1 - 2e-6), 10)
    require_affordable(planned(z)[:9], planned(z)[9:], DELTA, target_epsilon=3.0)


def test_cohorts_become_terms():
    ledger = [
        *rounds(3, cohort=drawn()),
        row(cohort=missed(size=50, population=500)),
        *rounds(2, cohort=drawn("fixed_size")),
        row(cohort=missed("fixed_size")),
        row(cohort=None),
        row(cohort=drawn("fixed_size", 100)),
        row(cohort=drawn("poisson", 100)),
    ]
    found = compose(ledger)
    assert [(term.sampling_probability, term.count) for term in found.terms] == [(0.1, 4), (1.0, 3)]
    assert found.fixed_size_terms == (FixedSizeTerm(4.0, 10, 100, 3),)
    assert found.is_sampled and not found.is_empty
    assert not compose(ledger, no_cohort).is_sampled
    assert compose([row(cohort=drawn("fixed_size"))]).is_sampled
    assert not compose([row(cohort=drawn("fixed_size"))]).is_empty


@pytest.mark.slow
def test_the_support_table_is_what_the_adapters_answer():
    table = support_table()
    assert len(table) == len({(s.event, s.relation, s.accountant) for s in table}) == 5 * 2 * 4
    supported = {(s.event, s.relation): set() for s in table}
    for each in table:
        if each.answer == "yes":
            supported[each.event, each.relation].add(each.accountant)
        else:
            assert len(each.answer) > 20 and not each.answer.startswith("n/a")
    assert supported == {
        ("gaussian", "replace_one"): {"exact", "pld", "rdp", "prv"},
        ("gaussian", "add_or_remove_one"): {"exact", "pld", "rdp", "prv"},
        ("poisson-sampled gaussian", "replace_one"): {"pld"},
        ("poisson-sampled gaussian", "add_or_remove_one"): {"pld", "rdp", "prv"},
        ("fixed-size cohort", "replace_one"): {"rdp"},
        ("fixed-size cohort", "add_or_remove_one"): set(),
        ("discrete gaussian sum", "replace_one"): {"rdp"},
        ("discrete gaussian sum", "add_or_remove_one"): {"rdp"},
        ("skellam sum", "replace_one"): {"rdp"},
        ("skellam sum", "add_or_remove_one"): {"rdp"},
    }


def upload(pseudonym, **changes):
    return released(pseudonym=pseudonym, **changes)


def price_of(*releases):
    return epsilon(releases, DELTA).epsilon


def test_metrics_do_not_reach_the_observer():
    ledger = [upload("a"), upload("a", channel="metrics")]
    result = epsilons(ledger, DELTA)
    assert result.server == result.peers == price_of(*ledger) > price_of(upload("a"))
    assert result.observer == price_of(upload("a"))


def test_the_maximum_is_over_clients_and_not_their_sum():
    ledger = [upload("a"), upload("b"), upload("b", round_number=2), upload("c")]
    assert epsilons(ledger, DELTA).server == price_of(upload("b"), upload("b", round_number=2))


def test_none_is_infinite_for_who_sees_it_and_nothing_released_is_zero():
    everything = epsilons([BARE], DELTA)
    assert everything.server == everything.peers == everything.observer == math.inf
    assert everything.claimed == math.inf
    other = dataclasses.replace(BARE, pseudonym="b", channel="metrics")
    metrics_only = epsilons([upload("a"), other], DELTA)
    assert metrics_only.server == metrics_only.peers == metrics_only.claimed == math.inf
    assert metrics_only.observer == price_of(upload("a"))
    pool_only = epsilons([upload("a"), dataclasses.replace(other, channel="pool")], DELTA)
    assert pool_only.observer == math.inf
    nothing = epsilons([], DELTA)
    assert (nothing.server, nothing.peers, nothing.observer, nothing.claimed) == (0.0,) * 4
    assert nothing.accountant == "exact"


@pytest.mark.parametrize("name", ["upload_noise", "central_noise"])
def test_coins_for_records_amplify_no_client(name):
    row = released(mechanism=FACTS[name], sampling="poisson", sampling_probability=0.1)
    with pytest.raises(UnsupportedEvent, match="amplifies nothing"):
        epsilons([row], DELTA)
