"""The command line: what it prints for people, and for machines with --json."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from platform.cli.command_line import config_names, run_names
from platform.cli.output import epsilon
from platform.cli.reporting import ScreenObserver
from platform.cli.script import command_line
from platform.config import load_config, parse_config
from platform.experiment.environment import environment
from tests.contract._momentum import write_momentum
from tests.repository._source import ROOT
from tests.trunk._runs import (
    ADVERSARIES,
    FIXED,
    NO_POOL,
    NONE,
    SMALL,
    Finished,
    Storage,
    warnings_of,
)
from tests.trunk.conftest import MakeStorage

HEAVY = ("torch", "sqlalchemy", "numpy", "scipy", "pydantic", "open_clip", "alembic")


def python(environment, folder, *arguments):
    options = {"env": environment, "cwd": folder, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *arguments], **options)


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


@pytest.mark.parametrize("program", ["app", "client_app", "record_commands"])
def test_a_command_declares_what_carries_it_out(program):
    declaring = import_module(f"platform.cli.{program}")
    for function in ast.walk(ast.parse(inspect.getsource(declaring))):
        for decorator in getattr(function, "decorator_list", ()):
            for by in (one for one in decorator.keywords if one.arg == "by"):
                module, _, name = ast.literal_eval(by.value).rpartition(".")
                carrying = getattr(import_module(f"platform.cli.{module}"), name)
                declared = inspect.signature(getattr(declaring, function.name)).parameters
                inspect.signature(carrying).bind(**dict.fromkeys(declared))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


CHEAP = ("--set", "rounds=1")


def test_run_json_is_one_document_with_seed_and_device_as_overrides(sotto, config, storage):
    options = ("--set", NONE, *CHEAP, "--seed", "4", "--device", "cpu")
    answer = sotto("run", str(config), *options, "--json", "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    summary = answer.document
    assert summary == json.loads((storage.folder / summary["run_id"] / "summary.json").read_text())
    ((text,),) = storage.rows("SELECT config_json FROM runs")
    kept = json.loads(text)
    assert (kept["seed"], kept["device"]) == (4, "cpu")


def test_run_prints_what_report_prints(sotto, config, storage):
    answer = sotto("run", str(config), *CHEAP, "--all", "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == sotto("report", "latest", "--all", "--storage", storage.url).out
    run_id = storage.only_run()
    summary = json.loads((storage.folder / run_id / "summary.json").read_text())
    assert answer.out.startswith(f"run {run_id}: ") and "delta 1e-05" in answer.out
    (line,) = (line for line in answer.out.splitlines() if line.split()[:1] == ["1"])
    (document,) = summary["rounds"]
    assert line.split()[1] == "5" and f"{100 * document['accuracy']['mean']:.1f}%" in line
    (spent,) = {epsilon(document["epsilon"][name]) for name in ADVERSARIES}
    assert spent in line.split() and "unit client" in answer.out
    assert all(f"note: {text}" in answer.out for text in warnings_of(summary))
    # Nobody reads a row without a number, or a digest.
    assert "n/a" not in answer.out and summary["audit_head"]["hash"] not in answer.out


@pytest.mark.parametrize("command", ["configs", "methods", "datasets", "schemas", "configs --keys"])
def test_a_screen_has_25_lines_and_says_how_many_more_there_are(sotto, command):
    short = sotto(*command.split()).out.splitlines()
    every = sotto(*command.split(), "--all").out.splitlines()
    assert len(short) <= 25
    if command != "configs":
        assert len(every) > 25 and re.fullmatch(r"\.\.\. \d+ more lines: --all", short[-1])


def test_configurations_come_before_those_of_papers(sotto):
    names = [one["name"] for one in sotto("configs", "--json").document]
    own = [name for name in names if "/" not in name]
    listed = sotto("configs", "--all").out.splitlines()
    assert len(own) == 13 and [line.split()[0] for line in listed[2:-1]] == own
    assert listed[-1] == f"{len(names) - len(own)} tables of papers: --papers"
    assert "quickstart" not in sotto("configs", "--papers", "--all").out


def test_without_a_terminal_progress_is_a_line_every_ten_seconds(capsys, monkeypatch):
    """Thirty rounds of a second each."""
    now = 0.0
    monkeypatch.setattr("platform.cli.output.time.monotonic", lambda: now)
    with ScreenObserver(quiet=False) as screen:
        screen.run_started("run", 30, 0)
        for number in range(1, 31):
            now += 1.0
            screen.round_finished({"round": number, "accuracy": {"mean": number / 100}})
    told = capsys.readouterr()
    known = ((10, 20), (20, 10), (30, 0))
    lines = [f"round {n} of 30, accuracy {n}.0%, {left} s left" for n, left in known]
    assert (told.out, told.err.splitlines()) == ("", lines)


def test_a_bar_tells_the_time_left_in_each_step_and_in_the_first_round(capsys, monkeypatch):
    now, texts = 0.0, []
    monkeypatch.setattr("platform.cli.output.time.monotonic", lambda: now)
    with ScreenObserver(quiet=False) as screen:
        add, update = screen._progress.add_task, screen._progress.update
        monkeypatch.setattr(
            screen._progress, "add_task", lambda text, **o: texts.append(text) or add(text, **o)
        )
        monkeypatch.setattr(
            screen._progress,
            "update",
            lambda task, **o: texts.append(o["description"]) or update(task, **o),
        )
        for what, done in (("features", 0), ("features", 2), ("twins", 0), ("twins", 1)):
            screen.preparing(what, done, 4)
            now += 3.0
        screen.run_started("run", 2, 0)
        screen.round_started(1, 5)
        now += 4.0
        screen.client_answered()
    assert texts[:4] == ["features", "features, 3 s left", "twins", "twins, 9 s left"]
    # A twentieth of the first of two rounds took 4 seconds, so 39 are left.
    assert texts[4:] == ["round 1 of 2", "round 1 of 2, 156 s left"]


def test_runs_before_the_first_makes_no_database(sotto, tmp_path):
    url = f"sqlite:///{tmp_path}/none/sotto.db"
    assert sotto("runs", "--storage", url, "--json").document == []
    shown = sotto("runs", "--storage", url)
    assert shown.code == 0 and "no run" in shown.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_arguments_it_runs_the_quickstart(child_environment, tmp_path):
    done = python(child_environment, tmp_path, "-m", "platform.coordinator")
    assert done.returncode == 0, done.stderr
    storage = Storage(tmp_path / "runs")
    run_id = storage.only_run()
    assert run_id.startswith("quickstart-")
    summary = json.loads((storage.folder / run_id / "summary.json").read_text())
    assert summary["final"]["epsilon"]["server"] <= 8.0
    assert [(r["cohort"], r["dropped"]) for r in summary["rounds"]] == [(50, 2)] * 5
    assert summary["noise_source"] == "os" and summary["gain_over_local"] is not None
    # Each knows what about half the names mean; together they know nearly all.
    assert summary["gain_over_local"] > 0.1 and summary["worth_of_sharing"] > 0.1


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
    answer = sotto("configs", str(path), "--plugins", str(folder), "--json")
    preset = yaml.safe_load((folder / "momentum.yaml").read_text())
    assert answer.document["method"] == {**preset, "server_optimizer": None}
    unknown = sotto("configs", str(path))
    assert unknown.code == 2 and "'momentum' is unknown" in unknown.err


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_a_runs_records_name_the_checkouts_commit():
    command = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert environment("cpu")["commit"] == told


def commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of a tree, with the words that lead to it; groups before what is in them."""
    yield words, found
    for name, below in getattr(found, "commands", {}).items():
        yield from commands(below, (*words, name))


TREE = dict(commands(command_line()))


def test_every_command_and_option_is_explained():
    assert len(TREE) > 40
    for words, found in TREE.items():
        named = (one for one in found.params if one.opts[0].startswith("-"))
        assert (found.help or "").strip() and all(one.help for one in named), words


def test_names_of_runs_and_configurations_are_completed(noised_run):
    words = ["--storage", noised_run.storage.url]
    with TREE[("report",)].make_context("report", words, resilient_parsing=True) as context:
        assert run_names(context, "") == ["latest", noised_run.run_id]
        assert run_names(context, "la") == ["latest"]
    assert config_names("quick") == ["quickstart"]


@pytest.fixture(scope="module")
def both(make_storage: MakeStorage) -> tuple[Storage, Finished, Finished]:
    storage = make_storage("both")
    plain = storage.run(NONE, *NO_POOL, "rounds=1")
    return storage, plain, storage.run(*FIXED, *NO_POOL, "rounds=2", "seed=7")


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
    refused = sotto("compare", "latest", "latest", "--storage", storage.url)
    assert refused.code == 2 and "named twice" in refused.err


@pytest.mark.slow
def test_epsilons_of_two_deltas_are_not_compared(sotto, storage):
    deltas = [f"privacy.target_delta={delta}" for delta in ("1.0e-5", "1.0e-6")]
    names = [storage.run("rounds=1", *FIXED, delta).run_id for delta in deltas]
    shown = sotto("compare", *names, "--storage", storage.url)
    assert "note: these epsilons cannot be compared: runs differ in delta\n" in shown.out


def test_runs_have_accuracy_and_epsilon_and_only_the_newest_are_priced(sotto, both, monkeypatch):
    storage, plain, noised = both
    newest, oldest = sotto("runs", "--storage", storage.url, "--json").document
    assert (newest["run"], oldest["run"]) == (noised.run_id, plain.run_id)
    assert newest["accuracy"] == noised.summary["final"]["accuracy"]["mean"]
    assert newest["epsilon"] == noised.summary["final"]["epsilon"]
    monkeypatch.setattr("platform.cli.keeping.NEWEST", 1)
    rows = sotto("runs", "--storage", storage.url, "--json").document
    assert [row["epsilon"] is None for row in rows] == [False, True]
    rows = sotto("runs", "--all", "--storage", storage.url, "--json").document
    assert rows[1]["epsilon"] == plain.summary["final"]["epsilon"]


def test_a_run_whose_records_disagree_has_no_numbers(sotto, own_copy):
    (own_copy.folder / "summary.json").write_text("{}")
    (row,) = sotto("runs", "--storage", own_copy.storage.url, "--json").document
    assert row["accuracy"] is None and row["epsilon"] is None and row["problem"]
    shown = sotto("runs", "--storage", own_copy.storage.url)
    assert shown.code == 0 and "warning: run " in shown.out
