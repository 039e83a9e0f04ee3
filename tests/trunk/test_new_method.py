"""`new method`: three files that train, or one sentence and no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests._forking import UNPLUGGED, in_checkout

ROOT = Path(__file__).resolve().parents[2]
FILES = {"mine.py", "mine.yaml", "test_mine.py"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def run_its_test(folder: Path, test: str = "test_mine.py") -> tuple[int, str]:
    def there() -> int:
        os.chdir(folder)
        without = [word for name in UNPLUGGED for word in ("-p", f"no:{name}")]
        return int(pytest.main(["-q", "--rootdir", str(folder), *without, test]))

    return in_checkout(ROOT, there)


@pytest.mark.slow
def test_its_test_fails_until_the_number_is_replaced_and_by_the_right_one(sotto, folder):
    answer = sotto("new", "method", "mine")
    assert answer.code == 0, answer.err
    assert names(folder) == FILES
    assert answer.out.splitlines()[-1].endswith("-m pytest test_mine.py")
    file = folder / "test_mine.py"
    text = file.read_text()
    assert text.count("BY_HAND: float | None = None\n") == 1
    for number, code in (("None", 1), ("0.5", 1), ("0.6", 0)):
        file.write_text(text.replace("= None\n", f"= {number}\n"))
        found, said = run_its_test(folder)
        assert found == code, said
        assert ("AssertionError: REPLACE the None" in said) == (number == "None")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number", "wrong"),
    [
        ("dataset", "0", "1"),
        ("model", "64", "3"),
        ("mechanism", "1.5", "3.0"),
        ("transport", r"b'\x00\x00\x00\x00\x00\x00\x00\x02hi'", "b'hi'"),
    ],
)
def test_each_kind_has_a_test_that_fails_until_it_is_filled_in(sotto, folder, kind, number, wrong):
    answer = sotto("new", kind, "mine")
    assert answer.code == 0, answer.err
    file = folder / f"{kind}s" / "test_mine.py"
    text = file.read_text()
    assert text.count(" | None = None\n") == 1
    for given, code in (("None", 1), (wrong, 1), (number, 0)):
        file.write_text(text.replace("= None\n", f"= {given}\n"))
        found, said = run_its_test(folder, f"{kind}s/test_mine.py")
        assert found == code, said


def test_a_bad_name_is_one_sentence_and_no_file(sotto, folder):
    for name, words in (
        *(("my-prompt", "is not valid"), ("../mine", "is not valid"), ("a" * 300, "at most 40")),
        *(("class", "no keyword"), ("promptfl", "'promptfl' is taken"), ("json", "is a module")),
    ):
        answer = sotto("new", "method", name)
        assert answer.code == 2
        assert answer.err.startswith("error: NAME: ") and words in " ".join(answer.err.split())
        assert names(folder) == set()
    for kind, name in (("model", "promptfl"), ("method", "flowers102"), ("dataset", "dp_sgd")):
        answer = sotto("new", kind, name)
        assert answer.code == 2 and f"{name!r} is taken" in answer.err and names(folder) == set()


@pytest.mark.parametrize(
    ("there", "kind"), [*((name, "file") for name in sorted(FILES)), ("mine.py", "dangling link")]
)
def test_nothing_is_overwritten_and_nothing_written_beside_it(sotto, folder, there, kind):
    path = folder / there
    if kind == "file":
        path.write_text("mine\n")
    else:
        path.symlink_to("nowhere")
    answer = sotto("new", "method", "mine")
    assert answer.code == 2
    assert f"'{there}' is there" in " ".join(answer.err.split())
    assert names(folder) == {there}
    assert kind != "file" or path.read_text() == "mine\n"


def test_in_a_checkout_each_file_goes_to_its_own_folder(sotto, folder):
    for part in ("methods/interface", "methods/clip", "configs/methods", "tests/methods"):
        (folder / part).mkdir(parents=True)
    taken = sotto("new", "method", "clip")
    assert taken.code == 2 and "'clip' is taken" in taken.err
    answer = sotto("new", "method", "mine")
    assert answer.code == 0, answer.err
    assert (folder / "methods" / "mine.py").is_file()
    assert (folder / "configs" / "methods" / "mine.yaml").is_file()
    test = (folder / "tests" / "methods" / "test_mine.py").read_text()
    assert "from methods.mine import rescaled\n" in test
    assert answer.out.splitlines()[-1].endswith("-m pytest tests/methods/test_mine.py")
