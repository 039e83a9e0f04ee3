"""A coordinator that offers runs learns settings, and nothing of what lies in a holder's folder.

Offers cost nothing and leave no row in any ledger.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.config import parse_config
from platform.errors import ConfigError
from platform.experiment.federating import offered, plan_federation
from platform.experiment.joining import host_of, serve_holder
from platform.experiment.planning import Surroundings
from platform.experiment.privacy_auditing.beginnings import audit_offers, hostile_offers
from platform.holder.settings import HolderSettings, load_holder
from platform.wire.codec import Envelope, decode_frame
from platform.wire.messages import (
    Assignment,
    Invitation,
    Relay,
    encode_assignment,
    encode_invitation,
    encode_relay,
)
from platform.wire.outside_rounds import (
    Offer,
    Parting,
    encode_offer,
    encode_parting,
    encode_roll_call,
)
from storage import LedgerRow, open_client_store
from tests.drawn._pictures import write_picture
from tests.trunk._federations import BASE, OPEN, SHAPES

NOISED = (
    "privacy={mechanism: upload_noise, clipping_norm: 0.1, noise_multiplier: 4.0}",
    "secure_aggregation={enabled: false}",
)
Handler = Callable[[bytes], bytes]


def write_folder(root: Path, images: Mapping[str, int], **files: bytes) -> Path:
    """So many images of each class, and files beside them by class."""
    for number, (name, count) in enumerate(images.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for image in range(count):
            write_picture(root / name / f"{image}.png", number, image, size=16)
    for name, content in files.items():
        (root / name / "beside.png").write_bytes(content)
    return root


@dataclass(frozen=True)
class Hosts:
    """Makes holders with the same settings, each with a folder and a store of its own."""

    folder: Path
    data: Mapping[str, Any]

    def __call__(self, images: Path) -> Handler:
        return answering(self.settings(images))

    def settings(self, images: Path) -> HolderSettings:
        self.folder.mkdir(exist_ok=True)
        place = self.folder / f"holder-{len(list(self.folder.iterdir()))}"
        place.mkdir()
        tree = {"name": "east", "storage": "store", "device": "cpu", "limits": OPEN}
        tree["data"] = {"root": str(images), **self.data}
        (place / "client.yaml").write_text(yaml.safe_dump(tree))
        return load_holder(place / "client.yaml")


def answering(own: HolderSettings, lines: list[str] | None = None) -> Handler:
    return host_of(own, Surroundings(), [].append if lines is None else lines.append).handle


@dataclass(frozen=True)
class Coordinator:
    """Asks one client for rounds without masks."""

    offer: Offer
    broadcast: Mapping[str, np.ndarray]
    norm: float | None

    @classmethod
    def of(cls, overrides: tuple[str, ...]) -> Coordinator:
        config = parse_config(yaml.safe_load(BASE), list(overrides))
        terms, facts, _ = plan_federation(config, Surroundings())
        broadcast = terms.method.broadcast(terms.method.init_server(np.random.default_rng(0)))
        offer = Offer(Envelope("asked", 0, 0), offered(config), facts)
        return cls(offer, broadcast, terms.protection.clipping_norm)

    def joins(self, handle: Handler) -> list[bytes]:
        call = encode_roll_call(Envelope("asked", 0, 0))
        return [handle(encode_offer(self.offer)), handle(call)]

    def round(self, handle: Handler, number: int) -> list[bytes]:
        envelope = Envelope("asked", number, 1, (number - 1, 1) if number > 1 else None)
        invitation = encode_invitation(Invitation(envelope, (), None, self.norm))
        assignment = encode_assignment(Assignment(envelope, b"", self.broadcast, ()))
        return [*map(handle, (invitation, assignment, encode_relay(Relay(envelope, b""))))]

    def parting(self, handle: Handler) -> list[bytes]:
        envelope = Envelope("asked", 3, 0, (2, 1))
        return [handle(encode_parting(Parting(envelope, self.broadcast, None)))]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Folders of every kind; a check finds nothing wrong with the first two."""
    each, some = tmp_path / "folders", dict.fromkeys(SHAPES, 4)
    return {
        "four images of each class": write_folder(each / "some", some),
        "eleven of one class": write_folder(each / "more", {**some, "star": 11}),
        "a damaged image": write_folder(each / "damaged", some, star=b"no image"),
        "one class": write_folder(each / "one", {"star": 4}),
        "empty classes": write_folder(each / "empty", dict.fromkeys(SHAPES, 0)),
        "another class": write_folder(each / "another", {**some, "dog": 1}),
        "no folder": each / "none",
    }


@pytest.mark.parametrize(
    ("data", "most"),
    [
        ({}, 3),
        pytest.param({}, 7, marks=pytest.mark.slow),
        pytest.param({"classes": list(SHAPES)}, 7, marks=pytest.mark.slow),
    ],
    ids=["some folders", "classes are not pinned", "classes are pinned"],
)
def test_no_offer_tells_folders_apart(tmp_path, folders, data, most):
    chosen, hosts = dict(list(folders.items())[:most]), Hosts(tmp_path / "holders", data)
    verdict = audit_offers(hosts, chosen, hostile_offers(Coordinator.of(NOISED).offer))
    assert verdict.passed, "\n".join(verdict.reasons)
    assert verdict.accepted > 20


@settings(max_examples=15)
@given(
    content=st.dictionaries(
        st.sampled_from([*SHAPES, "dog", "train", "Star", "a/b"]),
        st.lists(st.sampled_from([0, 1, 2, b"", b"no image", b"\x89PNG\r\n\x1a\n"]), max_size=3),
    ),
    share=st.floats(0.001, 0.999),
    shots=st.none() | st.integers(1, 64),
)
def test_whatever_lies_in_a_folder(tmp_path_factory, content, share, shots):
    place = tmp_path_factory.mktemp("drawn")
    for name, files in content.items():
        (place / "images" / name).mkdir(parents=True)
        for number, file in enumerate(files):
            path = place / "images" / name / f"{number}.png"
            if isinstance(file, int):
                write_picture(path, file, number, size=8)
            else:
                path.write_bytes(file)
    drawn = (f"task.validation_share={share!r}", f"task.shots={shots or 'null'}")
    asked = Coordinator.of((*NOISED, *drawn)).offer
    folders = {"drawn": place / "images", "none": place / "nowhere"}
    verdict = audit_offers(Hosts(place / "holders", {}), folders, {"drawn": asked})
    assert (verdict.reasons, verdict.accepted) == ((), 1)


PRIVATE = {
    "upload_noise": NOISED,
    "validated": (*NOISED, "evaluation.release=noised", "task.validation_share=0.25"),
    "pool": (*NOISED, "method={name: pfedmoap, context_tokens: 2, experts: 1}"),
    "dp_sgd": (
        "privacy={mechanism: dp_sgd, per_sample_clipping_norm: 1.0, noise_multiplier: 2.0, "
        "sampling_probability: 0.5}",
        "training={local_steps: 2, batch_size: 4, learning_rate: 0.05}",
        "secure_aggregation={enabled: false}",
    ),
}
DAMAGED = ("one class", "empty classes", "another class", "a damaged image", "no folder")
"""Of which one has nothing that is left out."""


def looks(message: bytes) -> tuple[Any, ...]:
    """An answer but for its numbers, keys and names."""
    frame = decode_frame(message)
    arrays = {name: (array.shape, array.dtype.name) for name, array in frame.arrays.items()}
    blobs = {name: len(blob) for name, blob in frame.blobs.items()}
    return frame.kind, sorted(frame.fields), arrays, blobs, len(message)


def charges(own: HolderSettings) -> list[LedgerRow]:
    rows = open_client_store(own.store_file, read_only=True).rows()
    return [replace(row, pseudonym="") for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", PRIVATE)
def test_every_folder_answers_every_round_and_is_charged(tmp_path, folders, mechanism):
    """Spoilt after the first round, with a process that is started anew."""
    coordinator = Coordinator.of(PRIVATE[mechanism])
    seen = {}
    for number, name in enumerate(("four images of each class", *DAMAGED)):
        images = shutil.copytree(folders["four images of each class"], tmp_path / f"own-{number}")
        own = Hosts(tmp_path / "holders", {}).settings(images)
        handle = answering(own)
        answers = [*coordinator.joins(handle), *coordinator.round(handle, 1)]
        shutil.rmtree(images)
        if folders[name].exists():
            shutil.copytree(folders[name], images)
        lines: list[str] = []
        handle = answering(own, lines)
        answers += [*coordinator.round(handle, 2), *coordinator.parting(handle)]
        seen[name] = (tuple(map(looks, answers)), charges(own))
        assert ("left out" in " ".join(lines)) is (name in DAMAGED[1:])
    whole = seen.pop("four images of each class")
    assert len(whole[1]) >= 2
    for name, one in seen.items():
        assert one == whole, name


@pytest.mark.parametrize(
    "name", ["a damaged image", pytest.param("another class", marks=pytest.mark.slow)]
)
def test_what_cannot_be_used_changes_nothing_of_the_rest(tmp_path, folders, name):
    """Under record unit all else would be training data that one record switches off."""
    spoilt = folders[name] / ("dog" if name == "another class" else "star/beside.png")
    # Both holders have one secret: which images test is drawn by a hash that is keyed with it.
    secret = Hosts(tmp_path / "holders", {}).settings(folders[name])
    host_of(secret, Surroundings(), [].append)
    found = []
    for is_there in (True, False):
        own = Hosts(tmp_path / "holders", {}).settings(folders[name])
        shutil.copytree(secret.storage, own.storage)
        lines: list[str] = []
        host = host_of(own, Surroundings(), lines.append)
        Coordinator.of(PRIVATE["upload_noise"]).joins(host.handle)
        found.append(host.client_of("asked").profile.data.arrays)
        said = [line for line in lines if "left out" in line]
        assert len(said) == is_there and all(spoilt.name in line for line in said)
        failures = open_client_store(own.store_file, read_only=True).failures("asked")
        assert [(f.round_number, f.attempt) for f in failures] == [(0, 0)] * is_there
        if is_there:
            shutil.rmtree(spoilt) if spoilt.is_dir() else spoilt.unlink()
    one, other = found
    assert len(one["labels"]) > 4
    for array in one:
        np.testing.assert_array_equal(one[array], other[array])


def test_a_client_in_no_run_does_not_start_with_images_that_fail_the_check(tmp_path, folders):
    images = shutil.copytree(folders["a damaged image"], tmp_path / "own")
    own, ended = Hosts(tmp_path / "holders", {}).settings(images), threading.Event()
    ended.set()
    lines: list[str] = []
    with pytest.raises(ConfigError, match=r"data\.root: 'star/beside.png'"):
        serve_holder(own, Surroundings(), lines.append, ended)
    assert lines == [] and not own.store_file.exists()
    (images / "star" / "beside.png").unlink()
    Coordinator.of(PRIVATE["upload_noise"]).joins(answering(own))
    # In a run that goes on its absence would be an answer.
    shutil.rmtree(images)
    serve_holder(own, Surroundings(), lines.append, ended)
    assert "listens at" in lines[-1]
