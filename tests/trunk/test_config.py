"""Configurations: errors in one sentence, presets before overrides, round trips, bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter
from typer.main import get_command

from methods import Registry
from methods.interface import server_optimizers
from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.config import MethodConfig, RunConfig, Sources, dump_config, load_config, parse_config
from platform.config.files import read_yaml
from platform.config.loading import validate_options
from platform.errors import ConfigError
from platform.holder.settings import HolderSettings

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
NOISED = "privacy={mechanism: upload_noise, clipping_norm: 1.0, noise_multiplier: 1.0}"
QUICKSTART = Path("quickstart")


def refused(tree, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("task.partition.beta=1", "task.partition.beta: is not"),
        ("task.partition.kind=shards", "task.partition.kind: 'shards' is not valid; "),
        ("rounds=true", "rounds: True is not valid; "),
        ("training=3", "training: 3 is not valid; "),
        ("name.first=x", "--set: name"),
        ("rounds=0", "rounds: 0 is"),
        ("privacy.clipping_norm=0.0", "privacy.clipping_norm: 0.0 is not valid; "),
        ("privacy.clipping_norm=.inf", "privacy.clipping_norm: inf is not valid; "),
        ("privacy.target_delta=1.0", "privacy.target_delta: 1.0 is"),
        ("task..clients=3", "--set: "),
        ("rounds=[1", "--set: "),
    ],
)
def test_one_wrong_value_is_one_sentence(override, sentence):
    assert refused(MINIMAL, override).startswith(sentence)


def test_what_is_missing_is_named():
    for section in MINIMAL:
        tree = {key: value for key, value in MINIMAL.items() if key != section}
        assert refused(tree).startswith(f"{section}: is missing")
    assert refused({**MINIMAL, "method": {}}).startswith("method.name: is missing")
    for training in ({}, {"local_steps": 1, "local_epochs": 1}):
        assert "training: give exactly" in refused({**MINIMAL, "training": training})


SECURE = "secure_aggregation.enabled=true"
THRESHOLD = "secure_aggregation.threshold"
CONTRADICTIONS = {
    "cohort.size: 11": ["cohort.size=11"],
    "cohort.minimum: 5": ["cohort.size=4", "cohort.minimum=5"],
    "cohort.minimum: 2": ["task.clients=1"],
    "cohort.dropout_rate: 0.9 leaves": ["cohort.dropout_rate=0.9"],
    "task.clients: 1": [SECURE, "task.clients=1", "cohort.minimum=1"],
    f"{THRESHOLD}: 11": [SECURE, f"{THRESHOLD}=11"],
    f"{THRESHOLD}: 1 would": [SECURE, f"{THRESHOLD}=1"],
    f"{THRESHOLD}: 4 does": [SECURE, f"{THRESHOLD}=4", "secure_aggregation.corrupt=4"],
    "cohort.dropout_rate: 0.4 leaves": [SECURE, "cohort.dropout_rate=0.4"],
    "secure_aggregation.value_bound: is derived": [NOISED, "secure_aggregation.value_bound=1.0"],
    "privacy.clipping_norm: 1.0": ["privacy.clipping_norm=1.0"],
    "privacy.noise_multiplier: give": ["privacy.mechanism=dp_sgd"],
    "privacy.rank: 4": ["privacy.rank=4"],
    "pool.experts: is needed": ["pool.kind=groups"],
    "pool.count_ratio: 0.5": ["pool.count_ratio=0.5"],
    "audit: canary clients": ["audit={canaries: 10}"],
    "evaluation.measured_clients: 50": ["evaluation.measured_clients=50"],
}


@pytest.mark.parametrize("sentence", CONTRADICTIONS)
def test_sections_that_contradict_each_other(sentence):
    assert refused(MINIMAL, *CONTRADICTIONS[sentence]).startswith(sentence)


def test_all_that_is_wrong_is_told_at_once_with_the_nearest_name():
    wrong = ("task.cleints=3", "foo", "method.n_ctx=3", "name.a=1", "task.shots=x", "rounds=0")
    fields = [line.partition(":")[0] for line in refused(MINIMAL, *wrong).split("\n")]
    named = ["--set", "--set", "rounds", "task.shots", "task.cleints", "method.n_ctx"]
    assert sorted(fields) == sorted(named)
    told = refused(MINIMAL, "cohort.size=11", "privacy.rank=4").split("\n")
    assert [line.split(":")[0] for line in told] == ["cohort.size", "privacy.rank"]
    for wrong, right in {
        "task.cleints=3": "task.clients",
        "clients=3": "task.clients",
        "privcy.rank=1": "privacy",
        "method.name=PromptF": "promptfl",
        "method.contxt_tokens=1": "context_tokens",
    }.items():
        hint = f"(did you mean '{right}'?)"
        assert hint in refused({**MINIMAL, "method": {"name": "promptfl"}}, wrong, "rounds=0")


def test_a_file_here_wins_over_a_packaged_one(tmp_path, monkeypatch):
    (tmp_path / "quickstart").write_text(yaml.safe_dump({**MINIMAL, "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    assert load_config(QUICKSTART).name == "mine"


@pytest.fixture
def sources(tmp_path) -> Sources:
    (tmp_path / "first.yaml").write_text("name: first\nalpha: 1\nbeta: 2\n")
    (tmp_path / "second.yaml").write_text("name: second\ngamma: 3\n")
    return Sources(presets=tmp_path)


@pytest.mark.parametrize("swap", [False, True])
def test_a_method_override_replaces_the_whole_section_before_all_others(sources, swap):
    tree = {**MINIMAL, "method": {"name": "first", "alpha": 9, "delta": 9}}
    overrides = ["method.name=second", "method.gamma=7"]
    config = parse_config(tree, overrides[::-1] if swap else overrides, sources)
    assert config.method.name == "second"
    assert config.method.options == {"gamma": 7}


def test_what_another_name_drops_is_said(sources):
    tree = {**MINIMAL, "method": {"name": "first", "alpha": 9, "gamma": 3}}
    # Its own name keeps its options: they were once dropped without a word.
    config = parse_config(tree, ["method.name=first"], sources)
    assert config.method.options == {"alpha": 9, "gamma": 3} and config.remarks == ()
    config = parse_config(tree, ["method.name=second", "seed=4"], sources)
    (said,) = config.remarks
    assert "second takes the place" in said and said.endswith(": alpha: 9")
    assert config.model_copy(update={"seed": 5}).remarks == config.remarks
    assert "remarks" not in dump_config(config)
    back = parse_config(tree, ["method.name=second", "method.name=first"], sources)
    assert back.method.options == {"alpha": 1, "beta": 2}


@pytest.mark.parametrize("swap", [False, True])
def test_another_data_set_drops_what_is_said_of_the_former_one(swap):
    task = {"dataset": "homonyms", "domains": ["real"], "test_per_class": 9, "clients": 7}
    tree = {**MINIMAL, "task": task}
    overrides = ["task.dataset=shapes", "task.test_per_class=11"]
    config = parse_config(tree, overrides[::-1] if swap else overrides)
    assert (config.task.domains, config.task.test_per_class, config.task.clients) == (None, 11, 7)
    assert config.remarks[0].endswith(": domains: ['real']")
    same = parse_config(tree, ["task.dataset=homonyms"])
    assert same.task.domains == ("real",) and same.remarks == ()


@pytest.mark.parametrize("swap", [False, True])
def test_mechanism_none_drops_what_no_longer_applies(swap):
    privacy = {
        **{"mechanism": "upload_noise", "relation": "replace_one", "clipping_norm": 1.0},
        **{"per_sample_clipping_norm": 0.7, "target_epsilon": 8.0, "target_delta": 1e-6},
        "spare_attempts": 2,
    }
    tree = {**MINIMAL, "privacy": privacy}
    overrides = ["privacy.mechanism=none", "privacy.target_delta=0.001"]
    privacy = parse_config(tree, overrides[::-1] if swap else overrides).privacy
    assert privacy.mechanism == "none"
    assert (privacy.clipping_norm, privacy.target_epsilon, privacy.relation) == (None, None, None)
    assert privacy.spare_attempts == 0
    # What still means something stays, and what was set beside it holds.
    assert (privacy.per_sample_clipping_norm, privacy.target_delta) == (0.7, 0.001)
    message = refused(tree, "privacy.mechanism=none", "privacy.clipping_norm=2.0")
    assert message.startswith("privacy.clipping_norm: 2.0")


def test_overrides_leave_the_callers_tree_alone():
    tree = {**MINIMAL, "task": {"clients": 4}, "privacy": {"mechanism": "upload_noise"}}
    before = yaml.safe_dump(tree)
    parse_config(tree, ["task.clients=5", "training.local_steps=2", "privacy.mechanism=none"])
    assert yaml.safe_dump(tree) == before


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", ".1e-5"])
def test_a_small_number_may_be_written_as_people_do(text):
    """YAML 1.1 reads `1e-6` as text; a user of `--set` cannot know that."""
    parsed = parse_config(MINIMAL, [f"privacy.target_delta={text}", "name='1e-6'"])
    assert parsed.privacy.target_delta == pytest.approx(1e-6) and parsed.name == "1e-6"
    assert parse_config(read_yaml(dump_config(parsed))) == parsed


@pytest.mark.parametrize(("size", "threshold"), [(2, 2), (3, 3), (4, 3), (9, 7), (10, 7)])
def test_the_default_threshold_is_more_than_two_thirds(size, threshold):
    config = parse_config(MINIMAL, [f"cohort.size={size}", SECURE])
    assert config.threshold == threshold == 2 * size // 3 + 1


def test_seeds_by_purpose():
    config = parse_config(MINIMAL, ["seed=5", "seeds.cohort=7", "seeds.shots=0"])
    purposes = ("class_map", "shots", "initialisation", "cohort", "batches")
    assert [config.seed_of(purpose) for purpose in purposes] == [5, 0, 5, 7, 5]


def method_config(**options) -> RunConfig:
    return parse_config({**MINIMAL, "method": {"name": "pfedmoap", **options}})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"experts": "3"}, "method.experts: '3' is not valid; "),
        ({"local_weight": float("nan")}, "method.local_weight: nan is not valid; "),
        ({"select": "best"}, "method.select: 'best' is not valid; "),
    ],
)
def test_options_are_checked_by_the_methods_own_config(options, sentence):
    with pytest.raises(ConfigError) as caught:
        validate_options(Registry(), method_config(**options).method)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["2020-01-01", "!!set {1, 2}", "!!binary eA==", "{1: 2}"])
def test_an_option_that_only_yaml_knows_is_refused(text):
    """YAML reads dates, sets and bytes; JSON, through which options are checked, does not."""
    config = MethodConfig(name="pfedmoap", experts=yaml.safe_load(text))
    with pytest.raises(ConfigError, match=r"method\.experts"):
        validate_options(Registry(), config)


REGISTRY = Registry()
OPTIMISERS = ("ServerSGD", "ServerAdagrad", "ServerAdam", "ServerYogi")
TREES = {
    "": RunConfig,
    "client": HolderSettings,
    **{f"method {name}": REGISTRY.config_type(name) for name in REGISTRY.available()},
    **{f"method.server_optimizer {n}": getattr(server_optimizers, n) for n in OPTIMISERS},
}


def ends(schema: Any, path: str) -> Iterator[tuple[str, list[float]]]:
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            sides = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
            yield path, [schema[name] for side in sides for name in side if name in schema]
        for key, below in schema.items():
            yield from ends(below, f"{path}.{key}")
    elif isinstance(schema, list):
        for below in schema:
            yield from ends(below, path)


@pytest.mark.parametrize("name", TREES)
def test_every_number_has_two_ends(name):
    found = dict(ends(TypeAdapter(TREES[name]).json_schema(), name))
    assert name or len(found) > 60
    for path, (low, high) in found.items():
        assert math.isfinite(low) and math.isfinite(high) and low <= high, path


def loose(command: Any, path: str = "") -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        yield from loose(each, f"{path} {name}")
    for parameter in command.params:
        kind = parameter.type
        ends = (getattr(kind, "min", None), getattr(kind, "max", None))
        if kind.name in ("integer", "float", "integer range", "float range") and None in ends:
            yield f"{path} {parameter.name}"


def test_every_number_of_a_command_line_has_two_ends():
    # Bounded elsewhere: the first is the key `seed`, the others are the log's and the plan's own.
    elsewhere = {
        *(" run seed", " audit query round_number", " audit query limit"),
        *(" secagg-plan corrupt_rate", " secagg-plan dropout_rate"),
    }
    assert {*loose(get_command(app))} <= elsewhere
    assert not {*loose(get_command(client_app))}
