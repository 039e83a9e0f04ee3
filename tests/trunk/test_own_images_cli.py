"""A newcomer's images on the command line: what is said before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from platform.holder.checking import Check, check_holder
from platform.holder.settings import HolderSettings, load_holder
from tests.drawn._pictures import write_picture
from tests.trunk._runs import Answer, Command


def draw(root: Path, count: int, *folders: str) -> None:
    for folder in folders:
        for number in range(count):
            seed = 1000 * sum(map(ord, folder)) + number
            write_picture(root / folder / f"{number}.png", sum(map(ord, folder)) % 7, seed, size=32)


def check(sotto: Command, root: Path, *more: str) -> Answer:
    return sotto("datasets", "--check", "images", "--root", str(root), *more)


def test_a_check_of_two_readings_says_how_to_choose(sotto: Command, tmp_path: Path):
    draw(tmp_path, 3, "a/cat", "a/dog", "b/cat", "b/dog")
    answer = check(sotto, tmp_path)
    assert answer.code == 1 and "refused: task.root: " in answer.out
    assert check(sotto, tmp_path, "--layout", "client_folders").code == 0
    refusal = check(sotto, tmp_path, "--layout", "clients")
    assert refusal.code == 2 and "'clients' is not valid; valid: class_folders, " in refusal.err


def test_a_slip_in_a_rare_class_is_remarked_on(sotto: Command, tmp_path: Path):
    """Of a list, where it makes a class of its own; names that are alike and common are names."""
    draw(tmp_path, 16, "mouse", "house")
    rows = [f"{name}/{n}.png,{name}" for name in ("mouse", "house") for n in range(16)]
    rows[3] = "mouse/3.png,moues"
    (tmp_path / "mine.csv").write_text("\n".join(["path,label", *rows]))
    answer = check(sotto, tmp_path, "--layout", "table")
    assert answer.code == 0 and answer.out.endswith("all is well\n")
    assert (
        "1 classes whose name is nearly that of a larger one (a slip?):\n  moues (1), where mouse"
    ) in answer.out
    found = check(sotto, tmp_path, "--layout", "table", "--json").document["slips"]
    assert found["number"] == 1


def test_a_run_on_ones_own_images_says_first_what_they_are(sotto: Command, tmp_path: Path):
    """From a folder to a result: nothing but the name of the data set and the folder."""
    draw(tmp_path / "mine", 10, "n1", "n2", "n3")
    (tmp_path / "mine" / "class_names.txt").write_text("n1 dog\nn2 polar bear\nn3 eel\n")
    tree = {
        "name": "mine",
        "rounds": 1,
        "device": "cpu",
        "task": {
            "dataset": "images",
            "root": str(tmp_path / "mine"),
            "clients": 2,
            "shots": 4,
            "partition": {"kind": "iid"},
        },
        "method": {"name": "promptfl", "context_tokens": 2},
        "training": {"local_steps": 2, "batch_size": 4},
        "evaluation": {"worth_of_sharing": False, "local_twins": False},
        "storage": {"url": f"sqlite:///{tmp_path}/runs/sotto.db"},
    }
    config = tmp_path / "mine.yaml"
    config.write_text(yaml.safe_dump(tree))
    shown = sotto("datasets", "--show", str(config))
    assert shown.code == 0 and "polar bear" in shown.out
    answer = sotto("run", str(config))
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"recognised: {str(tmp_path / 'mine')!r} as class_folders: 3 cl")
    (summary,) = (tmp_path / "runs").glob("mine-*/summary.json")
    assert json.loads(summary.read_text())["dataset"] == "images"


def holder(folder: Path, **data: str) -> HolderSettings:
    """A data holder's settings, as its file says them."""
    tree = {"name": "north", "data": {"root": "images", **data}, "storage": "store"}
    (folder / "client.yaml").write_text(yaml.safe_dump(tree))
    return load_holder(folder / "client.yaml")


def data_check(settings: HolderSettings) -> Check:
    return next(check for check in check_holder(settings) if check.point == "data")


def test_a_holder_s_check_says_the_same_of_any_layout(tmp_path: Path):
    draw(tmp_path / "images", 4, "all")
    rows = [f"all/{n}.png,n{n % 2},{'test' if n > 2 else 'train'}" for n in range(4)]
    (tmp_path / "images" / "mine.csv").write_text("\n".join(["path,label,split", *rows]))
    (tmp_path / "words.txt").write_text("n0 dog\nn1 cat\nn2 eel\n")
    found = data_check(holder(tmp_path, class_names="words.txt"))
    assert found.is_sound and "2 classes, 3 training and 1 test images" in found.text
    assert f"the words for its classes are from {str(tmp_path / 'words.txt')!r}" in found.text
    (tmp_path / "words.txt").write_text("n0 dog\n")
    found = data_check(holder(tmp_path, class_names="words.txt"))
    assert not found.is_sound and "has no entry for 'n1'" in found.text


def test_a_holder_s_images_are_one_holder_s(tmp_path: Path):
    draw(tmp_path / "images", 2, "a/cat", "b/cat")
    found = data_check(holder(tmp_path))
    assert not found.is_sound and "is a folder in what should be a class's folder" in found.text
    found = data_check(holder(tmp_path, layout="client_folders"))
    assert not found.is_sound
    assert "has 2 clients in it and is one data holder's" in found.text
