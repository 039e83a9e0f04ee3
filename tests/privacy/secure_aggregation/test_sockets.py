"""The same state machines over real sockets, each client's state stored between its messages."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from privacy.secure_aggregation import (
    Finished,
    ReadyToMask,
    RoundParameters,
    client,
    decode_client_state,
    encode_client_state,
    server,
)
from tests.privacy.secure_aggregation._drive import (
    credentials_of,
    identity_of,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    plain_sum,
)


def send(end: socket.socket, message: bytes) -> None:
    end.sendall(struct.pack("<I", len(message)) + message)


def receive(end: socket.socket) -> bytes | None:
    """One message, None where the other side has hung up."""
    head = end.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    (size,) = struct.unpack("<I", head)
    return end.recv(size, socket.MSG_WAITALL) if size else b""


def serve_client(
    parameters: RoundParameters,
    index: int,
    vector: NDArray[np.uint64],
    end: socket.socket,
    *,
    hangs_up: bool,
) -> None:
    """A whole client: between two messages nothing of it is left but stored bytes."""
    identity = identity_of(index) if parameters.is_active else None
    state, message = client.advertise(
        parameters, index, credentials=credentials_of(parameters, index)
    )
    with end:
        send(end, message)
        stored = encode_client_state(state)
        while (incoming := receive(end)) is not None:
            state, message = client.step(decode_client_state(stored), incoming, identity=identity)
            if isinstance(state, ReadyToMask):
                if hangs_up:
                    return
                state, message = client.mask(state, vector, identity=identity)
            stored = encode_client_state(state)
            send(end, message)


def collect(ends: dict[int, socket.socket]) -> dict[int, bytes]:
    answers = {index: receive(end) for index, end in ends.items()}
    return {index: message for index, message in answers.items() if message is not None}


@pytest.mark.parametrize("make", [make_parameters, make_active, make_regular])
def test_a_round_over_sockets_gives_the_survivors_sum(make) -> None:
    parameters = make()
    vectors, lost = make_vectors(parameters), parameters.clients[1]
    pairs = {index: socket.socketpair() for index in parameters.clients}
    ends = {index: pair[0] for index, pair in pairs.items()}
    with ThreadPoolExecutor(len(pairs)) as pool:
        clients = [
            pool.submit(serve_client, parameters, i, vectors[i], pairs[i][1], hangs_up=i == lost)
            for i in parameters.clients
        ]
        state = server.start(parameters)
        for _ in parameters.phases:
            state, outgoing = server.step(state, collect(ends))
            for index, end in ends.items():
                if index not in outgoing:
                    end.close()
            ends = {index: ends[index] for index in outgoing}
            for index, message in outgoing.items():
                send(ends[index], message)
        for one in clients:
            one.result(timeout=20)
    assert isinstance(state, Finished)
    survivors = tuple(index for index in parameters.clients if index != lost)
    assert state.survivors == survivors
    assert state.total.tolist() == plain_sum(parameters, vectors, survivors)
