"""Clients that never took part: measured as they come and personalised, and in nobody's books."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView
from platform.config.randomness import stream
from platform.experiment.comparisons import measure_newcomers
from platform.parties.scoring import EvaluationSet, accuracy
from tests.trunk._runs import FIXED, NONE, TWINS, Finished, opened
from tests.trunk.conftest import MakeStorage

NEW = ("task.new_clients=2", "task.partition.kind=dirichlet", "task.shots=14")
FEDPGP = ("method.name=fedpgp", "method.context_tokens=2", "cohort.dropout_rate=0")


@pytest.fixture(scope="module")
def noised(make_storage: MakeStorage) -> Finished:
    """FedPGP's clients keep a low-rank part of their own, so there is something to start from."""
    return make_storage("newcomers").run(*FEDPGP, *FIXED, *NEW, "rounds=2")


@pytest.fixture(scope="module")
def tuned(make_storage: MakeStorage) -> Finished:
    """A method that trains once more at the end, in large steps."""
    method = ("method.name=promptfl_ft", "method.context_tokens=2", "cohort.dropout_rate=0")
    large = ("method.finetune_learning_rate=1.0", "method.finetune_steps=4")
    # On a style that the model has not seen: on others everything is right before.
    unseen = "task.domains=[infograph]"
    return make_storage("tuned").run(NONE, TWINS, *method, *large, *NEW, unseen, "rounds=1")


@pytest.mark.slow
def test_new_clients_are_in_no_ledger_cohort_or_store(tuned):
    storage = tuned.storage
    assert storage.rows("SELECT count(DISTINCT pseudonym) FROM ledger") == [(5,)]
    assert {name for names in tuned.survivors().values() for name in names} == {
        f"client-{i:05d}" for i in range(5)
    }
    assert sorted(tuned.identities()) == [f"client-{i:05d}" for i in range(5)]
    for part in ("final", "local"):
        assert len(tuned.summary[part]["accuracy"]["per_client"]) == 5
    assert all(document["cohort"] == 5 for document in tuned.summary["rounds"])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["noised", "tuned"])
def test_new_clients_are_measured_as_by_hand(which, request):
    """From the last state and the first personal part, before and after `personalise`."""
    run: Finished = request.getfixturevalue(which)
    found: dict[str, list[float]] = {"before": [], "after": []}
    with opened(run.storage.reopen(run.run_id)) as simulation:
        method, seed = simulation.run.terms.method, simulation.run.terms.config.seed
        last = simulation.run.terms.config.rounds + 1
        assert list(simulation.learning.evaluation.new_clients) == ["new-00000", "new-00001"]
        for name, client in simulation.learning.evaluation.new_clients.items():
            broadcast = method.broadcast(run.state())
            first = method.init_client(
                stream(seed, "client, alike for all"), stream(seed, "client", name)
            )
            rng = stream(seed, "batches", name, last)
            view = ClientView(broadcast, (), first)
            after = method.personalise(
                view, client.train, simulation.population.make_trainer(None), rng
            )
            for key, personal in (("before", first), ("after", after)):
                test = EvaluationSet(client.test, simulation.learning.classes)
                found[key].append(accuracy(method, ClientView(broadcast, (), personal), test))
        sizes = [c.test.num_examples for c in simulation.learning.evaluation.new_clients.values()]
    measured = run.summary["final"]["new_clients"]
    assert measured["clients"] == 2
    # FedPGP trains nothing after the last release.
    assert (found["before"] != found["after"]) is (which == "tuned")
    for key, values in found.items():
        assert measured[key]["per_client"] == values
        assert measured[key]["mean"] == pytest.approx(sum(values) / 2)
        assert measured[key]["weighted"] == pytest.approx(np.average(values, weights=sizes))


@pytest.mark.slow
def test_a_method_that_sends_each_client_its_own_sends_them_what_nobody_has(storage):
    """FedAMP's server knows no message for somebody new: the first prompt goes out."""
    masks = "secure_aggregation.enabled=false"
    amp = ("method.name=prompt_fedamp", "method.context_tokens=2", masks, NONE)
    run = storage.run(*amp, *NEW, "rounds=1", "cohort.dropout_rate=0")
    with opened(storage.reopen(run.run_id)) as simulation:
        state, start = run.state(), simulation.run.terms.method.init_server(stream(3, "server"))
        nobody = simulation.run.terms.method.broadcast(state, None)
        for name in nobody:
            np.testing.assert_array_equal(nobody[name], start[name])
        found = measure_newcomers(simulation, state)
    assert found is not None and found == run.summary["final"]["new_clients"]


@pytest.mark.slow
def test_a_pool_hands_them_no_experts(storage, monkeypatch):
    from methods import pfedmoap

    seen: list[int] = []
    original = pfedmoap.PFedMoAP.predict

    def counting(self, view, batch, classes):
        seen.append(len(view.experts))
        return original(self, view, batch, classes)

    quick = ("rounds=2", "cohort.dropout_rate=0")
    run = storage.run(NONE, *NEW, *quick, "pool.minimum=2")
    with opened(storage.reopen(run.run_id)) as simulation:
        monkeypatch.setattr(pfedmoap.PFedMoAP, "predict", counting)
        assert measure_newcomers(simulation, run.state()) is not None
    assert seen and set(seen) == {0}
