"""The command line: what it prints for people, and for machines with --json."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from platform.cli.command_line import config_names, run_names
from platform.cli.output import epsilon
from platform.cli.reporting import ScreenObserver, heading, round_line
from platform.cli.script import command_line
from platform.config import PACKAGED_CONFIGS, load_config, parse_config
from platform.experiment.environment import environment
from tests.contract._momentum import write_momentum
from tests.repository._source import ROOT
from tests.trunk._runs import ADVERSARIES, NONE, SMALL, Finished, Storage, warnings_of
from tests.trunk.conftest import MakeStorage

HEAVY = ("torch", "sqlalchemy", "numpy", "scipy", "pydantic", "open_clip", "alembic")


def python(
    environment: dict[str, str], folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("program", ["app", "client_app"])
def test_help_imports_nothing_heavy(child_environment, tmp_path, program):
    script = (
        "import sys; sys.argv = ['sotto', '--help']\n"
        f"from platform.cli.{program} import main\n"
        "try: main()\n"
        f"finally: sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = python(child_environment, tmp_path, "-c", script)
    assert (done.returncode, done.stderr) == (0, "") and "Usage" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_run_json_is_one_document_with_seed_and_device_as_overrides(sotto, config, storage):
    options = ("--set", NONE, "--set", "rounds=1", "--seed", "4", "--device", "cpu")
    answer = sotto("run", str(config), *options, "--json", "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    summary = answer.document
    assert summary == json.loads((storage.folder / summary["run_id"] / "summary.json").read_text())
    ((text,),) = storage.rows("SELECT config_json FROM runs")
    kept = json.loads(text)
    assert (kept["seed"], kept["device"]) == (4, "cpu")


def test_run_prints_one_line_a_round_and_the_report(sotto, config, storage):
    answer = sotto("run", str(config), "--set", "rounds=2", "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    run_id = storage.only_run()
    summary = json.loads((storage.folder / run_id / "summary.json").read_text())
    lines = answer.out.splitlines()
    assert lines[0] == f"run {run_id}: 2 rounds"
    assert "delta 1e-05" in answer.out
    shown = [line for line in lines[1:] if line.split()[:1] in (["1"], ["2"])]
    for line, document in zip(shown, summary["rounds"], strict=True):
        assert line.split()[1] == "5" and f"{100 * document['accuracy']['mean']:.1f}%" in line
        assert "/".join(epsilon(document["epsilon"][name]) for name in ADVERSARIES) in line
    assert "gain over local" in answer.out and "upload_noise, unit client" in answer.out
    assert all(f"note: {text}" in answer.out for text in warnings_of(summary))


def test_runs_are_listed_newest_first(sotto, storage):
    made = [storage.create(NONE) for _ in range(2)]
    for simulation in made:
        simulation.database.close()
    listed = sotto("runs", "--storage", storage.url, "--json").document
    assert [item["run"] for item in listed] == [w.run_id for w in reversed(made)]
    assert {item["status"] for item in listed} == {"running"}
    document = sotto("report", "latest", "--storage", storage.url, "--json").document
    assert document["finished"] is False and document["rounds"] == []
    assert sotto("export", "latest", "--storage", storage.url).code == 2


def test_runs_before_the_first_makes_no_database(sotto, tmp_path):
    url = f"sqlite:///{tmp_path}/none/sotto.db"
    assert sotto("runs", "--storage", url, "--json").document == []
    shown = sotto("runs", "--storage", url)
    assert shown.code == 0 and "no run" in shown.out
    assert list(tmp_path.iterdir()) == []


def test_report(sotto, noised_run):
    url = noised_run.storage.url
    for name in ("latest", noised_run.run_id):
        assert sotto("report", name, "--storage", url, "--json").document == noised_run.summary
    shown = sotto("report", "latest", "--storage", url)
    assert (shown.code, shown.err) == (0, "")
    assert noised_run.run_id in shown.out and noised_run.head in shown.out.replace("\n", "")
    for name in ADVERSARIES:
        assert f"epsilon for {name}" in shown.out


class Screen:
    """A terminal: `written` is what a program writes to, `text` what a person has seen."""

    def __init__(self) -> None:
        self._seen, written = os.openpty()
        self.written = os.fdopen(written, "w")
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> str:
        self.written.close()
        self._reader.join()
        os.close(self._seen)
        return b"".join(self._parts).decode()

    def _read(self) -> None:
        # Linux ends the reading side of a terminal with an error.
        with contextlib.suppress(OSError):
            while part := os.read(self._seen, 1 << 16):
                self._parts.append(part)


DOCUMENT = {
    **{"round": 1, "cohort": 5, "dropped": 1, "bytes_up": 3700, "bytes_down": 900},
    "accuracy": {"mean": 0.5, "std": 0.1, "worst": 0.25, "per_client": [0.5]},
    "epsilon": {"server": 1.0, "peers": 1.0, "observer": "inf"},
    "seconds": 0.3,
    **{
        "clipping_norm": None,
        "clipped_fraction": None,
        "signal_to_noise": {"low": 0.25, "high": 0.5},
    },
}


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ({"high": 0.5, "low": 0.25}, "0.25-0.50"),
        ({"low": 0.0, "high": 0.5}, "below"),
        ({"low": 123.4, "high": 130.6}, "123-131"),
        (None, "-"),
    ],
)
def test_signal_to_noise_is_an_interval_or_below_detection(interval, shown):
    line = round_line({**DOCUMENT, "signal_to_noise": interval}).split()
    assert line[7] == shown
    assert 'or "below" detection' in heading(1e-5)


@pytest.mark.parametrize("both", [True, False])
def test_on_a_terminal_a_bar_and_the_lines(both, monkeypatch, tmp_path):
    """Where only stderr is a terminal (`run > file`), the lines are in the file all the same."""
    path, screen = tmp_path / "out.txt", Screen()
    monkeypatch.setenv("TERM", "xterm")
    with path.open("w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen.written)
        patch.setattr(sys, "stdout", screen.written if both else file)
        with ScreenObserver(1e-5, quiet=False) as observer:
            observer.run_started("small-1", 3, 0)
            observer.round_started(1, 5)
            observer.client_answered()
            observer.round_finished(DOCUMENT)
    shown = screen.close()
    lines = shown if both else path.read_text()
    assert "run small-1: 3 rounds" in lines
    assert f"{epsilon(1.0)}/{epsilon(1.0)}/inf" in lines
    assert ("run small-1" in shown) is both


@pytest.mark.slow
def test_without_arguments_it_runs_the_quickstart(child_environment, tmp_path):
    done = python(child_environment, tmp_path, "-m", "platform.coordinator")
    assert (done.returncode, done.stderr) == (0, "")
    storage = Storage(tmp_path / "runs")
    run_id = storage.only_run()
    assert run_id.startswith("quickstart-")
    summary = json.loads((storage.folder / run_id / "summary.json").read_text())
    assert summary["final"]["epsilon"]["server"] <= 8.0
    assert [(r["cohort"], r["dropped"]) for r in summary["rounds"]] == [(50, 2)] * 5
    assert summary["noise_source"] == "os" and summary["gain_over_local"] is not None
    # Each knows what about half the names mean; together they know nearly all.
    assert summary["gain_over_local"] > 0.1 and summary["worth_of_sharing"] > 0.1


# --- `configs` ------------------------------------------------------------------------------------


def test_every_packaged_configuration_is_listed_with_a_sentence(sotto):
    answer = sotto("configs", "--json")
    listed = {each["name"]: each["title"] for each in answer.document}
    parts = [PACKAGED_CONFIGS / "methods", PACKAGED_CONFIGS / "references"]
    every = PACKAGED_CONFIGS.rglob("*.yaml")
    files = {path for path in every if not any(map(path.is_relative_to, parts))}
    assert {PACKAGED_CONFIGS / f"{name}.yaml" for name in listed} == files
    assert listed["papers/trip/table-5-vlcs"].endswith("on VLCS (Gong et al. 2025)")
    assert all(listed.values())
    assert "papers/pm-moe/table-4-tiny_imagenet" in sotto("configs").out


def test_a_configuration_in_full(sotto, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: papers/fedpgp/table-3-dtd\nname: mine\n")
    answer = sotto("configs", str(path), "--set", "rounds=7")
    tree = yaml.safe_load(answer.out)
    assert "extends" not in tree
    assert (tree["name"], tree["rounds"], tree["task"]["dataset"]) == ("mine", 7, "dtd")
    config = load_config(path, ["rounds=7"])
    assert parse_config(tree) == config
    as_json = sotto("configs", str(path), "--set", "rounds=7", "--json")
    assert parse_config(as_json.document) == config


def test_a_method_of_the_users_own_brings_its_preset(sotto, tmp_path):
    folder = write_momentum(tmp_path / "mine")
    path = tmp_path / "run.yaml"
    path.write_text("extends: comparison\nmethod: {name: momentum}\n")
    answer = sotto("configs", str(path), "--methods", str(folder), "--json")
    preset = yaml.safe_load((folder / "momentum.yaml").read_text())
    assert answer.document["method"] == {**preset, "server_optimizer": None}
    unknown = sotto("configs", str(path))
    assert unknown.code == 2 and "method.name: 'momentum' is unknown; valid: " in unknown.err


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_a_runs_records_name_the_checkouts_commit():
    command = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert environment("cpu")["commit"] == told


# --- help -----------------------------------------------------------------------------------------

ODD = re.compile(r"[^\x20-\x7e\n]|\\")
"""What is no plain character, or left over from somebody's markup."""


def commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of a tree, with the words that lead to it; groups before what is in them."""
    yield words, found
    for name, below in getattr(found, "commands", {}).items():
        yield from commands(below, (*words, name))


TREE = dict(commands(command_line()))
WORDS = [pytest.param(words, id=" ".join(words) or "sotto") for words in TREE]


def shown(found: Any, words: tuple[str, ...]) -> str:
    with found.make_context("sotto", [], resilient_parsing=True) as context:
        context.info_name = " ".join(("sotto", *words))
        return str(found.get_help(context))


@pytest.mark.parametrize("words", WORDS)
def test_everything_is_explained_in_plain_text_of_eighty_columns(words):
    assert len(TREE) > 40
    found, text = TREE[words], shown(TREE[words], words)
    assert (found.help or "").strip()
    for one in found.params:
        if one.opts[0].startswith("-"):
            assert one.help
        else:
            name = str(one.metavar or one.name.upper()).strip("[].")
            assert re.search(rf"^  \[?{name}\S*(  +|\n +)\w", text, re.MULTILINE), name
    assert ODD.findall(text) == []
    assert max(map(len, text.splitlines())) <= 80


def test_names_of_runs_and_configurations_are_completed(noised_run):
    words = ["--storage", noised_run.storage.url]
    with TREE[("report",)].make_context("report", words, resilient_parsing=True) as context:
        assert run_names(context, "") == ["latest", noised_run.run_id]
        assert run_names(context, "la") == ["latest"]
    assert config_names("quick") == ["quickstart"]


# --- `compare`, and what `runs` says of each run --------------------------------------------------


@pytest.fixture(scope="module")
def both(make_storage: MakeStorage) -> tuple[Storage, Finished, Finished]:
    """Two runs of one database, without noise and with it."""
    storage = make_storage("both")
    return storage, storage.run(NONE, "rounds=1"), storage.run("rounds=2", "seed=7")


def test_runs_side_by_side(sotto, both):
    storage, plain, noised = both
    names = (plain.run_id, noised.run_id)
    found = sotto("compare", *names, "--storage", storage.url, "--json").document
    assert [one["run"] for one in found["runs"]] == list(names)
    for one, run in zip(found["runs"], (plain, noised), strict=True):
        assert one["epsilon"] == run.summary["final"]["epsilon"]
        assert one["accuracy"]["worst"] == run.summary["final"]["accuracy"]["worst"]
        assert one["gain_over_local"] == run.summary["gain_over_local"]
    differences = found["differences"]
    assert differences["seed"] == {plain.run_id: 3, noised.run_id: 7}
    assert differences["rounds"] == {plain.run_id: 1, noised.run_id: 2}
    assert differences["privacy.mechanism"][plain.run_id] == "none"
    assert "task.dataset" not in differences
    assert not [key for key in differences if key.startswith("storage.")]
    assert found["epsilons_differ_in"] == []


def test_epsilons_of_two_deltas_are_not_compared(sotto, storage):
    deltas = [f"privacy.target_delta={delta}" for delta in ("1.0e-5", "1.0e-6")]
    names = [storage.run("rounds=1", delta).run_id for delta in deltas]
    shown = sotto("compare", *names, "--storage", storage.url)
    assert "note: these epsilons cannot be compared: runs differ in delta\n" in shown.out
    assert "nothing protects" not in shown.out


def test_a_comparison_for_people(sotto, both):
    storage, plain, noised = both
    shown = sotto("compare", plain.run_id, "latest", "--storage", storage.url)
    assert shown.code == 0
    row = next(line for line in shown.out.splitlines() if line.startswith(noised.run_id))
    assert row.split()[1:3] == ["finished", f"{noised.summary['final']['accuracy']['mean']:.1%}"]
    assert "cannot be compared" not in shown.out
    said = shown.out.replace("\n      ", " ")
    assert f"note: {plain.run_id}: mechanism none: nothing protects its clients" in said
    assert ["seed", "3", "7"] in [line.split() for line in shown.out.splitlines()]
    refused = sotto("compare", "latest", "latest", "--storage", storage.url)
    assert refused.code == 2 and "is named twice" in refused.err


def test_runs_have_accuracy_and_epsilon_and_only_the_newest_are_priced(sotto, both, monkeypatch):
    storage, plain, noised = both
    newest, oldest = sotto("runs", "--storage", storage.url, "--json").document
    assert (newest["run"], oldest["run"]) == (noised.run_id, plain.run_id)
    assert newest["accuracy"] == noised.summary["final"]["accuracy"]["mean"]
    assert newest["epsilon"] == noised.summary["final"]["epsilon"]
    monkeypatch.setattr("platform.cli.keeping.NEWEST", 1)
    rows = sotto("runs", "--storage", storage.url, "--json").document
    assert [row["epsilon"] is None for row in rows] == [False, True]
    assert "numbers of the newest 1 runs only" in sotto("runs", "--storage", storage.url).out
    rows = sotto("runs", "--all", "--storage", storage.url, "--json").document
    assert rows[1]["epsilon"] == plain.summary["final"]["epsilon"]


def test_a_run_whose_records_disagree_has_no_numbers(sotto, own_copy):
    (own_copy.folder / "summary.json").write_text("{}")
    (row,) = sotto("runs", "--storage", own_copy.storage.url, "--json").document
    assert row["accuracy"] is None and row["epsilon"] is None and row["problem"]
    shown = sotto("runs", "--storage", own_copy.storage.url)
    assert shown.code == 0 and "records disagree" in shown.out and "warning: run " in shown.out
    answer = sotto("compare", "latest", "nobody", "--storage", own_copy.storage.url)
    assert answer.code == 2
