"""A second phase on a finished run: what it takes over, what it leaves alone, what is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from platform.config import RunConfig, parse_config
from platform.contract.driving import a_plan
from platform.disk.files import only_process_of
from platform.errors import ConfigError, ProtocolError, RunBusy, RunStopped, UnknownRun
from platform.experiment.finishing import execute
from platform.experiment.planning import create_run
from platform.parties.client import Client
from platform.parties.identities import client_names
from platform.rounds.observing import SilentObserver
from platform.wire.codec import decode_arrays
from platform.wire.messages import SumTerms
from storage import open_client_stores, open_database
from tests.trunk._runs import (
    EVERY_RECORD,
    GATHERING,
    NONE,
    TWINS,
    Finished,
    Storage,
    crashed,
    of_clients,
    opened,
    runner_of,
    stores_of,
    warnings_of,
)
from tests.trunk._secure import frank
from tests.trunk._tampering import execute as execute_past
from tests.trunk.conftest import MakeStorage


@pytest.fixture(scope="module")
def first(make_storage: MakeStorage) -> Finished:
    return make_storage("first").gathering().run(GATHERING, TWINS, "rounds=2")


@pytest.fixture
def place(first: Finished, tmp_path: Path) -> Storage:
    """A copy of where that run lies, for a test's own second phases."""
    folder = tmp_path / "copy"
    shutil.copytree(first.storage.folder, folder, symlinks=True)
    return Storage(folder, first.storage.surroundings)


def configure(place: Storage, first: Finished, *overrides: str) -> RunConfig:
    tree = yaml.safe_load((place.folder / first.run_id / "config.yaml").read_text())
    tree["storage"]["url"] = place.url
    return parse_config({**tree, "phase_two_of": first.run_id}, overrides)


def follow(place: Storage, first: Finished, *overrides: str) -> Finished:
    config = configure(place, first, *overrides)
    return place.finish(create_run(config, SilentObserver(), place.surroundings))


def kept(place: Storage, first: Finished, run_id: str) -> dict[str, tuple[Any, ...]]:
    """What the clients' stores of the first run hold under a run's name."""
    query = "SELECT client, round_number, attempt, slot, personal, experts FROM personal"
    found = of_clients(place.folder / first.run_id, f"{query} WHERE run_id = ?", run_id)
    return {client: tuple(found.get(client, ())) for client in first.identities()}


def of_run(place: Storage, run_id: str) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("runs", "states", "rounds", "ledger", "pool", "audit")
    query = "SELECT * FROM {} WHERE run_id = ? ORDER BY 1, 2, 3"
    return {table: place.rows(query.format(table), run_id) for table in tables}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_with_the_same_options_it_is_the_first_runs_own_second_phase(place, first):
    run = follow(place, first)
    assert run.run_id != first.run_id
    assert run.summary["final"]["accuracy"] == first.summary["final"]["accuracy"]
    before, after = kept(place, first, first.run_id), kept(place, first, run.run_id)
    assert before == after and all(len(rows) == 1 for rows in after.values())
    for name in ("rounds", "local", "gain_over_local", "accountants", "noise_distribution"):
        assert run.summary[name] == first.summary[name]
    assert run.summary["final"]["epsilon"] == first.summary["final"]["epsilon"]
    assert run.summary["phases"]["before"] == first.summary["phases"]["before"]
    # Nothing is released, so the price is the first run's.
    mine = of_run(place, run.run_id)
    assert mine["ledger"] == mine["pool"] == mine["states"] == mine["rounds"] == []
    query = "SELECT action, detail FROM audit WHERE run_id = ? ORDER BY sequence"
    actions, details = zip(*place.rows(query, run.run_id), strict=True)
    assert actions == ("run.created", "run.started", "run.finished")
    assert json.loads(details[0])["phase_two_of"] == first.run_id == run.summary["phase_two_of"]
    assert warnings_of(run.summary)[0].startswith(f"second phase of run {first.run_id}")
    assert 7.9 < run.summary["final"]["epsilon"]["server"] <= 8.0


def test_options_change_what_is_personalised_and_nothing_of_the_first_run(place, first):
    database = of_run(place, first.run_id)
    states, files = kept(place, first, first.run_id), files_of(place.folder / first.run_id)
    run = follow(place, first, "method.scale=-3.0", "name=other", "training.local_steps=7")
    assert of_run(place, first.run_id) == database
    assert kept(place, first, first.run_id) == states
    assert files_of(place.folder / first.run_id) == files
    for name, ((_, _, slot, personal, experts),) in kept(place, first, run.run_id).items():
        ((_, _, _, earlier, pool),) = states[name]
        one, other = decode_arrays(personal), decode_arrays(earlier)
        assert slot == "committed" and experts == pool
        np.testing.assert_allclose(one["mixed"], -3.0 * other["mixed"], rtol=1e-5)
        assert np.array_equal(one["gain"], other["gain"]) and one["own"] == other["own"]
    assert run.run_id.startswith("other-")
    assert run.summary["final"]["accuracy"] != first.summary["final"]["accuracy"]


def test_an_interrupted_one_is_resumed(place, first, monkeypatch):
    config = configure(place, first, "method.scale=2.0")
    simulation = create_run(config, SilentObserver(), place.surroundings)
    with monkeypatch.context() as patch:
        # Three are asked at once, and what they keep is durable together.
        patch.setattr("platform.rounds.asking.PART", 3)
        crashed(patch, simulation, Client, "_part", 4)
    assert sum(len(rows) for rows in kept(place, first, simulation.run_id).values()) == 3
    resumed = place.resume(simulation.run_id)
    whole = follow(place, first, "method.scale=2.0")
    assert kept(place, first, simulation.run_id) == kept(place, first, whole.run_id)
    assert resumed.summary["final"]["accuracy"] == whole.summary["final"]["accuracy"]
    assert resumed.summary["phases"]["cost_share"] is None


REFUSED = {
    "task.shots=2": "task.shots: 2",
    "privacy.target_epsilon=9.0": "privacy.target_epsilon: 9.0",
    "method.name=promptfl": "method.name: 'promptfl'",
    "method.width=3": "phase_two_of: an expert",
}


def test_refused_in_one_sentence_before_anything_is_written(place, first):
    count = place.rows("SELECT count(*) FROM audit")
    for override, said in REFUSED.items():
        with pytest.raises(ConfigError, match=f"^{said}.*alid"):
            follow(place, first, override)
    assert place.rows("SELECT count(*) FROM audit") == count
    assert {one.name for one in place.folder.iterdir() if one.is_dir()} == {first.run_id, "cache"}


def test_runs_that_have_no_pool_are_refused(place: Storage, first: Finished) -> None:
    unknown = configure(place, first).model_copy(update={"phase_two_of": "nothing"})
    with pytest.raises(UnknownRun, match="nothing"):
        create_run(unknown, SilentObserver(), place.surroundings)
    second = follow(place, first)
    with pytest.raises(ConfigError, match=f"second phase itself.*valid: {first.run_id}"):
        follow(place, second)
    with closing(sqlite3.connect(place.file)) as connection:
        connection.execute("DELETE FROM pool")
        connection.commit()
    with pytest.raises(RunStopped, match="pool has 0"):
        follow(place, first)
    with open_database(place.url) as database, database.unit_of_work() as uow:
        uow.runs.set_status(first.run_id, "interrupted")
        uow.commit()
    with pytest.raises(ConfigError, match="has not finished"):
        follow(place, first)


@pytest.mark.parametrize("name", ["effective.yaml", "summary.json"])
def test_a_first_run_whose_files_were_edited_is_refused(place, first, name):
    path = place.folder / first.run_id / name
    path.write_text(path.read_text() + "\n")
    with pytest.raises(RunStopped, match=rf"{first.run_id}: {name}"):
        follow(place, first)
    assert len(place.rows("SELECT * FROM runs")) == 1


PM_MOE = (
    "method={name: pm_moe, base: fedper, gate_rounds: 1, "
    "base_options: {network: features, feature_width: 8}}",
    *("secure_aggregation.enabled=false", "rounds=1", NONE),
)


def refusal(run: Finished, config: RunConfig) -> str:
    """Why a second phase is refused, after nothing was written."""
    rows, files = run.storage.rows("SELECT count(*) FROM audit"), sorted(run.folder.rglob("*"))
    with pytest.raises(ConfigError) as refused:
        create_run(config, SilentObserver(), run.storage.surroundings)
    assert run.storage.rows("SELECT count(*) FROM audit") == rows
    assert sorted(run.folder.rglob("*")) == files
    assert len(list(run.storage.folder.glob("*/config.yaml"))) == 1
    return str(refused.value)


@pytest.mark.slow
def test_the_base_that_made_the_modules_stays(storage: Storage) -> None:
    """FedRep's tensors have FedPer's names and shapes, so only the options tell them apart."""
    run = storage.run(*PM_MOE)
    found = refusal(run, configure(run.storage, run, "method.base=fedrep"))
    assert found.startswith("method.base: 'fedrep'") and "valid to change" in found
    found = refusal(run, configure(run.storage, run, "method.base_options.feature_width=9"))
    assert found.startswith("method.base_options.feature_width: 9")
    changed = follow(run.storage, run, "method.top_k=1", "method.gamma=0.5")
    assert changed.summary["phase_two_of"] == run.run_id


def test_a_release_that_the_options_would_not_make_is_refused(storage: Storage) -> None:
    records = (*EVERY_RECORD, "rounds=1", "secure_aggregation.enabled=false")
    run = storage.gathering().run(GATHERING, *records, "method.trains=true")
    found = refusal(run, configure(run.storage, run, "method.trains=false"))
    assert found.startswith(f"phase_two_of: run {run.run_id}: its ledger")


def lose_store(run: Finished) -> str:
    forget = "DELETE FROM identity WHERE client = 'client-00003'"
    execute_past(stores_of(run.folder), forget, is_store=True)
    return "missing (client-00003"


def empty_store(run: Finished) -> str:
    stores_of(run.folder).write_bytes(b"")
    return "missing (client-00000"


def swap_store(run: Finished) -> str:
    path = stores_of(run.folder)
    path.unlink()
    open_client_stores(path, client_names(5))
    return f"{run.run_id}'s ledger"


def lose_facts(run: Finished) -> str:
    (run.folder / "effective.yaml").unlink()
    return "no effective.yaml"


@pytest.mark.parametrize("damage", [lose_store, empty_store, swap_store, lose_facts])
def test_a_first_run_that_is_not_whole_is_refused_and_left_alone(place, first, damage):
    run = Finished(place, first.run_id, first.summary)
    expected = damage(run)
    found = refusal(run, configure(run.storage, run))
    assert found.startswith("phase_two_of: ") and expected in found and "valid: " in found


def test_two_at_once_are_refused_and_a_client_answers_nobody(place, first):
    run = Finished(place, first.run_id, first.summary)
    config = configure(place, run)
    with opened(create_run(config, SilentObserver(), place.surroundings)) as simulation:
        for held in (run.folder, simulation.folder):
            with only_process_of(held), pytest.raises(RunBusy, match=held.name):
                execute(simulation, SilentObserver())
        assert not any(kept(place, first, simulation.run_id).values())
        everybody = tuple(simulation.population.clients)
        for number in (1, 2):
            protection = simulation.run.terms.protection
            at, terms = (number, 1), SumTerms(3)
            plan = a_plan(simulation.run_id, at, everybody, protection, terms=terms)
            with pytest.raises(ProtocolError, match="nothing leaves"):
                runner_of(frank(simulation)).run(
                    plan, lambda client: {}, lambda asked: [()] * len(asked)
                )
        assert execute(simulation, SilentObserver())["phase_two_of"] == run.run_id
    assert all(kept(place, first, simulation.run_id).values())
