"""What a run refuses: settings that contradict each other, numbers that are none, other books."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from methods import LocalResult
from platform.errors import ConfigError, RunStopped
from platform.experiment.finishing import execute
from platform.parties.client import Client
from platform.rounds.observing import SilentObserver
from tests.trunk import _tampering as tampering
from tests.trunk._runs import ADAPTIVE, FIXED, NO_POOL, NONE, RECORDS, Storage, of_clients, opened
from tests.trunk.test_selection import BEST, CARVED, NOISED

MASKS_OFF = "secure_aggregation.enabled=false"
CONTROLLED = ("method.name=scaffold", "method.network=features")
POISSON = (
    *("privacy.mechanism=central_noise", "cohort.sampling=poisson"),
    *("cohort.minimum=1", "cohort.retries=0", MASKS_OFF),
)
FREE = "privacy.target_epsilon=null"
TINY = (FREE, "privacy.noise_multiplier=1e-6")
SHARES = "privacy.mechanism=distributed_noise"
CENTRAL = "privacy.mechanism=central_noise"
REFUSED = [
    (("privacy.per_sample_clipping_norm=1", "method.name=fedclip"), "of one example"),
    ((FREE, "privacy.noise_multiplier=0"), "greater than 0"),
    ((*RECORDS, TINY[1], "privacy.accountant=pld"), "privacy.accountant: "),
    (("privacy.noise_multiplier=1",), "give exactly one"),
    ((FREE,), "give exactly one"),
    ((SHARES, *TINY), "privacy.noise_multiplier: one"),
    (("privacy.noise_distribution=discrete_gaussian", *TINY), "privacy.noise_multiplier: "),
    ((*RECORDS, "privacy.accountant=exact"), "'exact' cannot price"),
    ((SHARES, *FIXED, "privacy.accountant=pld"), "'pld' cannot price"),
    (("privacy.noise_distribution=skellam",), "skellam is not available"),
    ((SHARES, "pool.noise=same"), "'same' under distributed_noise"),
    ((*RECORDS, "pool.noise=independent"), "'independent' has no meaning"),
    (("privacy.sampling_probability=0.5",), "the batches of"),
    (("privacy.personal=decoupled",), "decoupled has no"),
    ((*RECORDS, "privacy.per_sample_clipping_norm=null"), "clipping_norm: is missing"),
    ((*RECORDS, "privacy.sampling_probability=null"), "sampling_probability: is missing"),
    ((*RECORDS, "training.local_steps=null", "training.local_epochs=1"), "training.local_epochs: "),
    ((*RECORDS, *ADAPTIVE), "privacy.adaptive_clipping: follows"),
    (ADAPTIVE, "privacy.adaptive_clipping: a pool"),
    ((*ADAPTIVE, "method.name=zero_shot", MASKS_OFF), "zero_shot shares nothing"),
    ((*RECORDS, *NO_POOL, "privacy.personal=decoupled"), "promptfl has no"),
    ((*CONTROLLED, "training.optimizer=adam"), "training.optimizer: 'adam'"),
    ((*CONTROLLED, "training.momentum=0.9"), "training.momentum: 0.9"),
    ((SHARES, MASKS_OFF), "secure_aggregation.enabled: false"),
    (("cohort.sampling=poisson",), "poisson amplifies only"),
    ((CENTRAL, "cohort.sampling=poisson"), "poisson cohorts may"),
    ((*POISSON, "cohort.minimum=2"), "cohort.minimum: 2"),
    ((*POISSON, "cohort.retries=1"), "cohort.retries: 1"),
    (POISSON, "poisson amplifies nothing"),
    (("privacy.mechanism=none", "privacy.lifetime_budget=1"), "lifetime_budget: 1.0"),
    # Validation, and a round that is chosen by it.
    ((*CARVED, BEST), "best_on_validation would choose"),
    ((*RECORDS, *CARVED, BEST), "valid: last"),
    ((NONE, BEST), "task.validation_share is 0"),
    (("evaluation.release=noised",), "task.validation_share is 0"),
    ((*RECORDS, *CARVED, "evaluation.release=noised"), "under dp_sgd"),
    (("evaluation.metric_ratio=0.5",), "evaluation.release = none"),
    ((*NOISED, "evaluation.metric_ratio=0"), "evaluation.metric_ratio: 0"),
    (NOISED, "the upload itself"),
    ((*NOISED, "method.name=zero_shot", MASKS_OFF), "zero_shot uploads nothing"),
    ((*NO_POOL, *NOISED, BEST, "rounds=1"), "evaluation.every: 1"),
    ((*NO_POOL, *NOISED, BEST, "evaluation.every=3"), "evaluation.every: 3"),
    ((NONE, *CARVED, BEST, "evaluation.every=3"), "evaluation.every: 3"),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED, ids=str)
def test_refused_in_one_sentence_before_anything_is_written(storage, overrides, words):
    with pytest.raises(ConfigError) as refused:
        storage.create(*overrides)
    message = str(refused.value)
    assert words in message
    assert not storage.file.exists()
    assert [path.name for path in storage.folder.iterdir()] == ["cache"]


def test_a_client_that_is_no_simulation_takes_no_seeded_noise(storage: Storage) -> None:
    with opened(storage.create()) as simulation:
        client = next(iter(simulation.population.clients.values()))
        profile = client.profile
        real = dataclasses.replace(profile.safeguards, simulated=False)
        alone = dataclasses.replace(profile, safeguards=real)
        with pytest.raises(ConfigError, match="'seeded' protects nobody"):
            Client(alone, client._store, client._make_trainer)
        fresh = dataclasses.replace(profile.randomness, noise_source="os")
        safe = dataclasses.replace(alone, randomness=fresh)
        assert Client(safe, client._store, client._make_trainer).pseudonym == client.pseudonym


def test_an_update_that_is_no_number_stops_a_run_without_a_mechanism(storage, monkeypatch):
    """With one it leaves as zero, which nobody can tell (`test_failing_clients`)."""
    with opened(storage.create("privacy.mechanism=none", *NO_POOL)) as simulation:
        method = type(simulation.run.terms.method)
        original = method.client_update

        def broken(*arguments):
            result = original(*arguments)
            update = {name: np.full_like(v, np.nan) for name, v in result.update.items()}
            return LocalResult(update, None, result.personal)

        monkeypatch.setattr(method, "client_update", broken)
        with pytest.raises(RunStopped, match="1 was aborted"):
            execute(simulation, SilentObserver())
    assert storage.rows("SELECT count(*) FROM states") == [(1,)]
    folder = storage.folder / simulation.run_id
    assert len(of_clients(folder, "SELECT client FROM identity")) == 5
    assert of_clients(folder, "SELECT client FROM ledger") == {}


@pytest.mark.parametrize(
    ("column", "value"),
    [("standard_deviation", 0.5), ("relation", "add_or_remove_one"), ("channel", "pool")],
)
def test_a_ledger_of_other_releases_is_not_gone_on_with(own_copy, column, value):
    """Facts of a ledger never change; so whatever differs, the run would now spend otherwise."""
    storage = own_copy.storage
    tampering.execute(storage.file, f"UPDATE ledger SET {column} = {value!r}")  # noqa: S608
    with pytest.raises(RunStopped, match=f"{column}.*ledger|ledger.*{column}"):
        storage.reopen(own_copy.run_id)
