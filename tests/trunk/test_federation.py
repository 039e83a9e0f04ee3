"""A federation of data holders with folders of their own, whose processes may die at any time."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.cli.models import read_image
from platform.config.sections import ModelConfig
from platform.errors import Declined, ProtocolError, RunStopped, UnknownRun
from platform.experiment.federating import offered
from platform.experiment.joining import own_model, own_weights
from platform.experiment.planning import Surroundings
from platform.holder.serving import MOST_RUNS, Host
from platform.holder.settings import load_holder
from platform.wire import outside_rounds
from platform.wire.codec import Envelope, peek
from platform.wire.receipt_messages import bare
from tests.trunk._federations import (
    MASKED,
    NAMES,
    OPEN,
    Holders,
    federation,
    go_on,
    hold,
    last_state,
    noted,
    within,
    write_holder,
)
from tests.trunk._leaving import Doing, crash, doing, runs_of
from tests.trunk._runs import Crash


def test_a_run_that_passes_one_holders_limits_is_not_begun(folder):
    strict = {**OPEN, "mechanisms": ["upload_noise"]}
    holders = Holders.written(folder, of={"south": {"limits": strict}})
    with pytest.raises(RunStopped, match=r"privacy\.mechanism: distributed_noise") as stopped:
        hold(federation(folder, *MASKED), within(holders.handlers()))
    assert [name for name in NAMES if name in str(stopped.value)] == ["south"]
    assert "declined" in holders.lines["south"][0]


@dataclasses.dataclass(frozen=True)
class Ended:
    folder: Path
    holders: Holders
    run_id: str
    summary: dict[str, Any]
    told: list[bytes]
    sent: list[bytes]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Ended:
    """With a method that leaves each holder a part of its own; west has a class too many."""
    folder = tmp_path_factory.mktemp("ended")
    holders = Holders.written(folder)
    images = folder / "west" / "images" / "train"
    shutil.copytree(images / "star", images / "dog")
    handlers, told, sent = holders.handlers(), [], []

    def heard(message: bytes) -> bytes:
        sent.append(handlers["west"](message))
        return sent[-1]

    config = federation(folder, "method={name: fedpgp, context_tokens: 2}", "rounds=1")
    summary = hold(config, within(noted({**handlers, "west": heard}, told.append)))
    return Ended(folder, holders, summary["run_id"], summary, told, sent)


def test_a_class_that_the_federation_does_not_know_is_named_to_its_holder_only(ended):
    """Which images a holder has is what the coordinator must not learn: nothing is refused. And
    nobody is told where anything lies."""
    assert [r["cohort"] for r in ended.summary["rounds"]] == [4]
    assert "'dog'" in " ".join(ended.holders.lines["west"])
    path = str(ended.folder).encode()
    assert ended.sent and not [m for m in ended.sent if b"dog" in m or path in m]
    assert ended.told and not [m for m in ended.told if b"hub.sock" in m or path in m]


def test_a_holder_keeps_its_own_model_and_nobody_else_has_it(ended):
    folder, run_id = ended.folder, ended.run_id
    own = {
        name: own_model(load_holder(folder / name / "client.yaml"), run_id, Surroundings())
        for name in NAMES
    }
    arrays = {name: found.model.arrays() for name, found in own.items()}
    shared = [name for name in arrays["east"] if name.startswith("shared.")]
    others = [name for name in arrays["east"] if name.startswith("personal.")]
    assert shared and others
    for name in shared:
        np.testing.assert_array_equal(arrays["east"][name], arrays["west"][name])
    assert any(not np.array_equal(arrays["east"][n], arrays["west"][n]) for n in others)
    image = read_image(folder / "east" / "images" / "test" / "star" / "0.png")
    found = own["east"].model.classify(image)
    assert found["class"] in ("circle", "square", "star")
    assert 0.0 < found["probability"] <= 1.0
    assert own["east"].tested == 6
    with pytest.raises(UnknownRun, match="'nothing'"):
        own_model(load_holder(folder / "east" / "client.yaml"), "nothing", Surroundings())
    kept = b"".join(path.read_bytes() for path in folder.glob("sotto.db*"))
    for name in others:
        assert arrays["east"][name].tobytes() not in kept


def test_other_terms_under_a_known_name_and_a_second_parting_change_nothing(ended):
    offer = outside_rounds.decode_offer(ended.told[0])
    config = offer.config.replace(b'"rounds":1', b'"rounds":9')
    assert config != offer.config
    changed = outside_rounds.encode_offer(dataclasses.replace(offer, config=config))
    reasons = outside_rounds.decode_acceptance(ended.holders.handler("east")(changed)).reasons
    assert "other terms" in reasons[0]
    kept = ended.folder / "east" / "store" / "offers" / f"{ended.run_id}.parting"
    before = kept.read_bytes()
    partings = [bare(m) for m in ended.told if peek(bare(m))[0] == "parting"]
    asked = outside_rounds.decode_parting(partings[0])
    forged = {name: array + 1 for name, array in asked.broadcast.items()}
    message = outside_rounds.encode_parting(dataclasses.replace(asked, broadcast=forged))
    ended.holders.handler("east")(message)
    assert kept.read_bytes() == before


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
    facts = outside_rounds.Facts("1", "", "")
    for run_id in runs:
        offer = outside_rounds.Offer(Envelope(run_id, 0, 0), b"{}", facts)
        answer = host.handle(outside_rounds.encode_offer(offer))
        assert outside_rounds.decode_acceptance(answer).reasons == ()
    call = [outside_rounds.encode_roll_call(Envelope(run_id, 0, 0)) for run_id in runs]
    assert made == []
    assert [host.handle(message) for message in call * 2] == call * 2
    assert len(made) > len(runs)
    with pytest.raises(ProtocolError, match="was accepted"):
        host.handle(outside_rounds.encode_roll_call(Envelope("another", 0, 0)))


def test_nothing_that_arrives_names_a_file_to_read(folder):
    """A checkpoint's path stays where it is; each holder names its own copy."""
    config = federation(folder)
    model = ModelConfig(name="ViT-B-16", pretrained="/coordinator/w.pt")
    local = config.task.model_copy(update={"model": model})
    tree = json.loads(offered(config.model_copy(update={"task": local})))
    assert "/coordinator" not in json.dumps(tree) and str(folder) not in json.dumps(tree)
    holder = load_holder(write_holder(folder, "east"))
    own = holder.model_copy(update={"weights": folder / "own.pt"})
    unnamed = {"name": "ViT-B-16", "pretrained": None}
    for holds, model in (
        *((one, {"name": "ViT-B-16", "pretrained": "/etc/passwd"}) for one in (holder, own)),
        *((one, {"name": "local-dir:/etc", "pretrained": None}) for one in (holder, own)),
        (holder, unnamed),
    ):
        with pytest.raises(Declined, match=r"task\.model"):
            own_weights(holds, model)
    mine = str(folder / "own.pt")
    assert own_weights(own, tree["task"]["model"]) == {"name": "ViT-B-16", "pretrained": mine}
    shipped = {"name": "sotto-tiny", "pretrained": None}
    assert own_weights(holder, shipped) == own_weights(own, shipped) == shipped


def test_a_holder_with_a_new_store_cannot_go_on_with_a_run(folder):
    """It would begin at epsilon 0, and what it spent would be nobody's."""
    holders = Holders.written(folder)
    with pytest.raises(Crash):
        hold(federation(folder), doing(Doing(holders.handlers(), ("train", 1), crash, after=True)))
    (run_id,) = runs_of(folder)
    for path in (folder / "north" / "store").glob("client.db*"):
        path.unlink()
    with pytest.raises(RunStopped, match="cannot be carried"):
        go_on(run_id, f"sqlite:///{folder}/sotto.db", within(holders.handlers()))


@pytest.mark.slow
def test_a_process_a_message_is_the_same_client(folder):
    one, other = folder / "one", folder / "other"
    steady = hold(federation(one), within(Holders.written(one).handlers()))
    holders = Holders.written(other)

    def fresh(name: str) -> Callable[[bytes], bytes]:
        def handle(message: bytes) -> bytes:
            first = holders.handler(name)(message)
            again = holders.handler(name)(message)
            # But for whether there was anything to do, which the parting's answer says.
            assert again == first or peek(bare(message))[0] == "parting"
            return first

        return handle

    summary = hold(federation(other), within({name: fresh(name) for name in NAMES}))
    before, after = last_state(one, steady["run_id"]), last_state(other, summary["run_id"])
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
