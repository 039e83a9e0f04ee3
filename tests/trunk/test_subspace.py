"""Uploads in a public subspace, in whole runs: what is clipped, masked, charged and said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from methods import Task, promptfl
from methods.interface import subspace
from methods.interface.subspace import BASIS, ORIGIN, in_subspace, origin_of
from platform.config import parse_config
from platform.data.dataset import image_digests
from platform.data.loading import load_task_data, public_rows
from platform.data.shapes import CLASSES as OUTLINES
from platform.data.shapes import Stream
from platform.errors import ConfigError, ProtocolError, RunStopped
from platform.experiment.finishing import execute
from platform.experiment.planning import RunPlan
from platform.parties import client, totality
from platform.parties.profile import expectations_of, require_broadcast
from platform.protection.sums import SumProtection
from platform.rounds.observing import SilentObserver
from tests.trunk._audits import NOISE, audited
from tests.trunk._runs import (
    EVERY_RECORD,
    FIXED,
    NO_POOL,
    Storage,
    comparable,
    crashed,
    gaussian_epsilon,
    opened,
    warnings_of,
)

RANK, WHOLE = 5, 256
TWO = "rounds=2"
DRAWN = (*NO_POOL, TWO, "privacy.subspace=random", f"privacy.rank={RANK}")
"""The quicker one, where it does not matter what the directions are."""
INSIDE = (*NO_POOL, TWO, "privacy.subspace=text_jacobian", f"privacy.rank={RANK}")
PUBLIC = (
    *(*NO_POOL, TWO, "privacy.subspace=public_images", f"privacy.rank={RANK}"),
    "public_data={per_class: 2}",
)
DISTRIBUTED = "privacy.mechanism=distributed_noise"
NO_MASKS = "secure_aggregation.enabled=false"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "images"), [("text_jacobian", None), ("public_images", 40)])
def test_masked_sums_are_of_coordinates_and_the_ledger_has_their_number(storage, kind, images):
    done = storage.run(*(PUBLIC if images else INSIDE), DISTRIBUTED)
    assert {row for (row,) in storage.rows("SELECT dimension FROM ledger")} == {RANK}
    numbers = {"rank": RANK, "coordinates": WHOLE, "public_images": images}
    assert done.summary["subspace"] == {"kind": kind, **numbers}
    (told,) = [
        text for text in warnings_of(done.summary) if f"{RANK} of {WHOLE} directions" in text
    ]
    assert ("in fact public" in told) == (images is not None)
    state = done.state()
    assert set(state) == {"context", BASIS}
    np.testing.assert_allclose(state[BASIS] @ state[BASIS].T, np.eye(RANK), atol=1e-5)


def test_the_same_noise_multiplier_costs_the_same_in_few_directions(storage):
    """Gaussian noise is priced by C alone; what changes is how much of it there is."""
    done = storage.run(*DRAWN, *FIXED, NO_MASKS)
    spent = done.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(4.0, 2), abs=1e-6)
    assert done.summary["subspace"]["coordinates"] == WHOLE
    done = storage.run(*DRAWN, *EVERY_RECORD, NO_MASKS, "rounds=1")
    assert (done.summary["unit"], done.summary["subspace"]["rank"]) == ("record", RANK)


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
    assert storage.rows("SELECT DISTINCT dimension FROM ledger") == [(RANK,)]


@pytest.mark.parametrize("scale", [1e4, pytest.param(1e38, marks=pytest.mark.slow), np.nan])
def test_a_hostile_basis_moves_no_upload_past_its_bound(storage: Storage, monkeypatch, scale):
    """Clients project first and clip then: the bound holds for any directions."""
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
    done = storage.run(*DRAWN, NO_MASKS, "rounds=1")
    assert done.summary["rounds"][0]["cohort"] == 5
    assert all(vector.shape == (RANK,) for vector in carried)
    norms = [float(np.linalg.norm(vector)) for vector in carried]
    # A projection that is no number is a failed round, whose upload is of zeros and its noise.
    assert norms.count(0.0) >= 4 if np.isnan(scale) else max(norms) > 1.0
    assert np.linalg.norm(done.state()["context"]) < 100.0


@pytest.mark.parametrize(
    ("settings", "turned"), [(DRAWN, False), pytest.param(INSIDE, True, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_goes_on_with_the_directions_that_were_sent(
    storage, monkeypatch, settings, turned
):
    """Signs may flip between machines: what clients have sent already means what it meant then."""
    whole = storage.run(*settings, NO_MASKS)
    simulation = storage.create(*settings, NO_MASKS)
    run_id = crashed(monkeypatch, simulation, promptfl.PromptMethod, "server_update", 2)
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
    (found,) = audited(storage.plan(*DRAWN, *NOISE, mechanism))
    assert found.channel == "sum" and found.passed and found.result.is_tight


RANDOM = "privacy.subspace=random"
DIGITS = "task={dataset: digits, clients: 5}"
HANDS = "task={dataset: handwriting, domains: [digits], senses: clients, clients: 5}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((RANDOM,), r"privacy\.rank: is needed"),
        (("privacy.rank=3",), r"privacy\.rank: 3"),
        ((*NO_POOL, RANDOM, "privacy.rank=256"), r"privacy\.rank: 256 .*1 to 255"),
        ((RANDOM, "privacy.rank=3"), r"privacy\.subspace: .*valid: none"),
        (
            ("method={name: fedclip}", "privacy.subspace=text_jacobian", "privacy.rank=3"),
            r"privacy\.subspace: text_jacobian .*random",
        ),
        ((*PUBLIC, "public_data=null"), "public_data: null"),
        ((*PUBLIC, RANDOM), "public_data: .*random"),
        ((*PUBLIC, "public_data.dataset=digits"), r"public_data\.dataset: digits"),
        ((*PUBLIC, "public_data.dataset=homonyms"), "'crane' and not"),
        ((*PUBLIC, DIGITS), r"public_data\.root: null"),
        ((*PUBLIC, DIGITS, "public_data={root: anywhere}"), "federation's own data"),
        # Their pixels differ by the hand.
        ((*PUBLIC, HANDS, "public_data={dataset: handwriting_tuning}"), "federation's own data"),
        ((*PUBLIC, "public_data={per_class: 1}", "privacy.rank=21"), r"privacy\.rank: 21"),
        ((*PUBLIC, "method={name: fedotp, context_tokens: 2}"), "subspace: .*personal state"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(storage: Storage, overrides, said):
    with pytest.raises(ConfigError, match=said):
        storage.create(*overrides)
    assert not storage.file.exists()
    assert [path.name for path in storage.folder.iterdir()] == ["cache"]


MINIMAL = {"name": "run", "method": {"name": "promptfl"}, "training": {"local_steps": 1}}
PUBLICLY = {"subspace": "public_images", "rank": 4}


def rows_of(**sections):
    config = parse_config({**MINIMAL, "privacy": PUBLICLY, "public_data": {}, **sections})
    return public_rows(config, load_task_data(config))


def basis_of(plan: RunPlan) -> np.ndarray:
    return plan.terms.initial_state()[BASIS]


@pytest.mark.parametrize("stream", [Stream.FEDERATION, Stream.REHEARSAL])
def test_no_public_image_is_one_that_is_trained_on_even_under_one_seed(stream: Stream):
    config = parse_config({**MINIMAL, "seed": 4, "privacy": PUBLICLY, "public_data": {"seed": 4}})
    data = load_task_data(config, stream)
    found = public_rows(config, data)
    public = set(image_digests(found.split.images, found.rows))
    assert len(public) == len(found.rows) == 20 * 16
    for split in (data.dataset.train, data.dataset.test):
        assert public.isdisjoint(image_digests(split.images, np.arange(split.num_examples)))


def test_public_images_are_as_many_of_each_class_as_asked_for_and_of_no_held_out_style():
    found = rows_of(public_data={"per_class": 3, "seed": 1})
    assert np.bincount(found.split.labels[found.rows]).tolist() == [3] * len(OUTLINES)
    kind = {"partition": {"kind": "domain"}, "clients": 5, "shots": 1}
    leaving = {"evaluation": {"protocol": "leave_one_domain_out"}}
    task = {"task": {**kind, "held_out_domain": "sketch"}, **leaving}
    found = rows_of(**task)
    names = load_task_data(parse_config({**MINIMAL, **task})).dataset.domains
    assert names.index("sketch") not in set(found.split.domains[found.rows].tolist())


@pytest.mark.slow
def test_directions_do_not_depend_on_who_holds_what(storage: Storage):
    """Other images, other partition, other shots: to the byte the same directions are sent."""
    fixed = ("seeds.initialisation=1",)
    first = basis_of(storage.plan(*PUBLIC, *fixed))
    for others in (("seed=9", "task.test_per_class=12"), ("task.partition.kind=iid",)):
        np.testing.assert_array_equal(basis_of(storage.plan(*PUBLIC, *fixed, *others)), first)
    assert not np.allclose(basis_of(storage.plan(*PUBLIC, *fixed, "public_data.seed=7")), first)


def test_a_client_with_another_model_or_class_list_refuses_before_it_trains(storage: Storage):
    method = storage.plan(*DRAWN).learning.method
    sent = method.broadcast(method.init_server(np.random.default_rng(0)))
    require_broadcast(expectations_of(method), sent)
    model = method.base.encoder.backbone
    for fingerprint, classes in (
        ("0" * 64, OUTLINES),
        (model.fingerprint, (*OUTLINES[1:], OUTLINES[0])),
    ):
        task = Task(classes, (), 5, dataclasses.replace(model, fingerprint=fingerprint))
        inner = promptfl.build(promptfl.Config(context_tokens=2), task)
        mine = in_subspace(inner, "random", RANK, origin=origin_of(fingerprint, classes))
        with pytest.raises(ProtocolError, match="of another model"):
            require_broadcast(expectations_of(mine), sent)


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: {**sent, BASIS: sent[BASIS][:-1]},
        lambda sent: {**sent, BASIS: sent[BASIS].astype(np.float64)},
        lambda sent: {name: array for name, array in sent.items() if name != BASIS},
        lambda sent: {name: array for name, array in sent.items() if name != ORIGIN},
        lambda sent: {**sent, ORIGIN: sent[ORIGIN] + 1},
    ],
)
def test_a_basis_that_is_not_this_models_is_refused(storage: Storage, change):
    method = storage.plan(*DRAWN).learning.method
    sent = method.broadcast(method.init_server(np.random.default_rng(0)))
    with pytest.raises(ProtocolError, match=r"message: "):
        require_broadcast(expectations_of(method), change(sent))


def test_a_federation_whose_server_has_another_model_ends_without_an_upload(storage, monkeypatch):
    """Clients hang up at the broadcast: nothing is trained, and nothing is charged."""
    original, trained = subspace.InSubspace.broadcast, []

    def other(self, state, name=None):
        return {**original(self, state, name), ORIGIN: np.zeros(8, np.uint32)}

    with opened(storage.create(*DRAWN, NO_MASKS, "cohort.retries=0")) as simulation:
        monkeypatch.setattr(client, "work", lambda *_: trained.append(1))
        monkeypatch.setattr(subspace.InSubspace, "broadcast", other)
        with pytest.raises(RunStopped):
            execute(simulation, SilentObserver())
    assert trained == []
