"""Choosing the clipping norm by a dry run: on public images alone, and nothing is left of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import yaml

from methods import ClientView
from platform.cli.trying import rehearse
from platform.config import RunConfig, Sources, parse_config
from platform.data import shapes
from platform.data.shapes import Stream
from platform.errors import ConfigError
from platform.experiment.planning import Surroundings, plan_run
from platform.experiment.rehearsal import (
    Listening,
    RoundOfNorms,
    on_public_images,
    recommended,
    rehearsal_config,
    rounds_of,
)
from platform.experiment.simulation import randomness, trainer_factory
from platform.parties.profile import ClientProfile, RunNames, batches_of
from platform.rounds.observing import SilentObserver
from platform.wire.codec import Envelope
from platform.wire.messages import Upload, encode_upload
from platform.wire.transport import Dropout
from tests.drawn.domains import draw_folders
from tests.trunk._runs import NO_POOL, RECORDS, SMALL, Command

CLASSES = ("bird", "car", "chair", "dog", "person")


def config(*overrides: str) -> RunConfig:
    return parse_config(yaml.safe_load(SMALL), overrides)


def tried(*overrides: str, **asked) -> dict:
    return rehearse(config(*overrides), Surroundings(), SilentObserver(), **asked)


def test_norms_are_read_off_the_wire_by_round():
    class Scripted:
        def exchange(self, stage, messages, deadline):
            return messages

    def uploaded(number: int, vector: list[float]) -> bytes:
        return encode_upload(Upload(Envelope("run", number, 1, None), b"", np.array(vector), 1))

    listening = Listening(Scripted())
    one = {"a": uploaded(1, [3.0, 4.0]), "b": Dropout("gone"), "c": uploaded(1, [0.0, 2.0])}
    assert listening.exchange("train", one, None) is one
    listening.exchange("train", {"a": uploaded(2, [1.0])}, None)
    listening.exchange("share", {"a": b"keys"}, None)
    assert listening.norms == {1: [5.0, 2.0], 2: [1.0]}


def test_quantiles_what_would_be_clipped_and_what_is_recommended_by_hand():
    one = RoundOfNorms(1, np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert one.quantiles() == pytest.approx((1.4, 3.0, 4.6))
    assert one.clipped(3.0) == pytest.approx(0.4)
    assert (one.clipped(0.5), one.clipped(5.0)) == (1.0, 0.0)
    found = rounds_of({2: [9.0, 9.0, 9.0], 1: [4.0, 1.0, 2.0]})
    assert [one.number for one in found] == [1, 2]
    assert recommended(found) == 2.0
    for nothing in ({}, {1: [0.0, 0.0]}):
        with pytest.raises(ConfigError, match="nothing to clip"):
            recommended(rounds_of(nothing))


# C is far below all norms.
TINY = (*NO_POOL, "privacy.clipping_norm=1.0e-5", "cohort.dropout_rate=0")


@pytest.fixture(scope="module")
def whole() -> tuple[dict, set[Stream]]:
    """What a dry run of one round says, and the streams of the images that it drew."""
    drawn, original = set(), shapes.draw_split

    def watching(keys, *arguments):
        drawn.add(Stream(keys[1]))
        return original(keys, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "draw_split", watching)
        return tried(*TINY, rounds=1), drawn


def test_its_norms_are_those_of_what_clients_would_upload_before_any_clip(whole, tmp_path):
    found, drawn = whole
    assert drawn == {Stream.REHEARSAL}
    surroundings = Surroundings(images=Stream.REHEARSAL)
    dry = rehearsal_config(config(*TINY), 1, f"sqlite:///{tmp_path}/sotto.db", Sources())
    plan = plan_run(dry, SilentObserver(), surroundings)
    method, norms = plan.learning.method, []
    for name, data in plan.learning.train.items():
        guard, drawing = plan.terms.protection, randomness(dry)
        facts = {"run": RunNames("any"), "method": method, "data": data, "randomness": drawing}
        profile = ClientProfile(name=name, protection=guard, **facts)
        view = ClientView(method.broadcast(plan.terms.initial_state()))
        trainer = trainer_factory(dry, "cpu", guard)(None)
        update = method.client_update(view, data, trainer, batches_of(profile, 1)).update
        norms.append(float(np.linalg.norm(update["context"])))
    (first,) = found["rounds"]
    assert first["uploads"] == 5
    assert found["clipping_norm"] == pytest.approx(float(np.median(norms)), rel=1e-5)
    assert first["norms"]["0.9"] == pytest.approx(float(np.quantile(norms, 0.9)), rel=1e-5)
    assert first["clipped_as_configured"] == 1.0


def test_in_a_subspace_it_is_the_coordinates_that_are_measured(whole):
    inside, (full, _) = tried(*TINY, "privacy.subspace=random", "privacy.rank=4", rounds=1), whole
    assert (inside["values"], full["values"]) == (4, 256)
    assert (inside["subspace"], full["subspace"]) == ("random", None)
    # Of an update's 256 numbers 4 random directions hold about an eighth of the norm.
    assert inside["clipping_norm"] < 0.3 * full["clipping_norm"]


@pytest.mark.parametrize(
    "overrides",
    [
        (
            *("privacy.adaptive_clipping={quantile: 0.5}", "privacy.lifetime_budget=9"),
            "pool={clipping_norm: 2.0, noise: independent}",
            *("task.validation_share=0.5", "task.shots=4"),
            "evaluation={release: noised, selection: best_on_validation}",
        ),
        ("privacy.mechanism=distributed_noise", "pool={kind: groups, experts: 2}", *NO_POOL),
    ],
)
def test_any_protection_of_uploads_is_left_out_of_the_dry_run(overrides):
    dry = rehearsal_config(config(*overrides), 2, "sqlite:///unused.db", Sources())
    assert dry.mechanism.name == "none"
    assert not dry.secure_aggregation.enabled
    assert (dry.rounds, dry.cohort.dropout_rate) == (2, 0.0)
    assert dry.privacy.lifetime_budget is None


def test_the_command_says_what_to_take_and_leaves_nothing(sotto: Command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    sets = [part for one in NO_POOL for part in ("--set", one)]
    small = ("clipping", "small.yaml", *sets, "--rounds", "1")
    found = sotto(*small, "--json")
    assert found.code == 0, found.err
    document = found.document
    assert document["clipping_norm"] == document["rounds"][0]["norms"]["0.5"] > 0.0
    assert document["public"] == {"dataset": "shapes", "root": None, "examples": 20}
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
    refused = sotto(*small, "--dataset", "digits")
    assert refused.code == 2 and len(refused.err.strip().splitlines()) == 1


def test_public_images_may_lie_in_a_folder(tmp_path):
    own, public = tmp_path / "own", tmp_path / "public"
    for root in (own, public):
        draw_folders(root, ("photo",), CLASSES, per_class=6)
    task = f"task={{dataset: folders, clients: 2, shots: 2, partition: {{kind: iid}}, root: {own}}}"
    small = (*NO_POOL, task, "cohort={}", "secure_aggregation={}", "rounds=1")
    found = tried(*small, root=str(public))
    assert found["public"] == {"dataset": "folders", "root": str(public), "examples": 20}
    shutil.rmtree(own)
    with pytest.raises(ConfigError, match=r"^task\.root: folders needs"):
        tried(*small, root=str(public))


@pytest.mark.parametrize("how", ["the folder", "a link", "a link to one image"])
def test_the_clients_own_images_are_not_public(tmp_path, how):
    own, public = draw_folders(tmp_path / "own", ("photo",), CLASSES), tmp_path / "public"
    if how == "a link":
        public.symlink_to(own, target_is_directory=True)
    elif how == "a link to one image":
        draw_folders(public, ("photo",), CLASSES)
        victim = min(public.rglob("*.jpg"))
        victim.unlink()
        victim.hardlink_to(min(own.rglob("*.jpg")))
    federation = config(*NO_POOL, f"task={{dataset: folders, root: {own}}}")
    # Arrays in memory are compared as they are.
    digits = config(*NO_POOL, "task={dataset: digits}")
    there = own if how == "the folder" else public
    for asked, root in ((federation, str(there)), (digits, "anywhere")):
        with pytest.raises(ConfigError, match="the federation's own"):
            on_public_images(asked, None, root)


@pytest.mark.parametrize(
    ("overrides", "asked", "said"),
    [
        (("method={name: zero_shot}",), {}, "nothing to clip"),
        (RECORDS, {}, r"privacy\.mechanism: dp_sgd clips"),
        (("phase_two_of=a-run",), {}, "phase_two_of: 'a-run'"),
        (("task={dataset: digits}",), {}, "public_data: null names"),
        ((), {"dataset": "digits"}, r"public_data\.dataset: digits has"),
        ((), {"dataset": "homonyms"}, "label 0 is 'crane'"),
        ((), {"dataset": "gone"}, r"public_data\.dataset: 'gone' is unknown"),
        ((), {"dataset": "pacs", "root": "nowhere"}, r"public_data\.root: pacs needs"),
    ],
)
def test_what_cannot_be_tried_is_refused(overrides, asked, said):
    with pytest.raises(ConfigError, match=said):
        tried(*NO_POOL, *overrides, **asked)
