"""Configurations: errors in one sentence, presets before overrides, round trips, bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
import yaml
from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from methods import Registry, Task
from methods.interface import server_optimizers
from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.config import MethodConfig, RunConfig, Sources, dump_config, load_config, parse_config
from platform.config.files import read_yaml
from platform.contract.examples import random_backbone
from platform.errors import ConfigError
from platform.experiment.method_building import build_method, validate_options
from platform.holder.settings import HolderSettings

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
NOISED = "privacy={mechanism: upload_noise, clipping_norm: 1.0, noise_multiplier: 1.0}"
QUICKSTART = Path("quickstart")


def refused(tree, *overrides: str) -> str:
    """The one sentence with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert message
    return message


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        # Unknown names.
        ("method.name=3", "method.name: 3 is unknown; valid: "),
        ("colour=red", "colour: is not a known key; valid keys: name, seed, "),
        ("task.partition.beta=1", "task.partition.beta: is not a known key; valid keys: kind"),
        ("task.partition.kind=shards", "task.partition.kind: 'shards' is not valid; "),
        ("privacy.mechanism=magic", "privacy.mechanism: 'magic' is not valid; "),
        # Wrong types.
        ("rounds=2.5", "rounds: 2.5 is not valid; input should be a valid integer"),
        ("rounds=true", "rounds: True is not valid; "),
        ("task.clients='10'", "task.clients: '10' is not valid; "),
        ("training=3", "training: 3 is not valid; "),
        ("name.first=x", "--set: name is a value, not a section"),
        ("secure_aggregation.enabled=1", "secure_aggregation.enabled: 1 is not valid; "),
        ("task.domains=ink", "task.domains: 'ink' is not valid; "),
        # Numbers out of range.
        ("rounds=0", "rounds: 0 is not valid; input should be greater than or equal to 1"),
        ("privacy.clipping_norm=0.0", "privacy.clipping_norm: 0.0 is not valid; "),
        ("privacy.clipping_norm=.inf", "privacy.clipping_norm: inf is not valid; "),
        ("privacy.target_delta=1.0", "privacy.target_delta: 1.0 is not valid; input should be les"),
        ("name=a/b", "name: 'a/b' is not valid; "),
    ],
)
def test_one_wrong_value_is_one_sentence(override, sentence):
    assert refused(MINIMAL, override).startswith(sentence)


def test_what_is_missing_is_named():
    for section in MINIMAL:
        tree = {key: value for key, value in MINIMAL.items() if key != section}
        assert refused(tree) == f"{section}: is missing; it must be given"
    assert refused({**MINIMAL, "method": {}}) == "method.name: is missing; it must be given"


@pytest.mark.parametrize("training", [{}, {"local_steps": 1, "local_epochs": 1}])
def test_one_amount_of_training(training):
    message = refused({**MINIMAL, "training": training})
    assert message == "training: give exactly one of local_epochs and local_steps"


SECURE = "secure_aggregation.enabled=true"
THRESHOLD = "secure_aggregation.threshold"


CONTRADICTIONS = {
    "cohort.size: 11 is more than the clients": ["cohort.size=11"],
    "cohort.minimum: 5 is more than the cohort": ["cohort.size=4", "cohort.minimum=5"],
    "cohort.minimum: 2 is more than the cohort": ["task.clients=1"],
    "cohort.dropout_rate: 0.9 leaves 1 of 10 clients": ["cohort.dropout_rate=0.9"],
    "task.clients: 1 is too small": [SECURE, "task.clients=1", "cohort.minimum=1"],
    f"{THRESHOLD}: 11 is more than the cohort": [SECURE, f"{THRESHOLD}=11"],
    f"{THRESHOLD}: 1 would open a single update": [SECURE, f"{THRESHOLD}=1"],
    f"{THRESHOLD}: 4 does not exceed": [SECURE, f"{THRESHOLD}=4", "secure_aggregation.corrupt=4"],
    "cohort.dropout_rate: 0.4 leaves 6 of 10": [SECURE, "cohort.dropout_rate=0.4"],
    "secure_aggregation.value_bound: is derived": [NOISED, "secure_aggregation.value_bound=1.0"],
    "privacy.clipping_norm: is missing": [NOISED, "privacy.clipping_norm=null"],
    "privacy.clipping_norm: 1.0 has no meaning": ["privacy.clipping_norm=1.0"],
    "privacy.noise_multiplier: give exactly one of": ["privacy.mechanism=dp_sgd"],
    "privacy.rank: 4 has no meaning": ["privacy.rank=4"],
    "pool.experts: is needed": ["pool.kind=groups"],
    "pool.count_ratio: 0.5 has no meaning": ["pool.count_ratio=0.5"],
    "audit: canary clients are seen in noised sums": ["audit={canaries: 10}"],
    "evaluation.measured_clients: 50 is more": ["evaluation.measured_clients=50"],
}


@pytest.mark.parametrize("sentence", CONTRADICTIONS)
def test_sections_that_contradict_each_other(sentence):
    assert refused(MINIMAL, *CONTRADICTIONS[sentence]).startswith(sentence)


@pytest.mark.parametrize("override", ["rounds", "task..clients=3", "rounds.=3", "rounds=[1"])
def test_an_override_that_is_none_is_refused(override):
    assert refused(MINIMAL, override).startswith("--set: ")


# --- files --------------------------------------------------------------------------------------


def test_a_file_here_wins_over_a_packaged_one(tmp_path, monkeypatch):
    (tmp_path / "quickstart").write_text(yaml.safe_dump({**MINIMAL, "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    assert load_config(QUICKSTART).name == "mine"


# --- overrides ----------------------------------------------------------------------------------


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
    assert said.startswith("method.name: second takes the place of first ")
    assert said.endswith("are dropped: alpha: 9")
    assert config.model_copy(update={"seed": 5}).remarks == config.remarks
    assert "remarks" not in dump_config(config)
    back = parse_config(tree, ["method.name=second", "method.name=first"], sources)
    assert back.method.options == {"alpha": 1, "beta": 2}


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
    assert message.startswith("privacy.clipping_norm: 2.0 has no meaning")


def test_overrides_leave_the_callers_tree_alone():
    privacy = {"mechanism": "upload_noise", "clipping_norm": 1.0, "noise_multiplier": 1.0}
    tree = {**MINIMAL, "task": {"clients": 4}, "privacy": privacy}
    before = yaml.safe_dump(tree)
    parse_config(tree, ["task.clients=5", "training.local_steps=2", "privacy.mechanism=none"])
    assert yaml.safe_dump(tree) == before


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", ".1e-5"])
def test_a_small_number_may_be_written_as_people_do(text):
    """YAML 1.1 reads `1e-6` as text; a user of `--set` cannot know that."""
    parsed = parse_config(MINIMAL, [f"privacy.target_delta={text}", "name='1e-6'"])
    assert parsed.privacy.target_delta == pytest.approx(1e-6) and parsed.name == "1e-6"
    assert parse_config(read_yaml(dump_config(parsed))) == parsed


# --- what is derived ----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "threshold"), [(2, 2), (3, 3), (4, 3), (9, 7), (10, 7)])
def test_the_default_threshold_is_more_than_two_thirds(size, threshold):
    config = parse_config(MINIMAL, [f"cohort.size={size}", SECURE])
    assert config.threshold == threshold == 2 * size // 3 + 1


def test_seeds_by_purpose():
    config = parse_config(MINIMAL, ["seed=5", "seeds.cohort=7", "seeds.shots=0"])
    purposes = ("class_map", "shots", "initialisation", "cohort", "batches")
    assert [config.seed_of(purpose) for purpose in purposes] == [5, 0, 5, 7, 5]


@pytest.mark.parametrize("overrides", [(), ("task.domains=[ink]", "seed=3", "task.clients=5")])
@pytest.mark.parametrize("name", ["quickstart", None])
def test_the_text_round_trip(name, overrides):
    if name is None:
        config = parse_config(MINIMAL, overrides)
    else:
        fitting = ("method.experts=2", "cohort.size=5", "secure_aggregation.threshold=4")
        config = load_config(Path(name), (*overrides, *fitting))
    again = parse_config(yaml.safe_load(dump_config(config)))
    assert again == config
    assert dump_config(again) == dump_config(config)
    assert parse_config(config.model_dump(mode="json")) == config


# --- the method's section -----------------------------------------------------------------------


def method_config(**options) -> RunConfig:
    return parse_config({**MINIMAL, "method": {"name": "pfedmoap", **options}})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lamda": 1.0}, "method.lamda: is not a known option of pfedmoap; valid: context_tokens,"),
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


def test_more_experts_than_other_clients_are_refused_with_the_configuration(tmp_path):
    task = Task(("circle",), ("ink",), 10, random_backbone(tmp_path))
    with pytest.raises(ConfigError, match=r"^method\.experts: 10 .*valid: 1 to 9"):
        build_method(Registry(), method_config(experts=10), task)


# --- no number is without an end ------------------------------------------------------------------

REGISTRY = Registry()


def numbers(kind: Any, path: str, marks: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every number below a type, with what bounds it."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        yield from numbers(inner, path, (*marks, *more))
    elif origin in (Union, UnionType, tuple, list):
        for each in get_args(kind):
            yield from numbers(each, path, marks)
    elif isinstance(kind, type) and origin is None:
        if issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                yield from numbers(field.annotation, f"{path}.{name}", tuple(field.metadata))
        elif dataclasses.is_dataclass(kind):
            for name, hint in get_type_hints(kind, include_extras=True).items():
                yield from numbers(hint, f"{path}.{name}")
        elif kind in (int, float):
            yield path, marks
    else:
        assert origin is Literal or kind in (Any, ...) or origin is dict, (path, kind)


def bounds(marks: tuple[Any, ...]) -> tuple[float | None, float | None]:
    """The lowest and the highest value that is valid, as far as one is stated."""
    low: float | None = None
    high: float | None = None
    for mark in marks:
        for each in mark.metadata if isinstance(mark, FieldInfo) else [mark]:
            if isinstance(each, (Ge, Gt)):
                low = each.ge if isinstance(each, Ge) else each.gt
            if isinstance(each, (Le, Lt)):
                high = each.le if isinstance(each, Le) else each.lt
            assert not isinstance(each, Interval)
    return low, high


TREES = {
    "": RunConfig,
    "client": HolderSettings,
    **{f"method {name}": REGISTRY.config_type(name) for name in REGISTRY.available()},
    **{
        f"method.server_optimizer {name}": getattr(server_optimizers, name)
        for name in ("ServerSGD", "ServerAdagrad", "ServerAdam", "ServerYogi")
    },
}


@pytest.mark.parametrize("name", TREES)
def test_every_number_has_two_ends(name):
    found = dict(numbers(TREES[name], name))
    loose = [path for path, marks in found.items() if None in bounds(marks)]
    assert loose == []
    for path, marks in found.items():
        low, high = bounds(marks)
        assert math.isfinite(low) and math.isfinite(high) and low <= high, path


def test_the_walk_sees_numbers_and_bounds():
    assert len(dict(numbers(RunConfig, ""))) > 60
    assert bounds((Ge(1),)) == (1, None)
    assert dict(numbers(Annotated[int, Ge(1)] | None, "x")) == {"x": (Ge(1),)}
    assert dict(numbers(float, "x")) == {"x": ()}


def options(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from options(each, f"{path} {name}")
    for parameter in command.params:
        if parameter.type.name in ("integer", "float", "integer range", "float range"):
            yield f"{path} {parameter.name}", parameter.type


@pytest.mark.parametrize("program", [app, client_app], ids=["coordinator", "client"])
def test_every_number_of_a_command_line_has_two_ends(program):
    found = dict(options(typer.main.get_command(program)))
    # Bounded elsewhere: the first is the key `seed`, the others are the log's and the plan's own.
    elsewhere = (
        *(" run seed", " audit query round_number", " audit query limit"),
        *(" secagg-plan corrupt_rate", " secagg-plan dropout_rate"),
    )
    loose = [
        path
        for path, kind in found.items()
        if None in (getattr(kind, "min", None), getattr(kind, "max", None))
        and path not in elsewhere
    ]
    assert loose == []
