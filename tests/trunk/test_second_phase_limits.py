"""A second phase changes nothing that the first run released, and asks nobody for anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from platform.bootstrap import create_run
from platform.config import RunConfig, parse_config
from platform.contract.driving import a_plan
from platform.disk.files import only_process_of
from platform.errors import ConfigError, ProtocolError, RunBusy
from platform.experiment.finishing import execute
from platform.parties.identities import client_names
from platform.rounds.observing import SilentObserver
from platform.wire.messages import SumTerms
from storage import open_client_stores
from tests.trunk._runs import (
    GATHERING,
    NONE,
    RECORDS,
    Finished,
    Storage,
    opened,
    runner_of,
    stores_of,
)
from tests.trunk._secure import frank
from tests.trunk._tampering import execute as execute_past

PM_MOE = (
    "method={name: pm_moe, base: fedper, gate_rounds: 1, "
    "base_options: {network: features, feature_width: 8}}",
    "evaluation.local_twins=false",
    "rounds=1",
    NONE,
)
PLAIN = (*GATHERING, NONE, "rounds=1")


def second_of(run: Finished, *overrides: str) -> RunConfig:
    tree = yaml.safe_load((run.folder / "config.yaml").read_text())
    return parse_config({**tree, "phase_two_of": run.run_id}, overrides)


def refusal(run: Finished, config: RunConfig) -> str:
    """Why a second phase is refused, after nothing was written."""
    rows, files = run.storage.rows("SELECT count(*) FROM audit"), sorted(run.folder.rglob("*"))
    with pytest.raises(ConfigError) as refused:
        create_run(config, SilentObserver(), run.storage.surroundings)
    assert run.storage.rows("SELECT count(*) FROM audit") == rows
    assert sorted(run.folder.rglob("*")) == files
    assert len(list(run.storage.folder.glob("*/config.yaml"))) == 1
    return str(refused.value)


def test_the_base_that_made_the_modules_stays(storage: Storage) -> None:
    """FedRep's tensors have FedPer's names and shapes, so only the options tell them apart."""
    run = storage.run(*PM_MOE)
    key = f"is not run {run.run_id}'s"
    found = refusal(run, second_of(run, "method.base=fedrep"))
    assert found.startswith(f"method.base: 'fedrep' {key} 'fedper'") and "valid to change" in found
    found = refusal(run, second_of(run, "method.base_options.feature_width=9"))
    assert found.startswith(f"method.base_options.feature_width: 9 {key} 8")
    config = second_of(run, "method.top_k=1", "method.gamma=0.5")
    with opened(create_run(config, SilentObserver(), storage.surroundings)) as simulation:
        assert execute(simulation, SilentObserver())["phase_two_of"] == run.run_id


def test_a_release_that_the_options_would_not_make_is_refused(storage: Storage) -> None:
    run = storage.gathering().run(*GATHERING, *RECORDS, "rounds=1", "method.trains=true")
    found = refusal(run, second_of(run, "method.trains=false"))
    assert found.startswith(f"phase_two_of: run {run.run_id}: its ledger has a release on channel")


def lose_store(run: Finished) -> str:
    execute_past(
        stores_of(run.folder), "DELETE FROM identity WHERE client = 'client-00003'", is_store=True
    )
    return "is missing (client-00003 in"


def empty_store(run: Finished) -> str:
    stores_of(run.folder).write_bytes(b"")
    return "is missing (client-00000 in"


def swap_store(run: Finished) -> str:
    path = stores_of(run.folder)
    path.unlink()
    open_client_stores(path, client_names(5))
    return f"is not that of run {run.run_id}'s ledger"


def lose_facts(run: Finished) -> str:
    (run.folder / "effective.yaml").unlink()
    return f"phase_two_of: run {run.run_id} has no effective.yaml in"


@pytest.fixture(scope="module")
def gathered(make_storage: Callable[[str], Storage]) -> Finished:
    return make_storage("gathered").gathering().run(*PLAIN)


@pytest.mark.parametrize("damage", [lose_store, empty_store, swap_store, lose_facts])
def test_a_first_run_that_is_not_whole_is_refused_and_left_alone(
    gathered: Finished, tmp_path: Path, damage: Callable[[Finished], str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(gathered.storage.folder, folder, symlinks=True)
    place = Storage(folder, gathered.storage.surroundings)
    run = Finished(place, gathered.run_id, gathered.summary)
    expected = damage(run)
    found = refusal(run, second_of(run, f"storage.url={place.url}"))
    assert found.startswith("phase_two_of: ") and expected in found and "valid: " in found


def test_two_at_once_are_refused_and_a_client_answers_nobody(storage: Storage) -> None:
    run = storage.gathering().run(*PLAIN)
    with opened(
        create_run(second_of(run), SilentObserver(), run.storage.surroundings)
    ) as simulation:
        for held in (run.folder, simulation.folder):
            with only_process_of(held), pytest.raises(RunBusy, match=held.name):
                execute(simulation, SilentObserver())
        assert not kept_of(simulation.run_id, run.folder)
        everybody = tuple(simulation.population.clients)
        for number in (1, 2):
            protection = simulation.run.terms.protection
            place, terms = (number, 1), SumTerms(3)
            plan = a_plan(simulation.run_id, place, everybody, protection, terms=terms)
            with pytest.raises(ProtocolError, match="nothing leaves a client"):
                runner_of(frank(simulation)).run(
                    plan, lambda client: {}, lambda asked: [()] * len(asked)
                )
        assert execute(simulation, SilentObserver())["phase_two_of"] == run.run_id
    assert len(kept_of(simulation.run_id, run.folder)) == 5


def kept_of(run_id: str, folder: Path) -> list[str]:
    """Stores that hold something under a run's name."""
    stores = open_client_stores(stores_of(folder)).stores
    return [name for name, store in stores.items() if store.committed(run_id) is not None]
