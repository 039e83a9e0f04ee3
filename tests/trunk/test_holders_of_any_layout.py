"""Data holders whose folders look different take part in one federation, each as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from platform.holder.settings import load_holder
from storage import open_client_store
from tests.trunk._federations import NAMES, SHAPES, Holders, federation, hold, within, write_images

NOISED = (
    "privacy.mechanism=upload_noise",
    "privacy.clipping_norm=0.1",
    "privacy.target_epsilon=8.0",
    "secure_aggregation={enabled: true, threshold: 2}",
    "evaluation.release=noised",
    "task.validation_share=0.25",
)


@pytest.fixture
def holders(tmp_path: Path) -> Holders:
    """East splits by folders, north not at all, south holds images back of one class only."""
    made = Holders.written(tmp_path)
    for name in NAMES:
        shutil.rmtree(tmp_path / name / "images")
        write_images(tmp_path / name / "images", seed=ord(name[0]), each=8)
    north = tmp_path / "north" / "images"
    for shape in SHAPES:
        (north / "train" / shape).rename(north / shape.upper())
    shutil.rmtree(north / "train")
    shutil.rmtree(north / "test")
    (tmp_path / "south" / "images" / "test").rename(tmp_path / "south" / "images" / "val")
    for shape in SHAPES[1:]:
        shutil.rmtree(tmp_path / "south" / "images" / "train" / shape)
    return made


@pytest.mark.slow
def test_all_validate_and_one_that_can_be_read_in_two_ways_is_without_images(holders):
    """It is in every round and charged like any other; its failures are in its own store alone."""
    images = holders.folder / "west" / "images"
    shutil.copytree(images / "train" / SHAPES[0], images / SHAPES[0])
    summary = hold(federation(holders.folder, *NOISED), within(holders.handlers()))
    assert [(r["cohort"], r["dropped"]) for r in summary["rounds"]] == [(4, 0), (4, 0)]
    released = [r["released_validation"] for r in summary["rounds"]]
    assert all(isinstance(one["mean"], float) for one in released)
    assert "all images" in " ".join(holders.lines["west"])
    charged, failed = {}, {}
    for name in NAMES:
        settings = load_holder(holders.folder / name / "client.yaml")
        store = open_client_store(settings.store_file, read_only=True)
        charged[name] = [(r.round_number, r.attempt, r.channel) for r in store.rows()]
        failed[name] = [f.round_number for f in store.failures(summary["run_id"])]
    assert charged["west"] == charged["east"] != []
    assert failed == {"east": [], "north": [], "south": [], "west": [0, 1, 2]}
