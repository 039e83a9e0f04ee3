"""The largest weight of a run: known to all before the first round, and what it costs in bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform.contract import driving
from platform.errors import ConfigError, ProtocolError
from tests.trunk._runs import NO_POOL, NONE, Storage, opened
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

SMALL = (NONE, *NO_POOL, "rounds=1", "cohort.dropout_rate=0")
LARGEST = "secure_aggregation.largest_weight={}"


@pytest.fixture
def stores() -> Iterator[Path]:
    with driving.quick_folder() as folder:
        yield folder


def most_examples(simulation) -> int:
    return max(c.profile.data.num_examples for c in simulation.population.clients.values())


def test_a_simulation_takes_it_from_the_data(storage: Storage) -> None:
    with opened(storage.create(*SMALL)) as simulation:
        layout, grid = (
            simulation.run.terms.protection.layout,
            simulation.run.terms.protection.sums.grid(),
        )
        assert layout.weighted
        assert layout.largest_weight == most_examples(simulation) == 4
        # 20 bits a level, 5 clients of at most 4 examples: 2^20 x 20 < 2^25, in place of 2^43.
        assert layout.ring_bits(grid, 5) == 25
        for client in simulation.population.clients.values():
            assert client.profile.protection.layout == layout
    with opened(storage.create(*SMALL, LARGEST.format(7))) as simulation:
        assert simulation.run.terms.protection.layout.largest_weight == 7


def test_results_do_not_depend_on_it(storage: Storage) -> None:
    one, other = (storage.run(*SMALL, LARGEST.format(n)) for n in (4, 2**20))
    assert all((one.state()[name] == array).all() for name, array in other.state().items())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((*SMALL, LARGEST.format(1)), "1 is less than the 4 examples of a client; valid: 4 to"),
        ((LARGEST.format(5),), "5 has no meaning under privacy.mechanism = upload_noise"),
        ((*SMALL, LARGEST.format(2**20 + 1)), "is not valid"),
    ],
)
def test_refused_in_one_sentence(storage: Storage, given: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=r"^secure_aggregation\.largest_weight: ") as refused:
        storage.create(*given)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Coordinator and clients of a run whose largest weight is 4."""
    original = driving.make_protection

    def make(method: Any, setting: Any) -> Any:
        protection = original(method, setting)
        layout = dataclasses.replace(protection.layout, largest_weight=4)
        sums = dataclasses.replace(protection.sums, layout=layout)
        return dataclasses.replace(protection, sums=sums)

    monkeypatch.setattr(driving, "make_protection", make)
    return iter(())


@pytest.mark.parametrize("setting", [SECURE, PLAIN], ids=["masked", "plain"])
def test_a_client_with_more_examples_sends_nothing(
    stores: Path, limited: None, setting: Any
) -> None:
    """Of clients with 1 to 5 examples the last is lost, and the others' sum is as ever."""
    outcome = driving.play(Counting(), data(), stores, setting)
    assert "client-4" not in outcome.survivors and len(outcome.survivors) == 4
    assert outcome.summed.total_weight == 1 + 2 + 3 + 4
    (stores / "light").mkdir()
    light = data(sizes=(1, 2, 3, 4, 4))
    outcome = driving.play(Counting(), light, stores / "light", setting)
    assert outcome.summed.total_weight == 14.0


def test_a_weight_in_the_clear_above_the_largest_is_a_dropout(stores: Path, limited: None) -> None:
    light = data(sizes=(1, 2, 3, 4, 4))
    clients = driving.make_clients(Counting(), light, stores, PLAIN)
    liar = Spoiling(
        driving.transport_to(clients, PLAIN), "train", {"client-1": with_fields(weight=5)}
    )
    outcome = driving.play(Counting(), light, stores / "unused", PLAIN, transport=liar)
    assert "client-1" not in outcome.survivors and len(outcome.survivors) == 4


def test_a_client_refuses_a_ring_for_other_weights(stores: Path, limited: None) -> None:
    """5 clients x 4 x 2^20 needs 25 bits; the ring for 2^20 examples has 43."""
    client = driving.make_clients(Counting(), data(), stores, SECURE)["client-1"]
    for ring in (24, 26, 43):
        with pytest.raises(ProtocolError, match="the vector is not this run's"):
            client.handle(invitation(seat(ring_bits=ring)))
    assert client.handle(invitation(seat(ring_bits=25)))
