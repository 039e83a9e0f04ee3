"""Bad input: exit code 2, one sentence with field, value and what is valid, nothing written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from platform.cli.app import app
from tests.trunk._runs import NONE, SMALL, Answer, Command, Finished


def require_one_sentence(answer: Answer, *words: str) -> None:
    """Exit code 2 and one line on stderr that says all of this."""
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, (word, answer.err)


ISSUE: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "unknown method": (
        ["method.name=fedavgg"],
        ["method.name", "'fedavgg'", "valid: ", ", promptfl, promptfl_ft, ", "lite, zero_shot"],
    ),
    "unknown key": (["roundz=3"], ["roundz", "not a known key", "rounds", "privacy"]),
    "unknown key in a section": (
        ["privacy.epsilon=3"],
        ["privacy.epsilon", "not a known key", "target_epsilon"],
    ),
    "unknown key two deep": (
        ["task.partition.beta=3"],
        ["task.partition.beta", "not a known key", "kind"],
    ),
    "unknown option of a method": (
        ["method.expertz=3"],
        ["method.expertz", "not a known option of pfedmoap", "experts"],
    ),
    "wrong type": (["rounds=many"], ["rounds", "'many'", "integer"]),
    "wrong type in a section": (
        ["training.learning_rate=fast"],
        ["training.learning_rate", "'fast'", "number"],
    ),
    "truth for a number": (["rounds=true"], ["rounds", "True", "integer"]),
    "text for truth": (
        ["secure_aggregation.enabled=maybe"],
        ["secure_aggregation.enabled", "'maybe'", "boolean"],
    ),
    "wrong type of a method's option": (
        ["method.experts=many"],
        ["method.experts", "'many'", "integer"],
    ),
    "negative norm": (
        ["privacy.clipping_norm=-1"],
        ["privacy.clipping_norm", "-1", "greater than 0"],
    ),
    "negative norm of a sample": (
        ["privacy.per_sample_clipping_norm=-0.5"],
        ["privacy.per_sample_clipping_norm", "-0.5", "greater than 0"],
    ),
    "infinite norm": (["privacy.clipping_norm=.inf"], ["privacy.clipping_norm", "inf", "finite"]),
    "delta of one": (
        ["privacy.target_delta=1.0"],
        ["privacy.target_delta", "1.0", "less than 1"],
    ),
    "delta of zero": (["privacy.target_delta=0"], ["privacy.target_delta", "0", "greater than 0"]),
    "negative delta": (
        ["privacy.target_delta=-0.1"],
        ["privacy.target_delta", "-0.1", "greater than 0"],
    ),
    "threshold above cohort": (
        ["secure_aggregation.threshold=6"],
        ["secure_aggregation.threshold", "6", "1 to", "task.clients = 5"],
    ),
    "cohort above clients": (
        ["cohort.size=6"],
        ["cohort.size", "6", "1 to", "task.clients = 5"],
    ),
    "more experts than clients": (["method.experts=5"], ["experts", "5", "4"]),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def refused(sotto: Command, config: Path, *overrides: str) -> Answer:
    """The answer to a run that must leave no trace beside its configuration."""
    url = f"sqlite:///{config.parent}/runs/sotto.db"
    options = [part for text in overrides for part in ("--set", text)]
    answer = sotto("run", str(config), *options, "--storage", url)
    assert list(config.parent.iterdir()) == [config]
    return answer


@pytest.mark.parametrize("case", ISSUE)
def test_errors_that_the_issue_lists(sotto: Command, config: Path, case: str) -> None:
    overrides, words = ISSUE[case]
    require_one_sentence(refused(sotto, config, *overrides), *words)


OTHERS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "override without a value": (["rounds"], ["--set", "'rounds'", "section.key=value"]),
    "override without a key": (["=3"], ["--set", "'=3'", "section.key=value"]),
    "override with an empty part": (["privacy..x=3"], ["--set", "section.key=value"]),
    "override that is no YAML": (["rounds=[1"], ["--set", "'rounds=[1'", "YAML"]),
    "override below a value": (["rounds.x=1"], ["rounds", "not a section"]),
    "section that is a value": (["task=3"], ["task", "3", "not valid"]),
    "server database": (
        ["storage.url=postgresql://localhost/sotto"],
        ["storage.url", "'postgresql://localhost/sotto'", "sqlite:///"],
    ),
    "database in memory": (["storage.url=sqlite:///:memory:"], ["storage.url", "sqlite:///"]),
    "no database": (["storage.url=nowhere"], ["storage.url", "'nowhere'", "sqlite:///"]),
    "database in a folder that cannot be": (
        ["storage.url=sqlite:////proc/none/sotto.db"],
        ["storage.url", "'/proc/none", "valid is"],
    ),
    "database that is a folder": (["storage.url=sqlite:///."], ["storage.url", "sqlite:///"]),
    "database with parameters": (
        ["storage.url=sqlite:///runs/sotto.db?mode=ro"],
        ["storage.url", "sqlite:///"],
    ),
    "unknown data set": (["task.dataset=cifar"], ["task.dataset", "'cifar'", "digits", "shapes"]),
    "unknown domain": (
        ["task.domains=[photo]"],
        ["task.domains", "'photo'", "real, clipart, painting"],
    ),
    "unknown model": (["task.model.name=clip-9"], ["model", "clip-9"]),
    "unknown device": (["device=tpu"], ["device", "'tpu'", "'auto', 'cpu' or 'cuda'"]),
    "too many shots": (
        ["task.dataset=digits", "task.domains=null", "task.shots=4000"],
        ["task.shots", "4000", "1 to"],
    ),
    "too many clients": (
        ["task.clients=21", "cohort.size=5"],
        ["task.clients", "21", "1 to 10"],
    ),
    "mechanism that clips no upload": (
        ["privacy.mechanism=dp_sgd"],
        ["privacy.clipping_norm", "1.0", "dp_sgd", "privacy.per_sample_clipping_norm"],
    ),
    "mechanism that nobody knows": (
        ["privacy.mechanism=magic"],
        ["privacy.mechanism", "'magic'", "upload_noise"],
    ),
    "target without a norm": (
        ["privacy.clipping_norm=null"],
        ["privacy.clipping_norm", "missing", "above 0"],
    ),
    "noise stated twice": (
        ["privacy.noise_multiplier=1.0"],
        ["privacy.noise_multiplier", "exactly one", "privacy.target_epsilon"],
    ),
    "noise stated never": (
        ["privacy.target_epsilon=null"],
        ["privacy.noise_multiplier", "exactly one", "privacy.target_epsilon"],
    ),
    "noise without a mechanism": (
        [NONE, "privacy.target_epsilon=3"],
        ["privacy.target_epsilon", "3", "no meaning"],
    ),
    "target of nothing": (
        ["privacy.target_epsilon=0"],
        ["privacy.target_epsilon", "0", "greater than 0"],
    ),
    "both amounts of training": (
        ["training.local_epochs=1"],
        ["training", "exactly one", "local_epochs", "local_steps"],
    ),
    "minimum above cohort": (["cohort.minimum=6"], ["cohort.minimum", "6", "task.clients = 5"]),
    "too many dropouts": (
        ["cohort.dropout_rate=0.6"],
        ["cohort.dropout_rate", "0.6", "secure_aggregation.threshold = 3"],
    ),
    "threshold of one": (["secure_aggregation.threshold=1"], ["threshold", "1", "at least 2"]),
    "threshold not above the corrupt": (
        ["secure_aggregation.corrupt=3"],
        ["secure_aggregation.threshold", "3", "secure_aggregation.corrupt = 3"],
    ),
    "bound that is derived": (
        ["secure_aggregation.value_bound=1"],
        ["secure_aggregation.value_bound", "derived", "leave it out"],
    ),
    "name that is a path": (["name=../up"], ["name", "'../up'", "pattern"]),
    "negative seed": (["seed=-1"], ["seed", "-1", "greater than or equal to 0"]),
    "no round": (["rounds=0"], ["rounds", "0", "greater than or equal to 1"]),
    "value out of a method's range": (
        ["method.local_weight=-1"],
        ["method.local_weight", "-1", "greater than or equal to 0"],
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_errors(sotto: Command, config: Path, case: str) -> None:
    overrides, words = OTHERS[case]
    if case.endswith("database") or case.startswith(("database", "server")):
        # The storage option would take the place of the one that is wrong.
        options = [part for text in overrides for part in ("--set", text)]
        answer = sotto("run", str(config), *options)
        assert list(config.parent.iterdir()) == [config]
    else:
        answer = refused(sotto, config, *overrides)
    require_one_sentence(answer, *words)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths lie in the test's own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["missing.yaml", "quickstat", "no/quickstart"])
def test_missing_configuration(sotto: Command, tmp_path: Path, name: str) -> None:
    answer = sotto("run", name)
    packaged = (
        "comparison, expert-pool, federation, model-split, pathological, pm-moe, "
        "private-experts, published-preset, quickstart, sharing, tradeoff"
    )
    require_one_sentence(answer, "CONFIG", repr(name), packaged)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds: [1", ["CONFIG", "not readable YAML"]),
        ("- rounds", ["CONFIG", "no mapping"]),
        ("", ["CONFIG", "no mapping"]),
        ("!!python/object/apply:os.getcwd []", ["CONFIG", "not readable YAML"]),
        ("name: x\ntraining: {local_steps: 1}", ["method", "missing"]),
        ("name: x\nmethod: {name: nobody}\ntraining: {local_steps: 1}", ["nobody", "pfedmoap"]),
        ("name: x\nmethod: {experts: 1}\ntraining: {local_steps: 1}", ["method.name", "missing"]),
    ],
)
def test_configuration_that_cannot_be_read(
    sotto: Command, tmp_path: Path, text: str, words: Sequence[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    require_one_sentence(sotto("run", str(path)), *words)
    assert list(tmp_path.iterdir()) == [path]


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
@pytest.mark.parametrize("as_json", [False, True])
def test_unknown_run(
    sotto: Command, noised_run: Finished, command: Sequence[str], as_json: bool, tmp_path: Path
) -> None:
    before = noised_run.storage.file.read_bytes()
    extra = ["--json"] if as_json else []
    answer = sotto(*command, *extra, "--storage", noised_run.storage.url)
    if as_json:
        told = json.loads(answer.err)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert (told["kind"], told["exit_code"]) == ("unknown_run", 2)
        assert "'nobody' is unknown" in told["error"]
    else:
        require_one_sentence(answer, "'nobody' is unknown", "`runs`")
    assert noised_run.storage.file.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("report", "latest"),
        ("budget",),
        ("budget", "latest"),
        ("run", "--resume", "latest"),
        ("audit", "query"),
        ("audit", "verify"),
    ],
)
def test_no_database_yet(sotto: Command, command: Sequence[str], tmp_path: Path) -> None:
    answer = sotto(*command, "--storage", "sqlite:///runs/sotto.db")
    require_one_sentence(answer, "no database at sqlite:///runs/sotto.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql://x/y", "sqlite:///", "sotto.db"])
@pytest.mark.parametrize("command", [("runs",), ("report", "latest"), ("audit", "query")])
def test_bad_storage_of_a_reading_command(
    sotto: Command, command: Sequence[str], url: str, tmp_path: Path
) -> None:
    require_one_sentence(sotto(*command, "--storage", url), "storage.url", repr(url))
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database(sotto: Command, config: Path) -> None:
    """A run leaves a file alone that somebody else wrote."""
    foreign = config.with_name("notes.db")
    foreign.write_text("not a database" * 100)
    before = foreign.read_bytes()
    answer = sotto("run", str(config), "--set", NONE, "--storage", f"sqlite:///{foreign}")
    assert answer.code in (1, 2) and "is not an SQLite database" in answer.err
    assert answer.err.count("\n") == 1 and foreign.read_bytes() == before
    assert not [p for p in config.parent.iterdir() if p.name.startswith("small-")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--seed", "many"),
        ("run", "--rounds", "3"),
        ("fly",),
        ("predict", "latest"),
        ("report",),
        ("export", "latest", "--client", "-1"),
        ("audit", "query", "--round", "x"),
    ],
)
def test_misuse_of_a_command(sotto: Command, arguments: Sequence[str], tmp_path: Path) -> None:
    require_one_sentence(sotto(*arguments), "valid: ")
    assert list(tmp_path.iterdir()) == []


def test_message_never_holds_the_rest_of_the_configuration(sotto: Command, config: Path) -> None:
    """One field and its value; a secret of another field stays where it is."""
    tree = yaml.safe_load(SMALL) | {"rounds": -1, "name": "secret-name"}
    config.write_text(yaml.safe_dump(tree))
    answer = refused(sotto, config)
    require_one_sentence(answer, "rounds", "-1")
    assert "secret-name" not in answer.err and len(answer.err) < 200


def test_programming_mistake_is_not_hidden(
    sotto: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors that are meant for the user become a sentence; the rest keeps its traceback."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("platform.cli.running.run_command", broken)
    with pytest.raises(KeyError):
        sotto("run", str(config))
    assert app.info.name == "python -m platform.coordinator"
