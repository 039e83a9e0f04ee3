"""The grid of a sweep: which cells there are, in which order, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from platform.config import PACKAGED_CONFIGS, load_config
from platform.errors import ConfigError
from platform.results.sweeping.grid import (
    Grid,
    SweepRequest,
    absolute_storage,
    build_grid,
    identity,
    parse_names,
    parse_seeds,
    split_values,
)


def grid_of(*settings: str, **more: Any) -> Grid:
    request = {"configs": ("comparison",), "settings": settings, **more}
    return build_grid(SweepRequest(**request))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, 2 ,4", ("1", "2", "4")),
        ("[a,b],[c]", ("[a,b]", "[c]")),
        ("{kind: iid, alpha: 1},x", ("{kind: iid, alpha: 1}", "x")),
        ('"a, b",c', ('"a, b"', "c")),
        ("'[',']'", ("'['", "']'")),
        ("1,,2", ("1", "", "2")),
    ],
)
def test_only_commas_at_the_top_part_values(text, expected):
    assert split_values(text) == expected


@given(st.lists(st.lists(st.integers(), max_size=3), min_size=1, max_size=5))
def test_lists_come_back_as_they_were(lists):
    parts = split_values(",".join(map(str, lists)))
    assert [yaml.safe_load(part) for part in parts] == lists


def test_cells_are_the_product_in_the_order_of_the_command():
    lists = "task.domains=[real,sketch],[real]"
    grid = grid_of(lists, "task.shots=1,2", "rounds=3", methods=("coop", "promptfl"), seeds=(5, 0))
    assert [str(cell) for cell in grid.cells] == [
        f"comparison, {method}, seed {seed}, task.domains={domains}, task.shots={shots}"
        for domains in ("[real,sketch]", "[real]")
        for shots in (1, 2)
        for method in ("coop", "promptfl")
        for seed in (5, 0)
    ]
    assert grid.axes == (("task.domains", ("[real,sketch]", "[real]")), ("task.shots", ("1", "2")))
    assert (grid.methods, grid.seeds) == (("coop", "promptfl"), (5, 0))
    assert all(cell.run.rounds == 3 for cell in grid.cells)
    assert [cell.run.task.shots for cell in grid.cells] == [1, 1, 1, 1, 2, 2, 2, 2] * 2
    assert [cell.seed for cell in grid.cells] == [5, 0] * 8
    assert grid.digest != grid_of(seeds=(5, 0)).digest


def test_the_configurations_own_method_keeps_its_section_and_others_take_their_preset():
    own, other = grid_of(configs=("expert-pool",), methods=("pfedmoap", "promptfl")).cells
    section = yaml.safe_load((PACKAGED_CONFIGS / "expert-pool.yaml").read_text())["method"]
    preset = yaml.safe_load((PACKAGED_CONFIGS / "methods" / "promptfl.yaml").read_text())
    assert {"name": own.run.method.name, **own.run.method.options} == section
    assert {"name": other.run.method.name, **other.run.method.options} == preset


def test_a_setting_for_one_method_leaves_the_others_alone():
    grid = grid_of(
        "training.learning_rate=0.3",
        methods=("promptfl", "coop"),
        method_settings=("coop:training.learning_rate=0.1", "coop:training.momentum=0.9"),
    )
    found = [(c.run.training.learning_rate, c.run.training.momentum) for c in grid.cells]
    assert found == [(0.3, 0.0), (0.1, 0.9)]


def test_storage_is_absolute_and_no_part_of_what_a_run_is(tmp_path):
    (cell,) = grid_of(storage="sqlite:///here/sotto.db").cells
    assert cell.run.storage.url == f"sqlite:///{Path.cwd()}/here/sotto.db"
    (moved,) = grid_of(storage=f"sqlite:///{tmp_path}/sotto.db").cells
    assert cell.identity == moved.identity
    assert absolute_storage("sqlite:///:memory:") == "sqlite:///:memory:"


def test_every_other_key_is_part_of_what_a_run_is():
    cells = grid_of("task.shots=1,2", methods=("coop", "promptfl"), seeds=(0, 1)).cells
    assert len({cell.identity for cell in cells}) == 8
    tree = load_config(Path("comparison")).model_dump(mode="json")
    assert identity(tree) != identity({**tree, "device": "cpu"})
    (on_cpu,) = grid_of(device="cpu").cells
    assert on_cpu.run.device == "cpu"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"settings": ("task.shots=1,,2",)}, "an empty value"),
        ({"settings": ("task.shots=1,1",)}, "'1' is given twice"),
        ({"settings": ("seed=1",)}, "use --seed"),
        ({"settings": ("method={name: coop}",)}, "use --method"),
        ({"settings": ("name=a",)}, "--set: 'name'"),
        ({"method_settings": ("promptfl:method={name: coop}",)}, "--for: 'method'"),
        ({"settings": ("training.learning_rate=0.1,1.0e-1",)}, "the same run"),
        (
            {
                "settings": ("task.partition={kind: iid},{kind: dirichlet}",),
                "method_settings": ("promptfl:task.partition.kind=iid",),
            },
            "is an axis already",
        ),
        ({"methods": ("coop", "coop")}, "--method: 'coop'"),
        ({"configs": ("nowhere",)}, "CONFIG: 'nowhere'"),
        ({"method_settings": ("coop:rounds",)}, "METHOD:KEY=VALUE"),
        ({"method_settings": ("coop:rounds=2",)}, "--for: 'coop'"),
        (
            {"settings": ("method.experts=1,2",), "methods": ("pfedmoap", "coop")},
            "cell (comparison, coop, seed 0, method.experts=1) and 1 more: method.experts: ",
        ),
    ],
)
def test_bad_input_is_one_sentence(request_, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        build_grid(SweepRequest(**({"configs": ("comparison",)} | request_)))
    assert "\n" not in str(caught.value)


def test_lists_of_seeds_and_names():
    assert parse_seeds("0, 1,12") == (0, 1, 12)
    for text in ("", "a", "1,", "-1", "1.5", "٣"):
        with pytest.raises(ConfigError, match="--seed"):
            parse_seeds(text)
    assert parse_names("coop, fedpgp") == ("coop", "fedpgp")
    with pytest.raises(ConfigError, match="--method"):
        parse_names("coop,,fedpgp")


def test_a_pool_that_no_cell_could_serve_is_refused_with_the_grid():
    said = r"method\.experts=9\): pool\.minimum: .*20 entries.*at most 6"
    with pytest.raises(ConfigError, match=said):
        grid_of("method.experts=1,2,9", "task.clients=6", methods=("pfedmoap",))
    assert len(grid_of("method.experts=1,2", "task.clients=6", methods=("pfedmoap",)).cells) == 2
    with pytest.raises(ConfigError, match=r"pm_moe, seed 0\): task.clients: 1"):
        grid_of("task.clients=1", "cohort.minimum=1", methods=("pm_moe",))
