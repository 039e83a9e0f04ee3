"""A run in a subspace that goes on where its directions cannot be found again as they were."""

from __future__ import annotations

import numpy as np
import pytest

from methods import promptfl
from methods.interface import subspace
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import NO_POOL, NONE, Crash, Storage, crash_at, opened

INSIDE = (
    *(*NO_POOL, "rounds=2", "evaluation.local_twins=false"),
    *("privacy.subspace=text_jacobian", "privacy.rank=5", NONE),
)


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
def test_coordinates_stand_for_the_directions_that_were_sent(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, nth: int
):
    """Signs flip between machines: what clients have sent already means what it meant then."""
    whole = storage.run(*INSIDE)
    with monkeypatch.context() as patched:
        crash_at(patched, promptfl.PromptMethod, "server_update", nth)
        with pytest.raises(Crash), opened(storage.create(*INSIDE)) as simulation:
            run_id = simulation.run_id
            execute(simulation, SilentObserver())
    found = subspace.top_directions
    monkeypatch.setattr(subspace, "top_directions", lambda *given: -found(*given))
    resumed = storage.resume(run_id)
    np.testing.assert_allclose(resumed.state()["context"], whole.state()["context"], atol=1e-6)
