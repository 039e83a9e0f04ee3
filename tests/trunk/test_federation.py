"""A federation of data holders with folders of their own, over sockets and without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from platform.bootstrap import Surroundings
from platform.bootstrap.federating import offered
from platform.bootstrap.joining import own_model, own_weights
from platform.cli.models import read_image
from platform.config.sections import ModelConfig
from platform.disk.opening import open_existing
from platform.errors import ConfigError, Declined, ProtocolError, RunStopped, UnknownRun
from platform.holder.serving import MOST_RUNS, Host
from platform.holder.settings import load_holder
from platform.parties.identities import create_key, write_enrolment
from platform.wire.codec import Envelope, decode_arrays, peek
from platform.wire.outside_rounds import (
    Facts,
    Offer,
    decode_acceptance,
    decode_parting,
    encode_offer,
    encode_parting,
    encode_roll_call,
)
from platform.wire.receipt_messages import bare
from privacy.secure_aggregation import Enrolment
from tests.trunk._federations import (
    NAMES,
    Holders,
    federation,
    go_on,
    hold,
    over_sockets,
    within,
    write_holder,
)

MASKED = (
    "privacy.mechanism=distributed_noise",
    "privacy.clipping_norm=0.1",
    "privacy.target_epsilon=8.0",
    "secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",
)

SAID = ("accepted", "has ended, and its model is kept here")


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """A path that is short enough for sockets."""
    return tmp_path_factory.mktemp("fed")


def last_state(folder: Path, run_id: str) -> dict:
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        with database.unit_of_work(read_only=True) as uow:
            latest = uow.states.latest(run_id)
    return decode_arrays(latest.blob)


def test_the_same_numbers_come_over_sockets_and_within_one_process(folder):
    found = []
    for place in ("sockets", "within"):
        here = folder / place
        handlers = Holders.written(here).handlers()
        reaching = over_sockets(handlers, here) if place == "sockets" else within(handlers)
        summary = hold(federation(here), reaching)
        found.append((summary, last_state(here, summary["run_id"])))
    (one, first), (other, second) = found
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert [r["cohort"] for r in one["rounds"]] == [r["cohort"] for r in other["rounds"]] == [4, 4]


def test_masked_and_noised_sums_of_data_holders(folder):
    holders = Holders.written(folder)
    summary = hold(federation(folder, *MASKED), over_sockets(holders.handlers(), folder))
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(8.0, rel=1e-3)
    assert summary["final"]["accuracy"]["mean"] is None
    said = [f"run {summary['run_id']}: {what}" for what in SAID]
    assert all(lines == said for lines in holders.lines.values())
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0]


def test_accuracy_comes_back_noised_and_summed_or_not_at_all(folder):
    """Of validation images that each holder keeps back; so much epsilon that noise is small."""
    holders = Holders.written(folder)
    asked = ("evaluation.release=noised", "task.validation_share=0.5", "privacy.target_epsilon=800")
    summary = hold(federation(folder, *MASKED, *asked), within(holders.handlers()))
    final = summary["final"]
    released, spread = (final["released_validation"][name] for name in ("mean", "std"))
    assert -4 * spread <= released <= 1 + 4 * spread and 0 < spread < 0.05
    assert final["accuracy"]["mean"] is None and final["validation"]["mean"] is None


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"mechanisms": ["distributed_noise"]}, "privacy.mechanism: none"),
        ({"methods": ["fedpgp"], "mechanisms": ["none"]}, "method.name: promptfl"),
        ({"smallest_cohort": 5}, "cohort.size"),
    ],
)
def test_a_run_that_passes_one_holders_limits_is_not_begun(folder, limits, said):
    base = {"epsilon_total": None, "epsilon_per_run": None, "smallest_sum": 1, "delta": 0.1}
    strict = {**base, "mechanisms": ["none"], **limits}
    holders = Holders.written(folder, of={"south": {"limits": strict}})
    with pytest.raises(RunStopped, match=said) as stopped:
        hold(federation(folder), within(holders.handlers()))
    assert "south" in str(stopped.value)
    assert all(name not in str(stopped.value) for name in set(NAMES) - {"south"})
    assert "declined" in holders.lines["south"][0]


def test_a_class_that_the_federation_does_not_know_is_named_to_its_holder_only(folder):
    """Which images a holder has is what the coordinator must not learn: nothing is refused."""
    holders = Holders.written(folder)
    extra = folder / "west" / "images" / "train" / "dog"
    extra.mkdir()
    (extra / "0.png").write_bytes(
        (folder / "west" / "images" / "train" / "star" / "0.png").read_bytes()
    )
    handlers, sent = holders.handlers(), []

    def heard(message: bytes) -> bytes:
        sent.append(handlers["west"](message))
        return sent[-1]

    summary = hold(federation(folder), within({**handlers, "west": heard}))
    assert [r["cohort"] for r in summary["rounds"]] == [4, 4]
    assert "'dog'" in " ".join(holders.lines["west"])
    assert sent and not [m for m in sent if b"dog" in m or str(folder).encode() in m]


def test_a_key_that_others_may_use_keeps_a_client_from_starting(folder):
    keys = {"identity": "north.key", "enrolment": "enrolment.json"}
    holders = Holders.written(folder, of={"north": keys})
    own = create_key(folder / "north" / "north.key")
    known = Enrolment().enrol("north", own.public)
    write_enrolment(folder / "north" / "enrolment.json", known)
    holders.handler("north")
    (folder / "north" / "north.key").chmod(0o640)
    with pytest.raises(ConfigError, match=r"identity: .* has the permissions 640"):
        holders.handler("north")


def test_the_coordinators_paths_reach_nobody(folder):
    holders = Holders.written(folder)
    handlers, seen = holders.handlers(), []

    def listening(name):
        def handle(message: bytes) -> bytes:
            seen.append(message)
            return handlers[name](message)

        return handle

    hold(federation(folder), within({name: listening(name) for name in handlers}))
    assert seen
    assert not [m for m in seen if str(folder).encode() in m or b"hub.sock" in m]


def test_a_holder_keeps_its_own_model_and_nobody_else_has_it(folder):
    holders = Holders.written(folder)
    personal = ("method={name: fedpgp, context_tokens: 2}",)
    summary = hold(federation(folder, *personal), within(holders.handlers()))
    run_id = summary["run_id"]
    own = {
        name: own_model(load_holder(folder / name / "client.yaml"), run_id, Surroundings())
        for name in NAMES
    }
    arrays = {name: found.model.arrays() for name, found in own.items()}
    shared = [name for name in arrays["east"] if name.startswith("shared.")]
    others = [name for name in arrays["east"] if name.startswith("personal.")]
    assert shared
    assert others
    for name in shared:
        np.testing.assert_array_equal(arrays["east"][name], arrays["west"][name])
    assert any(not np.array_equal(arrays["east"][n], arrays["west"][n]) for n in others)
    image = read_image(folder / "east" / "images" / "test" / "star" / "0.png")
    found = own["east"].model.classify(image)
    assert found["class"] in ("circle", "square", "star")
    assert 0.0 < found["probability"] <= 1.0
    assert own["east"].tested == 6
    # Nothing of a personal part is in what the coordinator keeps.
    kept = b"".join(path.read_bytes() for path in folder.glob("sotto.db*"))
    for name in others:
        assert arrays["east"][name].tobytes() not in kept


def test_a_second_parting_changes_no_kept_model(folder):
    holders = Holders.written(folder)
    handlers, partings = holders.handlers(), []

    def listening(message: bytes) -> bytes:
        if peek(bare(message))[0] == "parting":
            partings.append(bare(message))
        return handlers["east"](message)

    summary = hold(federation(folder), within({**handlers, "east": listening}))
    kept = folder / "east" / "store" / "offers" / f"{summary['run_id']}.parting"
    before = kept.read_bytes()
    asked = decode_parting(partings[0])
    forged = {name: array + 1 for name, array in asked.broadcast.items()}
    handlers["east"](encode_parting(dataclasses.replace(asked, broadcast=forged)))
    assert kept.read_bytes() == before


def test_a_run_that_has_not_ended_has_no_model(folder):
    holders = Holders.written(folder)
    holders.handlers()
    with pytest.raises(UnknownRun, match="'nothing'"):
        own_model(load_holder(folder / "east" / "client.yaml"), "nothing", Surroundings())


def test_a_holder_in_many_runs_forgets_none(folder):
    """More runs at a time than there are clients in memory, message by message in turn."""
    made: list[str] = []

    class Counting:
        def __init__(self, run_id: str) -> None:
            made.append(run_id)

        def handle(self, message: bytes) -> bytes:
            return message

    host = Host(
        folder=folder,
        consider=lambda offer: None,
        join=lambda offer: Counting(offer.envelope.run_id),
    )
    runs = [f"run-{number}" for number in range(MOST_RUNS + 2)]
    facts = Facts("1", "", "")
    for run_id in runs:
        answer = host.handle(encode_offer(Offer(Envelope(run_id, 0, 0), b"{}", facts)))
        assert decode_acceptance(answer).reasons == ()
    call = [encode_roll_call(Envelope(run_id, 0, 0)) for run_id in runs]
    assert made == []
    assert [host.handle(message) for message in call * 2] == call * 2
    assert len(made) > len(runs)
    with pytest.raises(ProtocolError, match="no run that was accepted"):
        host.handle(encode_roll_call(Envelope("another", 0, 0)))


def test_nothing_that_arrives_names_a_file_to_read(folder):
    """A checkpoint's path stays where it is; each holder names its own copy."""
    config = federation(folder)
    local = config.task.model_copy(
        update={"model": ModelConfig(name="ViT-B-16", pretrained="/coordinator/w.pt")}
    )
    tree = json.loads(offered(config.model_copy(update={"task": local})))
    assert "/coordinator" not in json.dumps(tree)
    assert str(folder) not in json.dumps(tree)
    holder = load_holder(write_holder(folder, "east"))
    own = holder.model_copy(update={"weights": folder / "own.pt"})
    for model in (
        {"name": "ViT-B-16", "pretrained": "/etc/passwd"},
        {"name": "ViT-B-16", "pretrained": None},
        {"name": "local-dir:/etc", "pretrained": None},
        {"name": "hf-hub:somebody/model", "pretrained": None},
    ):
        with pytest.raises(Declined, match=r"task\.model"):
            own_weights(holder, model)
        if model["name"] != "ViT-B-16" or model["pretrained"]:
            with pytest.raises(Declined, match=r"task\.model"):
                own_weights(own, model)
    mine = str(folder / "own.pt")
    assert own_weights(own, tree["task"]["model"]) == {"name": "ViT-B-16", "pretrained": mine}
    shipped = {"name": "sotto-tiny", "pretrained": None}
    assert own_weights(holder, shipped) == own_weights(own, shipped) == shipped


def test_a_holder_with_a_new_store_cannot_go_on_with_a_run(folder):
    """It would begin at epsilon 0, and what it spent would be nobody's."""
    holders = Holders.written(folder)
    handlers, asked = holders.handlers(), []

    def until_the_second_round(message: bytes) -> bytes:
        kind, envelope = peek(bare(message))
        if kind == "invitation" and envelope.round_number == 2:
            asked.append(message)
            raise KeyboardInterrupt
        return handlers["east"](message)

    with pytest.raises(KeyboardInterrupt):
        hold(federation(folder), within({**handlers, "east": until_the_second_round}))
    assert asked
    run_id = peek(asked[0])[1].run_id
    for path in (folder / "north" / "store").glob("client.db*"):
        path.unlink()
    with pytest.raises(RunStopped, match="what it spent cannot be carried on"):
        go_on(run_id, f"sqlite:///{folder}/sotto.db", within(holders.handlers()))
