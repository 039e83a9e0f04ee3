"""`datasets`: the list, who would have what, and what is right and wrong with a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from platform.holder.checking import Check, check_holder
from platform.holder.settings import HolderSettings, load_holder
from tests.trunk._runs import Answer, Command
from tests.trunk.loaders._refusing import draw
from tests.trunk.test_cli_errors import require_one_sentence

TASK = {"dataset": "shapes", "domains": ["real"], "clients": 4, "shots": 4, "test_per_class": 5}
TREE = {"name": "shown", "method": {"name": "coop"}, "training": {"local_steps": 1}, "task": TASK}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump(TREE))
    return str(path)


def show(sotto: Command, config: str, *overrides: str, more: Sequence[str] = ()) -> Answer:
    sets = [part for override in overrides for part in ("--set", override)]
    answer = sotto("datasets", "--show", config, *sets, *more)
    assert answer.code == 0, answer.err
    return answer


def test_a_pathological_partition_by_hand(sotto: Command, config: str):
    """20 classes among 4 clients: five each, 4 shots and 5 test images of each."""
    shown = show(sotto, config, more=["--json"]).document
    assert (shown["dataset"], shown["shots"], len(shown["classes"])) == ("shapes", 4, 20)
    assert [c["client"] for c in shown["clients"]] == [f"client-{i:05d}" for i in range(4)]
    for client in shown["clients"]:
        assert (client["train"], client["validation"], client["test"]) == (20, 0, 25)
        assert (client["classes"], client["new"], client["by_domain"]) == (5, False, {"real": 45})
        assert sorted(client["train_by_class"]) == [0] * 15 + [4] * 5
        assert [n * 5 // 4 for n in client["train_by_class"]] == client["test_by_class"]
    together = np.sum([client["train_by_class"] for client in shown["clients"]], axis=0)
    assert together.tolist() == [4] * 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "x.svg"], "--plot: needs"),
        (["--root", "data"], "--root: needs"),
        (["--show", "quickstart", "--check", "pacs"], "--show: cannot be"),
        (["--show", "quickstart", "--plot", "x.gif"], "--plot: 'x.gif'"),
    ],
)
def test_what_does_not_go_together_is_refused(sotto: Command, arguments: list[str], words: str):
    require_one_sentence(sotto("datasets", *arguments), words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """2 domains x 2 classes x 20 images; a fifth of each is for testing where nothing tells."""
    return draw(tmp_path / "mine", 20, "ink/cat", "ink/dog", "pen/cat", "pen/dog")


def check(sotto: Command, root: Path, *more: str) -> Answer:
    return sotto("datasets", "--check", "folders", "--root", str(root), *more)


def test_a_good_folder_is_counted(sotto: Command, folder: Path):
    answer = check(sotto, folder, "--json")
    found = answer.document
    assert answer.code == 0 and found["sound"] and found["refusal"] is None
    assert found["counts"]["train"] == {
        "total": 64,
        "by_class": {"cat": 32, "dog": 32},
        "by_domain": {"ink": 32, "pen": 32},
    }
    assert [found[n]["number"] for n in ("damaged", "repeated", "few")] == [0, 0, 0]
    assert check(sotto, folder).code == 0


def test_every_damaged_image_is_found(sotto: Command, folder: Path):
    for path in (folder / "ink" / "cat").iterdir():
        path.write_text(f"no picture {path.name}")
    cut = folder / "pen" / "cat" / "07.png"
    cut.write_bytes(cut.read_bytes()[:45])
    answer = check(sotto, folder, "--json")
    damaged = answer.document["damaged"]
    assert answer.code == 2 and not answer.document["sound"]
    assert damaged["number"] == 21 and len(damaged["first"]) == 20


def test_faults_and_verdict_come_before_what_a_screen_cuts(sotto: Command, tmp_path: Path):
    # 30 classes fill a screen.
    root = draw(
        tmp_path / "mine", 2, *(f"{part}/c{n}" for part in ("train", "test") for n in range(30))
    )
    (root / "test" / "c7" / "00.png").write_text("no picture")
    asked = ("datasets", "--check", "images", "--root")
    lines = sotto(*asked, str(root)).out.splitlines()
    place = lines.index("the folder has faults")
    assert any("test/c7/00.png" in line for line in lines[:place])
    assert lines[-1].startswith("...") and not any(line.startswith("recognised") for line in lines)
    require_one_sentence(sotto(*asked, str(tmp_path / "none")), "none")


def test_a_refused_folder_says_what_was_expected(sotto: Command, tmp_path: Path):
    asked = ("datasets", "--check", "flowers102", "--root", str(tmp_path))
    document = sotto(*asked, "--json").document
    assert document["counts"] is None and document["expected"] and document["sound"] is False


def holder(folder: Path, **data: str) -> HolderSettings:
    tree = {"name": "north", "data": {"root": "images", **data}, "storage": "store"}
    (folder / "client.yaml").write_text(yaml.safe_dump(tree))
    return load_holder(folder / "client.yaml")


def data_check(settings: HolderSettings) -> Check:
    return next(one for one in check_holder(settings) if one.point == "data")


def test_a_holder_s_check_says_the_same_of_any_layout(tmp_path: Path):
    draw(tmp_path / "images", 4, "all")
    rows = [f"all/{n:02d}.png,n{n % 2},{'test' if n > 2 else 'train'}" for n in range(4)]
    (tmp_path / "images" / "mine.csv").write_text("\n".join(["path,label,split", *rows]))
    (tmp_path / "words.txt").write_text("n0 dog\nn1 cat\nn2 eel\n")
    found = data_check(holder(tmp_path, class_names="words.txt"))
    assert found.is_sound and "3 training and 1 test" in found.text
    assert "set aside" not in found.text and str(tmp_path / "words.txt") in found.text
    (tmp_path / "words.txt").write_text("n0 dog\n")
    found = data_check(holder(tmp_path, class_names="words.txt"))
    assert not found.is_sound and "'n1'" in found.text
    draw(tmp_path / "other", 2, "cat", "dog")
    assert "set aside" in data_check(holder(tmp_path, root="other")).text


def test_a_holder_s_images_are_one_holder_s(tmp_path: Path):
    draw(tmp_path / "images", 2, "a/cat", "b/cat")
    found = data_check(holder(tmp_path))
    assert not found.is_sound and "is a folder in" in found.text
    found = data_check(holder(tmp_path, layout="client_folders"))
    assert not found.is_sound and "has 2 clients" in found.text
