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

from platform.bootstrap import create_run
from platform.config import RunConfig, parse_config
from platform.errors import ConfigError, RunStopped, UnknownRun
from platform.experiment.finishing import execute
from platform.experiment.resuming import require_same_classes
from platform.parties.client import Client
from platform.rounds.observing import SilentObserver
from platform.wire.codec import decode_arrays
from storage import open_database
from tests.trunk._runs import (
    GATHERING,
    Command,
    Crash,
    Finished,
    Storage,
    crash_at,
    of_clients,
    opened,
)
from tests.trunk.conftest import MakeStorage

FIRST = (*GATHERING, "rounds=2", "evaluation.local_twins=true")


@pytest.fixture(scope="module")
def first(make_storage: MakeStorage) -> Finished:
    """A run with upload noise and a pool; read only, as second phases must."""
    return make_storage("first").gathering().run(*FIRST)


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
    with opened(create_run(config, SilentObserver(), place.surroundings)) as simulation:
        return Finished(place, simulation.run_id, execute(simulation, SilentObserver()))


def kept(place: Storage, first: Finished, run_id: str) -> dict[str, tuple[Any, ...]]:
    """What the clients' stores of the first run hold under a run's name."""
    query = "SELECT client, round_number, attempt, slot, personal, experts FROM personal"
    found = of_clients(place.folder / first.run_id, f"{query} WHERE run_id = ?", run_id)
    return {client: tuple(found.get(client, ())) for client in first.identities()}


def of_run(place: Storage, run_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that the coordinator's database knows of a run, but for its clients."""
    tables = ("runs", "states", "rounds", "ledger", "pool", "audit")
    query = "SELECT * FROM {} WHERE run_id = ? ORDER BY 1, 2, 3"
    return {table: place.rows(query.format(table), run_id) for table in tables}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_with_the_same_options_it_is_the_first_runs_own_second_phase(
    place: Storage, first: Finished
) -> None:
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
    assert run.summary["warnings"][0].startswith(f"second phase of run {first.run_id}")
    assert 7.9 < run.summary["final"]["epsilon"]["server"] <= 8.0


def test_options_change_what_is_personalised_and_nothing_of_the_first_run(
    place: Storage, first: Finished
) -> None:
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


def test_an_interrupted_one_is_resumed(
    place: Storage, first: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(place, first, "method.scale=2.0")
    with (
        monkeypatch.context() as patch,
        opened(create_run(config, SilentObserver(), place.surroundings)) as simulation,
    ):
        # Three are asked at once, and what they keep is durable together.
        patch.setattr("platform.rounds.asking.PART", 3)
        crash_at(patch, Client, "_part", 4)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    assert sum(len(rows) for rows in kept(place, first, simulation.run_id).values()) == 3
    resumed = place.resume(simulation.run_id)
    whole = follow(place, first, "method.scale=2.0")
    assert kept(place, first, simulation.run_id) == kept(place, first, whole.run_id)
    assert resumed.summary["final"]["accuracy"] == whole.summary["final"]["accuracy"]
    assert resumed.summary["phases"]["cost_share"] is None


def test_a_first_run_is_not_pruned_without_what_rests_on_it(
    place: Storage, first: Finished, sotto: Command
) -> None:
    second = follow(place, first, "method.scale=2.0").run_id
    at = ("--prune", "--yes", "--storage", place.url)
    answer = sotto("runs", first.run_id, *at)
    assert answer.code == 2 and f"{second} is a second phase of" in answer.err
    assert any(kept(place, first, second).values())
    answer = sotto("runs", first.run_id, second, *at)
    assert answer.code == 0, answer.err
    assert place.rows("SELECT count(*) FROM pool") == [(0,)]
    assert not any(kept(place, first, second).values())
    assert sotto("audit", "verify", "--storage", place.url).code == 0


REFUSED = {
    "task.shots=2": "task.shots: 2 is not run {}'s 1",
    "privacy.target_epsilon=9.0": "privacy.target_epsilon: 9.0 is not run",
    "method.name=promptfl": "method.name: 'promptfl' is not run",
    "method.width=3": "phase_two_of: an expert of another shape: 'gain' is (",
}


@pytest.mark.parametrize("override", REFUSED)
def test_refused_in_one_sentence_before_anything_is_written(
    place: Storage, first: Finished, override: str
) -> None:
    count = place.rows("SELECT count(*) FROM audit")
    with pytest.raises(ConfigError) as refused:
        follow(place, first, override)
    assert str(refused.value).startswith(REFUSED[override].format(first.run_id))
    assert "alid" in str(refused.value)
    assert place.rows("SELECT count(*) FROM audit") == count
    assert [path.name for path in place.folder.iterdir() if path.is_dir()] in (
        [first.run_id, "cache"],
        ["cache", first.run_id],
    )


def test_runs_that_have_no_pool_are_refused(
    place: Storage, first: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownRun, match="nothing"):
        configured = configure(place, first)
        create_run(
            configured.model_copy(update={"phase_two_of": "nothing"}),
            SilentObserver(),
            place.surroundings,
        )
    second = follow(place, first)
    with pytest.raises(ConfigError, match=f"is a second phase itself; valid: {first.run_id}"):
        follow(place, second)
    with closing(sqlite3.connect(place.file)) as connection:
        connection.execute("DELETE FROM pool")
        connection.commit()
    with pytest.raises(RunStopped, match=f"{first.run_id}: the pool has 0 entries of round 3"):
        follow(place, first)
    with open_database(place.url) as database, database.unit_of_work() as uow:
        uow.runs.set_status(first.run_id, "interrupted")
        uow.commit()
    with pytest.raises(ConfigError, match=r"has not finished \(it is interrupted\); valid"):
        follow(place, first)


def test_unequal_class_lists_are_refused(place: Storage, first: Finished) -> None:
    folder = place.folder / first.run_id
    classes = yaml.safe_load((folder / "effective.yaml").read_text())["classes"]
    require_same_classes(folder, first.run_id, classes)
    with pytest.raises(
        ConfigError, match=rf"unequal class lists: another, .* now and {classes[0]}"
    ):
        require_same_classes(folder, first.run_id, ["another", *classes[1:]])


@pytest.mark.parametrize("name", ["effective.yaml", "summary.json"])
def test_a_first_run_whose_files_were_edited_is_refused(
    place: Storage, first: Finished, name: str
) -> None:
    path = place.folder / first.run_id / name
    path.write_text(path.read_text() + "\n")
    with pytest.raises(RunStopped, match=rf"{first.run_id}: {name}"):
        follow(place, first)
    assert len(place.rows("SELECT * FROM runs")) == 1
