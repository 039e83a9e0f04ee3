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
from tests.trunk._runs import (
    ADAPTIVE,
    FIXED,
    NO_POOL,
    RECORDS,
    Finished,
    Storage,
    of_clients,
    opened,
)

MASKS_OFF = "secure_aggregation.enabled=false"
CONTROLLED = ("method.name=scaffold", "method.network=features")
POISSON = (
    "privacy.mechanism=central_noise",
    "cohort.sampling=poisson",
    "cohort.minimum=1",
    "cohort.retries=0",
    MASKS_OFF,
)
ONE_STEP = ("rounds=2", "cohort.dropout_rate=0")

# --- refused before anything is written -----------------------------------------------------------

REFUSED = {
    "clipping what no example has alone": (
        ["privacy.per_sample_clipping_norm=1", "method.name=fedclip"],
        "privacy.per_sample_clipping_norm: 1.0 bounds the gradient of one example alone",
    ),
    "no noise": (["privacy.target_epsilon=null", "privacy.noise_multiplier=0"], "greater than 0"),
    "next to no noise": (
        [*RECORDS, "privacy.noise_multiplier=1e-6", "privacy.accountant=pld"],
        "privacy.accountant: ",
    ),
    "both amounts": (["privacy.noise_multiplier=1"], "give exactly one of"),
    "neither amount": (["privacy.target_epsilon=null"], "give exactly one of"),
    "share below 1.5 steps": (
        [
            "privacy.mechanism=distributed_noise",
            "privacy.target_epsilon=null",
            "privacy.noise_multiplier=1e-6",
        ],
        "privacy.noise_multiplier: one client's share of the noise has a standard deviation",
    ),
    "share of the pool's integers": (
        [
            "privacy.noise_distribution=discrete_gaussian",
            "privacy.target_epsilon=null",
            "privacy.noise_multiplier=1e-6",
        ],
        "privacy.noise_multiplier: ",
    ),
    "selection": (
        ["evaluation.selection=best_on_validation"],
        "evaluation.selection: best_on_validation would choose",
    ),
    "exact with batches": (
        [*RECORDS, "privacy.accountant=exact"],
        "privacy.accountant: 'exact' cannot price dp_sgd",
    ),
    "pld with shares": (
        [
            "privacy.mechanism=distributed_noise",
            *FIXED,
            "privacy.accountant=pld",
        ],
        "privacy.accountant: 'pld' cannot price distributed_noise",
    ),
    "skellam on the client": (
        ["privacy.noise_distribution=skellam"],
        "privacy.noise_distribution: skellam is not available under upload_noise",
    ),
    "same under shares": (
        ["privacy.mechanism=distributed_noise", "pool.noise=same"],
        "pool.noise: 'same' under distributed_noise",
    ),
    "same under central": (
        ["privacy.mechanism=central_noise", "pool.noise=same"],
        "pool.noise: 'same' under central_noise",
    ),
    "independent under dp_sgd": (
        [*RECORDS, "pool.noise=independent"],
        "pool.noise: 'independent' has no meaning under dp_sgd",
    ),
    "sampling of uploads": (
        ["privacy.sampling_probability=0.5"],
        "privacy.sampling_probability: is for the batches of dp_sgd",
    ),
    "decoupled uploads": (
        ["privacy.personal=decoupled"],
        "privacy.personal: decoupled has no meaning under upload_noise",
    ),
    "no bound for records": (
        [*RECORDS, "privacy.per_sample_clipping_norm=null"],
        "privacy.per_sample_clipping_norm: is missing",
    ),
    "no probability": (
        [*RECORDS, "privacy.sampling_probability=null"],
        "privacy.sampling_probability: is missing",
    ),
    "epochs": (
        [*RECORDS, "training.local_steps=null", "training.local_epochs=1"],
        "training.local_epochs: would make the number of noised steps",
    ),
    "adaptive records": ([*RECORDS, *ADAPTIVE], "privacy.adaptive_clipping: follows the norms"),
    "adaptive with same": (ADAPTIVE, "privacy.adaptive_clipping: a pool entry"),
    "adaptive of nothing": (
        [*ADAPTIVE, "method.name=zero_shot", MASKS_OFF],
        "privacy.adaptive_clipping: zero_shot shares nothing",
    ),
    "nothing to decouple": (
        [*RECORDS, *NO_POOL, "privacy.personal=decoupled"],
        "privacy.personal: promptfl has no personal part",
    ),
    "control variates by Adam": (
        [*CONTROLLED, "training.optimizer=adam"],
        "training.optimizer: 'adam' does not step by the learning rate times a gradient, which "
        "scaffold counts on; valid: sgd",
    ),
    "control variates with momentum": (
        [*CONTROLLED, "training.momentum=0.9"],
        "training.momentum: 0.9 adds earlier steps to each, while scaffold counts on the learning "
        "rate times a gradient; valid: 0",
    ),
    "shares without masks": (
        ["privacy.mechanism=distributed_noise", MASKS_OFF],
        "secure_aggregation.enabled: false shows every client's own share",
    ),
    "poisson uploads": (
        ["cohort.sampling=poisson"],
        "cohort.sampling: poisson amplifies only against the observer",
    ),
    "poisson under masks": (
        ["privacy.mechanism=central_noise", "cohort.sampling=poisson"],
        "cohort.sampling: poisson cohorts may have any size",
    ),
    "poisson with a minimum": (
        [*POISSON, "cohort.minimum=2"],
        "cohort.minimum: 2 would let one client's coin decide whether a whole sum is released",
    ),
    "poisson drawn again": (
        [*POISSON, "cohort.retries=1"],
        "cohort.retries: 1 would draw a secret cohort again",
    ),
    "poisson with a pool": (POISSON, "cohort.sampling: poisson amplifies nothing with pfedmoap"),
    "budget without noise": (
        ["privacy.mechanism=none", "privacy.lifetime_budget=1"],
        "privacy.lifetime_budget: 1.0 has no meaning",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_before_anything_is_written(storage: Storage, case: str) -> None:
    overrides, words = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        storage.create(*overrides)
    message = str(refused.value)
    assert words in message and "\n" not in message
    assert not storage.file.exists()
    assert [path.name for path in storage.folder.iterdir()] == ["cache"]


def test_a_client_that_is_no_simulation_takes_no_seeded_noise(storage: Storage) -> None:
    with opened(storage.create(*ONE_STEP)) as simulation:
        client = next(iter(simulation.population.clients.values()))
        profile = client.profile
        real = dataclasses.replace(profile.safeguards, simulated=False)
        alone = dataclasses.replace(profile, safeguards=real)
        with pytest.raises(ConfigError, match=r"'seeded' protects nobody .*valid: os"):
            Client(alone, client._store, client._make_trainer)
        fresh = dataclasses.replace(profile.randomness, noise_source="os")
        safe = dataclasses.replace(alone, randomness=fresh)
        assert Client(safe, client._store, client._make_trainer).pseudonym == client.pseudonym


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_no_number_stops_a_run_without_a_mechanism(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """With one it leaves as zero, which nobody can tell (`test_failing_clients`)."""
    with opened(storage.create("privacy.mechanism=none", *NO_POOL)) as simulation:
        method = type(simulation.run.terms.method)
        original = method.client_update

        def broken(*arguments):
            result = original(*arguments)
            update = {name: np.full_like(v, value) for name, v in result.update.items()}
            return LocalResult(update, None, result.personal)

        monkeypatch.setattr(method, "client_update", broken)
        with pytest.raises(RunStopped, match="round 1 was aborted"):
            execute(simulation, SilentObserver())
    assert storage.rows("SELECT count(*) FROM states") == [(1,)]
    folder = storage.folder / simulation.run_id
    assert len(of_clients(folder, "SELECT client FROM identity")) == 5
    assert of_clients(folder, "SELECT client FROM ledger") == {}


# --- going on with other parameters ---------------------------------------------------------------


def test_a_changed_configuration_is_not_resumed(own_copy: Finished) -> None:
    storage = own_copy.storage
    edited = "UPDATE runs SET config_json = json_set(config_json, '$.rounds', 9)"
    tampering.execute(storage.file, edited)
    with pytest.raises(RunStopped, match="its configuration is not the one"):
        storage.reopen(own_copy.run_id)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("standard_deviation", 0.5),
        ("clipping_norm", 2.0),
        ("relation", "add_or_remove_one"),
        ("channel", "pool"),
    ],
)
def test_a_ledger_of_other_releases_is_not_gone_on_with(
    own_copy: Finished, column: str, value: object
) -> None:
    """Facts of a ledger never change; so whatever differs, the run would now spend otherwise."""
    storage = own_copy.storage
    tampering.execute(storage.file, f"UPDATE ledger SET {column} = {value!r}")  # noqa: S608
    with pytest.raises(RunStopped, match=f"{column}.*ledger|ledger.*{column}"):
        storage.reopen(own_copy.run_id)


def test_what_is_unchanged_is_resumed(own_copy: Finished) -> None:
    with opened(own_copy.storage.reopen(own_copy.run_id)) as simulation:
        assert simulation.run_id == own_copy.run_id
