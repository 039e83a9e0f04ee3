"""Every method in real rounds: masked sums equal plain sums, also when clients drop out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from methods import Examples, Method, Visibility, Weighting
from platform.contract.driving import (
    STEP,
    CheckedMethod,
    Setting,
    aggregate_of,
    by_coordinate,
    make_clients,
    make_protection,
    play,
    pool_of_rounds,
)
from platform.contract.examples import draw_examples, handed_out
from platform.errors import RoundAborted, RunStopped
from platform.wire.layout import flatten
from privacy import NoProtection, UploadNoise, UploadSaturated

NAMES = tuple(f"client-{i}" for i in range(6))
LOST = ("client-1", "client-4")
THRESHOLD = 4
UNIFORM = (8, 8, 8, 8, 8, 8)
UNEQUAL = (5, 9, 8, 12, 7, 6)


def data_of(method: Method, sizes: Sequence[int] = UNIFORM) -> dict[str, Examples]:
    """Return examples of six clients."""
    return {n: draw_examples(method, i, sizes[i]) for i, n in enumerate(NAMES)}


def masked(method: Method) -> bool:
    """Whether the method shares tensors that a secure sum may carry."""
    shared = bool(method.shared_spec())
    return shared and method.visibility is Visibility.AGGREGATE_ONLY


@pytest.mark.parametrize("sizes", [UNIFORM, UNEQUAL], ids=["uniform", "unequal"])
def test_a_masked_sum_is_the_plain_sum(method: Method, stores: Path, sizes: Sequence[int]) -> None:
    """A sum under masks is the plain sum of the survivors' updates, also after dropouts."""
    # Within n half steps per coordinate; n is the number of clients in the sum (or examples).
    if not masked(method):
        # A method that shares nothing is never masked; one that shows single updates is refused.
        if not method.shared_spec():
            assert not make_protection(method, Setting(masked=True)).masked
        return
    data, experts = data_of(method, sizes), handed_out(method)
    checked = CheckedMethod(method)
    (stores / "plain").mkdir()
    (stores / "secure").mkdir()
    plain = play(checked, data, stores / "plain", Setting(lost=LOST), experts=experts)
    secure = play(
        method,
        data,
        stores / "secure",
        Setting(masked=True, threshold=THRESHOLD, lost=LOST),
        experts=experts,
    )
    survivors = tuple(name for name in NAMES if name not in LOST)
    assert plain.survivors == secure.survivors == survivors
    assert secure.individual is None
    assert secure.summed.total_weight == plain.summed.total_weight

    # Compute the plain sum from the clients' results.
    vectors = [flatten(result.update, method.shared_spec()) for result in checked.results]
    weights = np.array([sizes[NAMES.index(name)] for name in survivors], np.float64)
    uniform = np.ones(len(survivors))
    expected = sum(
        np.multiply(
            vector,
            by_coordinate(
                method,
                {
                    Weighting.EXAMPLES: weight / weights.sum(),
                    Weighting.UNIFORM: 1 / uniform.sum(),
                    Weighting.SUM: 1.0,
                },
            ),
        )
        for vector, weight in zip(vectors, weights, strict=True)
    )
    np.testing.assert_allclose(plain.summed.vector, expected, rtol=1e-12, atol=1e-15)
    assert np.abs(expected).max() > 20 * STEP, "the comparison would pass on nothing"

    # A mean may differ by half a step, a sum by half a step for each client.
    bound = by_coordinate(
        method, {Weighting.EXAMPLES: 0.5, Weighting.UNIFORM: 0.5, Weighting.SUM: len(survivors) / 2}
    )
    difference = np.abs(secure.summed.vector - plain.summed.vector)
    assert (difference <= bound * STEP * (1 + 1e-9)).all()


@pytest.mark.parametrize("secure", [True, False])
def test_pool_entries_are_the_survivors(method: Method, stores: Path, secure: bool) -> None:
    """The pool gets the entries of exactly those clients that survived a round."""
    if pool_of_rounds(method) is None:
        return
    setting = Setting(masked=secure, threshold=THRESHOLD, lost=LOST)
    checked = CheckedMethod(method)
    outcome = play(checked, data_of(method), stores, setting, experts=handed_out(method))
    assert outcome.entries_void is None
    protection = make_protection(method, setting)
    broadcast = method.broadcast(method.init_server(np.random.default_rng(7)), None)
    opened = [protection.open_entry(entry, broadcast) for _, entry in outcome.entries]
    kept = [result.pool_entry for result in checked.results]
    assert len(opened) == len(kept) == len(NAMES) - len(LOST)
    for mine, returned in zip(opened, kept, strict=True):
        for name, value in (returned or {}).items():
            assert np.array_equal(mine[name], value)


def test_clients_side_by_side_learn_what_they_learn_one_by_one(
    method: Method, stores: Path
) -> None:
    """Fits of several clients at once give each client its own result, up to rounding."""
    found = {}
    for together in (False, True):
        folder = stores / str(together)
        folder.mkdir()
        checked, setting = CheckedMethod(method), Setting(lost=LOST, together=together)
        outcome = play(
            checked, data_of(method, UNEQUAL), folder, setting, experts=handed_out(method)
        )
        found[together] = (outcome, checked.results)
    (apart, alone), (outcome, beside) = found[False], found[True]
    assert outcome.survivors == apart.survivors
    assert len(beside) == len(alone) == len(NAMES) - len(LOST)
    for one, other in zip(beside, alone, strict=True):
        for mine, its in ((one.update, other.update), (one.personal, other.personal)):
            assert mine.keys() == its.keys()
            for name, array in mine.items():
                np.testing.assert_allclose(array, its[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_one_loss_more_than_the_threshold_allows_aborts(method: Method, stores: Path) -> None:
    """One loss more than the threshold allows aborts a masked round; the error names the phase."""
    if not masked(method):
        return
    setting = Setting(masked=True, threshold=THRESHOLD + 1, lost=LOST)
    with pytest.raises(RoundAborted, match="masked_input") as caught:
        play(method, data_of(method), stores, setting)
    assert caught.value.phase == "masked_input"
    assert caught.value.uploads_asked


def test_a_round_of_a_plain_sum_feeds_the_server(method: Method, stores: Path) -> None:
    """The server update takes the round's sum, and the next broadcast differs from the last."""
    state, names = method.init_server(np.random.default_rng(7)), NAMES[:3]
    data = {name: examples for name, examples in data_of(method).items() if name in names}
    outcome = play(method, data, stores, Setting(), state=state)
    aggregate = aggregate_of(method, outcome)
    assert set(aggregate.each()) == set(names)
    after = method.server_update(state, aggregate, (), np.random.default_rng(0))
    for name in names:
        broadcast, before = method.broadcast(after, name), method.broadcast(state, name)
        assert set(broadcast) == set(before)
        assert not method.shared_spec() or any((broadcast[n] != before[n]).any() for n in broadcast)


def test_upload_noise_and_masks(method: Method, stores: Path) -> None:
    """Clipped uploads are masked, and the norm of their mean is at most the clipping norm."""
    if not masked(method):
        return
    policy = pool_of_rounds(method)
    entry_is_update = policy is None or set(policy.spec) == set(method.shared_spec())
    mechanism = UploadNoise(clipping_norm=0.05, noise_multiplier=0.0)
    setting = Setting(
        masked=True,
        threshold=THRESHOLD,
        lost=LOST,
        mechanism=mechanism,
        pool_noise="same" if entry_is_update else "independent",
    )
    outcome = play(method, data_of(method, UNEQUAL), stores, setting)
    assert outcome.summed.total_weight == len(outcome.survivors)
    sums = by_coordinate(
        method, {Weighting.EXAMPLES: 1, Weighting.UNIFORM: 1, Weighting.SUM: 1 / 4}
    )
    norm = np.linalg.norm(outcome.summed.vector * sums)
    assert 0.001 < norm <= 0.05 + STEP
    assert outcome.entries_void is None
    assert len(outcome.entries) == (0 if policy is None else len(outcome.survivors))


def test_a_client_keeps_its_personal_state(method: Method, stores: Path) -> None:
    """A client that returns loads the personal state from its store."""
    clients = make_clients(method, data_of(method), stores, Setting())
    again = make_clients(method, data_of(method), stores, Setting())
    for name in NAMES:
        one, other = clients[name].state(None).personal, again[name].state(None).personal
        assert set(one) == set(other)
        assert all(np.array_equal(one[n], other[n]) for n in one)


def test_an_update_that_does_not_fit_is_refused_and_its_tensor_named(
    method: Method, stores: Path
) -> None:
    """Under masks, a client refuses an update beyond `value_bound` and names its tensor."""
    if not masked(method):
        return
    tight = Setting(masked=True, threshold=THRESHOLD, mechanism=NoProtection(1e-7))
    with pytest.raises(RunStopped, match=r"value_bound.*too small for tensor '[\w.]+'") as caught:
        play(method, data_of(method), stores, tight)
    assert isinstance(caught.value.__cause__, UploadSaturated)
