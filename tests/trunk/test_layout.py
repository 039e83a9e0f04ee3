"""What a sum means: weighted, uniform and summed tensors, by hand, masked and in the clear."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from methods import TensorSpec, Weighting
from platform.contract import driving
from platform.errors import ConfigError, PlatformError, ProtocolError
from platform.experiment.caveats import run_warnings
from platform.protection.uploads import LEVELS
from platform.wire.layout import LARGEST_WEIGHT, UploadLayout, build_layout
from platform.wire.messages import decode_disclosure
from privacy import PrivacyError, ProtocolViolation, Quantiser, UploadNoise
from tests.trunk._ahead import Overheard
from tests.trunk._runs import NO_POOL, NONE, opened
from tests.trunk.test_round import (
    PLAIN,
    SECURE,
    Counting,
    Spoiling,
    data,
    invitation,
    seat,
    with_fields,
)

SPEC = {
    "a": TensorSpec((2,), weighting=Weighting.EXAMPLES),
    "b": TensorSpec((1,), weighting=Weighting.UNIFORM),
    "c": TensorSpec((1,), weighting=Weighting.SUM),
}
QUANTISER = Quantiser(value_bound=1.0, bits=8)
"""Levels 0 to 255, step 2/255."""
VECTORS = [np.array([0.5, -1.0, 0.2, 0.25]), np.array([-0.5, 1.0, 0.4, 0.5])]
WEIGHTS = [3, 1]
MEANS = [0.25, -0.5, 0.3, 0.75]
"""(3 x 0.5 - 0.5) / 4, (3 x -1 + 1) / 4, (0.2 + 0.4) / 2, 0.25 + 0.5."""
PLAIN_MEANS = [0.0, 0.0, 0.3, 0.75]


def masked_sum(layout: UploadLayout, vectors, weights) -> np.ndarray:
    levels = [QUANTISER.quantise(vector).levels for vector in vectors]
    return sum(layout.weigh(mine, w) for mine, w in zip(levels, weights, strict=True))


def test_no_weight_where_nothing_weighs_or_no_tensor_asks_for_one():
    for weighted in (True, False):
        layout = build_layout(SPEC, weighs_examples=weighted)
        assert (layout.weighted, layout.coordinates) == (weighted, 4)
        assert layout.length == 4 + weighted
    assert not build_layout({"b": SPEC["b"], "c": SPEC["c"]}, weighs_examples=True).weighted
    assert not build_layout({}, weighs_examples=True).weighted
    assert build_layout({}, weighs_examples=True).length == 0


@pytest.mark.parametrize(
    ("weighs_examples", "means", "total"), [(True, MEANS, 4.0), (False, PLAIN_MEANS, 2.0)]
)
def test_a_plain_sum_by_hand(weighs_examples, means, total):
    layout = build_layout(SPEC, weighs_examples=weighs_examples)
    summed = layout.average(layout.sum_plain(VECTORS, WEIGHTS))
    np.testing.assert_allclose(summed.vector, means, atol=1e-15)
    assert summed.total_weight == total


def test_weighted_levels_by_hand():
    """Averaged levels are tripled, uniform and summed ones are not; the weight comes last."""
    layout = build_layout(SPEC, weighs_examples=True)
    levels = np.array([10, 20, 30, 40], np.uint64)
    assert layout.weigh(levels, 3).tolist() == [30, 60, 30, 40, 3]
    assert layout.weigh(levels, 3).dtype == np.uint64
    assert build_layout(SPEC, weighs_examples=False).weigh(levels, 3).tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("weighs_examples", [True, False])
def test_a_masked_sum_is_within_half_a_step_of_a_mean(weighs_examples):
    layout = build_layout(SPEC, weighs_examples=weighs_examples)
    total = masked_sum(layout, VECTORS, WEIGHTS)
    opened = layout.average(layout.open_sum(total, 2, QUANTISER))
    plain = layout.average(layout.sum_plain(VECTORS, WEIGHTS))
    assert opened.total_weight == plain.total_weight
    bound = np.array([0.5, 0.5, 0.5, 1.0]) * QUANTISER.step * (1 + 1e-9)
    assert (np.abs(opened.vector - plain.vector) <= bound).all()


@pytest.mark.parametrize(
    ("largest", "weight"), [(None, -1), (None, LARGEST_WEIGHT + 1), (8, 0), (8, 9), (8, 2**20)]
)
def test_a_weight_out_of_range_is_refused(largest, weight):
    layout = build_layout(SPEC, weighs_examples=True, largest_weight=largest)
    with pytest.raises(ProtocolError, match="weight") as caught:
        layout.weigh(np.zeros(4, np.uint64), weight)
    # It is the client's own business how many there are.
    most = largest or LARGEST_WEIGHT
    assert str(weight) not in str(caught.value).replace(f"1 to {most}", "")
    layout.weigh(np.zeros(4, np.uint64), most)
    # Without weights nobody's number of examples matters.
    build_layout(SPEC, weighs_examples=False, largest_weight=largest).require_weight(weight)


@pytest.mark.parametrize(
    ("bits", "clients", "largest", "ring"),
    # Levels below 2^8, times weights, times clients, must stay below 2^ring.
    [(8, 10, None, 32), (8, 32, 8, 16), (8, 33, 8, 17), (8, 32, 9, 17), (20, 10, 1, 24)],
)
def test_the_ring_is_as_small_as_the_largest_weight_allows(bits, clients, largest, ring):
    layout = build_layout(SPEC, weighs_examples=True, largest_weight=largest)
    grid = Quantiser(1.0, bits)
    assert layout.ring_bits(grid, clients) == ring
    assert build_layout(SPEC, weighs_examples=False).ring_bits(grid, 10) == max(16, bits + 4)


@pytest.mark.parametrize(("clients", "largest"), [(10, 2**20), (32, 8), (33, 8), (7, 3), (1, 5)])
def test_the_largest_sum_does_not_wrap_around(clients, largest):
    """Every client at the top level with the largest weight: the sum opens as it was put in."""
    layout = build_layout(SPEC, weighs_examples=True, largest_weight=largest)
    ring = layout.ring_bits(QUANTISER, clients)
    levels = np.full(4, QUANTISER.largest_level, np.uint64)
    total = clients * layout.weigh(levels, largest).astype(object)
    assert max(total) < 2**ring
    kept = np.array([int(value) % 2**ring for value in total], np.uint64)
    opened = layout.average(layout.open_sum(kept, clients, QUANTISER))
    np.testing.assert_allclose(opened.vector, [1.0, 1.0, 1.0, clients])
    assert opened.total_weight == clients * largest


def test_a_sum_without_any_weight_is_refused():
    """Clients that claim no example at all cannot turn the state into NaN."""
    layout = build_layout(SPEC, weighs_examples=True)
    with pytest.raises((PlatformError, PrivacyError), match="weight"):
        layout.average(layout.open_sum(np.zeros(5, np.uint64), 2, QUANTISER))


def test_a_sum_that_no_clients_can_have_made_is_refused():
    layout = build_layout(SPEC, weighs_examples=True)
    total = masked_sum(layout, VECTORS, WEIGHTS)
    total[0] = 4 * 255 + 1
    with pytest.raises(ProtocolViolation):
        layout.open_sum(total, 2, QUANTISER)


SMALL = (NONE, *NO_POOL, "rounds=1", "cohort.dropout_rate=0")
LARGEST = "secure_aggregation.largest_weight={}"


def test_a_simulation_takes_it_from_the_data(storage):
    with opened(storage.create(*SMALL)) as simulation:
        protection = simulation.run.terms.protection
        layout, grid = protection.layout, protection.sums.grid()
        assert layout.weighted
        clients = simulation.population.clients.values()
        assert layout.largest_weight == max(c.profile.data.num_examples for c in clients) == 4
        # 20 bits a level, 5 clients of at most 4 examples: 2^20 x 20 < 2^25, in place of 2^43.
        assert layout.ring_bits(grid, 5) == 25
        for client in clients:
            assert client.profile.protection.layout == layout
    with opened(storage.create(*SMALL, LARGEST.format(7))) as simulation:
        assert simulation.run.terms.protection.layout.largest_weight == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((*SMALL, LARGEST.format(1)), "less than the 4"),
        ((LARGEST.format(5),), "5 has no meaning"),
        ((*SMALL, LARGEST.format(2**20 + 1)), "is not valid"),
    ],
)
def test_refused_in_one_sentence(storage, given, words):
    with pytest.raises(ConfigError, match=r"^secure_aggregation\.largest_weight: ") as refused:
        storage.create(*given)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    original = driving.make_protection

    def make(method: Any, setting: Any) -> Any:
        protection = original(method, setting)
        layout = dataclasses.replace(protection.layout, largest_weight=4)
        sums = dataclasses.replace(protection.sums, layout=layout)
        return dataclasses.replace(protection, sums=sums)

    monkeypatch.setattr(driving, "make_protection", make)
    return iter(())


@pytest.mark.parametrize("setting", [SECURE, PLAIN], ids=["masked", "plain"])
def test_a_client_with_more_examples_sends_nothing(stores, limited, setting):
    """Of clients with 1 to 5 examples the last is lost, and the others' sum is as ever."""
    outcome = driving.play(Counting(), data(), stores, setting)
    assert "client-4" not in outcome.survivors and len(outcome.survivors) == 4
    assert outcome.summed.total_weight == 1 + 2 + 3 + 4
    (stores / "light").mkdir()
    light = data(sizes=(1, 2, 3, 4, 4))
    outcome = driving.play(Counting(), light, stores / "light", setting)
    assert outcome.summed.total_weight == 14.0


def test_a_weight_in_the_clear_above_the_largest_is_a_dropout(stores, limited):
    light = data(sizes=(1, 2, 3, 4, 4))
    inner = driving.transport_to(driving.make_clients(Counting(), light, stores, PLAIN), PLAIN)
    liar = Spoiling(inner, "train", {"client-1": with_fields(weight=5)})
    outcome = driving.play(Counting(), light, stores / "unused", PLAIN, transport=liar)
    assert "client-1" not in outcome.survivors and len(outcome.survivors) == 4


def test_a_client_refuses_a_ring_for_other_weights(stores, limited):
    """5 clients x 4 x 2^20 needs 25 bits; the ring for 2^20 examples has 43."""
    client = driving.make_clients(Counting(), data(), stores, SECURE)["client-1"]
    for ring in (24, 26, 43):
        with pytest.raises(ProtocolError, match="vector"):
            client.handle(invitation(seat(ring_bits=ring)))
    assert client.handle(invitation(seat(ring_bits=25)))


NOISED = dataclasses.replace(SECURE, mechanism=UploadNoise(1.0, 2.0), pool_noise="same")
SAME = "pool.noise same: the coordinator reads every survivor's upload by name"


def test_the_entries_sum_is_the_securely_opened_sum_bit_for_bit(stores):
    clients = driving.make_clients(Counting(), data(), stores, NOISED)
    ear, unused = Overheard(driving.transport_to(clients, NOISED)), stores / "unused"
    unused.mkdir()
    outcome = driving.play(Counting(), data(), unused, NOISED, transport=ear)
    protection = driving.make_protection(Counting(), NOISED)
    told = [decode_disclosure(ear.seen["unmask", name][1]) for name in clients]
    levels = [each.entry[LEVELS].astype(np.uint64) for each in told]
    assert len({tuple(level) for level in levels}) == len(outcome.survivors) == 5
    total = np.sum(levels, axis=0, dtype=np.uint64)
    totals = protection.layout.open_sum(total, len(levels), protection.sums.grid())
    recomputed = protection.layout.average(totals).vector
    assert recomputed.tobytes() == outcome.summed.vector.tobytes()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), True),
        (("pool.noise=independent",), False),
        (("secure_aggregation.enabled=false",), False),
        pytest.param(NO_POOL, False, marks=pytest.mark.slow),
    ],
)
def test_the_report_says_so_exactly_where_it_is_true(storage, overrides, says):
    with opened(storage.create("rounds=1", *overrides)) as simulation:
        told = run_warnings(simulation.run, [])
    assert any(one.text.startswith(SAME) for one in told) is says
