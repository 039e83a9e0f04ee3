"""A coordinator that offers runs learns settings, and nothing of what lies in a holder's folder.

Offers cost nothing and leave no row in any ledger. Before acceptance followed from settings alone,
fourteen offers with other values of `task.validation_share` found the size of the largest class.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.bootstrap import Surroundings
from platform.bootstrap.federating import offered, plan_federation
from platform.bootstrap.joining import host_of
from platform.config import parse_config
from platform.holder.settings import load_holder
from platform.privacy_auditing.offers import audit_offers, hostile_offers
from platform.wire.envelopes import Envelope
from platform.wire.offers import Offer, decode_acceptance, encode_offer
from tests.drawn._pictures import write_picture
from tests.trunk._federations import BASE, OPEN, SHAPES

NOISED = (
    "privacy={mechanism: upload_noise, clipping_norm: 0.1, noise_multiplier: 4.0}",
    "secure_aggregation={enabled: false}",
)
Handler = Callable[[bytes], bytes]


def first_offer(*overrides: str) -> Offer:
    config = parse_config(yaml.safe_load(BASE), [*NOISED, *overrides])
    facts = plan_federation(config, Surroundings())[1]
    return Offer(Envelope("asked", 0, 0), offered(config), facts)


def write_folder(root: Path, images: Mapping[str, int], **files: bytes) -> Path:
    """So many images of each class, and files beside them by class."""
    for number, (name, count) in enumerate(images.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for image in range(count):
            write_picture(root / name / f"{image}.png", number, image, size=16)
    for name, content in files.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "beside.png").write_bytes(content)
    return root


@dataclass(frozen=True)
class Hosts:
    """Makes holders with the same settings, each with a folder and a store of its own."""

    folder: Path
    data: Mapping[str, Any]

    def __call__(self, images: Path) -> Handler:
        place = self.folder / f"holder-{len(list(self.folder.iterdir()))}"
        place.mkdir()
        tree = {
            "name": "east",
            "data": {"root": str(images), **self.data},
            "storage": "store",
            "device": "cpu",
            "limits": OPEN,
        }
        (place / "client.yaml").write_text(yaml.safe_dump(tree))
        return host_of(load_holder(place / "client.yaml"), Surroundings(), lambda line: None).handle


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    (tmp_path / "holders").mkdir()
    return Hosts(tmp_path / "holders", {"classes": list(SHAPES)})


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Folders of every kind, those first that a check finds nothing wrong with."""
    each = tmp_path / "folders"
    some = dict.fromkeys(SHAPES, 4)
    found = {
        "four images of each class": write_folder(each / "some", some),
        "eleven of one class": write_folder(each / "more", {**some, "star": 11}),
        "one class": write_folder(each / "one", {"star": 4}),
        "one image": write_folder(each / "image", {"star": 1}),
        "empty classes": write_folder(each / "empty", dict.fromkeys(SHAPES, 0)),
        "another class": write_folder(each / "another", {**some, "dog": 1}),
        "a damaged image": write_folder(each / "damaged", some, star=b"no image"),
        "a file of no bytes": write_folder(each / "nothing", some, star=b""),
        "an image of two classes": write_folder(
            each / "two",
            some,
            star=(each / "some" / "circle" / "0.png").read_bytes(),
            square=(each / "some" / "circle" / "0.png").read_bytes(),
        ),
        "no folder": each / "none",
        "two readings": write_folder(each / "readings", {"train": 1, **some}),
    }
    (each / "some" / "star" / "twin.png").write_bytes(
        (each / "some" / "star" / "0.png").read_bytes()
    )
    return found


def test_no_offer_tells_folders_apart(hosts: Hosts, folders: dict[str, Path]):
    verdict = audit_offers(hosts, folders, hostile_offers(first_offer()))
    assert verdict.passed, "\n".join(verdict.reasons)
    assert verdict.accepted > 20 and verdict.offers > verdict.accepted
