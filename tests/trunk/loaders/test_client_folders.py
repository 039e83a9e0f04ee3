"""`client_folders`: what each client's own folder says, dealt out as it says, and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from platform.config.randomness import key_of
from platform.data.loaders.own_images import load_holding, only_client
from platform.data.loading import TaskData
from platform.errors import DataError
from tests.drawn._pictures import write_picture
from tests.trunk._runs import NONE, Storage
from tests.trunk.loaders._refusing import dealt, load, paths, refused

NAME = "client_folders"
CLASSES = ("cat", "dog")


def draw(root: Path, client: str, **counts: int) -> None:
    """Draws so many images of each class; of `split__class` into that folder of a split."""
    for number, (folder, count) in enumerate(sorted(counts.items())):
        for image in range(count):
            path = root / client / folder.replace("__", "/") / f"{image:02d}.png"
            # Bytes of their own for each client, folder and image.
            seed = 10_000 * sum(client.encode()) + 100 * number + image
            write_picture(path, CLASSES.index(folder.rpartition("__")[2]), seed, size=16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three clients: split with and without a folder for validation, and split by nothing."""
    draw(tmp_path, "a clinic", train__cat=4, train__dog=3, test__cat=2, test__dog=2)
    draw(tmp_path, "b", train__cat=3, train__dog=3, val__cat=2, val__dog=1, test__dog=2)
    draw(tmp_path, "c", cat=12, dog=12)
    return tmp_path


def task(root: Path, *overrides: str) -> TaskData:
    return dealt(NAME, root, 3, "domain", *overrides)


def held(data: TaskData, client: int) -> dict[str, Counter[str]]:
    """How many images a client has of each folder, by what they are for."""
    rows = data.clients[client]
    parts = {
        "train": (data.dataset.train, rows.train),
        "validation": (data.dataset.train, rows.validation),
        "test": (data.dataset.test, rows.test),
    }
    return {
        use: Counter(paths(split)[row].rpartition("/")[0] for row in of)
        for use, (split, of) in parts.items()
    }


def test_clients_are_domains_and_classes_those_of_all(root: Path):
    data = load(NAME, root)
    assert (data.domains, data.classes) == (("a clinic", "b", "c"), ("cat", "dog"))
    held_back = [paths(data.train)[row] for row in data.validation]
    assert held_back == ["b/val/cat/00.png", "b/val/cat/01.png", "b/val/dog/00.png"]
    for split in (data.train, data.test):
        for path, label, domain in zip(paths(split), split.labels, split.domains, strict=True):
            assert path.startswith(f"{data.domains[domain]}/")
            assert path.split("/")[-2] == data.classes[label]


def test_each_client_holds_what_is_in_its_folder(root: Path):
    data = task(root)
    assert held(data, 0) == {
        "train": {"a clinic/train/cat": 4, "a clinic/train/dog": 3},
        "validation": {},
        "test": {"a clinic/test/cat": 2, "a clinic/test/dog": 2},
    }
    assert held(data, 1) == {
        "train": {"b/train/cat": 3, "b/train/dog": 3},
        "validation": {"b/val/cat": 2, "b/val/dog": 1},
        "test": {"b/test/dog": 2},
    }
    last = held(data, 2)
    assert last["train"] + last["test"] == {"c/cat": 12, "c/dog": 12}


def test_a_client_alone_has_the_same_as_among_others(root: Path):
    """What the simulation deals to a client is what its own machine would make by the same key."""
    data = task(root, "seeds.split=5")
    for index, client in enumerate(data.dataset.domains):
        key = key_of(5, "split", client)
        alone, _ = load_holding(root / client, CLASSES, test_share=0.2, key=key)
        own = only_client(alone)
        rows = data.clients[index]
        for split, whole, mine, theirs in (
            (alone.train, data.dataset.train, own.train, rows.train),
            (alone.train, data.dataset.train, own.validation, rows.validation),
            (alone.test, data.dataset.test, own.test, rows.test),
        ):
            mine_paths = [f"{client}/{paths(split)[row]}" for row in mine]
            assert mine_paths == [paths(whole)[row] for row in theirs]
            assert split.labels[mine].tolist() == whole.labels[theirs].tolist()


def test_a_share_for_validation_is_of_those_whose_folders_hold_nothing_back(root: Path):
    """The second client has a folder, and needs no image in it to be left alone."""
    for path in (root / "b" / "val").rglob("*.png"):
        path.unlink()
    drawn = set()
    for seed in range(4):
        data = task(root, "task.validation_share=0.33", f"seeds.validation={seed}")
        drawn.add(len(data.clients[0].validation))
        assert sum((held(data, 0)["train"] + held(data, 0)["validation"]).values()) == 7
        assert held(data, 1) == held(task(root), 1)
    assert max(drawn) > 0


def test_spellings_of_two_clients_are_one_class(tmp_path: Path):
    draw(tmp_path, "a", train__cat=2, test__cat=1)
    draw(tmp_path, "b", train__cat=2, test__cat=1)
    for part in ("train", "test"):
        (tmp_path / "a" / part / "cat").rename(tmp_path / "a" / part / "guinea_pig")
        (tmp_path / "b" / part / "cat").rename(tmp_path / "b" / part / "Guinea pig")
    assert load(NAME, tmp_path).classes == ("Guinea pig",)
    with pytest.raises(DataError, match="has one class"):
        dealt(NAME, tmp_path, 2, "domain")
    # A client may lack a class of another.
    draw(tmp_path, "c", train__dog=2, test__dog=1)
    data = load(NAME, tmp_path)
    assert data.classes == ("Guinea pig", "dog")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 2


def test_one_holder_s_split_read_as_clients(tmp_path: Path):
    draw(tmp_path, ".", train__cat=2, test__cat=1)
    text = refused(NAME, tmp_path)
    assert "holds 'test' and 'train'" in text


def test_a_client_s_link_to_another_client(root: Path):
    (root / "c" / "cat" / "99.png").symlink_to(root / "b" / "train" / "cat" / "00.png")
    assert f"99.png' is a link that leaves {str(root / 'c')!r}" in refused(NAME, root)


@pytest.mark.slow
def test_a_whole_run_learns_from_the_folders(root: Path, make_storage: Callable[[str], Storage]):
    run = make_storage("clients-folders").run(
        *("method={name: promptfl, context_tokens: 2}", NONE, "rounds=2", "cohort.dropout_rate=0"),
        *("training={local_steps: 10, batch_size: 8, learning_rate: 0.05}", "seed=1"),
        f"task={{dataset: {NAME}, root: {root}, clients: 3, shots: null}}",
        "task.partition.kind=domain",
        *("secure_aggregation.threshold=2", "evaluation.local_twins=false"),
    )
    one, two, three = run.summary["rounds"][0]["validation"]["per_client"]
    assert one is None and three is None and two in (0.0, 1 / 3, 2 / 3, 1.0)
    assert run.summary["final"]["accuracy"]["mean"] > 0.5
