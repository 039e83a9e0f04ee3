"""PM-MoE's two phases: what a client trains, keeps and gives to the pool, over all nine bases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from methods import MethodError, Registry, fedbabu, fedcp, fedper, pm_moe
from methods.pm_moe import OWN
from platform.config import MethodConfig, parse_config
from platform.contract.examples import draw_batch, draw_examples
from platform.errors import ConfigError
from platform.experiment.method_building import build_method, validate_options
from platform.parties.totality import train_privately
from tests.methods._mixtures import (
    BASES,
    CLASSES,
    PREFIX,
    SMALL,
    TASK,
    build,
    drawn_experts,
    trained,
    with_gate,
)
from tests.methods._models import some_quick
from tests.methods._tiny_networks import private_trainer
from tests.methods._training import RecordingTrainer, rng, trainer

SOME = some_quick(BASES, "fedper", "fedgh", "fedbabu", "dbe")


@pytest.mark.parametrize("base", SOME)
def test_the_second_phase_trains_the_gate_alone(base):
    method = build(base, gate_rate=0.25, gate_rounds=3)
    plain = trained(method)
    view = dataclasses.replace(plain, experts=drawn_experts(method, 4), own=1)
    taken = StepCounter()
    personal = method.personalise(view, draw_examples(method, 0), taken, rng(3))
    (group,) = taken.groups
    assert group.learning_rate == 0.25
    assert set(group.names) == {n for n in personal if n.startswith(PREFIX)} - {OWN}
    assert taken.steps == 3 * 7
    for name, value in plain.personal.items():
        assert np.array_equal(personal[name], value)
    assert personal[OWN] == 1


class StepCounter(RecordingTrainer):
    """Takes note of the number of steps, too."""

    learning_rate = 0.1
    charged_steps = None
    steps = None

    def steps_for(self, num_examples):
        return 7

    def fit(self, *arguments, **options):
        self.steps = options.get("steps")
        return super().fit(*arguments, **options)


def test_an_own_module_that_the_pool_lacks_is_one_expert_more():
    method = build("fedper")
    plain = trained(method)
    pool = drawn_experts(method, 3)
    view = dataclasses.replace(plain, experts=pool)
    personal = method.personalise(view, draw_examples(method, 0), trainer(), rng(3))
    assert personal[OWN] == 3
    assert personal[f"{PREFIX}4.bias"].shape == (4,)
    after = dataclasses.replace(view, personal=personal)
    batch = draw_batch(method, 4)
    assert method.expert_weights(after, batch, CLASSES).shape == (5, 4)
    named = with_gate(method, view, 4, {3: 1e4}, own=3)
    np.testing.assert_allclose(
        method.predict(named, batch, CLASSES), method.base.predict(plain, batch, CLASSES), atol=1e-5
    )


@pytest.mark.parametrize("base", SOME)
def test_without_experts_it_is_the_base(base):
    """A twin, a newcomer, or a run whose pool was not made."""
    method = build(base)
    view, data, batch = trained(method), draw_examples(method, 0), draw_batch(method, 4)
    personal = method.personalise(view, data, trainer(), rng(3))
    expected = method.base.personalise(view, data, trainer(), rng(3))
    assert personal.keys() == expected.keys()
    assert all(np.array_equal(personal[n], expected[n]) for n in expected)
    after = dataclasses.replace(view, personal=personal)
    np.testing.assert_array_equal(
        method.predict(after, batch, CLASSES), method.base.predict(after, batch, CLASSES)
    )
    assert method.expert_weights(after, batch, CLASSES) is None


@pytest.mark.parametrize("base", SOME)
def test_rounds_are_the_bases_to_the_bit(base):
    method = build(base)
    plain, data = trained(method, rounds=1), draw_examples(method, 0)
    mine, its = (m.client_update(plain, data, trainer(), rng(3)) for m in (method, method.base))
    assert mine.pool_entry is None
    for got, expected in ((mine.update, its.update), (mine.personal, its.personal)):
        assert got.keys() == expected.keys()
        assert all(np.array_equal(got[n], expected[n]) for n in expected)
    for name in (
        *("needs", "pixel_size", "visibility", "units", "couples_examples"),
        *("has_personal_state", "decouples", "plain_sgd", "centralised"),
        *("learns", "anchored", "averaged", "closed_classes"),
    ):
        assert getattr(method, name) == getattr(method.base, name)
    assert method.shared_spec() == method.base.shared_spec()


@pytest.mark.parametrize("base", SOME)
def test_the_entry_is_the_module_and_nothing_else(base):
    method = build(base)
    view, data, policy = trained(method), draw_examples(method, 0), method.pool_policy()
    result = method.contribute(view, data, trainer(), rng(3))
    assert result.update == {}
    assert {n: a.shape for n, a in result.pool_entry.items()} == {
        n: s.shape for n, s in policy.spec.items()
    }
    assert (policy.fixed, policy.select, policy.exclude_self) == (True, "all", False)
    assert (policy.k, policy.minimum) == (6, 2)
    assert policy.trains == (base == "fedbabu")
    after = dataclasses.replace(view, personal=result.personal)
    model = method.base.whole_model_of(after)
    assert all(np.array_equal(result.pool_entry[n], model[n]) for n in policy.spec)
    if not policy.trains:
        assert result.personal is view.personal


def test_what_each_base_pools_is_what_the_paper_says():
    """Heads of six, extractors of two, a vector of the features' width of one."""
    pools = {base: set(build(base).pool_policy().spec) for base in BASES}
    extractor = {f"extractor.{n}.{k}" for n in ("conv1", "conv2", "fc") for k in ("weight", "bias")}
    for base in ("fedper", "fedrep", "fedbabu", "fedrod", "fedcp", "gpfl"):
        assert pools[base] == {"head.weight", "head.bias"}
    for base in ("lg_fedavg", "fedgh"):
        assert pools[base] == extractor
    assert build("dbe").pool_policy().spec["client_mean"].shape == (5,)


def test_a_head_that_is_tuned_at_the_end_is_pooled_after_that():
    method, plain = build("fedbabu"), fedbabu.build(fedbabu.Config(**SMALL), TASK)
    view, data = trained(method), draw_examples(method, 0)
    tuned = plain.personalise(view, data, trainer(), rng(3))
    result = method.contribute(view, data, trainer(), rng(3))
    assert np.array_equal(result.pool_entry["head.weight"], tuned["head.weight"])
    assert not np.array_equal(tuned["head.weight"], view.personal["head.weight"])
    # With its entry in the pool the module is tuned already; without it, it is tuned now, once.
    pool = drawn_experts(method, 3)
    for own, personal, expected in (
        (1, result.personal, result.personal),
        (None, view.personal, tuned),
        (None, {**tuned, OWN: np.array(3)}, tuned),
    ):
        given = dataclasses.replace(view, experts=pool, own=own, personal=personal)
        after = method.personalise(given, data, trainer(), rng(3))
        assert np.array_equal(after["head.weight"], expected["head.weight"])


def test_a_client_that_never_trained_pools_the_head_that_it_predicts_with():
    """FedCP: zeros stand for a copy of the generic head."""
    method = build("fedcp")
    view = trained(method, rounds=0)
    assert not any(v.any() for v in view.personal.values())
    entry = method.contribute(view, draw_examples(method, 0), trainer(), rng(3)).pool_entry
    assert np.array_equal(entry["head.weight"], view.broadcast[f"{fedcp.GENERIC}.weight"])
    assert entry["head.weight"].any()


def test_an_expert_of_another_shape_is_refused_by_name():
    method = build("fedgh")
    view = trained(method)
    wrong = {n: np.zeros((*v.shape, 2), np.float32) for n, v in drawn_experts(method, 1)[0].items()}
    name = next(iter(method.base.module_layers))
    for expert, found in ((wrong, r"\(.*, 2\)"), ({}, "None")):
        given = dataclasses.replace(view, experts=[*drawn_experts(method, 2), expert], own=0)
        with pytest.raises(MethodError, match=rf"'{name}' has shape {found}.*valid: \("):
            method.personalise(given, draw_examples(method, 0), trainer(), rng(3))


ON_RECORDS = {
    **{base: {} for base in ("fedper", "lg_fedavg", "fedrep", "fedbabu")},
    "fedrod": {"generic_loss": "cross_entropy"},
    "fedcp": {"mmd_weight": 0.0},
}
"""Options with which a base's training is of single records."""


@pytest.mark.parametrize("base", ON_RECORDS)
def test_what_goes_into_the_pool_under_dp_sgd_was_released(base):
    """The data is sealed: the entry is what noised steps gave, before or now, or a constant."""
    method = build(base, {**SMALL, **ON_RECORDS[base]})
    assert "record" in method.units
    for rounds in (0, 1):
        result = train_privately(
            method.contribute,
            trained(method, rounds=rounds),
            draw_examples(method, 0),
            trainer=private_trainer(2),
            steps=2 if method.pool_policy().trains else 0,
            rng=rng(3),
        )
        assert result.pool_entry


def options_of(**options) -> pm_moe.Config:
    return validate_options(Registry(), MethodConfig(name="pm_moe", **options))


def test_options_of_the_base_are_its_own_config():
    assert options_of().base_options == fedper.Config()
    given = options_of(base="fedbabu", base_options={"fine_tuning_rounds": 3, "channels": [4, 8]})
    assert given.base_options == fedbabu.Config(fine_tuning_rounds=3, channels=(4, 8))
    assert pm_moe.build(given, TASK).base.config == given.base_options


def test_an_option_that_the_base_lacks_is_refused_by_name():
    message = r"method\.base_options\.fine_tune: is not a known option of fedrep; valid: network"
    with pytest.raises(ConfigError, match=message):
        options_of(base="fedrep", base_options={"fine_tune": "all"})


def test_a_mechanism_that_a_base_lacks_is_refused_with_its_name():
    tree = {
        "name": "here",
        "training": {"local_steps": 1},
        "method": {"name": "pm_moe", "base": "dbe"},
        "privacy": {
            **{"mechanism": "dp_sgd", "per_sample_clipping_norm": 1.0},
            **{"sampling_probability": 0.5, "target_epsilon": 8.0},
        },
    }
    with pytest.raises(ConfigError, match=r"'dp_sgd' .* method\.base = dbe"):
        build_method(Registry(), parse_config(tree), TASK)


def test_heads_that_are_never_trained_are_no_experts():
    """FedBABU's heads stay as they were drawn, once for all clients, if bodies alone are tuned."""
    build("fedbabu", {"fine_tune": "head"})
    with pytest.raises(
        MethodError, match=r"method\.base_options\.fine_tune: 'body' .*valid .*: head, all"
    ):
        build("fedbabu", {"fine_tune": "body"})
