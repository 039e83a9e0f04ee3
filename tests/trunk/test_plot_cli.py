"""`plot` and `results()`: which files and columns they make of a run and of a sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from platform.config import RunConfig
from platform.errors import ConfigError, UnknownRun
from platform.results import COLUMNS, results
from platform.results.charts import BarPicture, LinePicture
from platform.results.frames import RUN
from platform.results.pictures import run_pictures
from platform.results.reading import numbers_of, read_runs
from platform.results.sweeping.grid import Cell, Grid
from platform.results.sweeping.writing import announce
from tests.trunk._pictures import drawn
from tests.trunk._runs import Command, Finished, Storage, opened


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def plot(sotto: Command, run: Finished, *more: str) -> Any:
    return sotto("plot", run.run_id, "--storage", run.storage.url, *more)


@pytest.mark.slow
def test_a_picture_names_its_run_and_takes_no_others_place(sotto, noised_run, here):
    before = noised_run.storage.file.read_bytes()
    answer = plot(sotto, noised_run, "--kind", "curves")
    assert (answer.code, answer.err) == (0, "")
    expected = {f"pictures/{noised_run.run_id}/curves{end}" for end in (".svg", ".png")}
    assert files(here) == expected
    assert {f"picture: {name}" for name in expected} <= set(answer.out.splitlines())
    assert noised_run.storage.file.read_bytes() == before
    curves = here / f"pictures/{noised_run.run_id}/curves.svg"
    text = curves.read_text("utf-8")
    assert f"run {noised_run.run_id}" in text
    curves.write_text("mine")
    again = plot(sotto, noised_run)
    assert again.code == 2 and "exists already" in again.err and again.err.count("\n") == 1
    assert curves.read_text() == "mine"
    assert plot(sotto, noised_run, "--kind", "curves", "--force").code == 0
    assert curves.read_text("utf-8") == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kind", "pie"), ("--kind: 'pie'", "valid: curves")),
        (("--output", "x.svg"), ("takes one picture", "--kind")),
        (("--output", "x.gif", "--kind", "curves"), ("'x.gif'", ".png or .pdf")),
        (("--output", "a/b/c.svg/d.png", "--kind", "curves"), ("'a/b/c.svg' is not a folder",)),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(sotto, noised_run, here, arguments, words):
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "c.svg").write_text("a file")
    before = files(here)
    answer = plot(sotto, noised_run, *arguments)
    assert answer.code == 2 and answer.err.count("\n") == 1
    for word in words:
        assert word in answer.err
    assert files(here) == before


def test_the_numbers_are_the_summarys(noised_run):
    (agreed,) = read_runs(noised_run.storage.url, [noised_run.run_id])
    pictures, final = run_pictures(numbers_of(agreed)), noised_run.summary["final"]
    (clients,), (experts,), (curves,) = (pictures[k] for k in ("clients", "experts", "curves"))
    assert isinstance(clients, BarPicture) and isinstance(experts, BarPicture)
    assert isinstance(curves, LinePicture)
    first, second = clients.series.values()
    own = [bar.value for bar in first]
    assert own == pytest.approx([100 * value for value in final["accuracy"]["per_client"]])
    alone = [bar.value for bar in second]
    twins = noised_run.summary["local"]["accuracy"]["per_client"]
    assert alone == pytest.approx([100 * value for value in twins])
    weights = [bar.value for bar in experts.series["weight"]]
    assert weights == pytest.approx([100 * value for value in final["expert_weights"]])
    spent = [point.y for point in curves.panels[1].lines[0].points]
    assert spent == [one["epsilon"]["server"] for one in noised_run.summary["rounds"]]
    words = drawn(clients).words
    assert all(f"{value:.1f}" in words for value in own)


def swept(storage: Storage, folder: Path, runs: list[Finished], *further: RunConfig) -> Path:
    """A sweep's folder over runs that are there, with cells that nobody has begun."""
    stored = read_runs(storage.url, [run.run_id for run in runs])
    cells = tuple(
        Cell(
            config="small",
            method=config.method.name,
            title=config.method.name,
            axes=(("privacy.mechanism", config.privacy.mechanism),),
            run=config,
        )
        for config in (*(agreed.config for agreed in stored), *further)
    )
    grid = Grid(configs=("small",), methods=("pfedmoap",), seeds=(3,), axes=(), cells=cells)
    folder.mkdir()
    announce(grid, folder, [None] * len(cells))
    return folder


@pytest.mark.slow
def test_a_sweep_is_drawn_from_its_folder(sotto, noised_run, here):
    storage = noised_run.storage
    later = storage.config("seed=99")
    folder = swept(storage, here / "my sweep", [noised_run], later)
    answer = sotto("plot", "my sweep", "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    kinds = ("curves", "tradeoff", "final", "clients", "experts", "holdings")
    expected = {
        f"pictures/my sweep/{kind}{end}" for kind in kinds for end in (".svg", ".png", ".pdf")
    }
    assert set(answer.document["files"]) == expected == files(here) - {"my sweep/sweep.json"}
    assert set(answer.document["missing"]) == {"axes"}
    told = sotto("plot", str(folder), "--storage", storage.url, "--force")
    assert "1 not begun" in told.out


def test_a_sweep_elsewhere_and_a_spoilt_one_are_refused(sotto, noised_run, storage, here):
    folder = swept(noised_run.storage, here / "one", [noised_run])
    answer = sotto("plot", "one", "--storage", storage.url)
    assert answer.code == 2 and "no run of 'one'" in answer.err
    whole = (folder / "sweep.json").read_text()
    for text in ("[]", "[" * 100_000, whole[:-9], whole.replace('"seed": 3', '"seed": "3"')):
        (folder / "sweep.json").write_text(text)
        answer = sotto("plot", "one", "--storage", noised_run.storage.url)
        assert answer.code == 2 and answer.err.count("\n") == 1, text[:20]
        assert "a sweep writes" in answer.err
    assert files(here) == {"one/sweep.json"}


@pytest.mark.parametrize("per", COLUMNS)
def test_columns_and_their_types_are_those_that_are_documented(noised_run, plain_run, per):
    content = noised_run.storage.file.read_bytes()
    for run in (noised_run, plain_run):
        frame = results(run.storage.url, per=per)
        types = {name: str(kind) for name, kind in frame.dtypes.items()}
        assert types == {name: kind for name, (kind, _) in COLUMNS[per].items()}
        assert list(frame.columns)[: len(RUN)] == list(RUN) and len(frame) >= 1
    assert noised_run.storage.file.read_bytes() == content


def test_a_row_a_run_has_the_numbers_of_the_summary(noised_run, plain_run):
    (row,) = results(noised_run.storage.url).to_dict("records")
    summary, final = noised_run.summary, noised_run.summary["final"]
    assert row["run"] == noised_run.run_id and row["status"] == "finished"
    assert row["accuracy"] == row["headline"] == final["accuracy"]["mean"]
    assert row["accuracy_worst"] == final["accuracy"]["worst"]
    assert row["gain_over_local"] == summary["gain_over_local"]
    assert row["epsilon_server"] == final["epsilon"]["server"]
    assert math.isnan(row["validation"]) and math.isnan(row["worth_of_sharing"])
    named = results(noised_run.storage.url, runs=[noised_run.run_id, "latest"])
    assert named["run"].tolist() == [noised_run.run_id]
    (bare,) = results(plain_run.storage.url).to_dict("records")
    assert math.isinf(bare["epsilon_server"]) and pd.isna(bare["unit"])


def test_a_row_a_round_and_a_row_a_client(noised_run):
    rounds = results(noised_run.storage.url, per="round")
    shown = noised_run.summary["rounds"]
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["accuracy"].tolist() == [one["accuracy"]["mean"] for one in shown]
    assert rounds["epsilon_peers"].tolist() == [one["epsilon"]["peers"] for one in shown]
    clients = results(noised_run.storage.url, per="client")
    final, twins = noised_run.summary["final"], noised_run.summary["local"]
    assert clients["client"].tolist() == [0, 1, 2, 3, 4]
    assert clients["accuracy"].tolist() == final["accuracy"]["per_client"]
    assert clients["accuracy_alone"].tolist() == twins["accuracy"]["per_client"]
    assert clients["accuracy_own"].isna().all()


def test_an_unfinished_run_is_there_as_far_as_it_has_come(storage):
    with opened(storage.create()):
        pass
    (row,) = results(storage.url).to_dict("records")
    assert row["rounds"] == 0 and row["status"] != "finished"
    assert math.isnan(row["accuracy"]) and not math.isnan(row["epsilon_server"])
    assert results(storage.url, per="round").empty and results(storage.url, per="client").empty


def test_a_sweep_has_a_column_for_each_axis_and_what_is_not_valid_is_refused(noised_run, tmp_path):
    folder = swept(noised_run.storage, tmp_path / "sweep", [noised_run])
    frame = results(noised_run.storage.url, sweep=folder)
    # `mechanism` is a column already, so the axis has its whole key.
    assert list(frame.columns)[-1] == "privacy.mechanism"
    assert frame["privacy.mechanism"].tolist() == ["upload_noise"]
    assert frame["config"].tolist() == ["small"]
    url, nothing = noised_run.storage.url, tmp_path / "nothing"
    nothing.mkdir()
    with pytest.raises(ConfigError, match="per: 'day' is not valid"):
        results(url, per="day")
    with pytest.raises(ConfigError, match="go with runs"):
        results(url, runs="latest", sweep=nothing)
    with pytest.raises(UnknownRun, match="'nowhere' is unknown"):
        results(url, runs=["nowhere"])
    with pytest.raises(ConfigError, match=r"has no sweep\.json"):
        results(url, sweep=nothing)
    assert list(nothing.iterdir()) == []
