"""All faults of a folder are shown at once, by a check and by a run, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.errors import MOST_FAULTS, ConfigError, DataError, Faults
from tests.trunk._runs import Command
from tests.trunk.loaders._refusing import dealt, draw

HINTS = ("task.layout=client_folders", "task.partition.kind=domain")


def lines(root: Path, *overrides: str, dataset: str = "images") -> list[str]:
    """What a run says of a folder."""
    with pytest.raises(DataError) as caught:
        dealt(dataset, root, 2, "iid", *overrides)
    return str(caught.value).split("\n")


def each_is_said_once(said: list[str], *words: str) -> None:
    assert len(said) == len(words), said
    for word in words:
        assert sum(word in line for line in said) == 1, (word, said)
    for line in said:
        assert line.startswith("task.root: ") and "valid" in line


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Six faults: a stray file, a link out, an odd ending, a bad name, an empty class, damage."""
    root = draw(tmp_path / "root", 6, "train/cat", "train/dog", "test/cat", "test/dog")
    (root / "stray.txt").write_text("x")
    (root / "train" / "cat" / "99.png").symlink_to("/etc/hostname")
    (root / "train" / "dog" / "notes.doc").write_text("x")
    draw(root, 1, "train/a\tb")
    draw(root, 1, "test/hen")
    (root / "test" / "dog" / "00.png").write_text("no image")
    return root


WORDS = (
    *("stray.txt' lies in", "99.png' is a link", "notes.doc' lies among", r"folder 'a\tb'"),
    *("no training example of 'hen'", "test/dog/00.png' is no image"),
)


def test_a_run_says_all(broken: Path):
    each_is_said_once(lines(broken), *WORDS)


def test_a_check_says_the_same_and_counts_the_rest(sotto: Command, broken: Path, tmp_path: Path):
    before = sorted(tmp_path.rglob("*"))
    answer = sotto("datasets", "--check", "images", "--root", str(broken), "--json")
    assert answer.code == 2
    refusal, damaged = answer.document["refusal"].split("\n"), answer.document["damaged"]["first"]
    each_is_said_once([*refusal, *damaged], *WORDS)
    # What is left is counted still.
    assert answer.document["counts"]["train"]["by_class"] == {"cat": 6, "dog": 6, "hen": 0}
    assert sorted(tmp_path.rglob("*")) == before


def refused_run(sotto: Command, place: Path, root: Path) -> list[str]:
    """The lines of a run that is refused, and has written nothing but encoded images."""
    task = f"{{dataset: images, root: {root}, clients: 2, shots: null, partition: {{kind: iid}}}}"
    rest = "name: x\nrounds: 1\nmethod: {name: promptfl}\ntraining: {local_steps: 1}\n"
    (place / "mine.yaml").write_text(f"{rest}task: {task}\n")
    storage = ("--storage", f"sqlite:///{place}/new/sotto.db")
    answer = sotto("run", str(place / "mine.yaml"), "--set", "privacy.mechanism=none", *storage)
    assert answer.code == 2 and not list(place.glob("new/*.db"))
    return answer.err.removeprefix("error: ").strip().split("\n")


def test_a_command_line_gives_each_fault_a_line(sotto: Command, broken: Path, tmp_path: Path):
    each_is_said_once(refused_run(sotto, tmp_path, broken), *WORDS)


def test_every_image_that_cannot_be_opened_is_named_before_a_run_begins(
    sotto: Command, tmp_path: Path
):
    root = draw(tmp_path / "root", 6, "train/cat", "train/dog", "test/cat", "test/dog")
    for place in ("train/cat/01.png", "train/dog/02.png", "test/dog/03.png"):
        (root / place).write_text(f"no image {place}")
    said = refused_run(sotto, tmp_path, root)
    each_is_said_once(said[-3:], "train/cat/01.png'", "train/dog/02.png'", "test/dog/03.png'")


def test_clients_and_lists(sotto: Command, tmp_path: Path):
    """A blank name is no name, in a folder and in a column; each line of a table is looked at."""
    root = draw(tmp_path / "clients", 4, "a/cat", "b/dog", " /cat")
    (root / "b" / "dog" / "x.txt").write_text("x")
    each_is_said_once(lines(root, *HINTS), "client's folder ' '", "x.txt' lies among")
    root = draw(tmp_path / "table", 30, "all")
    rows = ["all/00.png,cat,a", "../x.png,cat,a", "all/98.png,cat,a", "all/99.png,dog,a", "x.png"]
    rows += [
        "all/01.png,,b",
        *(f"all/{n:02d}.png,{'cat' if n % 2 else 'dog'},b" for n in range(2, 30)),
    ]
    (root / "mine.csv").write_text("\n".join(["path,label,client", *rows]))
    each_is_said_once(
        lines(root, "task.partition.kind=domain"),
        *("'../x.png'", "'all/98.png', which", "'all/99.png', which", "line 6", "line 7"),
    )


def test_the_table_of_clients_says_so(sotto: Command, tmp_path: Path):
    draw(tmp_path, 4, "north/cat", "north/dog", "south/cat", "south/dog")
    check = ("datasets", "--check", "images", "--root", str(tmp_path), "--layout")
    for layout, word, other in (
        ("client_folders", "client", "domain"),
        ("domain_folders", "domain", "client"),
    ):
        heads = [line for line in sotto(*check, layout).out.split("\n") if "train" in line]
        assert any(line.startswith(f"{word} ") for line in heads)
        assert not any(line.startswith(f"{other} ") for line in heads)


def test_one_error_keeps_all_and_shows_the_first_twenty():
    faults = Faults()
    for number in range(MOST_FAULTS + 3):
        with faults:
            raise DataError(f"task.root: {number}; valid: none", "task.root: twice; valid: none")
    with pytest.raises(ZeroDivisionError), faults:
        raise ZeroDivisionError
    with pytest.raises(DataError) as caught:
        faults.require_none()
    assert len(caught.value.faults) == MOST_FAULTS + 4
    assert str(caught.value).split("\n")[MOST_FAULTS:] == ["and 4 faults more"]
    assert str(ConfigError("a: b\nc")) == "a: b\nc"
