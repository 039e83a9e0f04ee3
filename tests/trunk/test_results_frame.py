"""`results()`: a frame with a row a run, a round or a client; its columns, types and numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from docs.pages import columns as columns_page
from platform.errors import ConfigError, UnknownRun
from platform.results import COLUMNS, results
from platform.results.frames import RUN
from tests.repository._source import ROOT
from tests.trunk._runs import Finished, Storage, opened
from tests.trunk.test_plot_cli import swept


@pytest.mark.parametrize("per", COLUMNS)
def test_columns_and_their_types_are_those_that_are_documented(
    noised_run: Finished, plain_run: Finished, per: str
) -> None:
    for run in (noised_run, plain_run):
        frame = results(run.storage.url, per=per)
        assert {n: str(t) for n, t in frame.dtypes.items()} == {
            name: kind for name, (kind, _) in COLUMNS[per].items()
        }
        assert list(frame.columns)[: len(RUN)] == list(RUN)
        assert len(frame) >= 1


def test_the_page_lists_the_columns() -> None:
    built = columns_page.page(ROOT / "build")
    for per, columns in COLUMNS.items():
        _, _, rest = built.partition(f"## A row a {per}\n")
        table = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("| `")]
        named = {
            name: meaning for name, meaning in columns.items() if per == "run" or name not in RUN
        }
        assert table == [f"| `{n}` | {kind} | {text} |" for n, (kind, text) in named.items()]


def test_a_row_a_run_has_the_numbers_of_the_summary(noised_run: Finished) -> None:
    (row,) = results(noised_run.storage.url).to_dict("records")
    summary, final = noised_run.summary, noised_run.summary["final"]
    assert row["run"] == noised_run.run_id and row["status"] == "finished"
    assert row["accuracy"] == row["headline"] == final["accuracy"]["mean"]
    assert row["accuracy_worst"] == final["accuracy"]["worst"]
    assert row["gain_over_local"] == summary["gain_over_local"]
    assert row["epsilon_server"] == final["epsilon"]["server"]
    assert (row["clients"], row["rounds"], row["seed"]) == (5, 3, 3)
    assert (row["unit"], row["target_epsilon"]) == ("client", 8.0)
    assert math.isnan(row["validation"]) and math.isnan(row["worth_of_sharing"])


def test_a_run_without_a_guarantee_has_an_infinite_epsilon(plain_run: Finished) -> None:
    (row,) = results(plain_run.storage.url).to_dict("records")
    assert math.isinf(row["epsilon_server"]) and pd.isna(row["unit"])


def test_a_row_a_round_and_a_row_a_client(noised_run: Finished) -> None:
    rounds = results(noised_run.storage.url, per="round")
    shown = noised_run.summary["rounds"]
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["accuracy"].tolist() == [one["accuracy"]["mean"] for one in shown]
    assert rounds["epsilon_peers"].tolist() == [one["epsilon"]["peers"] for one in shown]
    assert rounds["bytes_up"].tolist() == [one["bytes_up"] for one in shown]
    clients = results(noised_run.storage.url, per="client")
    final, twins = noised_run.summary["final"], noised_run.summary["local"]
    assert clients["client"].tolist() == [0, 1, 2, 3, 4]
    assert clients["accuracy"].tolist() == final["accuracy"]["per_client"]
    assert clients["accuracy_alone"].tolist() == twins["accuracy"]["per_client"]
    assert clients["accuracy_own"].isna().all()


def test_an_unfinished_run_is_there_as_far_as_it_has_come(storage: Storage) -> None:
    with opened(storage.create()):
        pass
    (row,) = results(storage.url).to_dict("records")
    assert row["rounds"] == 0 and row["status"] != "finished"
    assert math.isnan(row["accuracy"]) and not math.isnan(row["epsilon_server"])
    assert results(storage.url, per="round").empty and results(storage.url, per="client").empty


def test_a_sweep_has_a_column_for_each_axis(noised_run: Finished, tmp_path: Path) -> None:
    folder = swept(noised_run.storage, tmp_path / "sweep", [noised_run])
    frame = results(noised_run.storage.url, sweep=folder)
    # `mechanism` is a column already, so the axis has its whole key.
    assert list(frame.columns)[-1] == "privacy.mechanism"
    assert frame["privacy.mechanism"].tolist() == ["upload_noise"]
    assert frame["config"].tolist() == ["small"]


def test_some_runs_by_name(noised_run: Finished) -> None:
    url = noised_run.storage.url
    for runs in ("latest", noised_run.run_id, [noised_run.run_id, "latest"]):
        assert results(url, runs=runs)["run"].tolist() == [noised_run.run_id]


def test_nothing_is_written(noised_run: Finished) -> None:
    folder = noised_run.storage.folder
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    content = noised_run.storage.file.read_bytes()
    for per in COLUMNS:
        results(noised_run.storage.url, per=per)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert noised_run.storage.file.read_bytes() == content


def test_what_is_not_valid_is_refused(noised_run: Finished, tmp_path: Path) -> None:
    url = noised_run.storage.url
    with pytest.raises(ConfigError, match="per: 'day' is not valid; valid: run, round, client"):
        results(url, per="day")
    with pytest.raises(ConfigError, match="does not go with runs"):
        results(url, runs="latest", sweep=tmp_path)
    with pytest.raises(UnknownRun, match="'nowhere' is unknown"):
        results(url, runs=["nowhere"])
    with pytest.raises(UnknownRun, match="there is no database"):
        results(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(ConfigError, match=r"has no sweep\.json"):
        results(url, sweep=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_pandas_it_says_what_to_install(
    noised_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"\[notebook\]"):
        results(noised_run.storage.url)
