"""Tests of differences, by hand and by drawing where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from platform.results.inference import gains, holm, interval, paired


def test_a_paired_t_test_by_hand():
    found = interval([0.01, 0.02, 0.03])
    # Mean 0.02, deviation 0.01, error 0.01 / sqrt(3). With two degrees of freedom Student's law has
    # a closed form: p = 1 - t / sqrt(2 + t^2), and 4.302653 errors reach to either end.
    t = 0.02 / (0.01 / math.sqrt(3))
    assert found is not None and found.mean == pytest.approx(0.02)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.high - found.mean == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    assert found.low < 0 and not found.is_beyond_chance
    assert interval([0.01]) is None


def test_equal_differences_prove_no_more_than_their_signs():
    # Four equal gains: all of one sign with a chance of 2 in 2^4. Six: 2 in 2^6.
    four, six = interval([0.25] * 4), interval([0.25] * 6)
    assert four is not None and six is not None
    assert four.p == 0.125 and not four.is_beyond_chance
    assert six.p == 0.03125 and six.is_beyond_chance
    # No deviation, so no interval: an invented one would end at its own mean.
    assert (four.low, four.high, four.bounds()) == (None, None, "no interval")
    assert "95%" not in six.words("seeds") and "all 6 seeds differ alike" in six.words("seeds")
    none = interval([0.0] * 9)
    assert none is not None and none.p == 1.0


def test_where_there_is_no_difference_one_test_in_twenty_finds_one():
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(4000, 3))
    found = [interval([float(x) for x in row]) for row in draws]
    share = sum(one.is_beyond_chance for one in found if one is not None) / len(found)
    # Four standard errors of a share of 0.05 in 4000 draws.
    assert abs(share - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)


def test_pairs_of_which_one_is_unknown_do_not_count():
    found = paired([0.5, None, 0.7, 0.9], [0.4, 0.1, None, 0.6])
    assert found is not None and (found.n, found.mean) == (2, pytest.approx(0.2))
    assert paired([0.5], [0.5, 0.6]) is None and paired(None, [0.5]) is None
    # One model of all clients on test images of all: fifty times the same number.
    assert paired([0.9] * 50, [0.2] * 50) is None


def test_holm_by_hand():
    # Ascending 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, and none below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def accuracy(*values: float | None) -> dict[str, object]:
    return {"per_client": list(values)}


@pytest.mark.parametrize(
    ("protocol", "mean"),
    [
        ({"name": "client_mean"}, 0.15),
        ({"name": "leave_one_domain_out", "target": accuracy(0.9, 0.8)}, 0.55),
        # No client has a part of a harmonic mean.
        ({"name": "base_to_novel"}, None),
    ],
)
def test_the_gain_of_a_run_is_over_its_clients(protocol, mean):
    alone = {**protocol, **({"target": accuracy(0.3, 0.3)} if "target" in protocol else {})}
    summary = {
        "final": {"accuracy": accuracy(0.6, 0.5), "protocol": protocol},
        "local": {"accuracy": accuracy(0.5, 0.3), "protocol": alone},
        "silent": {"bare": 0.1, "noised": None, "per_client": [0.0, 0.1]},
    }
    found = gains(summary)
    gain, worth = found["gain_over_local"], found["worth_of_sharing"]
    assert (gain and gain.mean) == (None if mean is None else pytest.approx(mean))
    assert (worth is None) == (mean is None)
    # Clients that keep their accuracies, and summaries of earlier versions.
    assert gains({"final": {"accuracy": {}, "protocol": None}}) == dict.fromkeys(found)
