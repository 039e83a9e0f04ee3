"""Pictures of a sweep: which there are, what is in them, and equal bytes for equal numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from platform.sweeping.grid import Cell, Grid
from platform.sweeping.plots import Picture, draw, pictures
from platform.sweeping.publishing import publish
from platform.sweeping.running import Outcome
from tests.trunk._sweeps import grid_of, outcomes_of, summary


def swept(*settings: str, **more: Any) -> tuple[Grid, list[Outcome]]:
    grid = grid_of(*settings, methods=("coop", "promptfl"), seeds=(0, 1), **more)

    def made(cell: Cell) -> dict[str, Any]:
        value = 0.5 + 0.1 * cell.seed + 0.2 * (cell.method == "coop")
        return summary(value, expert_weights=[0.6, 0.3, 0.1] if cell.method == "coop" else None)

    return grid, outcomes_of(grid, made)


def found(*settings: str, **more: Any) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(*swept(*settings, **more))}


def test_each_numeric_axis_has_a_picture() -> None:
    names = found("task.shots=1,2", "task.domains=[real],[sketch]")
    assert set(names) == {"curves", "attention", "shots"}
    assert names["shots"].abscissa == "task.shots"
    assert names["shots"].ordinate == "accuracy in percent\n(last round, after personalising)"
    assert names["curves"].ordinate.endswith("in percent\n(before personalising)")


def test_files_of_equal_names_are_told_apart() -> None:
    names = found("training.learning_rate=0.1,0.2", "privacy.adaptive_clipping=null")
    assert "learning_rate" in names
    from platform.sweeping.plots import _file_names

    keys = ["training.learning_rate", "a.learning_rate", "b.curves", "rounds"]
    assert _file_names(keys) == {key: key for key in keys[:3]} | {"rounds": "rounds"}


def test_lines_are_means_over_seeds() -> None:
    ((title, lines),) = found("task.shots=1,2")["shots"].panels
    assert title == "shapes"
    assert [line.label for line in lines] == ["coop", "promptfl"]
    for line, expected in zip(lines, (0.75, 0.55), strict=True):
        assert [x for x, _ in line.points] == [1.0, 2.0]
        for _, spread in line.points:
            assert spread.mean == pytest.approx(expected)
            assert spread.deviation == pytest.approx(0.1 / 2**0.5)


def test_curves_have_every_measured_round_of_every_line() -> None:
    ((_, lines),) = found("task.shots=1,2")["curves"].panels
    assert [line.label for line in lines] == [
        *("coop, shots 1", "promptfl, shots 1", "coop, shots 2", "promptfl, shots 2")
    ]
    assert [(x, round(s.mean, 3)) for x, s in lines[0].points] == [(1, 0.375), (2, 0.75)]


def test_attention_is_of_those_that_have_experts() -> None:
    picture = found()["attention"]
    ((_, lines),) = picture.panels
    assert picture.is_bars
    assert [(line.label, [s.mean for _, s in line.points]) for line in lines] == [
        ("coop", pytest.approx([0.6, 0.3, 0.1]))
    ]


def test_configurations_have_panels() -> None:
    picture = found(configs=("comparison", "expert-pool"))["curves"]
    assert [title for title, _ in picture.panels] == ["comparison", "expert-pool"]


def test_unmeasured_rounds_and_missing_weights_are_left_out() -> None:
    grid = grid_of()
    made = summary(0.5)
    for document in made["rounds"]:
        document["accuracy"]["mean"] = None
    assert pictures(grid, outcomes_of(grid, lambda cell: made)) == []


def test_a_sweep_leaves_its_files_and_the_same_again(tmp_path: Path) -> None:
    grid, outcomes = swept("task.shots=1,32", configs=("comparison", "expert-pool"))
    texts: list[dict[str, bytes]] = []
    for name in ("one", "two"):
        folder = tmp_path / name
        publish(grid, outcomes, folder)
        texts.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert (
        texts[0].keys()
        == texts[1].keys()
        == {
            *("results.csv", "rounds.csv", "table.md", "table.tex"),
            *(
                f"{name}{end}"
                for name in ("curves", "attention", "shots")
                for end in (".svg", ".png")
            ),
        }
    )
    for name, content in texts[0].items():
        assert content == texts[1][name]
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        if name.endswith(".svg"):
            assert b"</svg>" in content and b"<!-- comparison -->" in content
            assert b"<dc:date>" not in content


def test_a_sweep_of_failures_leaves_nothing(tmp_path: Path) -> None:
    grid = grid_of()
    assert publish(grid, outcomes_of(grid, lambda cell: None), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_more_lines_than_colours_and_more_panels_than_a_row_are_drawn(tmp_path: Path) -> None:
    grid = grid_of(f"training.batch_size={','.join(map(str, range(1, 13)))}")
    (curves, _) = pictures(grid, outcomes_of(grid, lambda cell: summary(0.5)))
    many = Picture(name="curves", abscissa="round", ordinate="accuracy", panels=curves.panels * 5)
    files = draw(many, tmp_path)
    assert [path.name for path in files] == ["curves.svg", "curves.png"]
    assert files[0].read_text("utf-8").count("<!-- batch") == 0
    assert "batch_size 12" in files[0].read_text("utf-8")
