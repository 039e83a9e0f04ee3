"""`plot`: which files it writes of a run and of a sweep, and what it refuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform.config import RunConfig
from platform.experiment.finishing import execute as run_through
from platform.pictures.charts import BarPicture, LinePicture
from platform.results.kinds import run_pictures
from platform.results.numbers import RunNumbers
from platform.results.reading import numbers_of, read_runs
from platform.results.statistics import Axes
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.sweeping.grid import Cell, Grid
from platform.sweeping.tables import announce
from tests.trunk._pictures import drawn
from tests.trunk._runs import OS, Command, Crash, Finished, Storage, crash_at, opened
from tests.trunk._tampering import edit

OF_PFEDMOAP = ("curves", "tradeoff", "clients", "experts", "holdings")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, in which commands work."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def numbers(run: Finished) -> RunNumbers:
    (agreed,) = read_runs(run.storage.url, [run.run_id])
    return numbers_of(agreed)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def plot(sotto: Command, run: Finished, *more: str) -> Any:
    return sotto("plot", run.run_id, "--storage", run.storage.url, *more)


def test_a_run_has_all_pictures_that_it_has_data_for(
    sotto: Command, noised_run: Finished, here: Path
) -> None:
    before = noised_run.storage.file.read_bytes()
    answer = plot(sotto, noised_run)
    assert (answer.code, answer.err) == (0, "")
    folder = f"pictures/{noised_run.run_id}"
    expected = {f"{folder}/{kind}{end}" for kind in OF_PFEDMOAP for end in (".svg", ".png")}
    assert files(here) == expected
    for name in expected:
        assert f"picture: {name}" in answer.out.splitlines()
    text = (here / folder / "curves.svg").read_text("utf-8")
    assert f"run {noised_run.run_id}" in text
    assert noised_run.storage.file.read_bytes() == before
    # Not over what is there, and nothing is touched then.
    (here / folder / "curves.svg").write_text("mine")
    again = plot(sotto, noised_run)
    assert again.code == 2 and "exists already" in again.err and again.err.count("\n") == 1
    assert (here / folder / "curves.svg").read_text() == "mine"
    assert plot(sotto, noised_run, "--kind", "curves", "--force").code == 0
    assert (here / folder / "curves.svg").read_text("utf-8") == text


def test_latest_goes_into_one_file(sotto: Command, noised_run: Finished, here: Path) -> None:
    storage = ("--storage", noised_run.storage.url)
    answer = sotto("plot", "latest", "--kind", "experts", "--output", "x.png", *storage, "--json")
    assert answer.document == {"files": ["x.png"], "missing": {}}
    assert (here / "x.png").read_bytes().startswith(b"\x89PNG")
    assert files(here) == {"x.png"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kind", "pie"), ("--kind: 'pie'", "valid: curves, tradeoff, clients")),
        (("--kind", "final"), ("--kind: 'final' is not valid here",)),
        (("--output", "x.svg"), ("takes one picture", "curves, tradeoff", "--kind")),
        (("--output", "x.pdf", "--kind", "curves"), ("'x.pdf'", ".svg or .png")),
        (("--output", "there.png", "--kind", "curves"), ("exists already", "--force")),
        (("--output", "a/b/c.svg/d.png", "--kind", "curves"), ("'a/b/c.svg' is no folder",)),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(
    sotto: Command, noised_run: Finished, here: Path, arguments: Any, words: Any
) -> None:
    (here / "there.png").write_text("mine")
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "c.svg").write_text("a file")
    before = files(here)
    answer = plot(sotto, noised_run, *arguments)
    assert answer.code == 2 and answer.err.count("\n") == 1
    for word in words:
        assert word in answer.err
    assert files(here) == before


def test_an_unknown_run_is_refused_as_both(
    sotto: Command, noised_run: Finished, here: Path
) -> None:
    storage = ("--storage", noised_run.storage.url)
    answer = sotto("plot", "nowhere", *storage)
    assert answer.code == 2 and "'nowhere' is unknown" in answer.err
    (here / "nowhere").mkdir()
    answer = sotto("plot", "nowhere", *storage)
    assert answer.code == 2 and "'nowhere' has no sweep.json" in answer.err
    assert files(here) == set()


def test_a_run_without_experts_has_no_weights_of_them(noised_run: Finished) -> None:
    run = numbers(noised_run)
    final = {**run.document["final"], "expert_weights": None}
    bare = replace(run, document={**run.document, "final": final})
    assert run_pictures(run)["experts"] and run_pictures(bare)["experts"] == ()


def test_a_kind_without_data_is_refused_with_those_that_there_are(
    sotto: Command, storage: Storage, here: Path
) -> None:
    with opened(storage.create()) as simulation:
        run_id = simulation.run_id
    answer = sotto("plot", run_id, "--kind", "experts", "--storage", storage.url)
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert f"run {run_id} has no experts (it has no experts, or has not finished)" in answer.err
    assert files(here) == set()


def test_an_unfinished_run_is_drawn_as_far_as_it_has_come(
    sotto: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    with (
        opened(storage.create(OS)) as simulation,
        monkeypatch.context() as patch,
        suppress(Crash),
    ):
        crash_at(patch, Federation, "_commit", 3)
        run_through(simulation, SilentObserver())
    answer = sotto("plot", "latest", "--storage", storage.url)
    assert answer.code == 0, answer.err
    assert "note: the run has not finished" in answer.out
    assert "no experts: it has no experts, or has not finished" in answer.out.splitlines()
    names = {Path(name).stem for name in files(here)}
    assert names == {"curves", "tradeoff", "clients", "holdings"}
    (agreed,) = read_runs(storage.url)
    (curves,) = run_pictures(numbers_of(agreed))["curves"]
    assert isinstance(curves, LinePicture)
    assert [p.x for p in curves.panels[0].lines[0].points] == [1.0, 2.0]
    assert "not finished (2 rounds so far)" in curves.panels[0].title


def test_of_a_run_that_was_tampered_with_nothing_is_drawn(
    sotto: Command, own_copy: Finished, here: Path
) -> None:
    from sqlalchemy import text

    edit(own_copy.storage.file, lambda c: c.execute(text("UPDATE audit SET actor = 'x'")))
    assert plot(sotto, own_copy).code == 3
    assert files(here) == set()


def test_the_numbers_are_the_summarys(noised_run: Finished) -> None:
    run, final = numbers(noised_run), noised_run.summary["final"]
    pictures = run_pictures(run)
    (clients,), (experts,), (curves,) = (pictures[k] for k in ("clients", "experts", "curves"))
    assert isinstance(clients, BarPicture) and isinstance(experts, BarPicture)
    own = [bar.value for bar in clients.series[0].bars]
    assert own == pytest.approx([100 * value for value in final["accuracy"]["per_client"]])
    alone = [bar.value for bar in clients.series[1].bars]
    twins = noised_run.summary["local"]["accuracy"]["per_client"]
    assert alone == pytest.approx([100 * value for value in twins])
    weights = [bar.value for bar in experts.series[0].bars]
    assert weights == pytest.approx([100 * value for value in final["expert_weights"]])
    assert isinstance(curves, LinePicture)
    spent = [point.y for point in curves.panels[1].lines[0].points]
    assert spent == [one["epsilon"]["server"] for one in noised_run.summary["rounds"]]
    words = drawn(clients).words
    for value in own:
        assert f"{value:.1f}" in words


def test_a_run_without_a_guarantee_says_so_at_its_axis(plain_run: Finished) -> None:
    pictures = run_pictures(numbers(plain_run))
    for kind in ("curves", "tradeoff"):
        (picture,) = pictures[kind]
        canvas = drawn(picture)
        assert any(text.startswith("∞") for text in canvas.words)
        assert canvas.cut() == []


def test_many_clients_are_drawn_in_the_order_of_their_accuracy(noised_run: Finished) -> None:
    run = numbers(noised_run)
    accuracy = {**run.document["final"]["accuracy"], "per_client": [0.5, None, 0.25] * 20}
    document = {**run.document, "final": {**run.document["final"], "accuracy": accuracy}}
    (picture,) = run_pictures(replace(run, document=document))["clients"]
    assert isinstance(picture, LinePicture)
    first = picture.panels[0].lines[0]
    assert [point.y for point in first.points] == [25.0] * 20 + [50.0] * 20
    assert first.label.endswith("mean 37.5, worst 25.0")


def cell_of(config: RunConfig, axes: Axes = ()) -> Cell:
    return Cell(config="small", method=config.method.name, axes=axes, run=config)


def swept(storage: Storage, folder: Path, runs: list[Finished], *further: RunConfig) -> Path:
    """A sweep's folder over runs that are there, with cells that nobody has begun."""
    stored = read_runs(storage.url, [run.run_id for run in runs])
    configs = [*(agreed.config for agreed in stored), *further]
    axes = [(("privacy.mechanism", config.privacy.mechanism),) for config in configs]
    cells = tuple(map(cell_of, configs, axes))
    grid = Grid(configs=("small",), methods=("pfedmoap",), seeds=(3,), axes=(), cells=cells)
    folder.mkdir()
    announce(grid, folder, [None] * len(cells))
    return folder


def test_a_sweep_is_drawn_from_its_folder(sotto: Command, noised_run: Finished, here: Path) -> None:
    storage = noised_run.storage
    later = storage.config("seed=99")
    folder = swept(storage, here / "my sweep", [noised_run], later)
    answer = sotto("plot", "my sweep", "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    kinds = ("curves", "tradeoff", "final", "clients", "experts", "holdings")
    expected = {f"pictures/my sweep/{kind}{end}" for kind in kinds for end in (".svg", ".png")}
    assert set(answer.document["files"]) == expected == files(here) - {"my sweep/sweep.json"}
    assert set(answer.document["missing"]) == {"axes"}
    told = sotto("plot", str(folder), "--storage", storage.url, "--force")
    assert "note: of 2 runs 0 have not finished and 1 not begun" in told.out


def test_a_sweep_elsewhere_and_a_spoilt_one_are_refused(
    sotto: Command, noised_run: Finished, storage: Storage, here: Path
) -> None:
    folder = swept(noised_run.storage, here / "one", [noised_run])
    answer = sotto("plot", "one", "--storage", storage.url)
    assert answer.code == 2 and "no run of 'one' has begun" in answer.err
    whole = (folder / "sweep.json").read_text()
    for text in (
        "",
        "[]",
        "{}",
        "[" * 100_000,
        whole[:-9],
        whole.replace('"seed": 3', '"seed": "3"'),
    ):
        (folder / "sweep.json").write_text(text)
        answer = sotto("plot", "one", "--storage", noised_run.storage.url)
        assert answer.code == 2 and answer.err.count("\n") == 1, text[:20]
        assert "is not what a sweep writes" in answer.err
    assert files(here) == {"one/sweep.json"}


def test_a_sweep_says_which_cells_it_has_before_the_first_is_run(
    sotto: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    (here / "small.yaml").write_text("extends: comparison\n")

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("platform.cli.sweep.run_cells", interrupted)
    arguments = ("--seed", "0,1", "--output", "out", "--storage", storage.url)
    assert sotto("sweep", "small.yaml", *arguments).code == 130
    assert (here / "out" / "sweep.json").is_file()
    storage.create().database.close()
    answer = sotto("plot", "out", "--storage", storage.url)
    assert answer.code == 2 and "no run of 'out' has begun" in answer.err
