"""A pool that is made once, before the first round: charged once, and there in all rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from platform.agreement.attempts import rounds_to_come
from platform.agreement.reading import Agreed, read_records
from platform.errors import ConfigError, RunStopped
from platform.experiment.comparisons import train_twin
from platform.experiment.finishing import execute
from platform.parties.client import Client
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.wire.layout import handle
from privacy.training import LocalTrainer
from tests.trunk._runs import (
    NONE,
    RECORDS,
    TWINS,
    Crash,
    Finished,
    Storage,
    comparable,
    crash_at,
    crashed,
    gaussian_epsilon,
    of_clients,
    opened,
    warnings_of,
)
from tests.trunk.conftest import MakeStorage
from tests.trunk.test_collection import entries, lose_in, personal

OPENING = ("method={name: opening}", "rounds=2")
PLAIN = (*OPENING, NONE)
ALL = "cohort.dropout_rate=0"
KEYS = "SELECT round_number, channel, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.fixture(scope="module")
def watched(make_storage: MakeStorage) -> tuple[Finished, list[float], list[tuple[list[int], int]]]:
    """A run in which nothing is lost, without noise; the rates of its trainings; twins' rounds."""
    rates: list[float] = []
    twins: list[tuple[list[int], int]] = []
    fit = LocalTrainer.fit

    def watching(self: LocalTrainer, *arguments: Any, **named: Any) -> Any:
        rates.append(self.learning_rate)
        return fit(self, *arguments, **named)

    def noted(*arguments: Any, **named: Any) -> Any:
        twins.append((arguments[3], named["final_round"]))
        return train_twin(*arguments, **named)

    falling = ("training.schedule={kind: exponential, gamma: 0.5}", "training.learning_rate=0.04")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalTrainer, "fit", watching)
        patch.setattr("platform.experiment.comparisons.train_twin", noted)
        place = make_storage("whole").gathering()
        run = place.run(*PLAIN, ALL, *falling, TWINS)
    return run, rates, twins


@pytest.fixture(scope="module")
def whole(watched) -> Finished:
    return watched[0]


@pytest.fixture(scope="module")
def lossy(make_storage: MakeStorage) -> Finished:
    """One of five lost in every round, no noise; for reading only."""
    return make_storage("lossy-opening").gathering().run(*PLAIN)


@pytest.fixture(scope="module")
def noised(make_storage: MakeStorage) -> Finished:
    """One of five lost in every round, upload noise of the operating system, epsilon 8."""
    fresh = ("privacy.noise_source=os", "pool.clipping_norm=0.5")
    return make_storage("noised-opening").gathering().run(*OPENING, *fresh)


def entries_by_owner(run: Finished) -> dict[str, np.ndarray]:
    owners = {handle(secret, run.run_id, 1): name for name, (_, secret) in run.identities().items()}
    return {owners[name]: entry["mean"] for _, name, entry in entries(run)}


def test_all_rounds_have_everybodys_entry_but_the_own(whole: Finished) -> None:
    assert [generation for generation, _, _ in entries(whole)] == [1] * 5
    with opened(whole.storage.reopen(whole.run_id)) as simulation:
        clients = simulation.population.clients
        data = {name: c.profile.data.arrays["features"] for name, c in clients.items()}
    mine = entries_by_owner(whole)
    total = np.sum(list(mine.values()), axis=0)
    for name, state in personal(whole).items():
        np.testing.assert_allclose(mine[name], data[name].mean(0), atol=1e-6)
        assert int(state["handed"]) == 4
        np.testing.assert_allclose(state["others"], total - mine[name], atol=1e-6)
    phases = [(d["round"], d["phase"]) for d in whole.summary["rounds"]]
    assert phases == [(1, "collection"), (2, "rounds"), (3, "rounds")]
    assert whole.summary["phases"] is None


def test_a_client_without_an_entry_is_handed_the_others(lossy: Finished) -> None:
    mine, survivors = entries_by_owner(lossy), lossy.survivors()
    assert set(mine) == set(survivors[1]) and len(mine) == 4
    total = np.sum(list(mine.values()), axis=0)
    trained = {*survivors[2], *survivors[3]}
    assert trained - set(mine), "nobody who was lost in the collection takes part: no test"
    for name, state in personal(lossy).items():
        if name in trained:
            assert int(state["handed"]) == (3 if name in mine else 4)
            expected = total - mine.get(name, np.zeros_like(total))
            np.testing.assert_allclose(state["others"], expected, atol=1e-6)


def test_the_ledger_has_one_entry_and_then_the_sums(noised: Finished) -> None:
    facts = "SELECT round_number, channel, clipping_norm, count(*), standard_deviation FROM ledger"
    rows = noised.storage.rows(f"{facts} GROUP BY 1, 2, 3, 5 ORDER BY 1")
    z = noised.noise_multiplier
    expected = [(1, "pool", 0.5, 5), (2, "sum", 1.0, 5), (3, "sum", 1.0, 5)]
    assert [row[:4] for row in rows] == expected
    assert [row[4] for row in rows] == pytest.approx([0.5 * z, z, z], rel=1e-9)
    for number, document in enumerate(noised.summary["rounds"], start=1):
        for adversary in ("server", "peers", "observer"):
            expected = gaussian_epsilon(z, number)
            assert document["epsilon"][adversary] == pytest.approx(expected, rel=1e-6)
    assert 7.99 < gaussian_epsilon(z, 3) <= 8.0
    assert "before the first round" in " ".join(warnings_of(noised.summary))
    values = np.concatenate([entry["mean"] for _, _, entry in entries(noised)])
    assert values.std() == pytest.approx(0.5 * z, rel=0.15)
    books = of_clients(noised.folder, "SELECT client, round_number, channel, status FROM ledger")
    for client, kept in books.items():
        there = [n for n, survivors in noised.survivors().items() if client in survivors]
        channels = {1: "pool", 2: "sum", 3: "sum"}
        assert sorted(kept) == [(n, channels[n], "released") for n in there]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "nth", "after"),
    [
        *((Client, "_disclose", 3, True), (Federation, "_commit_pool", 1, False)),
        *((Federation, "_commit", 1, True), (Federation, "_commit", 2, False)),
    ],
)
def test_a_run_that_was_killed_ends_as_if_nothing_had_happened(
    storage, monkeypatch, lossy, owner, name, nth, after
):
    place = storage.gathering()
    run_id = crashed(monkeypatch, place.create(*PLAIN), owner, name, nth, after=after)
    resumed = place.resume(run_id)
    assert comparable(resumed.summary) == comparable(lossy.summary)
    assert storage.rows(KEYS) == [(1, "pool", 5), (2, "sum", 5), (3, "sum", 5)]
    assert resumed.survivors() == lossy.survivors()
    theirs = personal(lossy)
    for client, mine in personal(resumed).items():
        assert all(np.array_equal(mine[n], theirs[client][n]) for n in theirs[client])
    assert np.array_equal(resumed.state()["weight"], lossy.state()["weight"])


@pytest.mark.slow
def test_without_enough_entries_no_round_is_held(storage: Storage) -> None:
    place = storage.gathering()
    with opened(place.create(*PLAIN, "cohort.retries=1")) as simulation:
        with pytest.raises(RunStopped, match=r"round 1 was .*pool\.minimum"):
            execute(lose_in(simulation, 1, 1), SilentObserver())
    assert storage.rows("SELECT count(*) FROM rounds") == [(0,)]
    # Both attempts may have left clients and stay charged; the run can be gone on with.
    assert storage.rows(KEYS) == [(1, "pool", 10)]
    resumed = place.resume(simulation.run_id)
    assert storage.rows(KEYS) == [(1, "pool", 15), (2, "sum", 5), (3, "sum", 5)]
    assert len(entries(resumed)) == 4


def test_what_is_still_to_come_counts_the_rounds(storage, monkeypatch):
    """While the collection is open, and after it, both rounds are to come; then one is."""
    found = []
    with opened(storage.gathering().create(*OPENING)) as simulation:
        for after in (False, True, True):
            with monkeypatch.context() as patch, pytest.raises(Crash):
                crash_at(patch, Federation, "_commit", 1, after=after)
                execute(simulation, SilentObserver())
            with simulation.database.unit_of_work(read_only=True) as uow:
                records = read_records(uow, simulation.run_id)
            coming = rounds_to_come(Agreed(simulation.run.terms.config, records, records, None))
            found.append((coming.rounds, {release.key.channel for release in coming.releases}))
    assert found == [(2, set()), (2, set()), (1, {"sum"})]


def test_a_rounds_purpose_is_a_matter_of_its_number(storage: Storage) -> None:
    with opened(storage.gathering().create(*PLAIN)) as simulation:
        protection = simulation.run.terms.protection
        assert protection.in_round(1).channels == ("pool",)
        assert not protection.in_round(1).layout.spec
        for number in (2, 3, 4):
            assert protection.in_round(number) is protection
        assert protection.channels == ("sum",) and protection.pool_spec is None
        expected = next(iter(simulation.population.clients.values())).profile.safeguards.expected
        assert (expected.rounds, expected.experts, expected.generations) == (3, 5, 1)
        assert expected.fetched is None


def test_an_entry_of_bare_data_is_refused_under_noised_steps(storage: Storage) -> None:
    """Nothing of a record may leave by another way than the trainer: the run fails closed."""
    with opened(storage.gathering().create(*OPENING, *RECORDS)) as simulation:
        with pytest.raises(RunStopped, match="outside the trainer"):
            execute(simulation, SilentObserver())
    assert storage.rows("SELECT count(*) FROM pool") == [(0,)]


def test_only_rounds_that_train_count_for_twins_and_for_falling_rates(watched) -> None:
    _, rates, twins = watched
    assert twins == [([2, 3], 4)] * 5
    # Five clients, then five twins; each five train side by side.
    assert rates == pytest.approx(2 * ([0.04] * 5 + [0.02] * 5))


def test_there_is_no_second_phase(whole: Finished) -> None:
    with pytest.raises(ConfigError, match="no pool that"):
        whole.storage.create(*PLAIN, ALL, TWINS, f"phase_two_of={whole.run_id}")


@pytest.mark.parametrize("name", ["ccst, space: pixels", "elcfs"])
def test_noised_steps_do_not_cover_what_is_swapped(storage, name) -> None:
    method = f"method={{name: {name}, network: cnn, image_size: 16, channels: [2, 3]}}"
    with pytest.raises(ConfigError, match=r"^privacy\.mechanism"):
        storage.create(method, *RECORDS)
    assert not storage.file.exists()
