"""What the server makes of the sum that it is shown."""

from __future__ import annotations

import numpy as np

from methods import Aggregate, ClientView, Method, Visibility, Weighting
from platform.contract.examples import draw_examples, frozen
from platform.contract.training import epochs, rng, same_arrays, server_update, train
from platform.wire.codec import decode_arrays, encode_arrays


def test_what_is_averaged_moves_by_its_combined_change(method: Method) -> None:
    """Each tensor that is said to be `averaged` moves by exactly its combined change."""
    # So that a server optimiser, which only changes what is handed over, has its effect.
    assert method.averaged <= set(method.shared_spec())
    state = method.init_server(rng(1))
    results = {"one": train(method), "two": train(method, experts=0)}
    # Twice, as what a server remembers of earlier rounds shows in the second.
    for _ in range(2):
        after = server_update(method, state, results)
        for name in method.averaged:
            total = results["one"].update[name] + results["two"].update[name]
            is_sum = method.shared_spec()[name].weighting is Weighting.SUM
            change = total if is_sum else total / 2
            assert np.array_equal(after[name], (state[name] + change).astype(state[name].dtype))
        state = after


def test_a_federation_of_one_that_shares_everything_trains_centrally(method: Method) -> None:
    """Alone, an averaged method trains as in one place, unless it says that it is `anchored`."""
    # Three rounds of one epoch are one training of three epochs, for the same batches. A client
    # that is held at what was broadcast must show it.
    shared = set(method.shared_spec())
    if method.has_personal_state or not shared or method.averaged != shared:
        return
    state, data = method.init_server(rng(1)), draw_examples(method, 0)
    rate = 0.5 if method.anchored else 0.05
    whole = method.client_update(
        ClientView(frozen(method.broadcast(state))), data, epochs(3, rate), rng(5)
    ).update
    batches, now = rng(5), state
    for _ in range(3):
        view = ClientView(frozen(method.broadcast(now)))
        update = method.client_update(view, data, epochs(1, rate), batches).update
        now = method.server_update(now, Aggregate(update, 8.0, 1, 1), (), rng(9))
    off = max(np.abs(now[n] - state[n] - whole[n]).max() for n in shared)
    assert (off > 1e-5) == method.anchored, off
    for name in shared:
        assert np.abs(whole[name]).max() > 0


def test_the_server_state_keeps_its_shape(method: Method) -> None:
    """The server's state keeps its names, shapes and types, and depends on its inputs alone."""
    state = method.init_server(rng(1))
    results = {"one": train(method), "two": train(method, experts=0)}
    after = server_update(method, state, results)
    assert set(state) <= set(after)
    if method.visibility is Visibility.AGGREGATE_ONLY:
        assert set(state) == set(after)
    for name, value in state.items():
        assert after[name].shape == value.shape
        assert after[name].dtype == value.dtype
    assert same_arrays(after, server_update(method, state, results))
    assert same_arrays(after, decode_arrays(encode_arrays(after)))
