"""Laws that tie PM-MoE's mixture to its base method, over all nine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from methods.networks.method import FED, GATED
from methods.networks.mixture import KEPT, OUTPUTS, expert_outputs
from methods.pm_moe import OWN
from platform.contract.examples import draw_batch, draw_examples
from tests.methods._mixtures import (
    BASES,
    CLASSES,
    PREFIX,
    SMALL,
    WORDS,
    build,
    drawn_experts,
    rng,
    trained,
    with_gate,
)
from tests.methods._training import trainer


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("top_k", [1, None])
def test_a_gate_that_names_the_own_module_is_the_base(base, top_k):
    """The noised own entry is not used: the true module never left."""
    method = build(base, top_k=top_k)
    plain, batch = trained(method), draw_batch(method, 4)
    pool = drawn_experts(method, 4)
    view = with_gate(method, plain, 4, {2: 1e4}, own=2)
    view = dataclasses.replace(view, experts=pool)
    expected = method.base.predict(plain, batch, CLASSES)
    np.testing.assert_allclose(method.predict(view, batch, CLASSES), expected, atol=1e-5)
    np.testing.assert_allclose(method.expert_weights(view, batch, CLASSES)[:, 2], 1.0)
    # An expert of others is another prediction: the law is not met by an idle mixture.
    other = dataclasses.replace(with_gate(method, plain, 4, {0: 1e4}, own=2), experts=pool)
    assert np.abs(method.predict(other, batch, CLASSES) - expected).max() > 1e-3


@pytest.mark.parametrize("base", [base for base in BASES if base != "fedcp"])
def test_another_clients_module_predicts_as_if_it_were_the_own(base):
    """A gate that names expert k is the base's network with that module put in."""
    method = build(base)
    plain, batch = trained(method), draw_batch(method, 4)
    pool = drawn_experts(method, 4)
    view = with_gate(method, plain, 4, {1: 1e4}, own=3)
    view = dataclasses.replace(view, experts=pool)
    swapped = dataclasses.replace(plain, personal={**plain.personal, **pool[1]})
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        method.base.predict(swapped, batch, CLASSES),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("options", [{}, {"top_k": 2, "renormalise": True}, {"gamma": 0.6}])
def test_equal_experts_are_the_base_under_any_gate(base, options):
    method = build(base, **options)
    plain, batch = trained(method), draw_batch(method, 4)
    model = method.base.whole_model_of(plain)
    own = {name: model[name] for name in method.base.module_layers}
    view = with_gate(method, plain, 4, {0: 0.5, 1: -1.0, 3: 0.2}, own=2)
    view = dataclasses.replace(view, experts=[own] * 4)
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        method.base.predict(plain, batch, CLASSES),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("base", BASES)
def test_the_order_of_experts_means_nothing_but_to_the_gate(base):
    method = build(base, gamma=0.5, top_k=3, renormalise=True)
    plain, batch = trained(method), draw_batch(method, 4, 7)
    pool, order = drawn_experts(method, 5), [3, 0, 4, 1, 2]
    view = dataclasses.replace(plain, experts=pool, own=1)
    personal = method.personalise(view, draw_examples(method, 0), trainer(), rng())
    view = dataclasses.replace(view, personal=personal)
    moved = dict(personal)
    for kind in ("weight", "bias"):
        moved[f"{PREFIX}4.{kind}"] = personal[f"{PREFIX}4.{kind}"][order]
    moved[OWN] = np.array(order.index(1), np.int64)
    turned = dataclasses.replace(view, experts=[pool[k] for k in order], personal=moved)
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        method.predict(turned, batch, CLASSES),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        method.expert_weights(view, batch, CLASSES)[:, order],
        method.expert_weights(turned, batch, CLASSES),
        atol=1e-5,
    )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("network", [SMALL, WORDS], ids=["cnn", "fasttext"])
def test_all_outputs_at_once_are_those_of_one_module_after_the_other(base, network):
    method = build(base, network).base
    plain = trained(build(base, network))
    model = method.tensors(method.whole_model_of(plain))
    batch = method.tensors(draw_batch(method, 4, 6))
    pool = drawn_experts(build(base, network), 3)
    stack = {n: torch.stack([torch.from_numpy(e[n]) for e in pool]) for n in pool[0]}
    with torch.no_grad():
        fed = method.parts(model, batch)[FED]
        got = expert_outputs(method.module_output, stack, fed)
        assert got.shape[:2] == (6, 3)
        for k, entry in enumerate(pool):
            alone = method.module_output(method.tensors(entry), fed)
            np.testing.assert_allclose(got[:, k], alone, rtol=1e-4, atol=1e-5)


def test_a_mixture_of_heads_by_hand():
    """Two heads on two features: 0.25 and 0.75 of what each says."""
    method = build("fedper")
    plain, batch = trained(method), draw_batch(method, 4, 6)
    pool = drawn_experts(method, 2)
    view = with_gate(method, plain, 2, {1: np.log(3.0)}, own=0)
    view = dataclasses.replace(view, experts=pool)
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
    pool = drawn_experts(method, 2)
    view = with_gate(method, plain, 2, {0: np.log(3.0)}, own=1)
    view = dataclasses.replace(view, experts=pool)
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
    view = dataclasses.replace(with_gate(method, plain, 6, {}, own=2), experts=pool)
    weights = method.expert_weights(view, batch, CLASSES)
    np.testing.assert_allclose(weights, [[0, 0.25, 0.25, 0.25, 0, 0.25]] * 6, atol=1e-6)
    mixed = (3 * 3.0 + 1.0) / 4
    np.testing.assert_allclose(
        method.predict(view, batch, CLASSES),
        mixed * method.base.predict(plain, batch, CLASSES),
        rtol=1e-4,
    )


@pytest.mark.parametrize("base", BASES)
def test_no_denoising_at_gamma_zero_or_a_share_below_one_expert(base):
    """With five others a share of 0.19 is no whole one; 0.2 is, and changes what is predicted."""
    results = {}
    for gamma in (0.0, 0.19, 0.2):
        method = build(base, gamma=gamma)
        plain, batch = trained(method), draw_batch(method, 4, 6)
        view = dataclasses.replace(plain, experts=drawn_experts(method, 6), own=0)
        personal = method.personalise(view, draw_examples(method, 0), trainer(), rng())
        view = dataclasses.replace(view, personal=personal)
        results[gamma] = method.predict(view, batch, CLASSES)
    np.testing.assert_array_equal(results[0.0], results[0.19])
    assert np.abs(results[0.0] - results[0.2]).max() > 1e-6


@pytest.mark.parametrize("base", BASES)
def test_nothing_is_kept_that_nobody_reads(base):
    """What is left out of it is missed, and an extractor's input, the images, is not in it."""
    method = build(base)
    plain, batch = trained(method), draw_batch(method, 4)
    view = with_gate(method, plain, 4, {1: 1.0}, own=2)
    view = dataclasses.replace(view, experts=drawn_experts(method, 4))
    mixture, parameters = method._mixture(view), method.base.tensors(method._parameters(view))
    seen = method.base.tensors(mixture.seen(batch))
    for name in seen:
        less = {n: v for n, v in seen.items() if n != name}
        with pytest.raises(KeyError, match=name):
            mixture.logits(parameters, less)
    assert {GATED, OUTPUTS, KEPT} <= set(seen)
    assert (FED in seen) == (base == "dbe")


def test_temperature_decides_who_is_dropped():
    batch, kept = None, []
    for temperature in (0.01, 100.0):
        method = build("lg_fedavg", gamma=0.5, temperature=temperature)
        view = trained(method)
        view = with_gate(
            method, dataclasses.replace(view, experts=drawn_experts(method, 6)), 6, {}, 0
        )
        batch = draw_batch(method, 4, 40)
        kept.append(method._mixture(view).seen(batch)[KEPT])
    assert all((k.sum(1) == 4).all() for k in kept)
    assert (kept[0] != kept[1]).any()


def test_blocks_of_rows_change_nothing():
    """150 examples are two blocks; each alone gives the same row."""
    method = build("lg_fedavg", gamma=0.5)
    view = dataclasses.replace(trained(method), experts=drawn_experts(method, 4), own=0)
    view = dataclasses.replace(
        view, personal=method.personalise(view, draw_examples(method, 0), trainer(), rng())
    )
    batch = draw_batch(method, 4, 150)
    whole = method.predict(view, batch, CLASSES)
    assert whole.shape == (150, 4)
    for row in (0, 127, 128, 149):
        alone = method.predict(view, {n: v[row : row + 1] for n, v in batch.items()}, CLASSES)
        np.testing.assert_allclose(whole[row : row + 1], alone, rtol=1e-4, atol=1e-5)


def test_another_clients_head_leaves_the_policy_as_it_is():
    """FedCP: the own head steers what is personal of the features, whoever's head they go to."""
    method = build("fedcp")
    plain, batch = trained(method), draw_batch(method, 4)
    pool = drawn_experts(method, 4)
    view = with_gate(method, plain, 4, {1: 1e4}, own=3)
    view = dataclasses.replace(view, experts=pool)
    model = method.base.tensors(method.base.whole_model_of(plain))
    rows = method.base.tensors(batch)
    features = method.base.features(model, rows)
    share = method.base.shares(model, features, rows)
    generic = (1 - share) * features @ model["generic.weight"].T + model["generic.bias"]
    head = method.base.tensors(pool[1])
    expected = generic + share * features @ head["head.weight"].T + head["head.bias"]
    np.testing.assert_allclose(method.predict(view, batch, CLASSES), expected, rtol=1e-4, atol=1e-5)
