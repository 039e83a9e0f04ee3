"""Laws that tie PM-MoE's mixture to its base method, over all nine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from platform.contract.examples import draw_batch
from tests.methods._mixtures import BASES, CLASSES, build, drawn_experts, trained, with_gate


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
