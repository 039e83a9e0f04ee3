"""Time of one secure aggregation, by party and phase, in one process.

    python benchmarks/secure_aggregation.py [--clients 10 100] [--length 65536] [--dropouts 0.1]

A tenth of the clients is lost between sharing keys and sending masked vectors, which is the most
work for the server. Client times are the mean of one client's own computing; server times are the
whole step for all clients. Nothing is asserted but that the sum is right.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from privacy.secure_aggregation import (
    ClientState,
    Finished,
    Phase,
    RoundParameters,
    ServerState,
    client,
    default_threshold,
    server,
)

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - started)


def answer(
    phase: Phase,
    parameters: RoundParameters,
    index: int,
    state: ClientState | None,
    message: bytes,
    vector: np.typing.NDArray[np.uint64],
) -> tuple[ClientState, bytes]:
    """One client's whole work in one phase."""
    if state is None:
        return client.advertise(parameters, index)
    following, outgoing = client.step(state, message)
    if phase is Phase.MASKED_INPUT:
        return client.mask(following, vector)  # type: ignore[arg-type]  # the order of phases
    return following, outgoing


def measure(clients: int, length: int, dropouts: float) -> None:
    parameters = RoundParameters(
        run_id="benchmark",
        round_number=0,
        attempt=0,
        clients=tuple(range(1, clients + 1)),
        threshold=default_threshold(clients),
        vector_length=length,
        ring_bits=32,
    )
    rng = np.random.default_rng(0)
    vectors = {i: rng.integers(0, 2**32, length, np.uint64) for i in parameters.clients}
    lost = set(parameters.clients[:: round(1 / dropouts)]) if dropouts else set()
    print(f"\n{clients} clients, threshold {parameters.threshold}, {length} values, ", end="")
    print(f"{len(lost)} lost before the masked input")
    print(f"{'phase':<16}{'one client, ms':>16}{'server, ms':>12}{'up, bytes':>12}{'down':>10}")
    finished = play(parameters, vectors, lost)
    survivors = [index for index in parameters.clients if index not in lost]
    expected = sum(vectors[index] for index in survivors) % np.uint64(2**32)
    assert np.array_equal(finished.total, expected)


def play(
    parameters: RoundParameters,
    vectors: Mapping[int, np.typing.NDArray[np.uint64]],
    lost: set[int],
) -> Finished:
    server_state: ServerState = server.start(parameters)
    states: dict[int, ClientState] = {}
    inbox: Mapping[int, bytes] = dict.fromkeys(parameters.clients, b"")
    totals = [0.0, 0.0]
    for phase in Phase:
        if phase is Phase.MASKED_INPUT:
            inbox = {index: message for index, message in inbox.items() if index not in lost}
        outbox, times = {}, []
        for index, message in inbox.items():
            (states[index], outbox[index]), spent = timed(
                lambda i=index, m=message, p=phase: answer(  # type: ignore[misc]
                    p, parameters, i, states.get(i), m, vectors[i]
                )
            )
            times.append(spent)
        (server_state, inbox), spent = timed(
            lambda state=server_state, out=outbox: server.step(state, out)  # type: ignore[misc]
        )
        mean = statistics.mean(times)
        totals = [totals[0] + mean, totals[1] + spent]
        up, down = largest(outbox), largest(inbox)
        print(f"{phase.value:<16}{mean:>16.2f}{spent:>12.2f}{up:>12,}{down:>10,}")
    print(f"{'all':<16}{totals[0]:>16.2f}{totals[1]:>12.2f}")
    assert isinstance(server_state, Finished)
    return server_state


def largest(messages: Mapping[int, bytes]) -> int:
    return max(map(len, messages.values()), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--length", type=int, default=65_536)
    parser.add_argument("--dropouts", type=float, default=0.1)
    arguments = parser.parse_args()
    for clients in arguments.clients:
        measure(clients, arguments.length, arguments.dropouts)


if __name__ == "__main__":
    main()
