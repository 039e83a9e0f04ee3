"""PM-MoE's configurations say what the paper says, and its commands cover the tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from methods import Registry, Task
from platform.config import RunConfig, load_config
from platform.data.catalogue import dataset_info
from platform.experiment.method_building import build_method
from platform.results.sweeping.grid import Cell
from tests.papers._page import commands
from tests.papers._pm_moe import (
    BASES,
    BEST,
    CLASSES,
    FEDERATED,
    INPUTS,
    NETWORKS,
    TABLES,
    TEXT_OPTIONS,
    data_of,
)
from tests.papers._published import PAPERS, name_of

FILES = sorted((PAPERS / "pm-moe").rglob("*.yaml"))


def load(name: str) -> RunConfig:
    return load_config(Path("papers") / name)


@cache
def cells(output: str) -> tuple[Cell, ...]:
    """All cells of the commands that write into folders of this beginning."""
    chosen = [c for c in commands() if c.output.startswith(f"sweeps/pm-moe-{output}")]
    return tuple(cell for command in chosen for cell in command.grid().cells)


def ratio(cell: Cell) -> float | None:
    return cell.run.task.partition.shared_ratio


def test_every_table_has_its_files_and_no_other():
    assert [name_of(path) for path in FILES] == sorted(TABLES)
    assert len(TABLES) == 3 * 6 + 3


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_file_and_its_network_are_what_the_paper_says(name):
    config, data = load(name), data_of(name)
    assert (config.method.name, config.method.options) == TABLES[name]
    assert (config.name, config.seed) == (name.replace("/", "-"), 0)
    task, training = config.task, config.training
    assert (task.dataset, task.root, task.model) == (data, "data", None)
    # "2000 rounds", "20 clients", S = 0; the rest is the published code's.
    assert (config.rounds, task.clients, config.cohort_size) == (2000, 20, 20)
    assert task.partition.model_dump(exclude_none=True) == {
        "kind": "shared_ratio",
        "alpha": 0.1,
        "shared_ratio": 0.0,
    }
    assert (task.shots, task.new_clients, task.domains) == (None, 0, None)
    assert (training.local_epochs, training.local_steps, training.batch_size) == (1, None, 10)
    assert (training.optimizer, training.learning_rate) == ("sgd", 0.005)
    assert (training.momentum, training.weight_decay) == (0.0, 0.0)
    # No file chooses by test data.
    assert (config.evaluation.selection, task.validation_share) == ("best_on_validation", 0.1)
    assert config.rounds % config.evaluation.every == 0
    assert (config.evaluation.protocol, config.evaluation.local_twins) == ("client_mean", False)
    assert config.privacy.mechanism == "none"
    assert not config.secure_aggregation.enabled

    info = dataset_info(data)
    assert len(info.classes) in (0, CLASSES[data])
    assert info.modality == ("texts" if data == "ag_news" else "images")
    classes = tuple(f"class {label}" for label in range(CLASSES[data]))
    method = build_method(Registry(), config, Task(classes, ("all",), 20, None, False))
    last = "extractor.fc.weight"
    kept = method.pool_policy()
    shapes = {**(kept.spec if kept else {}), **method.shared_spec()}
    assert shapes[last].shape == INPUTS[data]
    assert method.pixel_size == NETWORKS[data].get("image_size")


def expected_options(method: str, data: str) -> Mapping[str, Any]:
    own = TEXT_OPTIONS.get(method, {}) if data == "ag_news" else {}
    return {**NETWORKS[data], **own}


@pytest.mark.slow
def test_table_1_is_fourteen_methods_with_both_ratios_on_six_data_sets():
    found = {(c.method, c.run.task.dataset, ratio(c)): c for c in cells("table-1")}
    methods = (*FEDERATED, *BASES)
    assert set(found) == {(m, d, s) for m in methods for d in CLASSES for s in (0.0, 0.2)}
    for (method, data, _), cell in found.items():
        options, wanted = cell.run.method.options, expected_options(method, data)
        assert {key: options[key] for key in wanted} == wanted


@pytest.mark.slow
def test_table_2_is_nine_bases_with_both_ratios_on_six_data_sets():
    found = {
        (c.run.method.options["base"], c.run.task.dataset, ratio(c)): c for c in cells("table-2")
    }
    assert set(found) == {(b, d, s) for b in BASES for d in CLASSES for s in (0.0, 0.2)}
    assert len(cells("table-2")) == 9 * 6 * 2
    for (base, data, shared), cell in found.items():
        options = cell.run.method.options
        assert options["base_options"] == expected_options(base, data)
        # "setting k to half the number of clients", and "equal to the number of clients"
        assert options["top_k"] == {0.0: 10, 0.2: 20}[shared]
        assert options["gamma"] == 0.2


def test_table_3_leaves_denoising_out_and_table_4_is_on_all_data_sets():
    found = [(c.run.task.dataset, c.run.method.options["gamma"]) for c in cells("table-3")]
    assert sorted(found) == sorted((data, gamma) for data in BEST for gamma in (0, 0.2))
    assert {(c.method, c.run.task.dataset) for c in cells("table-4")} == {
        ("fed_syn_moe", data) for data in CLASSES
    }
    assert {ratio(c) for c in (*cells("table-3"), *cells("table-4"))} == {0.0}


@pytest.mark.parametrize(
    ("figure", "option", "values"),
    [
        ("5-layers", "gate_layers", {1, 2, 3, 4}),
        (
            "5-activations",
            "activation",
            {"relu", "leaky_relu", "prelu", "elu", "selu", "silu", "mish"},
        ),
        (
            "5-starts",
            "initialisation",
            {"uniform", "normal", "xavier", "kaiming", "orthogonal", "spectral"},
        ),
        ("6", "top_k", {2, 4, 8, 16, 20}),
        ("7", "gate_rate", {0.05, 0.1, 0.5}),
    ],
)
def test_a_figure_has_the_values_of_the_paper(figure, option, values):
    assert {c.run.method.options[option] for c in cells(f"figure-{figure}")} == values
