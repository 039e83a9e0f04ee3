"""Configurations: errors in one sentence, presets before overrides, and the text round trip."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from methods import Registry, Task
from platform.config import (
    PACKAGED_CONFIGS,
    MethodConfig,
    RunConfig,
    Sources,
    dump_config,
    load_config,
    parse_config,
)
from platform.contract.examples import random_backbone
from platform.errors import ConfigError
from platform.experiment.method_building import build_method, validate_options

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
PRIVATE = {
    **MINIMAL,
    "privacy": {"mechanism": "upload_noise", "clipping_norm": 1.0, "noise_multiplier": 1.0},
}
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
        ("method.name=fedfoo", "method.name: 'fedfoo' is unknown; valid: "),
        ("method.name=../coop", "method.name: '../coop' is unknown; valid: "),
        ("method.name=3", "method.name: 3 is unknown; valid: "),
        ("colour=red", "colour: is not a known key; valid keys: name, seed, "),
        ("task.colour=red", "task.colour: is not a known key; valid keys: dataset, root, "),
        ("task.partition.beta=1", "task.partition.beta: is not a known key; valid keys: kind"),
        ("privacy.epsilon=1", "privacy.epsilon: is not a known key; valid keys: mechanism, "),
        ("task.partition.kind=shards", "task.partition.kind: 'shards' is not valid; "),
        ("training.optimizer=lion", "training.optimizer: 'lion' is not valid; "),
        ("evaluation.protocol=best", "evaluation.protocol: 'best' is not valid; "),
        ("privacy.mechanism=magic", "privacy.mechanism: 'magic' is not valid; "),
        # Wrong types.
        ("rounds=two", "rounds: 'two' is not valid; input should be a valid integer"),
        ("rounds=2.5", "rounds: 2.5 is not valid; "),
        ("rounds=true", "rounds: True is not valid; "),
        ("rounds=", "rounds: None is not valid; "),
        ("task.clients='10'", "task.clients: '10' is not valid; "),
        ("training.learning_rate=fast", "training.learning_rate: 'fast' is not valid; "),
        ("training=3", "training: 3 is not valid; "),
        ("secure_aggregation.enabled=1", "secure_aggregation.enabled: 1 is not valid; "),
        ("task.domains=ink", "task.domains: 'ink' is not valid; "),
        # Numbers out of range.
        ("rounds=0", "rounds: 0 is not valid; input should be greater than or equal to 1"),
        ("seed=-1", "seed: -1 is not valid; "),
        ("privacy.clipping_norm=-1.0", "privacy.clipping_norm: -1.0 is not valid; "),
        ("privacy.clipping_norm=0.0", "privacy.clipping_norm: 0.0 is not valid; "),
        ("privacy.clipping_norm=.inf", "privacy.clipping_norm: inf is not valid; "),
        ("privacy.clipping_norm=.nan", "privacy.clipping_norm: nan is not valid; "),
        ("privacy.per_sample_clipping_norm=-0.1", "privacy.per_sample_clipping_norm: -0.1 is not"),
        ("privacy.noise_multiplier=-1", "privacy.noise_multiplier: -1 is not valid; "),
        ("privacy.target_delta=0", "privacy.target_delta: 0 is not valid; input should be greater"),
        (
            "privacy.target_delta=1.0",
            "privacy.target_delta: 1.0 is not valid; input should be less",
        ),
        ("privacy.target_delta=-0.1", "privacy.target_delta: -0.1 is not valid; "),
        ("privacy.target_delta=1.5", "privacy.target_delta: 1.5 is not valid; "),
        ("cohort.dropout_rate=1.0", "cohort.dropout_rate: 1.0 is not valid; "),
        ("secure_aggregation.bits=33", "secure_aggregation.bits: 33 is not valid; "),
        ("name=a/b", "name: 'a/b' is not valid; "),
    ],
)
def test_one_wrong_value_is_one_sentence(override, sentence):
    assert refused(MINIMAL, override).startswith(sentence)


def test_unknown_keys_list_what_is_known():
    message = refused(MINIMAL, "training.lr=1.0")
    assert message == (
        "training.lr: is not a known key; valid keys: optimizer, local_epochs, local_steps, "
        "batch_size, learning_rate, momentum, weight_decay, betas, eps, schedule"
    )


@pytest.mark.parametrize("section", ["name", "method", "training"])
def test_a_missing_section_is_named(section):
    tree = {key: value for key, value in MINIMAL.items() if key != section}
    assert refused(tree) == f"{section}: is missing; it must be given"


def test_a_method_without_name_is_named():
    assert refused({**MINIMAL, "method": {}}) == "method.name: is missing; it must be given"


@pytest.mark.parametrize("training", [{}, {"local_steps": 1, "local_epochs": 1}])
def test_one_amount_of_training(training):
    message = refused({**MINIMAL, "training": training})
    assert message == "training: give exactly one of local_epochs and local_steps"


SECURE = "secure_aggregation.enabled=true"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["cohort.size=11"],
            "cohort.size: 11 is more than the clients; valid: 1 to task.clients = 10",
        ),
        (
            ["cohort.size=4", "cohort.minimum=5"],
            "cohort.minimum: 5 is more than the cohort; valid: 1 to cohort.size = 4",
        ),
        (
            [SECURE, "secure_aggregation.threshold=11"],
            "secure_aggregation.threshold: 11 is more than the cohort; valid: 1 to "
            "task.clients = 10",
        ),
        (
            ["task.clients=1"],
            "cohort.minimum: 2 is more than the cohort; valid: 1 to task.clients = 1",
        ),
        (
            [SECURE, "task.clients=1", "cohort.minimum=1"],
            "task.clients: 1 is too small for secure aggregation; valid: at least 2",
        ),
        (
            [SECURE, "cohort.size=5", "secure_aggregation.threshold=6"],
            "secure_aggregation.threshold: 6 is more than the cohort; valid: 1 to cohort.size = 5",
        ),
        (
            [SECURE, "secure_aggregation.threshold=1"],
            "secure_aggregation.threshold: 1 would open a single update; valid: at least 2",
        ),
        (
            [SECURE, "secure_aggregation.threshold=4", "secure_aggregation.corrupt=4"],
            "secure_aggregation.threshold: 4 does not exceed secure_aggregation.corrupt = 4; "
            "valid: at least 5",
        ),
        (
            [SECURE, "cohort.dropout_rate=0.4"],
            "cohort.dropout_rate: 0.4 leaves 6 of 10 clients, fewer than "
            "secure_aggregation.threshold = 7",
        ),
        (
            [SECURE, "cohort.size=1", "cohort.minimum=1"],
            "cohort.size: 1 is too small for secure aggregation; valid: at least 2",
        ),
        (
            ["cohort.dropout_rate=0.9"],
            "cohort.dropout_rate: 0.9 leaves 1 of 10 clients; cohort.minimum = 2 must remain",
        ),
        (
            ["privacy.mechanism=dp_sgd"],
            "privacy.noise_multiplier: give exactly one of privacy.noise_multiplier and "
            "privacy.target_epsilon under dp_sgd",
        ),
        (
            ["privacy.mechanism=upload_noise", "privacy.noise_multiplier=1.0"],
            "privacy.clipping_norm: is missing; upload_noise needs a number above 0",
        ),
        (
            ["privacy.mechanism=upload_noise", "privacy.clipping_norm=1.0"],
            "privacy.noise_multiplier: give exactly one of privacy.noise_multiplier and "
            "privacy.target_epsilon under upload_noise",
        ),
        (
            ["privacy.clipping_norm=1.0"],
            "privacy.clipping_norm: 1.0 has no meaning under privacy.mechanism = none; leave it "
            "out or choose a mechanism",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_sections_that_contradict_each_other(overrides, sentence):
    assert refused(MINIMAL, *overrides) == sentence


@pytest.mark.parametrize("extra", ["privacy.target_epsilon=8.0"])
def test_noise_is_said_once(extra):
    assert refused(PRIVATE, extra).startswith("privacy.noise_multiplier: give exactly one of ")


def test_the_bound_follows_from_the_noise():
    message = refused(PRIVATE, "secure_aggregation.value_bound=1.0")
    assert message.startswith("secure_aggregation.value_bound: is derived from the clipping norm")


@pytest.mark.parametrize(
    "override", ["rounds", "=3", "task..clients=3", ".rounds=3", "rounds.=3", "rounds=[1", "a={"]
)
def test_an_override_that_is_none_is_refused(override):
    assert refused(MINIMAL, override).startswith("--set: ")


def test_an_override_into_a_value_is_refused():
    assert refused(MINIMAL, "name.first=x") == "--set: name is a value, not a section"


# --- files --------------------------------------------------------------------------------------


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "nothing.yaml")
    sentence = f"CONFIG: '{tmp_path / 'nothing.yaml'}' is no file; valid: a path to a YAML file, or"
    assert str(caught.value).startswith(sentence)
    assert "quickstart" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [1", "is not readable YAML"),
        (b"\xff\xfe\x00", "is not readable YAML"),
        (b"- 1\n- 2\n", "holds no mapping"),
        (b"", "holds no mapping"),
        (b"just text", "holds no mapping"),
        (b"!!python/object/apply:os.system ['false']", "is not readable YAML"),
        (b"a: 1\n\tb: 2", "is not readable YAML"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, reason):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="is no file"):
        load_config(tmp_path)


def test_a_packaged_configuration_by_name():
    assert load_config(QUICKSTART).name == "quickstart"


def test_a_file_here_wins_over_a_packaged_one(tmp_path, monkeypatch):
    (tmp_path / "quickstart").write_text(yaml.safe_dump({**MINIMAL, "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    assert load_config(QUICKSTART).name == "mine"


@pytest.mark.parametrize("path", sorted(PACKAGED_CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_packaged_configuration_is_valid(path):
    config = load_config(path)
    validate_options(Registry(), config.method)
    assert config.name == path.stem


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


def test_the_name_that_a_method_has_keeps_its_options(sources):
    """They were once dropped without a word."""
    tree = {**MINIMAL, "method": {"name": "first", "alpha": 9}}
    config = parse_config(tree, ["method.name=first"], sources)
    assert config.method.options == {"alpha": 9} and config.remarks == ()


def test_what_another_name_drops_is_said(sources):
    tree = {**MINIMAL, "method": {"name": "first", "alpha": 9, "gamma": 3}}
    config = parse_config(tree, ["method.name=second", "seed=4"], sources)
    assert config.remarks == (
        "method.name: second takes the place of first with the options of its preset, so these of "
        "the configuration are dropped: alpha: 9",
    )
    assert config.model_copy(update={"seed": 5}).remarks == config.remarks
    assert "remarks" not in dump_config(config)
    back = parse_config(tree, ["method.name=second", "method.name=first"], sources)
    assert back.method.options == {"alpha": 1, "beta": 2}


@pytest.mark.parametrize("swap", [False, True])
def test_mechanism_none_drops_what_no_longer_applies(swap):
    tree = {
        **MINIMAL,
        "privacy": {
            "mechanism": "upload_noise",
            "relation": "replace_one",
            "clipping_norm": 1.0,
            "per_sample_clipping_norm": 0.7,
            "target_epsilon": 8.0,
            "target_delta": 1e-6,
            "spare_attempts": 2,
        },
    }
    overrides = ["privacy.mechanism=none", "privacy.target_delta=0.001"]
    privacy = parse_config(tree, overrides[::-1] if swap else overrides).privacy
    assert privacy.mechanism == "none"
    assert (privacy.clipping_norm, privacy.target_epsilon, privacy.relation) == (None, None, None)
    assert privacy.spare_attempts == 0
    # What still means something stays, and what was set beside it holds.
    assert (privacy.per_sample_clipping_norm, privacy.target_delta) == (0.7, 0.001)


def test_mechanism_none_beside_a_norm_is_refused():
    message = refused(PRIVATE, "privacy.mechanism=none", "privacy.clipping_norm=2.0")
    assert message.startswith("privacy.clipping_norm: 2.0 has no meaning")


def test_the_last_of_two_overrides_holds():
    assert parse_config(MINIMAL, ["rounds=3", "rounds=4"]).rounds == 4


def test_overrides_leave_the_callers_tree_alone():
    tree = {**MINIMAL, "task": {"clients": 4}, "privacy": dict(PRIVATE["privacy"])}
    before = yaml.safe_dump(tree)
    parse_config(tree, ["task.clients=5", "training.local_steps=2", "privacy.mechanism=none"])
    assert yaml.safe_dump(tree) == before


def test_overrides_make_sections_that_are_missing():
    config = parse_config(MINIMAL, ["task.partition.kind=iid", "task.domains=[ink, chalk]"])
    assert config.task.partition.kind == "iid"
    assert config.task.domains == ("ink", "chalk")


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "0.000001"])
def test_a_small_number_may_be_written_as_people_do(text):
    """YAML 1.1 reads `1e-6` as text; a user of `--set` cannot know that."""
    assert parse_config(MINIMAL, [f"privacy.target_delta={text}"]).privacy.target_delta == 1e-6


def test_whole_numbers_are_numbers():
    assert parse_config(MINIMAL, ["training.learning_rate=1"]).training.learning_rate == 1.0


# --- what is derived ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (9, 7), (10, 7)]
)
def test_the_default_threshold_is_more_than_two_thirds(size, threshold):
    config = parse_config(MINIMAL, [f"cohort.size={size}", SECURE])
    assert config.threshold == threshold == 2 * size // 3 + 1


def test_seeds_by_purpose():
    config = parse_config(MINIMAL, ["seed=5", "seeds.cohort=7", "seeds.shots=0"])
    purposes = ("class_map", "shots", "initialisation", "cohort", "batches")
    assert [config.seed_of(purpose) for purpose in purposes] == [5, 0, 5, 7, 5]


def test_defaults_by_mechanism():
    private, plain = parse_config(PRIVATE), parse_config(MINIMAL)
    assert (plain.relation, private.relation) == ("replace_one", "replace_one")
    assert (plain.pool_noise, private.pool_noise) == ("same", "same")
    assert parse_config(PRIVATE, ["pool.noise=independent"]).pool_noise == "independent"


def test_a_configuration_is_frozen():
    config = parse_config(MINIMAL)
    for section, key in ((config, "rounds"), (config.task, "clients"), (config.method, "name")):
        with pytest.raises(Exception, match="frozen"):
            setattr(section, key, 1)


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
        (
            {"lamda": 1.0},
            "method.lamda: is not a known option of pfedmoap; valid: context_tokens, ",
        ),
        ({"experts": 0}, "method.experts: 0 is not valid; input should be greater than or equal"),
        ({"experts": "3"}, "method.experts: '3' is not valid; "),
        ({"local_weight": -0.5}, "method.local_weight: -0.5 is not valid; "),
        ({"select": "best"}, "method.select: 'best' is not valid; "),
        ({"context_tokens": 0}, "method.context_tokens: 0 is not valid; "),
    ],
)
def test_options_are_checked_by_the_methods_own_config(options, sentence):
    with pytest.raises(ConfigError) as caught:
        validate_options(Registry(), method_config(**options).method)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_option_that_is_not_finite_is_refused(value):
    with pytest.raises(ConfigError, match=r"method\.local_weight"):
        validate_options(Registry(), method_config(local_weight=value).method)


@pytest.mark.parametrize("text", ["2020-01-01", "!!set {1, 2}", "!!binary eA==", "{1: 2}"])
def test_an_option_that_only_yaml_knows_is_refused(text):
    """YAML reads dates, sets and bytes; JSON, through which options are checked, does not."""
    config = MethodConfig(name="pfedmoap", experts=yaml.safe_load(text))
    with pytest.raises(ConfigError, match=r"method\.experts"):
        validate_options(Registry(), config)


def test_a_method_that_no_registry_knows():
    with pytest.raises(ConfigError, match=r"method\.name: 'nope' is unknown; valid: "):
        validate_options(Registry(), MethodConfig(name="nope"))


def test_more_experts_than_other_clients_are_refused_with_the_configuration(tmp_path):
    task = Task(("circle",), ("ink",), 10, random_backbone(tmp_path))
    config = method_config(experts=10)
    with pytest.raises(ConfigError) as caught:
        build_method(Registry(), config, task)
    assert str(caught.value) == (
        "method.experts: 10 is more than the other clients; valid: 1 to 9 with task.clients = 10"
    )
