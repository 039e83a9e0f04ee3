"""Tables and pictures of a sweep, from made-up summaries: numbers by hand."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.config import PACKAGED_CONFIGS, dump_yaml, load_config
from platform.experiment.caveats import evaluation_document
from platform.results.numbers import Spread
from platform.results.pictures import sweep_pictures
from platform.results.sweeping import writing
from platform.results.sweeping.grid import Axis, Cell, Grid, SweepRequest, build_grid
from platform.results.sweeping.running import Outcome
from platform.results.sweeping.tables import (
    LAST,
    Number,
    Table,
    build_tables,
    record_of,
    shown_epsilon,
    shown_number,
)
from platform.results.sweeping.writing import (
    Results,
    document,
    latex,
    markdown,
    results_csv,
)

NO_EPSILON = {"server": "inf", "peers": "inf", "observer": "inf"}
Made = Callable[[Cell], dict[str, Any] | None]


def accuracy(mean: float) -> dict[str, Any]:
    spread = {"std": 0.05, "worst": mean - 0.1, "per_client": [mean]}
    return {"mean": mean, "weighted": mean, **spread}


def summary(local: float, *, protocol: Any = None, **more: Any) -> dict[str, Any]:
    """A run's summary as far as a sweep reads it; two rounds, half as good after the first."""
    final = {
        "accuracy": accuracy(local),
        "protocol": {"name": "client_mean"} | (protocol or {}),
        **{"epsilon": more.pop("epsilon", NO_EPSILON), "new_clients": None},
        "expert_weights": None,
    }
    rounds = [
        {"round": number, "accuracy": accuracy(value), "validation": None, "epsilon": NO_EPSILON}
        for number, value in ((1, local / 2), (2, local))
    ]
    nothing = ("unit", "relation", "accountant", "sampling", "noise_distribution", "noise_source")
    return {
        **{"dataset": "shapes", "classes": 20},
        "rounds": rounds,
        "final": final,
        "gain_over_local": 0.25,
        "worth_of_sharing": 0.125,
        "mechanism": "none",
        "delta": 1e-5,
        **{"local": {"accuracy": accuracy(local - 0.25)}, "best_on_validation": None},
        **dict.fromkeys(nothing),
        **more,
    }


def noised(epsilon: float) -> dict[str, Any]:
    """What a summary says under noise on uploads."""
    return {
        "unit": "client",
        "mechanism": "upload_noise",
        "relation": "replace_one",
        **{"sampling": "none", "accountant": "rdp"},
        **{"noise_distribution": "discrete", "noise_source": "os"},
        "epsilon": {"server": epsilon, "peers": epsilon / 2, "observer": 0.0},
    }


def grid_of(*settings: str, **more: Any) -> Grid:
    return build_grid(
        SweepRequest(configs=more.pop("configs", ("comparison",)), settings=settings, **more)
    )


def outcomes_of(grid: Grid, make: Made) -> list[Outcome]:
    """An outcome a cell; None makes it a failed one."""
    return [
        Outcome(cell=cell, error="a reason")
        if made is None
        else Outcome(cell=cell, run_id=f"run{number}", summary=made)
        for number, (cell, made) in enumerate((cell, make(cell)) for cell in grid.cells)
    ]


BY_METHOD = {"coop": (0.70, 0.72, 0.74), "promptfl": (0.80, 0.84, 0.85)}


def by_method(cell: Cell) -> dict[str, Any]:
    return summary(BY_METHOD[cell.method][cell.seed])


def three_seeds(make: Made = by_method, **more: Any) -> tuple[Grid, list[Outcome]]:
    grid = grid_of(methods=("coop", "promptfl"), seeds=(0, 1, 2), **more)
    return grid, outcomes_of(grid, make)


def tables_of(grid: Grid, outcomes: list[Outcome]) -> list[Table]:
    return build_tables(grid, [record_of(o) for o in outcomes if o.summary is not None])


def results(grid: Grid, outcomes: list[Outcome]) -> Results:
    return Results(grid, tuple(outcomes), tuple(tables_of(grid, outcomes)), Path("there"))


def body(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_mean_and_sample_deviation_by_hand():
    # Mean 0.83; squares 9e-4 + 1e-4 + 4e-4 = 14e-4, halved 7e-4, root 0.0264575.
    spread = Spread((0.80, 0.84, 0.85))
    assert spread.mean == pytest.approx(0.83)
    assert spread.deviation == pytest.approx(0.02645751)
    assert Spread((0.5,)).deviation is None
    assert shown_number(Number(spread)) == "83.00 ± 2.65"
    assert shown_number(Number(Spread((0.5,)))) == "50.00"
    assert shown_number(Number(spread, missing=2)) == "83.00 ± 2.65 (n=3)"
    assert shown_number(Number(None)) == "-"


def study_of(made: Made, *methods: str) -> tuple[Grid, list[Outcome]]:
    """Two epsilons over three seeds, as a study asks for them."""
    noise = ("privacy.mechanism=upload_noise", "privacy.clipping_norm=1.0")
    values = {text: (*noise, f"privacy.target_epsilon={text}") for text in ("8", "2")}
    axis = Axis("epsilon", values, once=("evaluation.local_twins=false",))
    grid = grid_of(axes=(axis,), methods=methods, seeds=(0, 1, 2))
    return grid, outcomes_of(grid, made)


NOWHERE = {"server": 0.0, "peers": 0.0, "observer": 0.0}
AT_EPSILON = {"sends nothing": (0.70, 0.72, 0.74), "8": (0.80, 0.84, 0.85), "2": (0.71, 0.70, 0.75)}


def at_epsilon(cell: Cell) -> dict[str, Any]:
    """CoOp sends nothing; PromptFL is better than it at epsilon 8 and not at 2."""
    epsilon = dict(cell.axes)["epsilon"]
    value = AT_EPSILON[epsilon][cell.seed]
    if epsilon == "sends nothing":
        return summary(value, epsilon=NOWHERE, gain_over_local=None)
    return summary(value, **noised(float(epsilon)))


def test_a_method_that_sends_nothing_has_one_row_and_is_compared_at_every_epsilon():
    grid, outcomes = study_of(at_epsilon, "coop", "promptfl")
    assert len(outcomes) == 3 + 2 * 3
    (table,) = tables_of(grid, outcomes)
    assert body(markdown([table]))[2:] == [
        "| CoOp, sends nothing | 0.00 / 0.00 / 0.00 | 72.00 ± 2.00 | - |",
        "| PromptFL | 8.00 / 4.00 / 0.00 | **83.00 ± 2.65** | +25.0 (no interval) n.s. |",
        "| PromptFL | 2.00 / 1.00 / 0.00 | 72.00 ± 2.65 | +25.0 (no interval) n.s. |",
    ]
    assert [(one.at, one.first, one.second) for one in table.tests] == [
        ("shapes, epsilon = 8", "CoOp, sends nothing", "PromptFL, epsilon = 8"),
        ("shapes, epsilon = 2", "CoOp, sends nothing", "PromptFL, epsilon = 2"),
    ]
    # Differences 10, 12 and 11 points: mean 11, deviation 1, so t = 11 sqrt(3) = 19.05, p = 0.0027
    # with two degrees of freedom: (1 - t / sqrt(t^2 + 2)). Two tests double it.
    t = 11 * math.sqrt(3)
    # In the order of the command line, whichever is better; the bold number above is the second's.
    assert table.tests[0].difference.mean == pytest.approx(-0.11)
    assert table.tests[0].difference.p == pytest.approx(2 * (1 - t / math.sqrt(t * t + 2)))
    assert {one.of for one in table.tests} == {2}


def test_a_method_that_sends_nothing_is_a_level_line_of_the_figure():
    _, outcomes = study_of(at_epsilon, "coop", "promptfl")
    panel = pictures_of(outcomes)["tradeoff"].panels[0]
    assert [line.label for line in panel.lines] == ["CoOp", "PromptFL"]
    assert values_of(panel.lines[0]) == [(2.0, 72.0), (8.0, 72.0)]
    assert values_of(panel.lines[1]) == [(2.0, 72.0), (8.0, 83.0)]


def test_a_method_that_sends_nothing_has_a_bar_beside_those_of_every_epsilon():
    _, outcomes = study_of(at_epsilon, "coop", "promptfl")
    final = pictures_of(outcomes)["final"]
    assert final.rows == ("epsilon = 8", "epsilon = 2")
    bars = {name: [bar.value for bar in of] for name, of in final.series.items()}
    assert bars["CoOp"] == pytest.approx([72.0, 72.0])
    assert bars["PromptFL"] == pytest.approx([83.0, 72.0])


def test_every_line_of_the_tests_says_its_family_and_its_units():
    tables = tables_of(*three_seeds())
    (row,) = csv.DictReader(io.StringIO(writing.tests_csv(tables)))
    assert all(row.values())
    assert (row["protocol"], row["selection"]) == ("client_mean", "last")
    assert (row["column"], row["at"], row["first"]) == ("Accuracy", "shapes", "CoOp")
    assert (float(row["mean_points"]), row["tests"], row["seeds"]) == (pytest.approx(-11), "1", "3")


def test_options_that_differ_between_methods_are_named():
    own = ("pfedmoap:method.experts=3",)
    grid = grid_of(methods=("promptfl", "trip", "pfedmoap"), method_settings=own, seeds=(0, 1))
    (line,) = grid.unequal
    # `gate` is an option of one method alone, and no two have another value of `server_optimizer`.
    assert line.partition(": ")[2] == (
        "context_tokens: promptfl 4, trip 16, pfedmoap 16; "
        'context_init: promptfl "a photo of a", trip null, pfedmoap null; '
        "experts: trip 4, pfedmoap 3"
    )
    outcomes = outcomes_of(grid, lambda cell: summary(0.5))
    assert line in markdown(tables_of(grid, outcomes))
    settings = ("method.context_tokens=2,4", "method.context_init=null")
    assert grid_of(*settings, methods=("promptfl", "coop")).unequal == ()


def test_a_table_of_two_methods():
    text = markdown(tables_of(*three_seeds()))
    assert body(text) == [
        "| Method | Accuracy | Gain over alone |",
        "|---|---:|---:|",
        # Three seeds with one and the same gain are no proof: p is 2 in 2^3.
        "| CoOp | 72.00 ± 2.00 | +25.0 (no interval) n.s. |",
        "| PromptFL | **83.00 ± 2.65** | +25.0 (no interval) n.s. |",
    ]
    for words in ("2 rounds", "over 3 seeds", "No differential privacy", "homonyms (20 classes)"):
        assert words in text


def require_whole(text: str) -> None:
    """Braces are balanced, and every row has the columns of its `tabular`."""
    plain = re.sub(r"\\[{}&%$#_]", "", text)
    assert plain.count("{") == plain.count("}")
    for columns, inside in re.findall(
        r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", plain, re.DOTALL
    ):
        rows = [line for line in inside.splitlines() if line.endswith(r"\\")]
        assert rows and inside.count("rule") >= 3
        for row in rows:
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert row.count("&") + 1 + sum(spans) - len(spans) == len(columns)


TO_NOVEL = ("evaluation.protocol=base_to_novel", "task.clients=5")
NOVEL = {"name": "base_to_novel", "local": 0.9, "base": 0.8, "novel": 0.6, "harmonic_mean": 0.74}


def test_base_to_novel_has_the_papers_four_columns():
    grid = grid_of(*TO_NOVEL, methods=("coop", "fedpgp"), seeds=(0,))
    outcomes = outcomes_of(
        grid, lambda c: summary(0.9 if c.method == "coop" else 0.95, protocol=NOVEL)
    )
    text = markdown(tables_of(grid, outcomes))
    assert body(text)[0] == "| Method | Local | Base | Novel | HM |"
    # One seed: nothing is bold.
    assert body(text)[2:4] == [
        "| CoOp | 90.00 | 80.00 | 60.00 | 74.00 |",
        "| FedPGP | 95.00 | 80.00 | 60.00 | 74.00 |",
    ]


@pytest.fixture
def held_out(tmp_path: Path) -> str:
    tree = yaml.safe_load((PACKAGED_CONFIGS / "comparison.yaml").read_text())
    tree["evaluation"] = {"protocol": "leave_one_domain_out"}
    tree["task"] |= {"partition": {"kind": "domain"}, "clients": 5}
    path = tmp_path / "held.yaml"
    path.write_text(dump_yaml(tree))
    return str(path)


def test_held_out_domains_are_columns_with_their_mean(held_out):
    grid = grid_of(
        *("task.held_out_domain=real,sketch", "rounds=1,2"),
        configs=(held_out,),
        methods=("coop", "trip"),
        seeds=(0, 1),
    )
    target = {"real": 0.5, "sketch": 0.3}

    def made(cell: Cell) -> dict[str, Any] | None:
        axes = dict(cell.axes)
        if cell.method == "trip" and cell.seed == 1 and axes["task.held_out_domain"] == "real":
            return None
        value = target[axes["task.held_out_domain"]] + 0.1 * cell.seed
        value += 0.2 * (cell.method == "trip")
        held = {"name": "leave_one_domain_out", "target": {"mean": value, "std": 0, "worst": 0}}
        return summary(0.9, protocol=held)

    text = markdown(tables_of(grid, outcomes_of(grid, made)))
    # Over seeds 0.5 and 0.6: deviation 0.1 / sqrt(2). The mean over domains is 0.4 and 0.5.
    first = "55.00 ± 7.07 | 35.00 ± 7.07 | 45.00 ± 7.07 | +25.0 (no interval) n.s. |"
    # TRIP's second seed lacks a domain: it counts for the other one, and not for the mean.
    second = "70.00 (n=1) | 55.00 ± 7.07 | 60.00 (n=1) | - |"
    assert body(text)[0] == "| Method | real | sketch | Avg. | Gain over alone |"
    assert body(text)[2:] == [
        f"| CoOp, rounds = 1 | {first}",
        f"| CoOp, rounds = 2 | {first}",
        f"| TRIP, rounds = 1 | {second}",
        f"| TRIP, rounds = 2 | {second}",
    ]


def test_epsilons_are_shown_where_a_mechanism_is_on_and_are_never_rounded_down():
    def made(cell: Cell) -> dict[str, Any]:
        if cell.method == "coop":
            return summary(0.5)
        return summary(0.5, **noised(7.984 + 0.005 * cell.seed))

    tables = tables_of(*three_seeds(made))
    text = markdown(tables)
    price = "ε (server / peers / observer)"
    assert body(text)[0] == f"| Method | {price} | Accuracy | Gain over alone |"
    assert body(text)[2].startswith("| CoOp | ∞ / ∞ / ∞ |")
    # The worst seed: 7.994 and its half 3.997; the first would read 7.99.
    assert body(text)[3].startswith("| PromptFL | 8.00 / 4.00 / 0.00 |")
    for words in ("upload noise", "replace_one", "accountant: rdp", "rounded up", "composition"):
        assert words in text
    assert "protects nobody" not in text
    for words in (r"& $\infty$ / $\infty$ / $\infty$ &", r"$\delta$ = $10^{-5}$", "$+25.0$"):
        assert words in latex(tables)
    require_whole(latex(tables))
    assert [shown_epsilon(value) for value in (8.001, 0.0, math.inf)] == ["8.01", "0.00", "∞"]
    assert shown_epsilon(8.0000004) == "8.00"


BEST: dict[str, Any] = {
    **{"round": 1, "validation": 0.7, "accuracy": accuracy(0.6)},
    "protocol": {"name": "client_mean"},
}


def test_a_chosen_round_is_captioned_with_the_runs_own_words():
    chosen_by = ("task.validation_share=0.2", "evaluation.selection=best_on_validation")
    noised = ("evaluation.release=noised", "privacy.mechanism=upload_noise")
    numbers = ("privacy.clipping_norm=1.0", "privacy.noise_multiplier=1.0", "evaluation.every=1")
    words = evaluation_document(load_config(Path("comparison"), [*chosen_by, *noised, *numbers]))
    grid = grid_of()
    made = outcomes_of(grid, lambda c: summary(0.5, best_on_validation=BEST, evaluation=words))
    last, best = tables_of(grid, made)
    chosen = words["selection"].partition("beside it ")[2]
    assert chosen and chosen in best.caption
    assert "noised" in best.caption and chosen not in last.caption


def test_noise_from_a_seed_is_called_what_it_is():
    def made(cell: Cell) -> dict[str, Any]:
        seeded = {"noise_source": "seeded"} if cell.seed == 1 else {}
        return summary(0.5, **noised(8.0) | seeded)

    (table,) = tables_of(*three_seeds(made))
    assert "protects nobody" in table.caption


@pytest.mark.parametrize(
    ("early", "one"),
    [
        # The code tells, whatever the sentences are.
        (
            {"code": "ended-early", "text": "one round was enough"},
            {"code": "privacy", "text": "the run ended before round 2: no"},
        ),
        # Earlier versions stored sentences alone.
        ("the run ended before round 2: a reason", "one for all"),
    ],
)
def test_warnings_stand_below_the_table_and_rows_that_ended_early_are_marked(early, one):
    def made(cell: Cell) -> dict[str, Any]:
        own = [early] if (cell.method, cell.seed) == ("promptfl", 1) else []
        return summary(0.5, warnings=[*own, one])

    said, for_all = (each if isinstance(each, str) else each["text"] for each in (early, one))
    grid, outcomes = three_seeds(made)
    tables = tables_of(grid, outcomes)
    text = markdown(tables)
    assert [line.split("|")[1] for line in body(text)[2:]] == [" CoOp ", " PromptFL † "]
    assert text.endswith(f"- {for_all}\n- {said}\n")
    assert "ended early" in tables[0].caption and r"PromptFL $\dagger$" in latex(tables)
    coop, promptfl = document(results(grid, outcomes))["cells"]
    assert (coop["ended_early"], coop["warnings"]) == ([], [for_all])
    assert (promptfl["ended_early"], promptfl["warnings"]) == (["run4"], [for_all, said])


def test_results_are_tidy_and_lose_nothing():
    grid = grid_of("task.shots=1,2", methods=("promptfl",), seeds=(7,))
    made = outcomes_of(grid, lambda c: summary(1 / 3, **noised(8.0)))
    written = results_csv([record_of(o) for o in made], ["task.shots"])
    rows = list(csv.DictReader(io.StringIO(written)))
    assert len(rows) == 2 * 7
    (row,) = [r for r in rows if r["measure"] == "local" and r["task.shots"] == "2"]
    assert float(row["value"]) == 1 / 3
    # An empty string is what has no value.
    expected = {
        "dataset": "shapes",
        "method": "promptfl",
        "seed": "7",
        "selection": "last",
        "unit": "client",
        "mechanism": "upload_noise",
        "relation": "replace_one",
        "delta": "1e-05",
        "sampling": "none",
        "accountant": "rdp",
        "noise_source": "os",
        **{"epsilon_server": "8.0", "epsilon_peers": "4.0", "epsilon_observer": "0.0"},
        **{"committed_rounds": "2", "chosen_round": "", "run": "run1"},
    }
    assert {name: row[name] for name in expected} == expected
    assert len({r["measure"] for r in rows}) == 7


def test_the_document_has_means_deviations_and_failures():
    def made(cell: Cell) -> dict[str, Any] | None:
        return None if cell.seed == 2 else summary(0.5 + 0.1 * cell.seed)

    grid = grid_of(methods=("coop",), seeds=(0, 1, 2))
    found = document(results(grid, outcomes_of(grid, made)))
    (cell,) = found["cells"]
    local = cell["selections"][LAST]["local"]
    assert local["mean"] == pytest.approx(0.55)
    assert local["deviation"] == pytest.approx(0.1 / math.sqrt(2))
    assert local["values"] == [0.5, 0.6]
    assert (cell["seeds"], cell["runs"]) == ([0, 1], ["run0", "run1"])
    assert cell["privacy"]["epsilon"]["server"] == "inf"
    assert found["failed"] == [{"cell": "comparison, coop, seed 2", "error": "a reason"}]


PLAIN = tables_of(*three_seeds())[0]


@settings(max_examples=30)
@given(st.text("ab&%_#${}\\~^±∞", max_size=8))
def test_whatever_stands_in_a_value_tables_stay_whole(value):
    row = replace(PLAIN.rows[0], name=value)
    changed = replace(
        PLAIN, caption=PLAIN.caption + value, rows=(row,), adversaries={"server": "server"}
    )
    require_whole(latex([changed]).replace(r"\textbackslash{}", ""))
    assert all(line.count("|") == 5 for line in body(markdown([changed])))


def pictures_of(outcomes: list[Outcome]) -> dict[str, Any]:
    made = sweep_pictures([replace(record_of(o), method=o.cell.title) for o in outcomes])
    return {picture.name: picture for pictures in made.values() for picture in pictures}


def values_of(line: Any) -> list[tuple[float, float]]:
    return [(p.x, round(p.y, 3)) for p in line.points]


def test_lines_are_means_over_seeds():
    def made(cell: Cell) -> dict[str, Any]:
        value = 0.5 + 0.1 * cell.seed + 0.2 * (cell.method == "coop")
        return summary(value)

    grid = grid_of("task.shots=1,2", methods=("coop", "promptfl"), seeds=(0, 1))
    pictures = pictures_of(outcomes_of(grid, made))
    assert set(pictures) == {"curves", "tradeoff", "final", "clients", "shots"}
    # A colour for each method, and the settings beside each other.
    final = pictures["final"]
    assert final.rows == ("shots = 1", "shots = 2") and list(final.series) == ["CoOp", "PromptFL"]
    assert [round(bar.value, 3) for bar in final.series["PromptFL"]] == [55.0, 55.0]
    (panel,) = pictures["shots"].panels
    assert panel.across.label == "task.shots"
    assert [line.label for line in panel.lines] == ["CoOp", "PromptFL"]
    for line, expected in zip(panel.lines, (75.0, 55.0), strict=True):
        assert values_of(line) == [(1.0, expected), (2.0, expected)]
        for point in line.points:
            assert point.high - point.y == pytest.approx(10.0 / 2**0.5)


def test_values_of_epsilon_are_points_of_one_line():
    noise = ("privacy.mechanism=upload_noise", "privacy.clipping_norm=1.0")
    grid = grid_of("privacy.target_epsilon=8,1,2", "task.shots=1,2", *noise, seeds=(0, 1))

    def made(cell: Cell) -> dict[str, Any]:
        spent = float(dict(cell.axes)["privacy.target_epsilon"])
        return summary(0.5 + spent / 20, **noised(spent - 0.01 * cell.seed))

    first = pictures_of(outcomes_of(grid, made))["tradeoff"].panels[0]
    assert [line.label for line in first.lines] == [f"PromptFL, shots = {n}" for n in (1, 2)]
    # In the order of epsilon, and the larger one of both seeds.
    assert values_of(first.lines[0]) == [(1.0, 55.0), (2.0, 60.0), (8.0, 90.0)]
