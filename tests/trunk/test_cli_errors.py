"""Bad input: exit code 2, one sentence with field, value and what is valid, nothing written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import yaml

from platform.cli.client_app import main as client_main
from tests.trunk._runs import NONE, SMALL, Answer, Command, command_line

ROOT = Path(__file__).resolve().parents[2]
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
    "empty.yaml": b"",
    "binary.yaml": bytes(range(256)),
    "deep.yaml": b"a: " + b"[" * 100_000,
    "bomb.yaml": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "python.yaml": b"name: !!python/object/new:os.system [id]\n",
    "huge.yaml": b"name: " + b"9" * 200_000,
    "extends.yaml": b"extends: nowhere.yaml\n",
}
"""Configurations that cannot be read."""


def require_one_sentence(answer: Answer, *words: str) -> None:
    """Exit code 2 and one line on stderr that says all of this."""
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


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(monkeypatch, capsys, client_main)


def everything(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their content, and all folders."""
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


# --- values of a run ------------------------------------------------------------------------------

RUN_VALUES: Final[dict[str, tuple[str, ...]]] = {
    # What a key is set to, and words of the sentence.
    "rounds=2.5": ("rounds", "2.5", "integer"),
    "rounds=100000000000000": ("rounds", "100000000000000", "100000"),
    "training.learning_rate=.nan": ("training.learning_rate", "nan"),
    "secure_aggregation.enabled=maybe": ("secure_aggregation.enabled", "'maybe'", "boolean"),
    "name=../up": ("name", "'../up'", "pattern"),
    f"name={LONG}": ("name", "xxx", "64"),
    "device=CPU": ("'CPU'", "'auto', 'cpu' or 'cuda'"),
    "task.domains=[photo]": ("task.domains", "'photo'", "real, clipart, painting"),
    "task.dataset=../shapes": ("task.dataset", "'../shapes'", "digits", "shapes"),
    "task.clients=21": ("task.clients", "21", "1 to 10"),
    "task.model.name=clip-9": ("model", "clip-9"),
    "task.model.pretrained=nowhere": ("task.model", "'nowhere'"),
    "task.partition.kind.deep=1": ("task.partition.kind", "{'deep': 1}", "'pathological'"),
    "task.senses=garden": ("task.senses", "garden", "homonyms"),
    "privacy.epsilon=3": ("privacy.epsilon", "not a known key", "target_epsilon"),
    f"{LONG}=1": ("xxx", "not a known key"),
    "method.name=fedavgg": ("method.name", "'fedavgg'", "valid: ", ", promptfl_ft, "),
    "method.expertz=3": ("method.expertz", "not a known option of pfedmoap", "experts"),
    "method.experts=5": ("experts", "5", "4"),
    "method.local_weight=.nan": ("method.local_weight", "nan"),
    "method.server_optimizer={name: sgd, rate: 1}": ("rate", "learning_rate"),
    "privacy.clipping_norm=null": ("privacy.clipping_norm", "missing", "above 0"),
    "evaluation.selection=best_on_validation": ("evaluation.selection", "validation"),
    "storage.url=postgresql://localhost/a": ("storage.url", "'postgresql://", "sqlite:///"),
    "storage.url=sqlite:///:memory:": ("storage.url", "sqlite:///"),
    "storage.url=sqlite:////proc/none/a.db": ("storage.url", "'/proc/none", "valid is"),
    "storage.url=sqlite:///a.db?mode=ro": ("storage.url", "sqlite:///"),
    "rounds=" + "[" * 1_000_000: ("--set",),
    f"rounds={'9' * 100_000}": ("--set",),
    "rounds": ("--set", "'rounds'", "section.key=value"),
    f"{'.'.join('a' * 50)}=1": ("--set", "section.key=value"),
}


@pytest.mark.parametrize("setting", RUN_VALUES, ids=short)
def test_a_value_of_a_run(sotto, place, setting):
    require_refused(sotto, place, ("run", "small.yaml", "--set", setting), RUN_VALUES[setting])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration(sotto, place, name):
    require_refused(sotto, place, ("run", name), (name,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\ntraining: {local_steps: 1}", ("method", "missing")),
        ("name: x\nmethod: {experts: 1}\ntraining: {local_steps: 1}", ("method.name", "missing")),
        # One field and its value; a secret of another field stays where it is.
        (
            yaml.safe_dump(yaml.safe_load(SMALL) | {"rounds": -1, "name": "hidden"}),
            ("rounds", "-1"),
        ),
    ],
)
def test_what_a_configuration_lacks_is_named(sotto, place, text, words):
    (place / "bad.yaml").write_text(text)
    answer = require_refused(sotto, place, ("run", "bad.yaml"), words)
    assert "hidden" not in answer.err and len(answer.err) < 200


def test_a_missing_configuration_names_those_that_there_are(sotto, place):
    packaged = (
        "comparison, expert-pool, federation, model-split, pathological, pm-moe, "
        "private-experts, published-preset, quickstart, sharing, tradeoff"
    )
    require_refused(sotto, place, ("run", "quickstat"), ("CONFIG", "'quickstat'", packaged))


# --- command lines --------------------------------------------------------------------------------

Typed = tuple[tuple[str, ...], tuple[str, ...]]
"""A command line, and words of the sentence about it."""
MISUSED: Final[tuple[Typed, ...]] = (
    (("fly",), ("COMMAND", "'fly'", "run, sweep")),
    (("--fly",), ("--fly", "--help")),
    (("run", "--fly"), ("--fly", "--resume")),
    (("run", "a", "b"), ("ARGUMENT", "'b'", "CONFIG")),
    (("run", "--seed", "1.5"), ("--seed", "'1.5'", "integer")),
    (("run", "--seed", "-1"), ("seed", "-1")),
    (("run", "folder"), ("CONFIG", "'folder'")),
    (("run", "dangling"), ("CONFIG", "'dangling'")),
    (("run", LONG), ("CONFIG", "xxx")),
    (("run", ODD), ("CONFIG", "\\x1b")),
    (("run", "small.yaml", "--methods", "notes.txt"), ("--methods", "'notes.txt'")),
    (("run", "small.yaml", "--reference"), ("reference",)),
    (("run", "small.yaml", "--resume", "a"), ("--resume", "CONFIG")),
    (("run", "--resume", "../x"), ("--storage", "sqlite:///runs")),
    (("run", "small.yaml", "--storage", "sqlite:///notes.txt/a.db"), ("storage", "notes.txt")),
    (("run", "small.yaml", "--storage", "sqlite:///a\0b"), ("storage",)),
    (("sweep", "small.yaml", "--jobs", "1000000"), ("--jobs", "1000000", "1024")),
    (("sweep", "small.yaml", "--seed", "1,a"), ("--seed", "'1,a'")),
    (("sweep", "small.yaml", "--set", "rounds=1,0"), ("rounds", "0")),
    (("sweep", "small.yaml", "--on", "moon"), ("--on", "'moon'", "dask")),
    (("sweep", "small.yaml", "--output", "notes.txt"), ("--output", "notes.txt")),
    (("configs", "--set", "rounds=1"), ("--set", "CONFIG")),
    (("configs", "small.yaml", "--keys"), ("--keys",)),
    (("datasets", "--check", "nowhere"), ("'nowhere'", "shapes")),
    (("datasets", "--root", "folder"), ("--root", "--check")),
    (("datasets", "--show", "small.yaml", "--plot", "a.gif"), ("--plot", "'a.gif'", ".svg")),
    (("datasets", "--show", "small.yaml", "--check", "shapes"), ("--show", "--check")),
    (("runs", "--storage", "sqlite:///words.db"), ("words.db",)),
    (("runs", "--storage", "sqlite:///foreign.db"), ("foreign.db",)),
    (("runs", "all"), ("RUN", "'all'")),
    (("report", "x", "--format", "word"), ("--format", "'word'")),
    (("report", "x", "--storage", "postgresql://x/y"), ("storage.url", "'postgresql://x/y'")),
    (("budget",), ("no database at sqlite:///runs",)),
    (("export", "x", "--client", "100000"), ("--client", "100000", "99999")),
    (("predict", "x"), ("FILES", "missing")),
    (("audit-privacy", "small.yaml", "--canaries", "3"), ("--canaries", "3", "100")),
    (("audit-privacy", "small.yaml", "--set", "privacy.mechanism=none"), ("privacy.mechanism",)),
    (("clipping", "small.yaml", "--rounds", "0"), ("--rounds", "0", "1")),
    (("clipping", "small.yaml", "--dataset", "nowhere"), ("'nowhere'", "shapes")),
    (("secagg-plan", "--clients", "10", "--corrupt-rate", "nan"), ("corrupt", "nan")),
    (("secagg-plan", "--clients", "10", "--ring-bits", "128"), ("--ring-bits", "128", "64")),
    (("audit", "query", "--status", "lost"), ("--status", "'lost'")),
    (("audit", "query", "--round", "one"), ("--round", "'one'", "integer")),
    (("audit", "verify", "--key", "k"), ("--key", "'k'")),
    (("audit", "prove"), ("EVENT", "missing")),
    (("audit", "watch", "--seconds", "1e9"), ("--seconds", "86400")),
    (("cache", "clear"), ("--model", "--all")),
    (("enrolment", "show", "enrolment.json"), ("enrolment.json",)),
    (("enrolment", "add", "enrolment.json", "a b", "00"), ("enrolment.json",)),
    (("enrolment", "create-for-development", "folder", "--clients", "1"), ("--clients", "1")),
    (("federation", "status", "nowhere.sock"), ("SOCKET", "nowhere.sock")),
    (("serve", "--host", "0.0.0.0"), ("--host", "'0.0.0.0'")),
    (("serve", "--key", "key"), ("--key", "--certificate")),
    (("restore", "notes.txt"), ("FILE", "notes.txt")),
    (("upgrade", "--storage", "sqlite:///foreign.db"), ("foreign.db",)),
    (("charges", "a", "notes.txt"), ("FILE", "notes.txt")),
    (("schemas", "nothing"), ("NAME", "'nothing'", "client.CONFIG")),
)
"""For the coordinator."""
HOLDERS: Final[tuple[Typed, ...]] = (
    (("--fly",), ("--fly",)),
    (("nowhere.yaml",), ("CONFIG", "'nowhere.yaml'")),
    (("budget", "bomb.yaml"), ("CONFIG", "'bomb.yaml'", "alias")),
    (("budget", "small.yaml"), ("data", "missing")),
    (("backup", "client.yaml"), ("FILE", "missing")),
    (("backup", "client.yaml", "new"), ("store",)),
    (("restore", "client.yaml", "notes.txt"), ("FILE", "notes.txt")),
    (("catch-up", "client.yaml", "notes.txt"), ("store",)),
    (("leave", "client.yaml"), ("RUN", "--all")),
    (("leave", "client.yaml", "a", "b", "--statement", "x"), ("--statement", "RUN")),
    (("leave", "client.yaml", "a"), ("store",)),
    (("evaluate", "client.yaml", "../a"), ("../a",)),
    (("predict", "client.yaml", "a", "notes.txt"), ("notes.txt",)),
    (("export", "client.yaml", "a", "notes.txt"), ("FILE", "notes.txt")),
    (("keys", "show", "nowhere"), ("nowhere",)),
    (("receipts", "verify", "notes.txt"), ("notes.txt",)),
    (("receipts", "export", "client.yaml", "new"), ("CONFIG", "client.yaml")),
)
"""For a data holder."""


@pytest.mark.parametrize(("arguments", "words"), MISUSED, ids=short)
def test_a_command_line_of_the_coordinator(sotto, place, arguments, words):
    require_refused(sotto, place, arguments, words)


@pytest.mark.parametrize(("arguments", "words"), HOLDERS, ids=short)
def test_a_command_line_of_a_data_holder(holder, place, arguments, words):
    require_refused(holder, place, arguments, words)


UNDER_JSON = (
    ("fly",),
    ("run", ODD),
    ("run", "--resume", "../x"),
    ("sweep", "small.yaml", "--set", "rounds=1,0"),
    ("runs", "--storage", "sqlite:///words.db"),
    ("audit", "verify", "--key", "k"),
    ("methods", "--methods", "notes.txt"),
)


@pytest.mark.parametrize("arguments", UNDER_JSON, ids=short)
def test_under_json_it_is_one_object(sotto, place, arguments):
    """Also where the command line does not parse, and where an option is none."""
    plain = sotto(*arguments)
    answer = sotto(*arguments, "--json")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    told = json.loads(answer.err)
    kinds = ("usage", "config_error", "unknown_run", "foreign_file", "broken_method")
    assert told["exit_code"] == 2 and told["kind"] in kinds
    assert plain.err.startswith(f"error: {told['field'] or ''}")


@pytest.mark.parametrize(
    "command",
    [
        ("report", "nobody"),
        ("budget", "nobody"),
        ("export", "nobody"),
        ("run", "--resume", "nobody"),
        ("audit", "query", "--run", "nobody"),
        ("audit", "verify", "--run", "nobody"),
    ],
)
def test_unknown_run(sotto, noised_run, command, place):
    before = noised_run.storage.file.read_bytes()
    storage = ("--storage", noised_run.storage.url)
    require_refused(sotto, place, (*command, *storage), ("'nobody' is unknown", "`runs`"))
    told = json.loads(sotto(*command, "--json", *storage).err)
    assert (told["kind"], told["exit_code"]) == ("unknown_run", 2)
    assert noised_run.storage.file.read_bytes() == before


def test_file_that_is_no_database(sotto, place):
    """A run leaves a file alone that somebody else wrote."""
    before = (place / "words.db").read_bytes()
    answer = sotto("run", "small.yaml", "--set", NONE, "--storage", "sqlite:///words.db")
    assert answer.code in (1, 2) and "is not an SQLite database" in answer.err
    assert answer.err.count("\n") == 1 and (place / "words.db").read_bytes() == before
    assert not list(place.glob("small-*"))


def test_programming_mistake_is_not_hidden(sotto, place, monkeypatch):
    """Only errors that are meant for the user become a sentence; the rest keeps its traceback."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("platform.cli.running.run_command", broken)
    with pytest.raises(KeyError):
        sotto("run", "small.yaml")
