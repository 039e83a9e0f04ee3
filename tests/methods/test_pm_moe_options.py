"""PM-MoE's options, those of its base among them, and what is refused."""

from __future__ import annotations

import pytest

from methods import (
    MethodError,
    Registry,
    Visibility,
    fedbabu,
    fedper,
    pm_moe,
)
from methods.pm_moe import PMMoE
from platform.config import MethodConfig, parse_config
from platform.errors import ConfigError
from platform.experiment.method_building import build_method, validate_options
from tests.methods._mixtures import (
    BASES,
    TASK,
    build,
)


def options_of(**options) -> pm_moe.Config:
    return validate_options(Registry(), MethodConfig(name="pm_moe", **options))


def test_options_of_the_base_are_its_own_config():
    assert options_of().base_options == fedper.Config()
    given = options_of(base="fedbabu", base_options={"fine_tuning_rounds": 3, "channels": [4, 8]})
    assert given.base_options == fedbabu.Config(fine_tuning_rounds=3, channels=(4, 8))
    method = pm_moe.build(given, TASK)
    assert method.base.config.fine_tuning_rounds == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.0}, r"method\.gamma: 1\.0 is not valid; .*less than 1"),
        ({"gamma": 1.5}, r"method\.gamma: 1\.5 is not valid"),
        ({"gamma": -0.1}, r"method\.gamma: -0\.1 is not valid"),
        ({"top_k": 0}, r"method\.top_k: 0 is not valid"),
        ({"temperature": 0.0}, r"method\.temperature: 0\.0 is not valid"),
        ({"gate_layers": 5}, r"method\.gate_layers: 5 is not valid"),
        ({"activation": "tanh"}, r"method\.activation: 'tanh' is not valid; .*'mish'"),
        ({"base": "fedavg"}, r"method\.base: 'fedavg' is not valid; .*'fedper'"),
        ({"base_options": 3}, r"method\.base_options: 3 is not valid; it must be a section"),
        (
            {"base": "fedrep", "base_options": {"fine_tune": "all"}},
            r"method\.base_options\.fine_tune: is not a known option of fedrep; valid: network",
        ),
        (
            {"base_options": {"image_size": 3}},
            r"method\.base_options\.image_size: 3 is not valid; .*16",
        ),
        ({"base_options": {"network": "mlp"}}, r"method\.base_options\.network: 'mlp' is not"),
        (
            {"base_options": {"channels": [float("nan"), 2]}},
            r"method\.base_options: .* must be a finite number",
        ),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        options_of(**options)


def test_overrides_reach_into_the_bases_options():
    tree = {"name": "here", "training": {"local_epochs": 1}, "method": {"name": "fedper"}}
    config = parse_config(
        tree,
        [
            *("method.base_options.network=fasttext", "method.name=pm_moe"),
            *("method.base=fedrep", "method.base_options.buckets=50"),
        ],
    )
    options = validate_options(Registry(), config.method)
    assert options.base == "fedrep"
    assert (options.base_options.network, options.base_options.buckets) == ("fasttext", 50)
    assert config == parse_config(config.model_dump(mode="json"))


@pytest.mark.parametrize("base", BASES)
def test_every_base_is_admitted_as_the_platform_builds_it(base):
    """FedGH shows single updates, but PM-MoE's entries over it are differences to no broadcast."""
    tree = {
        "name": "here",
        "training": {"local_epochs": 1},
        "method": {"name": "pm_moe", "base": base},
    }
    method = build_method(Registry(), parse_config(tree), TASK)
    assert method.base.visibility is (
        Visibility.PER_CLIENT if base == "fedgh" else Visibility.AGGREGATE_ONLY
    )
    assert isinstance(method, PMMoE)


@pytest.mark.parametrize("base", ["dbe", "gpfl", "fedrod"])
def test_a_mechanism_that_a_base_lacks_is_refused_with_its_name(base):
    tree = {
        "name": "here",
        "training": {"local_steps": 1},
        "method": {"name": "pm_moe", "base": base},
        "privacy": {
            **{"mechanism": "dp_sgd", "per_sample_clipping_norm": 1.0},
            **{"sampling_probability": 0.5, "target_epsilon": 8.0},
        },
    }
    with pytest.raises(
        ConfigError, match=rf"'dp_sgd' is not admitted by pm_moe with method\.base = {base}; valid"
    ):
        build_method(Registry(), parse_config(tree), TASK)


def test_heads_that_are_never_trained_are_no_experts():
    """FedBABU's heads stay as they were drawn, once for all clients, if bodies alone are tuned."""
    for choice in ("head", "all"):
        build("fedbabu", {"fine_tune": choice})
    with pytest.raises(
        MethodError, match=r"method\.base_options\.fine_tune: 'body' .*valid .*: head, all"
    ):
        build("fedbabu", {"fine_tune": "body"})


def test_more_experts_than_clients_are_refused():
    assert build(top_k=6).config.top_k == 6
    with pytest.raises(MethodError, match=r"method\.top_k: 7 is more .*valid: 1 to 6"):
        build(top_k=7)
