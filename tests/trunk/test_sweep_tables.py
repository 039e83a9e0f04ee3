"""Tables of a sweep from made-up summaries: numbers by hand, Markdown and LaTeX to the letter."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.config import PACKAGED_CONFIGS, dump_tree, load_config
from platform.experiment.caveats import ENDED_EARLY, OF_RUN, evaluation_document
from platform.results.numbers import Label, Spread
from platform.sweeping.grid import Cell, Grid
from platform.sweeping.running import Outcome
from platform.sweeping.tables import (
    Number,
    Table,
    build_tables,
    document,
    escape,
    latex,
    markdown,
    shown_epsilon,
    shown_number,
)
from platform.sweeping.tidy import LAST, record_of, results_csv, rounds_csv
from tests.trunk._sweeps import Made, accuracy, grid_of, noised, outcomes_of, summary

BY_METHOD = {"coop": (0.70, 0.72, 0.74), "promptfl": (0.80, 0.84, 0.85)}


def by_method(cell: Cell) -> dict[str, Any]:
    return summary(BY_METHOD[cell.method][cell.seed])


def three_seeds(make: Made = by_method, **more: Any) -> tuple[Grid, list[Outcome]]:
    grid = grid_of(methods=("coop", "promptfl"), seeds=(0, 1, 2), **more)
    return grid, outcomes_of(grid, make)


def tables_of(grid: Grid, outcomes: list[Outcome]) -> list[Table]:
    return build_tables(grid, [record_of(o) for o in outcomes if o.summary is not None])


def body(text: str) -> list[str]:
    """The lines of a Markdown table."""
    return [line for line in text.splitlines() if line.startswith("|")]


def test_mean_and_sample_deviation_by_hand() -> None:
    # Mean 0.83; squares 9e-4 + 1e-4 + 4e-4 = 14e-4, halved 7e-4, root 0.0264575.
    spread = Spread((0.80, 0.84, 0.85))
    assert spread.mean == pytest.approx(0.83)
    assert spread.deviation == pytest.approx(0.02645751)
    assert Spread((0.5,)).deviation is None
    assert shown_number(Number(spread)) == "83.00 ± 2.65"
    assert shown_number(Number(Spread((0.5,)))) == "50.00"
    assert shown_number(Number(spread, missing=2)) == "83.00 ± 2.65 (n=3)"
    assert shown_number(Number(None)) == "-"


def test_the_table_to_the_letter() -> None:
    assert markdown(tables_of(*three_seeds())) == (
        "Percent; client mean: every client on its own test examples; the last round, after "
        "personalising; rounds: 2; mean ± sample standard deviation over seeds 0, 1, 2; "
        "privacy: none.\n"
        "\n"
        "| method | accuracy |\n"
        "|---|---:|\n"
        "| `coop` | 72.00 ± 2.00 |\n"
        "| `promptfl` | **83.00 ± 2.65** |\n"
        "\n"
        "Local training:\n"
        "\n"
        "- sgd, learning rate 0.02, momentum 0, weight decay 0, 4 steps a round in batches of 8; "
        "constant rates\n"
    )


def test_rows_of_several_optimisers_say_whose_each_is() -> None:
    own = ("coop:training.optimizer=adamw", "coop:training.betas=[0.9, 0.98]")
    grid, outcomes = three_seeds(method_settings=own)
    (table,) = tables_of(grid, outcomes)
    rest = "weight decay 0, 4 steps a round in batches of 8; constant rates"
    assert table.training == (
        f"coop: adamw, learning rate 0.02, betas 0.9 and 0.98, eps 1e-08, {rest}",
        f"promptfl: sgd, learning rate 0.02, momentum 0, {rest}",
    )
    assert f"  % Local training: {table.training[0]}\n" in latex([table])
    found = {g["method"]: g["training"] for g in document(grid, outcomes, Path("o"))["cells"]}
    assert found["coop"]["betas"] == [0.9, 0.98]
    assert found["promptfl"]["momentum"] == 0.0


def test_a_method_of_several_optimisers_is_named_with_its_values() -> None:
    grid = grid_of("training.momentum=0,0.9")
    outcomes = outcomes_of(grid, lambda cell: summary(0.5))
    (table,) = tables_of(grid, outcomes)
    assert [line.partition(": sgd")[0] for line in table.training] == [
        "promptfl in comparison, training.momentum=0",
        "promptfl in comparison, training.momentum=0.9",
    ]


def test_rows_by_readings_of_ours_are_marked() -> None:
    grid = grid_of(methods=("pfedprompt", "promptfl"))
    (table,) = tables_of(grid, outcomes_of(grid, lambda cell: summary(0.5)))
    assert [row.marks for row in table.rows] == [" ‡", ""]
    assert table.caption.endswith(
        "; ‡ pfedprompt is a reading of ours: the paper was not at hand; the form of its attention "
        "and two numbers are ours."
    )
    assert "| `pfedprompt` ‡ |" in markdown([table])
    assert "| `promptfl` |" in markdown([table])
    assert r"    pfedprompt $\ddagger$ & " in latex([table])


def test_the_same_in_latex() -> None:
    text = latex(tables_of(*three_seeds()))
    assert text.startswith("% Needs \\usepackage{booktabs}.\n\\begin{table}\n")
    assert r"    method & accuracy \\" in text
    assert r"    coop & 72.00 $\pm$ 2.00 \\" in text
    assert r"    promptfl & \textbf{83.00 $\pm$ 2.65} \\" in text
    require_whole(text)


def require_whole(text: str) -> None:
    """Environments and braces are balanced, and every row has the columns of its `tabular`."""
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
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


def test_a_single_seed_shows_no_deviation() -> None:
    grid = grid_of(methods=("coop", "promptfl"))
    text = markdown(tables_of(grid, outcomes_of(grid, by_method)))
    assert body(text)[2:] == ["| `coop` | 70.00 |", "| `promptfl` | **80.00** |"]
    assert "; seed 0; " in text


def test_what_looks_equal_is_equally_best_and_one_row_is_not_the_best_of_one() -> None:
    values = {"coop": 0.80001, "promptfl": 0.80002}
    grid = grid_of(methods=("coop", "promptfl"))
    text = markdown(tables_of(grid, outcomes_of(grid, lambda c: summary(values[c.method]))))
    assert body(text)[2:] == ["| `coop` | **80.00** |", "| `promptfl` | **80.00** |"]
    alone = grid_of()
    assert "**" not in markdown(tables_of(alone, outcomes_of(alone, lambda c: summary(0.5))))


def test_missing_runs_are_shown() -> None:
    def made(cell: Cell) -> dict[str, Any] | None:
        return None if cell.method == "coop" or cell.seed == 1 else by_method(cell)

    text = markdown(tables_of(*three_seeds(made)))
    # The mean of 0.80 and 0.85; half the square of 0.05 has the root 0.0353553.
    assert body(text)[2:] == ["| `coop` | - |", "| `promptfl` | 82.50 ± 3.54 (n=2) |"]
    assert "4 of 6 runs are missing." in text


TO_NOVEL = ("evaluation.protocol=base_to_novel", "task.clients=5")
NOVEL = {"name": "base_to_novel", "local": 0.9, "base": 0.8, "novel": 0.6, "harmonic_mean": 0.74}


def test_base_to_novel_has_the_papers_four_columns() -> None:
    grid = grid_of(*TO_NOVEL, methods=("coop", "fedpgp"), seeds=(0,))
    outcomes = outcomes_of(
        grid, lambda c: summary(0.9 if c.method == "coop" else 0.95, protocol=NOVEL)
    )
    text = markdown(tables_of(grid, outcomes))
    assert body(text)[0] == "| method | Local | Base | Novel | HM |"
    assert body(text)[2] == "| `coop` | 90.00 | **80.00** | **60.00** | **74.00** |"
    assert body(text)[3] == "| `fedpgp` | **95.00** | **80.00** | **60.00** | **74.00** |"
    assert "harmonic mean; the last round" in text


def test_several_data_sets_make_groups_of_columns() -> None:
    both: Any = {"configs": ("comparison", "pathological"), "methods": ("coop", "promptfl")}
    grid = grid_of(*TO_NOVEL, **both)
    made = outcomes_of(
        grid,
        lambda c: summary(0.5, protocol=NOVEL, dataset={"comparison": "dtd"}.get(c.config, "food")),
    )
    tables = tables_of(grid, made)
    assert body(markdown(tables))[0] == (
        "| method | dtd Local | dtd Base | dtd Novel | dtd HM | food Local | food Base | "
        "food Novel | food HM |"
    )
    text = latex(tables)
    assert r"     & \multicolumn{4}{c}{dtd} & \multicolumn{4}{c}{food} \\" in text
    assert r"    \cmidrule(lr){2-5} \cmidrule(lr){6-9}" in text
    require_whole(text)
    grid = grid_of(**both)
    plain = outcomes_of(grid, lambda c: summary(0.5, dataset=c.config[:4]))
    assert body(markdown(tables_of(grid, plain)))[0] == "| method | comp | path |"
    same = outcomes_of(grid, lambda c: summary(0.5))
    assert body(markdown(tables_of(grid, same)))[0] == "| method | comparison | pathological |"


@pytest.fixture
def held_out(tmp_path: Path) -> str:
    tree = yaml.safe_load((PACKAGED_CONFIGS / "comparison.yaml").read_text())
    tree["evaluation"] = {"protocol": "leave_one_domain_out"}
    tree["task"] |= {"partition": {"kind": "domain"}, "clients": 5}
    path = tmp_path / "held.yaml"
    path.write_text(dump_tree(tree))
    return str(path)


def test_held_out_domains_are_columns_with_their_mean(held_out: str) -> None:
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
    first = "55.00 ± 7.07 | 35.00 ± 7.07 | 45.00 ± 7.07 |"
    # TRIP's second seed lacks a domain: it counts for the other one, and not for the mean.
    second = "**70.00 (n=1)** | **55.00 ± 7.07** | **60.00 (n=1)** |"
    assert body(text)[0] == "| method | rounds | real | sketch | Avg. |"
    assert body(text)[2:] == [
        f"| `coop` | 1 | {first}",
        f"| `coop` | 2 | {first}",
        f"| `trip` | 1 | {second}",
        f"| `trip` | 2 | {second}",
    ]


def test_epsilons_are_shown_where_a_mechanism_is_on_and_are_never_rounded_down() -> None:
    def made(cell: Cell) -> dict[str, Any]:
        if cell.method == "coop":
            return summary(0.5)
        return summary(0.5, **noised(7.984 + 0.005 * cell.seed))

    tables = tables_of(*three_seeds(made))
    text = markdown(tables)
    assert body(text)[0] == ("| method | accuracy | epsilon (server / peers / observer) | delta |")
    assert body(text)[2].endswith("| ∞ / ∞ / ∞ | - |")
    # The worst seed: 7.994 and its half 3.997; the first would read 7.99.
    assert body(text)[3].endswith("| 8.00 / 4.00 / 0.00 | 1e-05 |")
    assert (
        "; privacy: upload_noise, unit a whole client, replace_one, sampling none, accountant rdp, "
        "discrete noise, source os, others without; epsilon of the worst run of a row, rounded up; "
        "epsilon of one run: whoever sees several rows on the same clients sees their composition."
    ) in text
    assert "seed:" not in text
    assert r"$\infty$ / $\infty$ / $\infty$ & - \\" in latex(tables)
    require_whole(latex(tables))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(8.0, "8.00"), (8.0000004, "8.00"), (8.001, "8.01"), (0.0, "0.00"), (math.inf, "∞")],
)
def test_an_epsilon_is_rounded_up(value: float, shown: str) -> None:
    assert shown_epsilon(value) == shown


BEST: dict[str, Any] = {
    **{"round": 1, "validation": 0.7, "accuracy": accuracy(0.6)},
    "protocol": {"name": "client_mean"},
}


@pytest.mark.parametrize("release", ["none", "noised"])
def test_a_chosen_round_is_captioned_with_the_runs_own_words(release: str) -> None:
    words = evaluation_document(
        load_config(
            Path("comparison"),
            [
                *("task.validation_share=0.2", "evaluation.selection=best_on_validation"),
                "evaluation.every=1",
                *(("privacy.mechanism=none",) if release == "none" else NOISED_RELEASE),
            ],
        )
    )
    grid = grid_of()
    made = outcomes_of(grid, lambda c: summary(0.5, best_on_validation=BEST, evaluation=words))
    last, best = tables_of(grid, made)
    chosen = words["selection"].partition("beside it ")[2]
    assert chosen.startswith("the round with the best ") and chosen in best.caption
    assert ("noised" in best.caption) == (release == "noised")
    assert chosen not in last.caption


NOISED_RELEASE = (
    "evaluation.release=noised",
    "evaluation.every=1",
    "privacy={mechanism: upload_noise, clipping_norm: 1.0, noise_multiplier: 1.0}",
)


def test_noise_from_a_seed_is_called_what_it_is() -> None:
    def made(cell: Cell) -> dict[str, Any]:
        seeded = {"noise_source": "seeded"} if cell.seed == 1 else {}
        return summary(0.5, **noised(8.0) | seeded)

    (table,) = tables_of(*three_seeds(made))
    assert "; noise from a seed: protects nobody; " in table.caption


def test_warnings_stand_below_the_table_and_rows_that_ended_early_are_marked() -> None:
    early = "the run ended before round 2: a reason"

    def made(cell: Cell) -> dict[str, Any]:
        own = [early] if (cell.method, cell.seed) == ("promptfl", 1) else []
        return summary(0.5, warnings=[*own, "one for all"])

    grid, outcomes = three_seeds(made)
    tables = tables_of(grid, outcomes)
    text = markdown(tables)
    assert body(text)[2:] == [
        "| `coop` | **50.00 ± 0.00** |",
        "| `promptfl` † | **50.00 ± 0.00** |",
    ]
    assert text.endswith(f"\nWarnings of the runs:\n\n- one for all\n- {early}\n")
    assert "† a run of the row ended early." in tables[0].caption
    assert r"    promptfl $\dagger$ & " in latex(tables)
    coop, promptfl = document(grid, outcomes, Path("there"))["cells"]
    assert (coop["ended_early"], coop["warnings"]) == ([], ["one for all"])
    assert (promptfl["ended_early"], promptfl["warnings"]) == (["run4"], ["one for all", early])


def test_a_budget_that_ends_a_run_is_known_by_the_reports_own_warning() -> None:
    # What `Federation.run_rounds` says where a budget is exhausted.
    assert f"{OF_RUN}ended before round 2: a reason".startswith(ENDED_EARLY)


def test_the_document_has_what_only_a_later_run_measured() -> None:
    grid = grid_of(seeds=(0, 1))
    made = outcomes_of(grid, lambda c: summary(0.5, best_on_validation=BEST if c.seed else None))
    (cell,) = document(grid, made, Path("there"))["cells"]
    assert cell["selections"]["best_on_validation"]["local"] == {
        **{"mean": 0.6, "deviation": None, "n": 1, "values": [0.6]}
    }
    assert cell["selections"][LAST]["local"]["n"] == 2
    assert cell["privacy"].keys() >= {"sampling", "accountant", "noise_source"}


def test_best_on_validation_and_new_clients_have_tables_of_their_own() -> None:
    new = {"clients": 2, "before": accuracy(0.3), "after": accuracy(0.4)}
    grid = grid_of(methods=("coop", "promptfl"))
    made = outcomes_of(grid, lambda c: summary(0.5, best_on_validation=BEST, new_clients=new))
    tables = tables_of(grid, made)
    text = markdown(tables)
    assert len(tables) == 3
    assert body(text)[2] == "| `coop` | **50.00** |"
    assert body(text)[6] == "| `coop` | **60.00** |"
    assert body(text)[8:11:2] == [
        "| method | before | after |",
        "| `coop` | **30.00** | **40.00** |",
    ]
    assert "the round with the best mean validation accuracy, before personalising" in text
    assert latex(tables).count(r"\begin{tabular}") == 3
    rows = parse(results_csv([record_of(made[0])], []))
    assert [r["value"] for r in rows if r["measure"] == "validation"] == ["0.7"]
    # A round is no share: it has a column of its own.
    assert "round" not in {r["measure"] for r in rows}
    assert {(r["selection"], r["chosen_round"]) for r in rows} == {
        *(("last", ""), ("best_on_validation", "1"), ("new_clients", ""))
    }
    assert {r["selection"] for r in rows} == {"last", "best_on_validation", "new_clients"}


def test_each_protocol_has_its_table() -> None:
    grid = grid_of(
        *("evaluation.protocol=client_mean,base_to_novel", "task.clients=5"), methods=("coop",)
    )
    made = outcomes_of(
        grid,
        lambda c: summary(0.5, protocol=NOVEL if "base_to_novel" in str(c) else None),
    )
    tables = tables_of(grid, made)
    assert [(len(table.columns), len(table.rows)) for table in tables] == [(1, 1), (4, 1)]
    assert all("missing" not in table.caption for table in tables)


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_results_are_tidy_and_lose_nothing() -> None:
    grid = grid_of("task.shots=1,2", methods=("promptfl",), seeds=(7,))
    made = outcomes_of(grid, lambda c: summary(1 / 3, **noised(8.0)))
    rows = parse(results_csv([record_of(o) for o in made], ["task.shots"]))
    assert len(rows) == 2 * 7
    (row,) = [r for r in rows if r["measure"] == "local" and r["task.shots"] == "2"]
    assert float(row["value"]) == 1 / 3
    assert row == {
        **{"config": "comparison", "dataset": "shapes", "method": "promptfl", "seed": "7"},
        **{"task.shots": "2", "protocol": "client_mean", "selection": "last"},
        **{"measure": "local", "value": str(1 / 3), "unit": "client"},
        **{"mechanism": "upload_noise", "relation": "replace_one", "delta": "1e-05"},
        **{"sampling": "none", "accountant": "rdp"},
        **{"noise_distribution": "discrete", "noise_source": "os"},
        **{"epsilon_server": "8.0", "epsilon_peers": "4.0", "epsilon_observer": "0.0"},
        **{"committed_rounds": "2", "chosen_round": "", "run": "run1"},
    }
    assert {r["measure"] for r in rows} == {
        *("local", "weighted", "std", "worst", "local_twin", "gain_over_local"),
        "worth_of_sharing",
    }


def test_rounds_have_a_row_each() -> None:
    grid = grid_of(seeds=(0, 1))
    rows = parse(rounds_csv(outcomes_of(grid, lambda c: summary(0.5)), []))
    assert [(r["seed"], r["round"], r["accuracy_mean"]) for r in rows] == [
        *(("0", "1", "0.25"), ("0", "2", "0.5"), ("1", "1", "0.25"), ("1", "2", "0.5"))
    ]


def test_a_failed_cell_has_no_numbers() -> None:
    grid = grid_of()
    (failed,) = outcomes_of(grid, lambda c: None)
    with pytest.raises(ValueError, match="has not finished"):
        record_of(failed)


def test_the_document_has_means_deviations_and_failures() -> None:
    def made(cell: Cell) -> dict[str, Any] | None:
        return None if cell.seed == 2 else summary(0.5 + 0.1 * cell.seed)

    grid = grid_of(methods=("coop",), seeds=(0, 1, 2))
    found = document(grid, outcomes_of(grid, made), Path("there"))
    (cell,) = found["cells"]
    local = cell["selections"][LAST]["local"]
    assert local["mean"] == pytest.approx(0.55)
    assert local["deviation"] == pytest.approx(0.1 / math.sqrt(2))
    assert local["values"] == [0.5, 0.6]
    assert (cell["seeds"], cell["runs"]) == ([0, 1], ["run0", "run1"])
    assert cell["privacy"]["epsilon"]["server"] == "inf"
    assert found["failed"] == [{"cell": "comparison, coop, seed 2", "error": "a reason"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5%", r"a\_b \& 5\%"),
        ("{$#}", r"\{\$\#\}"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("1 ± 2 ∞ < >", r"1 $\pm$ 2 $\infty$ $<$ $>$"),
    ],
)
def test_latex_is_escaped(text: str, expected: str) -> None:
    assert escape(text) == expected


PLAIN = tables_of(*three_seeds())[0]


@settings(max_examples=30)
@given(st.text("ab&%_#${}\\~^±∞", max_size=8))
def test_whatever_stands_in_a_value_tables_stay_whole(value: str) -> None:
    table = PLAIN
    row = table.rows[0]
    label = Label(value, ())
    changed = Table(
        caption=table.caption + value,
        axes=table.axes,
        columns=table.columns,
        rows=(type(row)(label=label, numbers=row.numbers, epsilon=row.epsilon),),
        is_private=True,
    )
    require_whole(latex([changed]).replace(r"\textbackslash{}", ""))
    assert all(line.count("|") == 5 for line in body(markdown([changed])))
