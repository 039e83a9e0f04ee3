"""Directions found from images declared public: of these alone, and of none that is a client's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from methods import Task, promptfl
from methods.interface import subspace
from methods.interface.subspace import BASIS, ORIGIN, in_subspace, origin_of
from platform.bootstrap import RunPlan, Surroundings, plan_run
from platform.config import parse_config
from platform.data.dataset import image_digests
from platform.data.loading import load_task_data, public_rows
from platform.data.shapes import CLASSES as OUTLINES
from platform.data.shapes import Stream
from platform.errors import ConfigError, ProtocolError, RunStopped
from platform.experiment.finishing import execute
from platform.parties import client
from platform.parties.expectations import expectations_of, require_broadcast
from platform.rounds.observing import SilentObserver
from tests.drawn.domains import draw_folders
from tests.trunk._runs import NO_POOL, Storage, opened

RANK, WHOLE = 5, 256
TWO = ("rounds=2", "evaluation.local_twins=false")
PUBLIC = (
    *NO_POOL,
    *TWO,
    "privacy.subspace=public_images",
    f"privacy.rank={RANK}",
    "public_data={per_class: 2}",
)
CLASSES = ("bird", "car", "chair", "dog", "person")
APART = ("cohort={}", "secure_aggregation={}")
MINIMAL = {"name": "run", "method": {"name": "promptfl"}, "training": {"local_steps": 1}}
INSIDE = {"subspace": "public_images", "rank": 4}


def on_folder(root: Path) -> str:
    return (
        f"task={{dataset: folders, clients: 2, shots: 2, partition: {{kind: iid}}, root: {root}}}"
    )


def rows_of(**sections):
    config = parse_config({**MINIMAL, "privacy": INSIDE, "public_data": {}, **sections})
    return public_rows(config, load_task_data(config))


def planned(storage: Storage, *overrides: str) -> RunPlan:
    return plan_run(storage.config(*PUBLIC, *overrides), SilentObserver(), storage.surroundings)


def basis_of(plan: RunPlan) -> np.ndarray:
    return plan.terms.initial_state()[BASIS]


# --- which images --------------------------------------------------------------------------------


def test_no_public_image_is_one_of_the_federation_even_under_one_seed():
    config = parse_config({**MINIMAL, "seed": 4, "privacy": INSIDE, "public_data": {"seed": 4}})
    data = load_task_data(config)
    found = public_rows(config, data)
    public = set(image_digests(found.split.images, found.rows))
    assert len(public) == len(found.rows) == 20 * 16
    for split in (data.dataset.train, data.dataset.test):
        assert public.isdisjoint(image_digests(split.images, np.arange(split.num_examples)))


def test_of_each_class_as_many_as_asked_for_and_the_same_ones_again():
    one, again, other = (rows_of(public_data={"per_class": 3, "seed": s}) for s in (1, 1, 2))
    assert np.bincount(one.split.labels[one.rows]).tolist() == [3] * len(OUTLINES)
    first, second, third = (image_digests(r.split.images, r.rows) for r in (one, again, other))
    assert first == second
    assert set(first).isdisjoint(third)


def test_a_held_out_style_is_in_no_public_image():
    kind = {"partition": {"kind": "domain"}, "clients": 5, "shots": 1}
    leaving = {"evaluation": {"protocol": "leave_one_domain_out"}}
    task = {"task": {**kind, "held_out_domain": "sketch"}, **leaving}
    found = rows_of(**task)
    names = load_task_data(parse_config({**MINIMAL, **task})).dataset.domains
    assert names.index("sketch") not in set(found.split.domains[found.rows].tolist())


# --- what the directions depend on ---------------------------------------------------------------


def test_directions_do_not_depend_on_who_holds_what(storage: Storage):
    """Other images, other partition, other shots: to the byte the same directions are sent."""
    fixed = ("seeds.initialisation=1",)
    first = basis_of(planned(storage, *fixed))
    for others in (
        ("seed=9",),
        ("task.partition.kind=iid",),
        ("seeds.shots=5", "task.test_per_class=12"),
        ("privacy.mechanism=none",),
    ):
        np.testing.assert_array_equal(basis_of(planned(storage, *fixed, *others)), first)
    assert not np.allclose(basis_of(planned(storage, *fixed, "public_data.seed=7")), first)


def test_a_run_sends_sums_and_says_what_was_fixed_in_advance(storage: Storage):
    done = storage.run(*PUBLIC, "privacy.mechanism=distributed_noise")
    assert {row for (row,) in storage.rows("SELECT dimension FROM ledger")} == {RANK}
    assert done.summary["subspace"] == {
        "kind": "public_images",
        "rank": RANK,
        "coordinates": WHOLE,
        "public_images": 40,
    }
    (told,) = [text for text in done.summary["warnings"] if f"{RANK} of {WHOLE} directions" in text]
    assert "from 40 images declared public (shapes)" in told and "nobody's" in told
    basis = done.state()[BASIS]
    np.testing.assert_allclose(basis @ basis.T, np.eye(RANK), atol=1e-5)


def test_public_images_may_lie_in_a_folder_of_their_own(storage: Storage, tmp_path):
    own, public = (draw_folders(tmp_path / n, ("photo",), CLASSES, per_class=6) for n in "ab")
    plan = planned(storage, on_folder(own), *APART, f"public_data={{root: {public}, per_class: 2}}")
    assert plan.learning.method.public.num_examples == 10
    assert basis_of(plan).shape == (RANK, WHOLE)


# --- a basis of another model --------------------------------------------------------------------


def test_a_client_with_another_model_or_class_list_refuses_before_it_trains(storage: Storage):
    method = planned(storage).learning.method
    sent = method.broadcast(method.init_server(np.random.default_rng(0)))
    require_broadcast(expectations_of(method), sent)
    model = method.base.encoder.backbone
    for fingerprint, classes in (
        ("0" * 64, OUTLINES),
        (model.fingerprint, (*OUTLINES[1:], OUTLINES[0])),
    ):
        task = Task(classes, (), 5, dataclasses.replace(model, fingerprint=fingerprint))
        mine = in_subspace(
            promptfl.build(promptfl.Config(context_tokens=2), task),
            "text_jacobian",
            RANK,
            origin=origin_of(fingerprint, classes),
        )
        with pytest.raises(ProtocolError, match="the directions are of another model"):
            require_broadcast(expectations_of(mine), sent)


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: {**sent, BASIS: sent[BASIS][:-1]},
        lambda sent: {**sent, BASIS: sent[BASIS].T.copy()},
        lambda sent: {**sent, BASIS: sent[BASIS].astype(np.float64)},
        lambda sent: {name: array for name, array in sent.items() if name != BASIS},
        lambda sent: {name: array for name, array in sent.items() if name != ORIGIN},
        lambda sent: {**sent, ORIGIN: sent[ORIGIN] + 1},
    ],
)
def test_a_basis_that_is_not_this_models_is_refused(storage: Storage, change):
    method = planned(storage, "privacy.subspace=random", "public_data=null").learning.method
    sent = method.broadcast(method.init_server(np.random.default_rng(0)))
    with pytest.raises(ProtocolError, match=r"message: "):
        require_broadcast(expectations_of(method), change(sent))


def test_a_federation_whose_server_has_another_model_ends_without_an_upload(
    storage: Storage, monkeypatch
):
    """Clients hang up at the broadcast: nothing is trained, and nothing is charged."""
    original, trained = subspace.InSubspace.broadcast, []

    def other(self, state, name=None):
        return {**original(self, state, name), ORIGIN: np.zeros(8, np.uint32)}

    random = ("privacy.subspace=random", "privacy.rank=5", "cohort.retries=0")
    with opened(storage.create(*NO_POOL, *TWO, *random)) as simulation:
        monkeypatch.setattr(client, "work", lambda *_: trained.append(1))
        monkeypatch.setattr(subspace.InSubspace, "broadcast", other)
        with pytest.raises(RunStopped):
            execute(simulation, SilentObserver())
    assert trained == []


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("public_data=null",), r"public_data: null names no image"),
        (("privacy.subspace=random",), r"public_data: has no meaning with .*subspace = random"),
        (("public_data.dataset=digits",), r"public_data\.dataset: digits has other classes"),
        (("public_data.dataset=homonyms",), r"label 0 is 'crane' and not 'circle'"),
        (("task={dataset: digits, clients: 5}",), r"public_data\.root: null is where the federa"),
        (
            ("task={dataset: digits, clients: 5}", "public_data={root: anywhere}"),
            r"public_data\.root: digits there is the federation's own data",
        ),
        (("public_data={per_class: 1}", "privacy.rank=21"), r"privacy\.rank: 21 is more than the"),
        (("method={name: fedclip}",), r"privacy\.subspace: public_images needs .*; valid: none"),
        (("method={name: fedotp, context_tokens: 2}",), r"privacy\.subspace: .* personal state"),
        (("method={name: coop}",), r"privacy\.subspace: .*; valid: none"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(storage: Storage, overrides, said):
    with pytest.raises(ConfigError, match=said):
        storage.create(*PUBLIC, *overrides)
    assert not storage.file.exists()


@pytest.mark.parametrize("as_link", [False, True])
def test_the_federations_own_folder_is_refused(storage: Storage, tmp_path, as_link):
    own = draw_folders(tmp_path / "own", ("photo",), CLASSES, per_class=6)
    public = tmp_path / "link"
    public.symlink_to(own, target_is_directory=True)
    named = f"public_data={{root: {public if as_link else own}}}"
    with pytest.raises(ConfigError, match=r"public_data\.root: .* the federation's own data"):
        storage.create(*PUBLIC, on_folder(own), *APART, named)
    with pytest.raises(ConfigError, match=r"public_data\.root: null is where"):
        storage.create(*PUBLIC, on_folder(own), *APART, "public_data={}")


def test_rehearsals_and_public_images_do_not_meet():
    """A basis of the very images that are trained on would hold more of their updates."""
    config = parse_config({**MINIMAL, "privacy": INSIDE, "public_data": {}})
    data = load_task_data(config, Stream.REHEARSAL)
    found = public_rows(config, data)
    public = set(image_digests(found.split.images, found.rows))
    split = data.dataset.train
    assert public.isdisjoint(image_digests(split.images, np.arange(split.num_examples)))
    assert Surroundings().images is Stream.FEDERATION
