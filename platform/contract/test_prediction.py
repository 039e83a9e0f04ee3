"""What a method predicts, before and after training."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, Method, MethodError
from platform.contract.driving import local_trainer
from platform.contract.examples import (
    CLASSES,
    draw_batch,
    draw_examples,
    draw_experts,
    frozen,
)
from platform.contract.training import rng, start, train
from platform.wire.codec import decode_arrays, encode_arrays

OTHER_CLASSES = ("house", "lightning", "drop", "old grey flower", "cross")


@pytest.mark.parametrize("classes", [CLASSES, CLASSES[2:0:-1], OTHER_CLASSES, ("house",)])
@pytest.mark.parametrize("experts", [None, 0])
def test_prediction_for_any_classes(
    method: Method, classes: tuple[str, ...], experts: int | None
) -> None:
    """`predict` gives finite logits, (n, C) in single precision, for any classes in any order."""
    broadcast, personal = start(method)
    batch = draw_batch(method, 4)
    served = draw_experts(method, experts)
    for state in (personal, train(method, experts=experts).personal):
        view = ClientView(broadcast, served, frozen(state))
        if method.closed_classes and not set(classes) <= set(CLASSES):
            with pytest.raises(MethodError, match=r"classes: .*valid: "):
                method.predict(view, batch, classes)
            continue
        logits = method.predict(view, batch, classes)
        assert logits.shape == (5, len(classes))
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()


def test_a_closed_method_names_its_outputs_by_class(method: Method) -> None:
    """With closed classes, the logits of some, in any order, are those columns of all of them."""
    if not method.closed_classes:
        return
    broadcast, personal = start(method)
    view = ClientView(broadcast, draw_experts(method), personal)
    batch = draw_batch(method, 4)
    whole, some = (method.predict(view, batch, c) for c in (CLASSES, CLASSES[2:0:-1]))
    np.testing.assert_allclose(some, whole[:, [2, 1]], rtol=1e-5, atol=1e-6)


def test_a_prediction_depends_on_its_own_image_only(method: Method) -> None:
    """A prediction depends on its own image only, not on the rest of the batch."""
    broadcast, personal = start(method)
    batch = draw_batch(method, 4)
    alone = {name: value[2:3] for name, value in batch.items()}
    experts = draw_experts(method)
    together = method.predict(ClientView(broadcast, experts, personal), batch, CLASSES)
    single = method.predict(ClientView(broadcast, experts, personal), alone, CLASSES)
    np.testing.assert_allclose(together[2:3], single, atol=1e-4)


@pytest.mark.parametrize("experts", [None, 0])
def test_weights_of_experts_are_shares_of_one_image(method: Method, experts: int | None) -> None:
    """Weights of experts are at least 0, add up to 1, and depend on their own image only."""
    broadcast, _ = start(method)
    served = draw_experts(method, experts)
    personal = train(method, experts=experts).personal
    batch, view = draw_batch(method, 4), ClientView(broadcast, served, frozen(personal))
    weights = method.expert_weights(view, batch, CLASSES)
    if weights is None:
        return
    assert served or method.pool_policy() is None
    assert len(weights) == 5
    assert weights.dtype == np.float32
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    alone = {name: value[2:3] for name, value in batch.items()}
    single = method.expert_weights(view, alone, CLASSES)
    assert single is not None
    np.testing.assert_allclose(weights[2:3], single, atol=1e-5)


def test_personalising_gives_arrays_that_predict(method: Method) -> None:
    """`personalise` gives arrays that can be stored, and with which `predict` works."""
    broadcast, _ = start(method)
    experts, data = draw_experts(method), draw_examples(method, 0)
    trained = frozen(train(method).personal)
    personal = method.personalise(
        ClientView(broadcast, experts, trained), data, local_trainer(), rng()
    )
    restored = decode_arrays(encode_arrays(personal))
    batch = draw_batch(method, 0, 8)
    logits = method.predict(ClientView(broadcast, experts, restored), batch, CLASSES)
    assert np.isfinite(logits).all()
