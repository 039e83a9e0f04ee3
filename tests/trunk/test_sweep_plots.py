"""Pictures of a sweep: which there are, what is in them, and equal bytes for equal numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from platform.pictures.canvas import Picture
from platform.pictures.charts import BarPicture, CellPicture, DotPicture, LinePicture
from platform.results.comparisons import file_names, line_names, sweep_pictures
from platform.results.numbers import RunNumbers
from platform.results.statistics import Label
from platform.results.writing import files_of, write_pictures
from platform.sweeping.grid import Cell, Grid
from platform.sweeping.running import Outcome
from platform.sweeping.tables import numbers_of, publish
from tests.trunk._pictures import drawn
from tests.trunk._sweeps import grid_of, noised, outcomes_of, summary

MECHANISMS = (
    "{mechanism: none}",
    "{mechanism: upload_noise, clipping_norm: 1.0, target_epsilon: 8.0}",
    "{mechanism: distributed_noise, clipping_norm: 1.0, target_epsilon: 8.0}",
    "{mechanism: central_noise, clipping_norm: 1.0, target_epsilon: 8.0}",
    "{mechanism: dp_sgd, per_sample_clipping_norm: 0.5, target_epsilon: 8.0, "
    "sampling_probability: 0.5}",
)
MASKED = ("secure_aggregation.enabled=true", "secure_aggregation.threshold=4")


def swept(*settings: str, **more: Any) -> tuple[Grid, list[Outcome]]:
    grid = grid_of(*settings, methods=("coop", "promptfl"), seeds=(0, 1), **more)

    def made(cell: Cell) -> dict[str, Any]:
        value = 0.5 + 0.1 * cell.seed + 0.2 * (cell.method == "coop")
        return summary(value, expert_weights=[0.6, 0.3, 0.1] if cell.method == "coop" else None)

    return grid, outcomes_of(grid, made)


def kinds_of(outcomes: list[Outcome]) -> dict[str, tuple[Picture, ...]]:
    return sweep_pictures([numbers_of(outcome) for outcome in outcomes])


def found(*settings: str, **more: Any) -> dict[str, Any]:
    made = kinds_of(swept(*settings, **more)[1])
    return {picture.name: picture for pictures in made.values() for picture in pictures}


def values_of(line: Any) -> list[tuple[float, float]]:
    return [(p.x, round(p.y, 3)) for p in line.points]


def test_each_numeric_axis_has_a_picture() -> None:
    names = found("task.shots=1,2", "task.domains=[real],[sketch]")
    assert set(names) == {"curves", "tradeoff", "final", "clients", "experts", "shots"}
    (panel,) = names["shots"].panels
    assert panel.across.label == "task.shots"
    assert panel.up.label == "accuracy in percent\n(last round, after personalising)"
    assert names["curves"].panels[0].up.label.endswith("in percent\n(before personalising)")


def test_files_of_equal_names_are_told_apart() -> None:
    assert "learning_rate" in found("training.learning_rate=0.1,0.2")
    keys = ["training.learning_rate", "a.learning_rate", "b.curves", "rounds"]
    assert file_names(keys) == {key: key for key in keys[:3]} | {"rounds": "rounds"}


def test_lines_are_means_over_seeds() -> None:
    (panel,) = found("task.shots=1,2")["shots"].panels
    assert panel.title == "shapes"
    assert [line.label for line in panel.lines] == ["coop", "promptfl"]
    for line, expected in zip(panel.lines, (75.0, 55.0), strict=True):
        assert values_of(line) == [(1.0, expected), (2.0, expected)]
        for point in line.points:
            assert point.high - point.y == pytest.approx(10.0 / 2**0.5)


def test_curves_have_every_measured_round_of_every_line_and_what_was_spent() -> None:
    above, below = found("task.shots=1,2")["curves"].panels
    names = ["coop, shots 1", "promptfl, shots 1", "coop, shots 2", "promptfl, shots 2"]
    assert [line.label for line in above.lines] == names
    assert values_of(above.lines[0]) == [(1, 37.5), (2, 75.0)]
    assert [line.label for line in below.lines] == names
    assert values_of(below.lines[0]) == [(1, math.inf), (2, math.inf)]


def test_adversaries_who_learn_otherwise_have_panels_of_their_own() -> None:
    grid = grid_of()

    def made(cell: Cell) -> dict[str, Any]:
        return summary(0.5, **noised(8.0))

    tradeoff = {p.name: p for p in kinds_of(outcomes_of(grid, made))["tradeoff"]}["tradeoff"]
    assert isinstance(tradeoff, LinePicture)
    labels = [panel.across.label.partition("\n")[0] for panel in tradeoff.panels]
    assert labels == ["epsilon for server", "epsilon for peers", "epsilon for observer"]
    assert [values_of(panel.lines[0]) for panel in tradeoff.panels] == [
        [(spent, 50.0)] for spent in (8.0, 4.0, 0.0)
    ]


def test_values_of_epsilon_are_points_of_one_line() -> None:
    noise = ("privacy.mechanism=upload_noise", "privacy.clipping_norm=1.0")
    grid = grid_of("privacy.target_epsilon=8,1,2", "task.shots=1,2", *noise, seeds=(0, 1))

    def made(cell: Cell) -> dict[str, Any]:
        spent = float(dict(cell.axes)["privacy.target_epsilon"])
        return summary(0.5 + spent / 20, **noised(spent - 0.01 * cell.seed))

    (tradeoff,) = kinds_of(outcomes_of(grid, made))["tradeoff"]
    assert isinstance(tradeoff, LinePicture)
    first = tradeoff.panels[0]
    assert [line.label for line in first.lines] == [f"promptfl, shots {n}" for n in (1, 2)]
    # In the order of epsilon, and the larger one of both seeds.
    assert values_of(first.lines[0]) == [(1.0, 55.0), (2.0, 60.0), (8.0, 90.0)]


def test_experts_are_of_those_that_have_some() -> None:
    picture = found()["experts"]
    assert isinstance(picture, CellPicture)
    assert (picture.rows, picture.columns) == (("coop",), ("0", "1", "2"))
    ((own, second, third),) = picture.cells
    assert (own.value, second.value, third.value) == pytest.approx((60.0, 30.0, 10.0))
    assert own.deviation == pytest.approx(0.0)


def test_the_end_is_bars_with_a_row_a_line_and_a_series_a_configuration() -> None:
    picture = found(configs=("comparison", "expert-pool"))["final"]
    assert isinstance(picture, BarPicture)
    assert picture.rows == ("coop", "promptfl")
    assert [series.label for series in picture.series] == ["comparison", "expert-pool"]
    assert [bar.value for bar in picture.series[0].bars] == pytest.approx([75.0, 55.0])


def test_clients_are_dots_of_all_seeds() -> None:
    picture = found()["clients"]
    assert isinstance(picture, DotPicture)
    assert picture.rows == ("coop", "promptfl")
    assert picture.values[0] == pytest.approx((70.0, 80.0))


def test_configurations_have_panels() -> None:
    picture = found(configs=("comparison", "expert-pool"))["curves"]
    assert [panel.title for panel in picture.panels] == ["comparison", "expert-pool", "", ""]
    assert picture.columns == 2


def test_unmeasured_rounds_and_missing_weights_are_left_out() -> None:
    grid = grid_of()
    made = summary(0.5)
    for document in made["rounds"]:
        document["accuracy"] = dict.fromkeys(document["accuracy"])
    made["final"]["accuracy"] = dict.fromkeys(made["final"]["accuracy"])
    kinds = kinds_of(outcomes_of(grid, lambda cell: made))
    assert {kind for kind, pictures in kinds.items() if pictures} == {"curves"}
    ((panel,),) = [picture.panels for picture in kinds["curves"]]  # type: ignore[attr-defined]
    assert panel.up.label.startswith("epsilon")


def mechanisms() -> list[RunNumbers]:
    """A sweep over all five mechanisms, its axis written as people write it."""
    grid = grid_of(f"privacy={','.join(MECHANISMS)}", *MASKED, methods=("promptfl",), seeds=(0, 1))

    def made(cell: Cell) -> dict[str, Any]:
        bare = "none}" in dict(cell.axes)["privacy"]
        return summary(0.5 + 0.001 * cell.seed, **({} if bare else noised(8.0)))

    return [numbers_of(outcome) for outcome in outcomes_of(grid, made)]


def test_a_sweep_over_mechanisms_has_all_its_labels() -> None:
    names = [
        f"promptfl, mechanism {name}"
        for name in ("none", "upload_noise", "distributed_noise", "central_noise", "dp_sgd")
    ]
    made = {kind: found for kind, found in sweep_pictures(mechanisms()).items() if found}
    assert set(made) == {"curves", "tradeoff", "final", "clients"}
    for pictures in made.values():
        for picture in pictures:
            canvas = drawn(picture)
            words = [text.replace("\n", " ") for text in canvas.words]
            assert [name for name in names if name not in words] == []
            assert canvas.cut() == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("1", "2"), ("coop, shots 1", "coop, shots 2")),
        (MECHANISMS[:2], ("coop, mechanism none", "coop, mechanism upload_noise")),
        (
            ("{mechanism: a, x: 1, y: 2}", "{mechanism: a, x: 1, y: 3, z: 0}"),
            ("coop, y 2", "coop, y 3, z 0"),
        ),
        # Not told apart by what they hold, or not read: as they were written.
        (("{a: 1}", "{a: 1 }"), ("coop, shots {a: 1}", "coop, shots {a: 1 }")),
        (("{a: [}", "{b: 1}"), ("coop, shots {a: [}", "coop, shots {b: 1}")),
    ],
)
def test_lines_are_named_by_what_sets_them_apart(values: Any, expected: Any) -> None:
    labels = [Label("coop", (("task.shots", value),)) for value in values]
    assert tuple(line_names(labels)[label] for label in labels) == expected


def test_a_sweep_leaves_its_files_and_the_same_again(tmp_path: Path) -> None:
    grid, outcomes = swept("task.shots=1,32", configs=("comparison", "expert-pool"))
    texts: list[dict[str, bytes]] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        publish(grid, outcomes, folder)
        texts.append({path.name: path.read_bytes() for path in folder.iterdir()})
    names = ("curves", "tradeoff", "final", "clients", "experts", "shots")
    assert (
        texts[0].keys()
        == texts[1].keys()
        == {
            *("results.csv", "rounds.csv", "table.md", "table.tex"),
            *(f"{name}{end}" for name in names for end in (".svg", ".png")),
        }
    )
    for name, content in texts[0].items():
        assert content == texts[1][name]
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        if name.endswith(".svg"):
            assert b"</svg>" in content and b"comparison" in content
            assert b"<dc:date>" not in content


def test_a_sweep_of_failures_leaves_nothing(tmp_path: Path) -> None:
    grid = grid_of()
    assert publish(grid, outcomes_of(grid, lambda cell: None), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_more_lines_than_colours_and_more_panels_than_a_row_are_drawn(tmp_path: Path) -> None:
    grid = grid_of(f"training.batch_size={','.join(map(str, range(1, 13)))}")
    (curves,) = kinds_of(outcomes_of(grid, lambda cell: summary(0.5)))["curves"]
    assert isinstance(curves, LinePicture)
    many = LinePicture(name="curves", title="", panels=curves.panels * 3, columns=4)
    canvas = drawn(many)
    assert canvas.cut() == []
    assert sum("batch_size" in text for text in canvas.words) == 12
    files = write_pictures(files_of([many], tmp_path))
    assert [path.name for path in files] == ["curves.svg", "curves.png"]
