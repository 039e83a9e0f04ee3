"""Uploads in a public subspace, in whole runs: what is clipped, masked, charged and said."""

from __future__ import annotations

import json

import numpy as np
import pytest

from methods import promptfl
from methods.interface import subspace
from methods.interface.subspace import BASIS
from platform.bootstrap import Surroundings, plan_run
from platform.errors import ConfigError
from platform.experiment.finishing import execute
from platform.privacy_auditing.audit import AuditPlan, audit_run
from platform.rounds.observing import SilentObserver
from tests.trunk._audits import NOISE
from tests.trunk._runs import (
    NO_POOL,
    RECORDS,
    Crash,
    Storage,
    comparable,
    crash_at,
    gaussian_epsilon,
    opened,
)

RANK, WHOLE = 5, 256
TWO = ("rounds=2", "evaluation.local_twins=false")
DRAWN = (*NO_POOL, *TWO, "privacy.subspace=random", f"privacy.rank={RANK}")
"""The quicker one, where it does not matter what the directions are."""
INSIDE = (*NO_POOL, *TWO, "privacy.subspace=text_jacobian", f"privacy.rank={RANK}")
DISTRIBUTED = "privacy.mechanism=distributed_noise"


def test_masked_sums_are_of_coordinates_and_the_ledger_has_their_number(storage: Storage):
    done = storage.run(*INSIDE, DISTRIBUTED)
    assert {row for (row,) in storage.rows("SELECT dimension FROM ledger")} == {RANK}
    assert done.summary["subspace"] == {
        "kind": "text_jacobian",
        "rank": RANK,
        "coordinates": WHOLE,
        "public_images": None,
    }
    told = [text for text in done.summary["warnings"] if f"{RANK} of {WHOLE} directions" in text]
    assert len(told) == 1
    state = done.state()
    assert set(state) == {"context", BASIS}
    np.testing.assert_allclose(state[BASIS] @ state[BASIS].T, np.eye(RANK), atol=1e-5)


def test_the_same_noise_multiplier_costs_the_same_in_few_directions(storage: Storage):
    """Gaussian noise is priced by C alone; what changes is how much of it there is."""
    done = storage.run(
        *DRAWN,
        "privacy.target_epsilon=null",
        "privacy.noise_multiplier=4.0",
        "secure_aggregation.enabled=false",
    )
    spent = done.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(4.0, 2), abs=1e-6)
    up = done.summary["rounds"][-1]["bytes_up"]
    whole = storage.run(
        *NO_POOL,
        *TWO,
        "privacy.target_epsilon=null",
        "privacy.noise_multiplier=4.0",
        "secure_aggregation.enabled=false",
    )
    assert up < whole.summary["rounds"][-1]["bytes_up"]
    assert whole.summary["subspace"] is None


def test_what_moves_lies_in_the_directions_that_were_sent(storage: Storage, monkeypatch):
    seen = []
    original = promptfl.PromptMethod.server_update

    def watching(self, state, aggregate, pool, rng):
        seen.append(aggregate.values["context"].ravel())
        return original(self, state, aggregate, pool, rng)

    monkeypatch.setattr(promptfl.PromptMethod, "server_update", watching)
    with opened(storage.create(*DRAWN, DISTRIBUTED)) as simulation:
        first = simulation.run.terms.initial_state()[BASIS]
        execute(simulation, SilentObserver())
    assert np.linalg.norm(seen[0]) > 0
    left = seen[0] - first.T @ (first @ seen[0])
    assert np.linalg.norm(left) < 1e-5 * np.linalg.norm(seen[0])


@pytest.mark.parametrize("scale", [1e4, pytest.param(1e38, marks=pytest.mark.slow), np.nan])
def test_a_hostile_basis_moves_no_upload_past_its_bound(storage: Storage, monkeypatch, scale):
    """Clients project first and clip then: the bound holds for any directions."""
    from platform.parties import totality
    from platform.protection.sums import SumProtection

    carried = []
    original = SumProtection.carry

    def watching(self, vector, *rest):
        carried.append(vector)
        return original(self, vector, *rest)

    def hostile(local):
        broadcast = {**local.broadcast, BASIS: local.broadcast[BASIS] * np.float32(scale)}
        return totality.LocalRound(**{**vars(local), "broadcast": broadcast})

    work = totality.work
    monkeypatch.setattr(SumProtection, "carry", watching)
    monkeypatch.setattr(
        "platform.parties.client.work", lambda local, remember: work(hostile(local), remember)
    )
    done = storage.run(*DRAWN, "rounds=1")
    assert done.summary["rounds"][0]["cohort"] == 5
    assert all(vector.shape == (RANK,) for vector in carried)
    norms = [float(np.linalg.norm(vector)) for vector in carried]
    # A projection that is no number is a failed round, whose upload is of zeros and its noise.
    assert norms.count(0.0) >= 4 if np.isnan(scale) else max(norms) > 1.0
    assert np.linalg.norm(done.state()["context"]) < 100.0


def test_records_can_be_the_unit(storage: Storage):
    done = storage.run(*DRAWN, *RECORDS, "secure_aggregation.enabled=false")
    assert done.summary["unit"] == "record"
    assert done.summary["subspace"]["rank"] == RANK


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_with_the_directions_that_were_sent(
    storage: Storage, monkeypatch, turned: bool
):
    """Signs may flip between machines: what clients have sent already means what it meant then."""
    whole = storage.run(*INSIDE)
    with monkeypatch.context() as patched:
        crash_at(patched, promptfl.PromptMethod, "server_update", 2)
        with pytest.raises(Crash), opened(storage.create(*INSIDE)) as simulation:
            run_id = simulation.run_id
            execute(simulation, SilentObserver())
    if turned:
        found = subspace.top_directions
        monkeypatch.setattr(subspace, "top_directions", lambda *given: -found(*given))
    resumed = storage.resume(run_id)
    if turned:
        np.testing.assert_allclose(resumed.state()["context"], whole.state()["context"], atol=1e-6)
    else:
        assert comparable(resumed.summary) == comparable(whole.summary)


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param("privacy.mechanism=upload_noise", marks=pytest.mark.slow),
        pytest.param("privacy.mechanism=central_noise", marks=pytest.mark.slow),
        DISTRIBUTED,
    ],
)
def test_the_audit_refutes_nothing(storage: Storage, mechanism: str):
    config = storage.config(*DRAWN, *NOISE, mechanism)
    run = plan_run(config, SilentObserver(), Surroundings())
    (found,) = audit_run(AuditPlan(run, 300), lambda *_, **__: None)
    assert found.channel == "sum" and found.passed and found.result.is_tight


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("privacy.subspace=random",), r"privacy\.rank: is needed with privacy\.subspace = random"),
        (("privacy.rank=3",), r"privacy\.rank: 3 has no meaning with privacy\.subspace = none"),
        (("privacy.subspace=best", "privacy.rank=3"), r"privacy\.subspace: 'best' is not valid"),
        (
            (*NO_POOL, "privacy.subspace=random", "privacy.rank=256"),
            r"privacy\.rank: 256 is not valid for an update of 256 numbers; valid: 1 to 255",
        ),
        (("privacy.subspace=random", "privacy.rank=3"), r"privacy\.subspace: .*; valid: none"),
        (
            ("method={name: fedclip}", "privacy.subspace=text_jacobian", "privacy.rank=3"),
            r"privacy\.subspace: text_jacobian needs .*; valid: none, random",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(storage: Storage, overrides, said):
    with pytest.raises(ConfigError, match=said):
        storage.create(*overrides)
    assert not storage.file.exists()
    assert json.dumps(sorted(p.name for p in storage.folder.iterdir())) == '["cache"]'
