"""Bad input: exit code 2, one sentence with field, value and what is valid, nothing written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.trunk._runs import NONE, SMALL, Answer, Command

CLIENT: Final = """
name: north
data: {root: images}
storage: store
"""
LONG: Final = "x" * 3_000
ODD: Final = "a\x1b[31mb"
VALID = ("valid", "should", "must", "needs", "exactly one", "leave it out", "leave CONFIG", "give ")
"""One of these begins what is valid."""
FILES: Final[dict[str, bytes]] = {
    "binary.yaml": bytes(range(256)),
    "deep.yaml": b"a: " + b"[" * 100_000,
    "bomb.yaml": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "python.yaml": b"name: !!python/object/new:os.system [id]\n",
}
"""Configurations that cannot be read."""


def require_one_sentence(answer: Answer, *words: str) -> None:
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    assert answer.err[:-1].isprintable() and len(answer.err) < 2_500, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, (word, answer.err)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a good configuration and much that is none."""
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "client.yaml").write_text(CLIENT)
    (tmp_path / "short.yaml").write_text("name: north\nstorage: store\n")
    (tmp_path / "images").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_text("notes\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as connection:
        connection.execute("CREATE TABLE bookmarks (address TEXT)")
        connection.commit()
    (tmp_path / "words.db").write_text("words " * 500)
    (tmp_path / "enrolment.json").write_text('{"serial": 1}')
    (tmp_path / "key").write_text("no key")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    found = sorted(folder.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def require_refused(
    command: Command, place: Path, arguments: Sequence[str], words: Sequence[str]
) -> Answer:
    before = everything(place)
    answer = command(*arguments)
    require_one_sentence(answer, *words)
    assert any(word in answer.err for word in VALID), answer.err
    assert everything(place) == before
    return answer


def short(text: object) -> str:
    return ascii(text)[:60]


RUN_VALUES: Final[dict[str, tuple[str, ...]]] = {
    # What a key is set to, and words of the sentence.
    "rounds=2.5": ("rounds", "2.5", "integer"),
    "training.learning_rate=.nan": ("training.learning_rate", "nan"),
    "name=../up": ("name", "'../up'", "pattern"),
    "task.domains=[photo]": ("task.domains", "'photo'", "real, clipart, painting"),
    "task.dataset=../shapes": ("task.dataset", "'../shapes'", "digits", "shapes"),
    "task.model.pretrained=nowhere": ("task.model", "'nowhere'"),
    "privacy.epsilon=3": ("privacy.epsilon", "not a known key", "target_epsilon"),
    f"{LONG}=1": ("xxx", "not a known key"),
    "method.name=fedavgg": ("method.name", "'fedavgg'", "valid: ", ", promptfl_ft, "),
    "method.expertz=3": ("method.expertz", "not a known option", "experts"),
    "method.experts=5": ("experts", "5", "4"),
    "privacy.clipping_norm=null": ("privacy.clipping_norm", "missing", "above 0"),
    "storage.url=postgresql://localhost/a": ("storage.url", "'postgresql://", "sqlite:///"),
    "storage.url=sqlite:////proc/none/a.db": ("storage.url", "'/proc/none", "valid is"),
    "rounds": ("--set", "'rounds'", "section.key=value"),
    "rounds=" + "[" * 1_000_000: ("--set",),
    f"rounds={'9' * 100_000}": ("--set",),
}


@pytest.mark.parametrize(("setting", "words"), RUN_VALUES.items(), ids=short)
def test_a_value_of_a_run(sotto, place, setting, words):
    require_refused(sotto, place, ("run", "small.yaml", "--set", setting), words)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration(sotto, place, name):
    require_refused(sotto, place, ("run", name), (name,))


def test_a_sentence_has_its_own_field_alone(sotto, place):
    text = SMALL.replace("rounds: 3", "rounds: -1").replace("name: small", "name: hidden")
    (place / "bad.yaml").write_text(text)
    answer = require_refused(sotto, place, ("run", "bad.yaml"), ("rounds", "-1"))
    assert "hidden" not in answer.err and len(answer.err) < 200


def test_a_missing_configuration_names_those_that_there_are(sotto, place):
    words = ("CONFIG", "'quickstat'", "comparison, ", "quickstart, ")
    require_refused(sotto, place, ("run", "quickstat"), words)


def test_each_fault_of_a_grid_has_its_line_and_a_line_break_within_one_shows(sotto, place):
    wrong = ("--for=coop:method.context_tokens=0", "--for=promptfl:method.context_tokens=x\ny")
    answer = sotto("sweep", "comparison", "--method", "coop,promptfl", *wrong)
    first, second = answer.err.splitlines()
    assert answer.code == 2 and "coop" in first and "promptfl" in second


Typed = tuple[tuple[str, ...], tuple[str, ...]]
"""A command line, and words of the sentence about it."""
MISUSED: Final[tuple[Typed, ...]] = (
    (("fly",), ("COMMAND", "'fly'", "run, sweep")),
    (("run", "--fly"), ("--fly", "--resume")),
    (("run", "dangling"), ("CONFIG", "'dangling'")),
    (("run", ODD), ("CONFIG", "\\x1b")),
    (("run", "small.yaml", "--plugins", "notes.txt"), ("--plugins", "'notes.txt'")),
    (("run", "--resume", "../x"), ("--storage", "sqlite:///runs")),
    (("run", "small.yaml", "--storage", "sqlite:///notes.txt/a.db"), ("storage", "notes.txt")),
    (("sweep", "small.yaml", "--jobs", "1000000"), ("--jobs", "1000000", "1024")),
    (("sweep", "small.yaml", "--on", "moon"), ("--on", "'moon'", "dask")),
    (("datasets", "--check", "nowhere"), ("'nowhere'", "shapes")),
    (("runs", "--storage", "sqlite:///foreign.db"), ("foreign.db",)),
    (("report", "x", "--format", "word"), ("--format", "'word'")),
    (("budget",), ("no database at sqlite:///runs",)),
    (("predict", "x"), ("FILES", "missing")),
    (("audit-privacy", "small.yaml", "--canaries", "3"), ("--canaries", "3", "100")),
    (("secagg-plan", "--clients", "10", "--corrupt-rate", "nan"), ("corrupt", "nan")),
    (("audit", "prove"), ("EVENT", "missing")),
    (("enrolment", "add", "enrolment.json", "a b", "00"), ("enrolment.json",)),
    (("federation", "status", "nowhere.sock"), ("SOCKET", "nowhere.sock")),
    (("serve", "--host", "0.0.0.0"), ("--host", "'0.0.0.0'")),
    (("restore", "notes.txt"), ("FILE", "notes.txt")),
    (("upgrade", "--storage", "sqlite:///foreign.db"), ("foreign.db",)),
    (("schemas", "nothing"), ("NAME", "'nothing'", "client.CONFIG")),
)
"""For the coordinator."""
HOLDERS: Final[tuple[Typed, ...]] = (
    (("--fly",), ("--fly",)),
    (("nowhere.yaml",), ("CONFIG", "'nowhere.yaml'")),
    (("budget", "bomb.yaml"), ("CONFIG", "'bomb.yaml'", "alias")),
    (("budget", "short.yaml"), ("data", "missing")),
    (("backup", "client.yaml"), ("FILE", "missing")),
    (("backup", "client.yaml", "new"), ("store",)),
    (("leave", "client.yaml", "a", "b", "--statement", "x"), ("--statement", "RUN")),
    (("leave", "client.yaml", "a"), ("store",)),
    (("evaluate", "client.yaml", "../a"), ("../a",)),
    (("predict", "client.yaml", "a", "notes.txt"), ("notes.txt",)),
    (("receipts", "export", "client.yaml", "new"), ("CONFIG", "client.yaml")),
)
"""For a data holder."""


@pytest.mark.parametrize(("arguments", "words"), MISUSED, ids=short)
def test_a_command_line_of_the_coordinator(sotto, place, arguments, words):
    require_refused(sotto, place, arguments, words)


@pytest.mark.parametrize(("arguments", "words"), HOLDERS, ids=short)
def test_a_command_line_of_a_data_holder(client, place, arguments, words):
    require_refused(client, place, arguments, words)


UNDER_JSON = (
    ("fly",),
    ("runs", "--storage", "sqlite:///words.db"),
    ("methods", "--plugins", "notes.txt"),
)


@pytest.mark.parametrize("arguments", UNDER_JSON, ids=short)
def test_under_json_it_is_one_object(sotto, place, arguments):
    plain = sotto(*arguments)
    answer = sotto(*arguments, "--json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    told = json.loads(answer.err)
    kinds = ("usage", "config_error", "unknown_run", "foreign_file", "broken_plugin")
    assert told["exit_code"] == 2 and told["kind"] in kinds
    assert plain.err.startswith(f"error: {told['field'] or ''}")


@pytest.mark.parametrize("command", [("report", "nobody"), ("run", "--resume", "nobody")])
def test_unknown_run(sotto, noised_run, command, place):
    before = noised_run.storage.file.read_bytes()
    storage = ("--storage", noised_run.storage.url)
    require_refused(sotto, place, (*command, *storage), ("'nobody' is unknown", "`runs`"))
    assert noised_run.storage.file.read_bytes() == before


def test_file_that_is_no_database(sotto, place):
    before = (place / "words.db").read_bytes()
    answer = sotto("run", "small.yaml", "--set", NONE, "--storage", "sqlite:///words.db")
    assert answer.code in (1, 2) and "is not an SQLite database" in answer.err
    assert answer.err.count("\n") == 1 and (place / "words.db").read_bytes() == before
    assert not list(place.glob("small-*"))


def test_programming_mistake_is_not_hidden(sotto, place, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("platform.cli.running.run_command", broken)
    with pytest.raises(KeyError):
        sotto("run", "small.yaml")
