"""The grid of a sweep: which cells there are, in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import methods
from methods import Registry
from platform.config import PACKAGED_CONFIGS, dump_tree, load_config
from platform.errors import ConfigError
from platform.results.comparisons import numeric
from platform.sweeping.grid import (
    SweepRequest,
    absolute_storage,
    build_grid,
    describe,
    for_one_alone,
    identity,
    parse_names,
    parse_seeds,
    split_values,
)
from tests.trunk._sweeps import grid_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", ("4",)),
        ("1,2,4", ("1", "2", "4")),
        ("1, 2 ,4", ("1", "2", "4")),
        ("[a,b]", ("[a,b]",)),
        ("[a,b],[c]", ("[a,b]", "[c]")),
        ("{kind: iid, alpha: 1},x", ("{kind: iid, alpha: 1}", "x")),
        ('"a, b",c', ('"a, b"', "c")),
        ("'[',']'", ("'['", "']'")),
        ("null,16", ("null", "16")),
        ("", ("",)),
        ("1,,2", ("1", "", "2")),
    ],
)
def test_only_commas_at_the_top_part_values(text: str, expected: tuple[str, ...]) -> None:
    assert split_values(text) == expected


@given(st.lists(st.lists(st.integers(), max_size=3), min_size=1, max_size=5))
def test_lists_come_back_as_they_were(lists: list[list[int]]) -> None:
    parts = split_values(",".join(map(str, lists)))
    assert [yaml.safe_load(part) for part in parts] == lists


def test_cells_are_the_product_in_the_order_of_the_command() -> None:
    grid = grid_of("task.shots=1,2", "rounds=3", methods=("coop", "promptfl"), seeds=(5, 0))
    assert [str(cell) for cell in grid.cells] == [
        f"comparison, {method}, seed {seed}, task.shots={shots}"
        for shots in (1, 2)
        for method in ("coop", "promptfl")
        for seed in (5, 0)
    ]
    assert grid.axes == (("task.shots", ("1", "2")),)
    assert (grid.configs, grid.methods, grid.seeds) == (
        ("comparison",),
        ("coop", "promptfl"),
        (5, 0),
    )
    assert all(cell.run.rounds == 3 for cell in grid.cells)
    assert [cell.run.task.shots for cell in grid.cells] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [cell.seed for cell in grid.cells] == [5, 0] * 4


def test_a_list_is_one_value_and_no_axis() -> None:
    grid = grid_of("task.domains=[real,sketch]")
    assert grid.axes == () and len(grid.cells) == 1
    assert grid.cells[0].run.task.domains == ("real", "sketch")


def test_two_axes_multiply() -> None:
    grid = grid_of("task.shots=1,2", "training.learning_rate=0.1,0.2,0.3")
    points = [(c.run.task.shots, c.run.training.learning_rate) for c in grid.cells]
    assert points == [(s, r) for s in (1, 2) for r in (0.1, 0.2, 0.3)]


def test_without_methods_and_seeds_each_configuration_has_its_own() -> None:
    grid = grid_of(configs=("comparison", "expert-pool"))
    assert [(c.config, c.method, c.seed) for c in grid.cells] == [
        ("comparison", "promptfl", 0),
        ("expert-pool", "pfedmoap", 0),
    ]


def test_the_configurations_own_method_keeps_its_section_and_others_take_their_preset() -> None:
    own, other = grid_of(configs=("expert-pool",), methods=("pfedmoap", "promptfl")).cells
    section = yaml.safe_load((PACKAGED_CONFIGS / "expert-pool.yaml").read_text())["method"]
    preset = yaml.safe_load((PACKAGED_CONFIGS / "methods" / "promptfl.yaml").read_text())
    assert {"name": own.run.method.name, **own.run.method.options} == section
    assert {"name": other.run.method.name, **other.run.method.options} == preset


def test_a_setting_for_one_method_leaves_the_others_alone() -> None:
    grid = grid_of(
        "training.learning_rate=0.3",
        methods=("promptfl", "coop"),
        method_settings=("coop:training.learning_rate=0.1", "coop:training.momentum=0.9"),
    )
    found = [(c.run.training.learning_rate, c.run.training.momentum) for c in grid.cells]
    assert found == [(0.3, 0.0), (0.1, 0.9)]


def test_a_file_may_lack_what_the_sweep_sets(tmp_path: Path) -> None:
    tree = yaml.safe_load((PACKAGED_CONFIGS / "comparison.yaml").read_text())
    tree["evaluation"] = {"protocol": "leave_one_domain_out"}
    tree["task"]["partition"] = {"kind": "domain"}
    path = tmp_path / "held.yaml"
    path.write_text(dump_tree(tree))
    axis = "task.held_out_domain=real,sketch"
    grid = grid_of(axis, "task.clients=5", configs=(str(path),))
    assert [cell.run.task.held_out_domain for cell in grid.cells] == ["real", "sketch"]


def test_two_configurations_of_one_name_are_called_by_their_paths(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.yaml", "two.yaml")]
    tree = yaml.safe_load((PACKAGED_CONFIGS / "comparison.yaml").read_text())
    for number, path in enumerate(paths, start=1):
        path.write_text(dump_tree(tree | {"rounds": number}))
    grid = grid_of(configs=(*map(str, paths), "expert-pool"))
    assert grid.configs == (*map(str, paths), "expert-pool")


def test_storage_is_absolute_and_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    (cell,) = grid_of(storage="sqlite:///here/sotto.db").cells
    assert cell.run.storage.url == f"sqlite:///{Path.cwd()}/here/sotto.db"
    (moved,) = grid_of(storage=f"sqlite:///{tmp_path}/sotto.db").cells
    assert cell.identity == moved.identity
    assert absolute_storage("sqlite:///:memory:") == "sqlite:///:memory:"


def test_every_other_key_is_part_of_what_a_run_is() -> None:
    cells = grid_of("task.shots=1,2", methods=("coop", "promptfl"), seeds=(0, 1)).cells
    assert len({cell.identity for cell in cells}) == 8
    tree = load_config(Path("comparison")).model_dump(mode="json")
    assert identity(tree) != identity({**tree, "device": "cpu"})
    (on_cpu,) = grid_of(device="cpu").cells
    assert on_cpu.run.device == "cpu"


def test_the_digest_is_that_of_the_cells() -> None:
    assert grid_of(seeds=(0, 1)).digest == grid_of(seeds=(0, 1)).digest
    assert grid_of(seeds=(0, 1)).digest != grid_of(seeds=(0, 2)).digest


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"settings": ("shots",)}, "--set: 'shots' is not valid; it must be section.key=value"),
        ({"settings": ("task.shots=1,,2",)}, "--set: 'task.shots=1,,2' has an empty value"),
        ({"settings": ("task.shots=1,1",)}, "--set task.shots: '1' is given twice"),
        ({"settings": ("rounds=1", "rounds=2")}, "--set: 'rounds' is given twice"),
        ({"settings": ("seed=1",)}, "--set: 'seed' is not set this way; use --seed"),
        ({"settings": ("method.name=coop",)}, "use --method"),
        ({"settings": ("storage.url=x",)}, "use --storage"),
        ({"settings": ("storage={url: x}",)}, "--set: 'storage' is not set this way; use --sto"),
        ({"settings": ("method={name: coop}",)}, "--set: 'method' is not set this way; use --me"),
        ({"settings": ("name=a",)}, "--set: 'name' is not set this way; valid is the config"),
        ({"method_settings": ("promptfl:method={name: coop}",)}, "--for: 'method' is not set"),
        ({"method_settings": ("promptfl:name=a",)}, "--for: 'name' is not set this way"),
        (
            {"settings": ("training.learning_rate=0.1,1.0e-1",)},
            "cells (comparison, promptfl, seed 0, training.learning_rate=0.1) and (comparison, "
            "promptfl, seed 0, training.learning_rate=1.0e-1) are one and the same run",
        ),
        (
            {"settings": ("training.momentum=0,0.5", "training={local_steps: 1, batch_size: 4}")},
            "are one and the same run",
        ),
        (
            {
                "settings": ("training.momentum=0,0.5",),
                "method_settings": ("promptfl:training={learning_rate: 0.1}",),
            },
            "--for: 'training' is an axis already",
        ),
        (
            {
                "settings": ("task.partition={kind: iid},{kind: dirichlet}",),
                "method_settings": ("promptfl:task.partition.kind=iid",),
            },
            "--for: 'task.partition.kind' is an axis already",
        ),
        ({"methods": ("coop", "coop")}, "--method: 'coop' is given twice"),
        ({"seeds": (1, 1)}, "--seed: 1 is given twice"),
        ({"configs": ("comparison", "comparison")}, "CONFIG: 'comparison' is given twice"),
        ({"configs": ("nowhere",)}, "CONFIG: 'nowhere' is no file"),
        ({"method_settings": ("coop",)}, "--for: 'coop' is not valid; it must be METHOD:KEY"),
        ({"method_settings": ("coop:rounds",)}, "it must be METHOD:KEY=VALUE"),
        ({"method_settings": ("promptfl:seed=1",)}, "--for: 'seed' is not set this way"),
        ({"method_settings": ("coop:rounds=2",)}, "--for: 'coop' is no method of this sweep"),
        (
            {"settings": ("rounds=1,2",), "method_settings": ("promptfl:rounds=3",)},
            "--for: 'rounds' is an axis already",
        ),
    ],
)
def test_bad_input_is_one_sentence(request_: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_grid(SweepRequest(**({"configs": ("comparison",)} | request_)))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "methods", "sentence"),
    [
        (
            ("method.experts=1,2",),
            ("pfedmoap", "coop"),
            "cell (comparison, coop, seed 0, method.experts=1): method.experts: is not a known "
            "option of coop",
        ),
        (("rounds=5,0",), (), "cell (comparison, promptfl, seed 0, rounds=0): rounds: 0 is not"),
        ((), ("nix",), "cell (comparison, nix, seed 0): method.name: 'nix' is unknown"),
    ],
)
def test_a_refused_cell_is_named(
    settings: tuple[str, ...], methods: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        grid_of(*settings, methods=methods)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        ("method.experts: 9 is more", "; of one method alone: --for METHOD:method.experts=VALUE"),
        ("method.name: 'nix' is unknown", ""),
        ("rounds: 0 is not valid", ""),
    ],
)
def test_an_option_of_one_method_is_told_how(problem: str, hint: str) -> None:
    assert for_one_alone(problem) == hint


def test_a_refused_option_of_another_method_is_told_how() -> None:
    with pytest.raises(ConfigError, match=r"--for METHOD:method\.experts=VALUE$"):
        grid_of("method.experts=3", methods=("pfedmoap", "coop"))


def test_one_file_under_two_paths_is_one_run(tmp_path: Path) -> None:
    path, link = tmp_path / "one.yaml", tmp_path / "two.yaml"
    path.write_text((PACKAGED_CONFIGS / "comparison.yaml").read_text())
    link.symlink_to(path)
    with pytest.raises(ConfigError, match=r"one\.yaml, .* and \(.*two\.yaml, .* same run"):
        grid_of(configs=(str(path), str(link)))


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1.5", "٣"])
def test_seeds_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--seed"):
        parse_seeds(text)


def test_lists_of_names_and_seeds() -> None:
    assert parse_seeds("0, 1,12") == (0, 1, 12)
    assert parse_names("coop, fedpgp") == ("coop", "fedpgp")
    with pytest.raises(ConfigError, match="--method"):
        parse_names("coop,,fedpgp")


def test_an_axis_of_numbers_is_told_from_one_of_words() -> None:
    assert numeric(["1", "0.5", "1e-3"]) == [1.0, 0.5, 0.001]
    assert numeric(["1", "real"]) is None
    assert numeric(["1", "inf"]) is None
    assert describe("a", "b", 0, (("x.y", "1"),)) == "a, b, seed 0, x.y=1"


def test_a_pool_that_no_cell_could_serve_is_refused_with_the_grid() -> None:
    """It was refused once the sweep had come to that cell, hours later."""
    with pytest.raises(ConfigError) as caught:
        grid_of("method.experts=1,2,9", "task.clients=6", methods=("pfedmoap",))
    text = str(caught.value)
    assert text.startswith("cell (comparison, pfedmoap, seed 0, method.experts=9): pool.minimum: ")
    assert "hands experts out from 20 entries on" in text and "valid: at most 6" in text
    assert len(grid_of("method.experts=1,2", "task.clients=6", methods=("pfedmoap",)).cells) == 2
    with pytest.raises(ConfigError, match=r"pm_moe, seed 0\): task.clients: 1 cannot fill a pool"):
        grid_of("task.clients=1", "cohort.minimum=1", methods=("pm_moe",))


def test_every_method_with_a_pool_says_so_before_it_is_built() -> None:
    """Or a sweep would find out late; the contract holds what is said against what is built."""
    registry, folder = Registry(), Path(methods.__file__).parent
    with_pool = {
        path.stem for path in folder.glob("*.py") if "def pool_policy" in path.read_text("utf-8")
    }
    assert with_pool == {
        name
        for name in registry.available()
        if registry.serving(name, registry.config_type(name)(), 5) is not None
    }
