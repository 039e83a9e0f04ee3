"""Epsilon against published numbers, a second accountant, and the definition itself.

The numbers are those of the project's privacy specification, sections 5 and 3c of its survey,
computed with dp_accounting 0.6 and Opacus 1.6.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import special

from privacy import largest_share_of_right_guesses
from privacy.accounting import ACCOUNTANTS, accountant_table, epsilon, epsilons
from privacy.accounting.accountants import first_supporting, price
from privacy.accounting.composition import Composition, Term, compose
from privacy.accounting.gaussian import epsilon_at, log_delta_at
from privacy.errors import UnsupportedEvent
from privacy.events import NO_NOISE, CohortSampling
from tests.privacy._rows import FACTS, released

release = functools.partial(released, relation="add_or_remove_one")


def rounds(z, count, **changes):
    return [release(z, round_number=number, **changes) for number in range(count)]


def poisson(z, q, count, **changes):
    kept = {"mechanism": FACTS["central_noise"], "sampling": "poisson", "sampling_probability": q}
    return rounds(z, count, **kept | changes)


@pytest.mark.parametrize(
    ("z", "count", "delta", "exact", "rdp"),
    [
        (1, 1, 1e-5, 4.377178, 4.728507),
        (4, 25, 1e-5, 5.679587, 6.122758),
        (10, 100, 1e-6, 4.886554, 5.221540),
        (0.5, 10, 1e-5, 46.211210, 48.801693),
    ],
)
def test_gaussian_oracles(z, count, delta, exact, rdp):
    ledger = rounds(z, count)
    headline = epsilon(ledger, delta)
    assert headline.accountant == "exact"
    assert headline.epsilon == pytest.approx(exact, rel=1e-6)
    assert epsilon(ledger, delta, "rdp").epsilon == pytest.approx(rdp, rel=1e-5)


@pytest.mark.parametrize("accountant", ["exact", "pld", "rdp"])
def test_replace_one_is_add_or_remove_at_half_the_noise(accountant):
    # The accountants take different conventions; all must come out at twice the sensitivity.
    replace = epsilon(rounds(16.0, 4, relation="replace_one"), 1e-5, accountant).epsilon
    assert replace == pytest.approx(epsilon(rounds(8.0, 4), 1e-5, accountant).epsilon, rel=1e-6)
    exact = epsilon(rounds(1.0, 1, relation="replace_one"), 1e-5).epsilon
    assert exact == pytest.approx(9.997256, abs=1e-6)


@pytest.mark.parametrize(
    ("relation", "one", "ten"), [("add_or_remove_one", 226, 2_047), ("replace_one", 842, 7_985)]
)
def test_published_preset_called_epsilon_50(relation, one, ten):
    # sigma / C = 0.0507 with delta 0.05: the totals hold at delta = 0.05 for the whole ledger.
    for count, expected in ((1, one), (10, ten)):
        ledger = rounds(0.0507, count, relation=relation)
        assert round(epsilon(ledger, 0.05).epsilon) == expected


@pytest.mark.parametrize(
    ("z", "q", "count", "delta", "pld", "rdp"),
    [
        pytest.param(1, 0.01, 1000, 1e-5, 1.8282, 2.1014, marks=pytest.mark.slow),
        (2, 0.1, 50, 1e-3, 1.0462, 1.2404),
    ],
)
def test_poisson_oracles(z, q, count, delta, pld, rdp):
    ledger = poisson(z, q, count)
    headline = epsilon(ledger, delta)
    assert headline.accountant == "pld"
    assert headline.epsilon == pytest.approx(pld, abs=1e-4)
    assert epsilon(ledger, delta, "rdp").epsilon == pytest.approx(rdp, abs=1e-4)


@pytest.mark.pairs
@pytest.mark.parametrize("z", [pytest.param(1.0, marks=pytest.mark.slow), 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-2])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_pld_agrees_and_rdp_bounds(z, delta, relation):
    ledger = [*rounds(z, 3, relation=relation), *rounds(2 * z, 2, relation=relation)]
    exact = epsilon(ledger, delta, "exact").epsilon
    assert epsilon(ledger, delta, "pld").epsilon == pytest.approx(exact, rel=0.01, abs=1e-3)
    assert epsilon(ledger, delta, "rdp").epsilon >= exact * (1 - 1e-12)


@pytest.mark.parametrize("mu", [1e-3, 1.0, 60.0])
@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-200])
def test_epsilon_inverts_delta_and_never_undercuts(mu, delta):
    result = epsilon_at(mu, delta)
    assert log_delta_at(result, mu) <= math.log(delta)
    if result > 0:
        slightly_less = log_delta_at(result * (1 - 1e-9), mu)
        assert slightly_less >= math.log(delta)


@pytest.mark.parametrize("mu", [0.5, 39.0, 41.0, 100.0])
@pytest.mark.parametrize("factor", [0.2, 1.4])
def test_both_branches_match_the_textbook_form(mu, factor):
    # Around a = 20 the code changes formula; here both sides of it are compared with a third.
    eps = factor * mu * mu / 2
    first, second = special.log_ndtr(mu / 2 - eps / mu), eps + special.log_ndtr(-mu / 2 - eps / mu)
    expected = first + np.log1p(-np.exp(second - first))
    assert log_delta_at(eps, mu) == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("z", [1e-160, 1e-9, 1e-3, 0.01])
def test_tiny_noise_gives_huge_or_infinite_epsilon_and_huge_noise_zero(z):
    assert epsilon(rounds(1e9, 10), 1e-5).epsilon == epsilon_at(0.0, 1e-5) == 0.0
    assert log_delta_at(1.0, 1e-20) == -math.inf
    result = epsilon(rounds(z, 10), 1e-5).epsilon
    mu = math.sqrt(10) / z
    lowest = mu / 2 * mu
    assert result >= lowest
    assert math.isinf(result) or result == pytest.approx(lowest, rel=0.1)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_empty_ledger_costs_nothing_and_noiseless_release_everything(accountant):
    silent = release(1.0, status="aborted", left_client=False)
    assert epsilon([], 1e-5, accountant).epsilon == 0.0
    assert epsilon([silent], 1e-5, accountant).epsilon == 0.0
    bare = release(
        1.0, mechanism=FACTS["none"], standard_deviation=0.0, clipping_norm=0.0, law=NO_NOISE
    )
    without_noise = release(0.0)
    for leak in (bare, without_noise):
        result = epsilon([*rounds(5.0, 3), leak], 1e-5, accountant)
        assert math.isinf(result.epsilon)
        assert result.accountant != "auto"


def test_only_what_is_charged_counts():
    ledger = [
        release(2.0),
        release(2.0, status="reserved"),
        release(2.0, status="aborted"),
        release(2.0, status="aborted", left_client=False),
    ]
    assert epsilon(ledger, 1e-5) == epsilon(rounds(2.0, 3), 1e-5)


def test_different_noises_add_as_squares():
    # 1/3^2 + 1/6^2 + 1/6^2 = 1/6 = (1/sqrt 6)^2
    ledger = [release(3.0), release(6.0), release(6.0)]
    assert epsilon(ledger, 1e-5).epsilon == pytest.approx(epsilon_at(1 / math.sqrt(6), 1e-5))


@given(st.integers(10**9, 10**10 - 1), st.integers(-12, 3), st.floats(1e-9, 1e9))
def test_products_with_the_clipping_norm_are_undone(digits, exponent, clipping_norm):
    # A multiplier of ten digits comes back from z x C / C without a stray last bit, so that a
    # calibrated run is priced at the very number that it was calibrated to.
    z = float(f"{digits}e{exponent - 9}")
    row = release(1.0, standard_deviation=z * clipping_norm, clipping_norm=clipping_norm)
    assert [term.noise_to_clip for term in compose([row]).terms] == [z]


def test_unsupported_events_never_pass_silently():
    with pytest.raises(UnsupportedEvent, match="sampled"):
        epsilon(poisson(1.0, 0.1, 2), 1e-5, "exact")
    with pytest.raises(UnsupportedEvent, match="mixes the relations"):
        epsilon([release(1.0), release(1.0, relation="replace_one")], 1e-5)


def test_the_first_accountant_that_supports_everything_speaks():
    sampled = compose([*poisson(1.0, 0.1, 2), release(3.0, mechanism=FACTS["central_noise"])])
    assert first_supporting(sampled, 1e-5, ("exact", "rdp", "pld")).accountant == "rdp"
    replaced = compose(poisson(1.0, 0.1, 2, relation="replace_one"))
    with pytest.raises(UnsupportedEvent, match=r"exact: .*sampled.* rdp: .*refuses"):
        first_supporting(replaced, 1e-5, ("exact", "rdp"))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_meaningless_delta_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        epsilon([release(1.0)], delta)
    with pytest.raises(ValueError, match="delta"):
        epsilon_at(1.0, delta)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="exact, pld, rdp"):
        epsilon([], 1e-5, "prv")
    for mu in (-1.0, math.nan):
        with pytest.raises(ValueError, match="mu"):
            epsilon_at(mu, 1e-5)


def test_pld_refuses_noise_that_would_take_all_memory():
    rows = rounds(0.019, 2)
    with pytest.raises(UnsupportedEvent, match=r"below 0\.02"):
        epsilon(rows, 1e-5, "pld")
    assert epsilon(rows, 1e-5).accountant == "exact"
    assert "n/a" in str(accountant_table(rows, 1e-5)["pld"])


@pytest.mark.parametrize(
    ("epsilon", "delta", "share"),
    # e^epsilon = 3 and 1: (3 + delta) / 4 and (1 + delta) / 2 are done on paper. The last is
    # 2980.957987041728 / 2981.957987041728.
    [
        (math.log(3.0), 0.0, 0.75),
        (math.log(3.0), 0.2, 0.80),
        (0.0, 0.1, 0.55),
        (8.0, 0.0, 0.9996646498695336),
    ],
)
def test_shares_that_were_worked_out_by_hand(epsilon, delta, share):
    assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(share, rel=1e-14)


@pytest.mark.parametrize("epsilon", [math.inf, 1e6])
def test_where_nothing_is_proven_all_guesses_may_be_right(epsilon):
    assert largest_share_of_right_guesses(epsilon, 1e-5) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (0.3, 0.05), (2.0, 1e-5), (4.0, 0.3)])
def test_the_best_test_on_the_mechanism_that_has_exactly_this_claim_reaches_it(epsilon, delta):
    # The canonical pair: with delta the world is shown, else randomised response at epsilon
    # (Murtagh and Vadhan 2018); the best guess takes the likelier world for each of four outcomes.
    keep = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    first = np.array([delta, (1 - delta) * keep, (1 - delta) * (1 - keep), 0.0])
    right = np.maximum(first, first[::-1]).sum() / 2.0
    assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(right, rel=1e-14)


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [(-0.1, 1e-5, "epsilon"), (math.nan, 1e-5, "epsilon"), (1.0, 1.0, "delta"), (1.0, -1, "delta")],
)
def test_what_is_no_epsilon_or_delta_is_refused(epsilon, delta, said):
    with pytest.raises(ValueError, match=f"^{said} is"):
        largest_share_of_right_guesses(epsilon, delta)


def examples(quick, slow):
    """So many ledgers, and the most steps that each has."""
    thorough = pytest.param(slow, 8, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
    return pytest.mark.parametrize(("count", "longest"), [(quick, 4), thorough])


def check(count, strategy, law):
    """Run a law over so many examples; a failing one is shrunk and shown."""
    limits = settings(
        max_examples=count,
        deadline=None,
        database=None,
        # Shrinking a law that takes a second would outlast every limit.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.nested_given],
    )
    limits(given(strategy)(law))()


MORE = st.sampled_from([1.0001, 1.01, 1.3, 3.0])
RELATION = st.sampled_from(["replace_one", "add_or_remove_one"])


@examples(25, 1_000)
def test_the_formula_is_monotone(count, longest):
    def law(case):
        relation, z, rounds, more, delta = case

        def cost(noise, count):
            composition = Composition(relation, (Term(noise, 1.0, count),))
            return price(composition, delta, "exact").epsilon

        here = cost(z, rounds)
        assert cost(z * more, rounds) <= here * (1 + 1e-12)
        assert here <= cost(z, rounds + 1) * (1 + 1e-12)

    noise = st.floats(1e-3, 1e3)
    check(count, st.tuples(RELATION, noise, st.integers(1, 500), MORE, st.floats(1e-12, 0.5)), law)


COHORT = CohortSampling(kind="fixed_size", size=5, population=40, is_drawn=True)
CENTRAL = FACTS["central_noise"]
# Integer noise beside cohorts takes seconds a ledger, as its orders go up to 65,536.
KINDS = (
    {},
    {"channel": "pool"},
    {"channel": "metrics"},
    {"mechanism": CENTRAL},
    {"mechanism": CENTRAL, "cohort": COHORT},
    {"mechanism": CENTRAL, "cohort": dataclasses.replace(COHORT, is_drawn=False)},
)


def row(kind, **changes):
    return released(3.0, **{"status": "reserved"} | kind | changes)


def numbers(ledger):
    found = epsilons(ledger, 1e-5)
    return found.server, found.peers, found.observer, found.claimed


@examples(6, 300)
def test_the_order_of_rows_does_not_matter(count, longest):
    rows = st.builds(
        row,
        st.sampled_from(KINDS),
        round_number=st.integers(0, 3),
        attempt=st.integers(1, 2),
        pseudonym=st.sampled_from("ab"),
        run_id=st.sampled_from("rs"),
    )

    def law(case):
        ledger, rng = case
        shuffled = rng.sample(ledger, len(ledger))
        assert epsilons(ledger, 1e-5) == epsilons(shuffled, 1e-5) == epsilons(ledger[::-1], 1e-5)

    check(
        count, st.tuples(st.lists(rows, max_size=longest), st.randoms(use_true_random=False)), law
    )


def after(ledger, action, kind, index):
    """The ledger once one more thing has happened to a run."""
    if action == "reserve" or not ledger:
        rounds = 1 + max((release.round_number for release in ledger), default=0)
        return [*ledger, row(kind, round_number=rounds)]
    chosen = ledger[index % len(ledger)]
    if action == "retry":
        again = {"attempt": chosen.attempt + 1, "status": "reserved", "left_client": True}
        return [*ledger, dataclasses.replace(chosen, **again)]
    if not chosen.left_client:
        return ledger
    ended = dataclasses.replace(chosen, status=action)
    return [ended if release is chosen else release for release in ledger]


@examples(12, 300)
def test_no_history_lowers_what_was_spent(count, longest):
    def law(history):
        ledger = []
        before = numbers(ledger)
        for action, kind, index in history:
            if action == "try in vain":
                # Reserve a round and abort it before anything left: exactly as before.
                *kept, last = after(ledger, "reserve", kind, 0)
                undone = dataclasses.replace(last, status="aborted", left_client=False)
                ledger = [*kept, undone]
                assert numbers(ledger) == before
                continue
            ledger = after(ledger, action, kind, index)
            cost = numbers(ledger)
            assert all(b <= a * (1 + 1e-12) for b, a in zip(before, cost, strict=True)), action
            before = cost

    actions = st.sampled_from(["reserve", "released", "aborted", "retry", "try in vain"])
    step = st.tuples(actions, st.sampled_from(KINDS), st.integers(0, 20))
    check(count, st.lists(step, max_size=longest), law)
