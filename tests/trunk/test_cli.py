"""The command line: what it prints for people, and for machines with --json."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from platform.cli.output import epsilon
from platform.cli.reporting import ScreenObserver, heading, round_line
from platform.config import dump_config, parse_config
from platform.config.files import read_yaml
from tests.trunk._runs import ADVERSARIES, NONE, SMALL, Command, Finished, Storage, comparable
from tests.trunk.test_run import FINAL_KEYS, ROUND_KEYS, SUMMARY_KEYS

HEAVY = ("torch", "sqlalchemy", "numpy", "scipy", "pydantic", "open_clip", "alembic")
COMMANDS = ("run", "methods", "configs", "datasets", "runs", "report", "audit", "export", "predict")


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


def test_help_names_all_commands(child_environment: dict[str, str], tmp_path: Path) -> None:
    done = python(child_environment, tmp_path, "-m", "platform.coordinator", "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert all(command in done.stdout for command in COMMANDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", *COMMANDS, "audit query", "audit verify"])
def test_help_of_each_command(sotto: Command, command: str) -> None:
    answer = sotto(*command.split(), "--help")
    assert answer.code == 0 and answer.err == "" and "Usage" in answer.out


def test_help_imports_nothing_heavy(child_environment: dict[str, str], tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['sotto', '--help']\n"
        "from platform.cli.app import main\n"
        "try: main()\n"
        f"finally: sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = python(child_environment, tmp_path, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")


def test_run_json_is_one_document(sotto: Command, config: Path, storage: Storage) -> None:
    answer = sotto("run", str(config), "--set", NONE, "--json", "--storage", storage.url)
    assert (answer.code, answer.err) == (0, "")
    summary = answer.document
    assert list(summary) == SUMMARY_KEYS
    assert [list(r) for r in summary["rounds"]] == [ROUND_KEYS] * 3
    assert list(summary["final"]) == FINAL_KEYS
    assert summary == json.loads((storage.folder / summary["run_id"] / "summary.json").read_text())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_run_prints_one_line_a_round_and_the_report(
    sotto: Command, config: Path, storage: Storage
) -> None:
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
    assert all(f"note: {text}" in answer.out for text in summary["warnings"])


def test_seed_and_device_are_overrides(sotto: Command, config: Path, storage: Storage) -> None:
    shared = ["--set", NONE, "--set", "rounds=1", "--json", "--storage", storage.url]
    first = sotto("run", str(config), *shared, "--seed", "4", "--device", "cpu")
    second = sotto("run", str(config), *shared, "--set", "seed=4")
    assert comparable(first.document) == comparable(second.document)
    assert storage.rows("SELECT DISTINCT json_extract(config_json, '$.seed') FROM runs") == [(4,)]


@pytest.mark.parametrize("number", ["1e-6", "1.0e-6", "1E-06", "0.000001", ".1e-5"])
def test_numbers_are_written_as_people_write_them(number: str) -> None:
    # PyYAML takes 1e-6 for a text, since YAML 1.1 asks for a dot.
    tree = yaml.safe_load(SMALL)
    parsed = parse_config(tree, [f"privacy.target_delta={number}", "name='1e-6'"])
    assert parsed.privacy.target_delta == pytest.approx(1e-6) and parsed.name == "1e-6"
    assert parse_config(read_yaml(dump_config(parsed))) == parsed


def test_methods(sotto: Command) -> None:
    listed = {item["name"]: item for item in sotto("methods", "--json").document}
    assert {"coop", "pfedmoap", "promptfl", "zero_shot"} <= set(listed)
    assert "experts" in listed["pfedmoap"]["options"]
    shown = sotto("methods")
    assert shown.code == 0 and all(name in shown.out for name in listed)


def test_datasets(sotto: Command) -> None:
    listed = {item["name"]: item for item in sotto("datasets", "--json").document}
    assert {"digits", "shapes"} <= set(listed)
    assert len(listed["shapes"]["classes"]) >= 20 and len(listed["shapes"]["domains"]) == 6
    assert len(listed["digits"]["classes"]) == 10
    shown = sotto("datasets")
    assert shown.code == 0 and "shapes" in shown.out and "scan" in shown.out


def test_runs(sotto: Command, noised_run: Finished) -> None:
    url = noised_run.storage.url
    (listed,) = sotto("runs", "--storage", url, "--json").document
    assert listed["run"] == noised_run.run_id
    assert (listed["config"], listed["status"], listed["rounds"]) == ("small", "finished", 3)
    shown = sotto("runs", "--storage", url)
    assert shown.code == 0 and noised_run.run_id in shown.out


def test_runs_are_listed_newest_first(sotto: Command, storage: Storage) -> None:
    made = [storage.create(NONE) for _ in range(2)]
    for simulation in made:
        simulation.database.close()
    listed = sotto("runs", "--storage", storage.url, "--json").document
    assert [item["run"] for item in listed] == [w.run_id for w in reversed(made)]
    assert {item["status"] for item in listed} == {"running"}
    document = sotto("report", "latest", "--storage", storage.url, "--json").document
    assert document["finished"] is False and document["rounds"] == []
    assert sotto("export", "latest", "--storage", storage.url).code == 2


def test_runs_before_the_first_makes_no_database(sotto: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/none/sotto.db"
    assert sotto("runs", "--storage", url, "--json").document == []
    shown = sotto("runs", "--storage", url)
    assert shown.code == 0 and "no run" in shown.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["latest", "id"])
def test_report(sotto: Command, noised_run: Finished, name: str) -> None:
    run_id = noised_run.run_id if name == "id" else name
    url = noised_run.storage.url
    assert sotto("report", run_id, "--storage", url, "--json").document == noised_run.summary
    shown = sotto("report", run_id, "--storage", url)
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
        ({"low": 0.25, "high": 0.5}, "0.25-0.50"),
        ({"high": 0.5, "low": 0.25}, "0.25-0.50"),
        ({"low": 0.0, "high": 0.5}, "below"),
        ({"low": 0.0, "high": 0.0}, "below"),
        ({"low": 123.4, "high": 130.6}, "123-131"),
        (None, "-"),
    ],
)
def test_signal_to_noise_is_an_interval_or_below_detection(interval, shown: str) -> None:
    line = round_line({**DOCUMENT, "signal_to_noise": interval}).split()
    assert line[7] == shown
    assert 'or "below" detection' in heading(1e-5)


@pytest.mark.parametrize("both", [True, False])
def test_on_a_terminal_a_bar_and_the_lines(
    both: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
def test_without_arguments_it_runs_the_quickstart(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
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
