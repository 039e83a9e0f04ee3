"""A simulation whose clients train side by side has the records of one that trains them in turn."""

from __future__ import annotations

import numpy as np
import pytest

import platform.experiment.planning
import platform.parties.totality
from platform.parties.client import work_side_by_side
from platform.parties.totality import train
from privacy import NonFiniteUpdate
from tests.trunk._runs import NO_POOL, NONE, RECORDS, TWINS, comparable, of_clients, slow

CHARGED = (
    "round_number, attempt, channel, mechanism, standard_deviation, clipping_norm, relation, "
    "sampling, status, count, noise_kind, share_deviation, shares, dimension, corrupt"
)


@pytest.mark.parametrize(
    "settings",
    [
        (TWINS, "evaluation.worth_of_sharing=true"),
        slow((NONE, *NO_POOL, TWINS)),
        slow((*RECORDS, TWINS)),
    ],
)
def test_records_are_those_of_clients_in_turn(storage, tmp_path, monkeypatch, settings):
    def failing(profile, *args, **more):
        result = train(profile, *args, **more)
        if profile.name.endswith("1") and NONE not in settings:
            raise NonFiniteUpdate
        return result

    ahead = []

    def watched(clients, messages, tell):
        ahead.append((set(messages), set(work_side_by_side(clients, messages, tell))))
        return ahead[-1][1]

    monkeypatch.setattr(platform.parties.totality, "train", failing)
    monkeypatch.setattr(platform.experiment.planning, "work_side_by_side", watched)
    beside = storage.run(*settings)
    # Three rounds and the parting: everybody who was asked worked side by side.
    assert len(ahead) == 4
    assert all(asked and worked == asked for asked, worked in ahead)
    with monkeypatch.context() as patch:
        patch.setattr(platform.experiment.planning, "work_side_by_side", lambda *_: ())
        (tmp_path / "in-turn").mkdir()
        in_turn = type(storage)(tmp_path / "in-turn").run(*settings)

    found = []
    for run in (beside, in_turn):
        ledger = f"SELECT {CHARGED} FROM ledger ORDER BY {CHARGED}"  # noqa: S608
        audit = "SELECT action, round_number, channel FROM audit ORDER BY sequence"
        failures = "SELECT client, round_number, attempt, reason FROM failures"
        records = {
            "ledger": run.storage.rows(ledger),
            "audit": run.storage.rows(audit),
            "own": of_clients(run.folder, f"SELECT client, {CHARGED} FROM ledger"),  # noqa: S608
            "failures": of_clients(run.folder, failures),
            "survivors": run.survivors(),
        }
        found.append(records)
        epsilons = [document["epsilon"] for document in comparable(run.summary)["rounds"]]
        records["epsilons"] = repr(epsilons)
    assert found[0] == found[1]
    if NONE not in settings:
        assert found[0]["ledger"]
        assert found[0]["failures"]
    for name, array in beside.state().items():
        np.testing.assert_allclose(array, in_turn.state()[name], rtol=1e-4, atol=1e-5)
    assert beside.summary["gain_over_local"] is not None
    for name in ("gain_over_local", "worth_of_sharing"):
        assert beside.summary[name] == in_turn.summary[name]
    assert beside.summary["final"]["accuracy"] == in_turn.summary["final"]["accuracy"]
