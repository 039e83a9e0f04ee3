"""Runs whose training leaves all numbers behind: under a mechanism they go on to their end."""

from __future__ import annotations

import pytest

from platform.errors import RunStopped
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import FIXED, RECORDS, Storage, opened

WILD = "training={local_steps: 8, batch_size: 4, learning_rate: 1000.0, weight_decay: 1000.0}"
"""Each step multiplies weights by a million, until they overflow."""
MODULES = (
    "method={name: pm_moe, base: fedper, gate_rounds: 1, "
    "base_options: {network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}}",
    "task={dataset: digits, clients: 4, shots: 3, model: null, new_clients: 1}",
    "rounds=2",
    "cohort.dropout_rate=0",
    "privacy.noise_source=os",
    WILD,
    *FIXED,
)
SECURE = "secure_aggregation={enabled: true, threshold: 3}"


def failures(simulation: Simulation) -> dict[str, list[tuple[int, int]]]:
    """Round and attempt of what failed, as each client's own store has it."""
    return {
        name: [(f.round_number, f.attempt) for f in client._store.failures(simulation.run_id)]
        for name, client in simulation.population.clients.items()
    }


@pytest.mark.parametrize("mechanism", ["upload_noise", "central_noise"])
def test_modules_that_diverge_stop_nobody(storage: Storage, mechanism: str):
    """Tried before clients were total: two such runs stopped in their first round for good."""
    with opened(storage.create(*MODULES, SECURE, f"privacy.mechanism={mechanism}")) as simulation:
        summary = execute(simulation, SilentObserver())
        kept = failures(simulation)
        charged = [
            len(c._store.rows(simulation.run_id)) for c in simulation.population.clients.values()
        ]
    # The third is the collection.
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2, 3]
    # What the second starts from is noise, from which a network may happen to learn nothing at all.
    assert all((1, 1) in entries for entries in kept.values())
    # Two sums and one entry, as for clients that learnt something.
    assert charged == [3] * 4
    everything = "".join(
        file.read_text(errors="replace")
        for file in (storage.folder / simulation.run_id).glob("*.*")
    )
    assert "NonFinite" not in everything
    assert b"NonFinite" not in storage.file.read_bytes()


def test_without_a_mechanism_they_stop(storage: Storage):
    with opened(storage.create(*MODULES, "privacy={mechanism: none}", SECURE)) as simulation:
        with pytest.raises(RunStopped, match="not finite"):
            execute(simulation, SilentObserver())


def test_noised_steps_that_overflow_stop_nobody(storage: Storage):
    """Under `dp_sgd` the result of noised steps tells no more than they do."""
    with opened(storage.create(*RECORDS, WILD, "rounds=1", "cohort.dropout_rate=0")) as simulation:
        summary = execute(simulation, SilentObserver())
        kept = failures(simulation)
    assert len(summary["rounds"]) == 1
    assert all((1, 1) in entries for entries in kept.values())
