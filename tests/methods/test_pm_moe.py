"""PM-MoE over small networks: its two phases over all nine bases, and laws that tie it to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from methods import Arrays, ClientView, MethodError, Registry, Task, fedbabu, fedcp, fedper, pm_moe
from methods.networks.mixture import Gate
from methods.pm_moe import OWN, PMMoE
from platform.config import MethodConfig, parse_config
from platform.config.loading import validate_options
from platform.contract.examples import draw_batch, draw_examples, draw_experts, frozen
from platform.errors import ConfigError
from platform.experiment.method_building import build_method
from platform.parties.totality import train_privately
from tests.methods._models import some_quick
from tests.methods._tiny_networks import private_trainer
from tests.methods._training import RecordingTrainer, rng, trainer

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 6)
SMALL = {"image_size": 16, "channels": (2, 3), "feature_width": 5}
BASES = (
    *("fedper", "lg_fedavg", "fedrep", "fedrod", "fedgh"),
    *("fedbabu", "gpfl", "fedcp", "dbe"),
)
PREFIX = "moe."


def build(base: str = "fedper", network: Mapping | None = None, **options) -> PMMoE:
    given = {"gate_rounds": 2, "gamma": 0.0, "initialisation": "normal", **options}
    return pm_moe.build(pm_moe.Config(base=base, base_options=network or SMALL, **given), TASK)


def trained(method: PMMoE, seed: int = 0, rounds: int = 2) -> ClientView:
    """A client after some rounds of its own, with what it would be sent next."""
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(seed))
    sent = dict(method.broadcast(state))
    if "has_consensus" in sent:
        sent |= {"has_consensus": np.ones(1, np.int64), "consensus": sent["consensus"] + 1}
    for number in range(rounds):
        view = ClientView(frozen(sent), (), frozen(personal))
        data = draw_examples(method, seed + 10 * number, 9)
        personal = dict(method.client_update(view, data, trainer(), rng(3)).personal)
    return ClientView(sent, (), personal)


def with_gate(
    method: PMMoE, view: ClientView, pool: Sequence[Arrays], bias: Mapping[int, float], own: int
):
    """The view with these experts and a gate that says the same of every example."""
    gate = Gate(method.base.gated_width, len(pool), method.config).start(rng(9))
    last = method.config.gate_layers
    gate[f"{PREFIX}{last}.weight"][:] = 0.0
    gate[f"{PREFIX}{last}.bias"][:] = 0.0
    for place, value in bias.items():
        gate[f"{PREFIX}{last}.bias"][place] = value
    personal = {**view.personal, **gate, OWN: np.array(own, np.int64)}
    return dataclasses.replace(view, experts=pool, personal=personal)


SOME = some_quick(BASES, "fedper", "fedgh", "fedbabu", "dbe")


@pytest.mark.parametrize("base", SOME)
def test_the_second_phase_trains_the_gate_alone(base):
    method = build(base, gate_rate=0.25, gate_rounds=3)
    plain = trained(method)
    view = dataclasses.replace(plain, experts=draw_experts(method, 4), own=1)
    taken = RecordingTrainer()
    personal = method.personalise(view, draw_examples(method, 0), taken, rng(3))
    (group,) = taken.groups
    assert group.learning_rate == 0.25
    assert set(group.names) == {n for n in personal if n.startswith(PREFIX)} - {OWN}
    assert taken.steps == 3 * 7
    for name, value in plain.personal.items():
        assert np.array_equal(personal[name], value)
    assert personal[OWN] == 1


def test_an_own_module_that_the_pool_lacks_is_one_expert_more():
    method = build("fedper")
    plain = trained(method)
    pool = draw_experts(method, 3)
    view = dataclasses.replace(plain, experts=pool)
    personal = method.personalise(view, draw_examples(method, 0), trainer(), rng(3))
    assert personal[OWN] == 3
    assert personal[f"{PREFIX}4.bias"].shape == (4,)
    after = dataclasses.replace(view, personal=personal)
    batch = draw_batch(method, 4)
    assert method.expert_weights(after, batch, CLASSES).shape == (5, 4)
    named = with_gate(method, view, [*pool, plain.personal], {3: 1e4}, own=3)
    named = dataclasses.replace(named, experts=pool)
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
    pool = draw_experts(method, 3)
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
    wrong = {n: np.zeros((*v.shape, 2), np.float32) for n, v in draw_experts(method, 1)[0].items()}
    name = next(iter(method.base.module_layers))
    for expert, found in ((wrong, r"\(.*, 2\)"), ({}, "None")):
        given = dataclasses.replace(view, experts=[*draw_experts(method, 2), expert], own=0)
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


@pytest.mark.parametrize(
    ("base", "top_k"),
    [
        *((base, 1) for base in BASES),
        ("fedper", None),
        *(pytest.param(base, None, marks=pytest.mark.slow) for base in BASES if base != "fedper"),
    ],
)
def test_a_gate_that_names_the_own_module_is_the_base(base, top_k):
    """The noised own entry is not used: the true module never left."""
    method = build(base, top_k=top_k)
    plain, batch = trained(method), draw_batch(method, 4)
    pool = draw_experts(method, 4)
    view = with_gate(method, plain, pool, {2: 1e4}, own=2)
    expected = method.base.predict(plain, batch, CLASSES)
    np.testing.assert_allclose(method.predict(view, batch, CLASSES), expected, atol=1e-5)
    np.testing.assert_allclose(method.expert_weights(view, batch, CLASSES)[:, 2], 1.0)
    # An expert of others is another prediction: the law is not met by an idle mixture.
    other = with_gate(method, plain, pool, {0: 1e4}, own=2)
    assert np.abs(method.predict(other, batch, CLASSES) - expected).max() > 1e-3


@pytest.mark.parametrize("base", [base for base in BASES if base != "fedcp"])
def test_another_clients_module_predicts_as_if_it_were_the_own(base):
    """A gate that names expert k is the base's network with that module put in."""
    method = build(base)
    plain, batch = trained(method), draw_batch(method, 4)
    pool = draw_experts(method, 4)
    view = with_gate(method, plain, pool, {1: 1e4}, own=3)
    swapped = dataclasses.replace(plain, personal={**plain.personal, **pool[1]})
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        method.base.predict(swapped, batch, CLASSES),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_mixture_of_heads_by_hand():
    """Two heads on two features: 0.25 and 0.75 of what each says."""
    method = build("fedper")
    plain, batch = trained(method), draw_batch(method, 4, 6)
    pool = draw_experts(method, 2)
    view = with_gate(method, plain, pool, {1: np.log(3.0)}, own=0)
    heads = [{k: plain.personal[k] for k in pool[0]}, pool[1]]
    model = method.base.tensors(method.base.whole_model_of(plain))
    features = method.base.features(model, method.base.tensors(batch)).numpy()
    each = [features @ h["head.weight"].T + h["head.bias"] for h in heads]
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES), 0.25 * each[0] + 0.75 * each[1], atol=1e-5
    )
    # The larger weight alone, as it is, and scaled to one.
    for renormalise, share in ((False, 0.75), (True, 1.0)):
        one = build("fedper", top_k=1, renormalise=renormalise)
        np.testing.assert_allclose(one.predict(view, batch, CLASSES), share * each[1], atol=1e-5)
        np.testing.assert_allclose(
            one.expert_weights(view, batch, CLASSES), [[0.0, 1.0]] * 6, atol=1e-6
        )


def test_a_mixture_of_shifts_is_the_shift_by_the_mixed_vector():
    """PP (DBE): the weighted sum of the vectors themselves, added to the features."""
    method = build("dbe")
    plain, batch = trained(method), draw_batch(method, 4, 6)
    pool = draw_experts(method, 2)
    view = with_gate(method, plain, pool, {0: np.log(3.0)}, own=1)
    mean = 0.75 * pool[0]["client_mean"] + 0.25 * plain.personal["client_mean"]
    shifted = dataclasses.replace(plain, personal={"client_mean": mean})
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        method.base.predict(shifted, batch, CLASSES),
        rtol=1e-4,
        atol=1e-5,
    )


def test_dropped_experts_have_no_weight_and_others_share_it():
    """Heads that say the opposite of the own one have the lowest energy score at each example."""
    method = build("fedper", gamma=0.4, gate_layers=1)
    plain, batch = trained(method), draw_batch(method, 4, 6)
    own = {k: plain.personal[k] for k in method.base.module_layers}
    against = {k: -2.0 * v for k, v in own.items()}
    alike = {k: 3.0 * v for k, v in own.items()}
    pool = [against, alike, own, alike, against, alike]
    view = with_gate(method, plain, pool, {}, own=2)
    weights = method.expert_weights(view, batch, CLASSES)
    np.testing.assert_allclose(weights, [[0, 0.25, 0.25, 0.25, 0, 0.25]] * 6, atol=1e-6)
    mixed = (3 * 3.0 + 1.0) / 4
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        mixed * method.base.predict(plain, batch, CLASSES),
        rtol=1e-4,
    )
