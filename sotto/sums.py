"""Secure sums alone: the sum of many parties' vectors, and no party's own vector.

`secure_sum` plays all parties in one process: a simulation, to see what a sum would be. Real
parties use `SecureSumClient` and `SecureSumServer`, which turn messages into messages and leave it
to the caller how the bytes travel. The protocol is that of Bonawitz et al. 2017 against parties
that follow it: a server and up to `corrupt` clients who pool what they see learn the sum and
nothing else. `privacy.secure_aggregation` has the variant against parties that lie.

A sum is exact, so it is not differentially private: what it says about one party is as much as it
says. Each vector is cut to `clipping_norm` before it is masked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy import clip
from privacy.errors import PrivacyError, ProtocolViolation
from privacy.grids import Quantiser
from privacy.secure_aggregation import (
    ClientState,
    Done,
    Finished,
    ReadyToMask,
    RoundParameters,
    ServerState,
    client,
    default_threshold,
    server,
)
from sotto.errors import Error, invalid

BITS = 24
"""Of a coordinate: the step of the grid is 1.2e-7 of the clipping norm."""


@dataclass(frozen=True)
class SecureSum:
    """What all parties of one sum agree on before the first message.

    Parties that differ in any of it refuse each other's messages.

    Attributes:
        names: The clients, each once, at least two.
        size: Number of coordinates of each vector.
        clipping_norm: Largest L2 norm of a vector; a longer one is scaled down to it.
        corrupt: Clients that may pool what they see with the server without learning more.
        threshold: Clients of whom the sum needs answers to the end. By default two thirds and one,
            or `corrupt` and one if that is more.
        name: Distinguishes this sum from all others of the same parties. A sum that failed is tried
            again under another name.

    Raises:
        Error: A value is not valid.
    """

    names: tuple[str, ...]
    size: int
    clipping_norm: float
    corrupt: int = 0
    threshold: int | None = None
    name: str = "sum"

    def __post_init__(self) -> None:
        """Refuse what no sum can be taken with."""
        known = {name for name in self.names if isinstance(name, str)}
        if len(known) < max(2, len(self.names)):
            raise invalid("names", list(self.names), "two or more strings, each once")
        object.__setattr__(self, "names", tuple(sorted(known)))
        if not (np.isfinite(self.clipping_norm) and self.clipping_norm > 0):
            raise invalid("clipping_norm", self.clipping_norm, "a finite number above 0")
        if not 0 <= self.corrupt < len(self.names):
            raise invalid("corrupt", self.corrupt, f"0 to {len(self.names) - 1}")
        low = max(2, self.corrupt + 1)
        if self.threshold is not None and not low <= self.threshold <= len(self.names):
            raise invalid("threshold", self.threshold, f"{low} to {len(self.names)}")
        try:
            _ = self.parameters
        except (ValueError, PrivacyError) as error:
            raise Error(str(error)) from error

    @cached_property
    def grid(self) -> Quantiser:
        """The grid on which coordinates travel."""
        return Quantiser(self.clipping_norm, BITS)

    @cached_property
    def parameters(self) -> RoundParameters:
        """The same as the protocol knows it: client i of the sorted names has index i + 1."""
        count = len(self.names)
        threshold = self.threshold
        if threshold is None:
            threshold = max(default_threshold(count), self.corrupt + 1)
        # The length of each name before it, so that no two lists of names read the same.
        agreed = (self.name, repr(float(self.clipping_norm)), *self.names)
        return RoundParameters(
            run_id="".join(f"{len(part)}:{part}" for part in agreed),
            round_number=0,
            attempt=0,
            clients=tuple(range(1, count + 1)),
            threshold=threshold,
            vector_length=self.size,
            ring_bits=self.grid.ring_bits(count),
            corrupt=self.corrupt,
        )

    def index(self, name: str) -> int:
        """Return the protocol's index of a client; `Error` for a name that is not one."""
        if name not in self.names:
            raise invalid("name", name, "one of the sum's names")
        return self.names.index(name) + 1


class SecureSumClient:
    """One client's side, for a real party.

    Send `hello` to the server, and then what `answer` returns for each message from it, until
    `done`.

    Attributes:
        hello: The first message.
    """

    def __init__(self, agreed: SecureSum, name: str, vector: ArrayLike) -> None:
        """Draw fresh keys from the operating system.

        Args:
            agreed: What all parties agree on.
            name: This client's.
            vector: Finite numbers of shape (size,).

        Raises:
            Error: The name or the vector is not valid.
        """
        self._levels = _levels(agreed, name, vector)
        self._state: ClientState
        self._state, self.hello = client.advertise(agreed.parameters, agreed.index(name))

    @property
    def done(self) -> bool:
        """Whether the server needs nothing more from this client."""
        return isinstance(self._state, Done)

    def answer(self, message: bytes) -> bytes:
        """Return the answer to the server's next message.

        Raises:
            Error: The message is not the next one of this sum; the right one is still taken.
        """
        try:
            state, reply = client.step(self._state, message)
            if isinstance(state, ReadyToMask):
                state, reply = client.mask(state, self._levels)
        except ProtocolViolation as error:
            raise Error(str(error), field="message") from error
        self._state = state
        return reply


class SecureSumServer:
    """The server's side, for a real party.

    Collect the clients' first messages, and hand them to `step`; send each client what it returns,
    collect their answers until a deadline of your own, and so on until `done`.
    """

    def __init__(self, agreed: SecureSum) -> None:
        """Wait for the clients' first messages."""
        self._agreed = agreed
        self._state: ServerState = server.start(agreed.parameters)

    @property
    def done(self) -> bool:
        """Whether the sum is there."""
        return isinstance(self._state, Finished)

    def step(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        """Take what has arrived, by the sender's name, and return the next message to each client.

        A client that is missing here, or sent anything but its valid message, is lost. The names
        are those under which the transport knows the senders.

        Raises:
            Error: Too few clients are left, or shares that do not fit; no sum is opened.
        """
        agreed = self._agreed
        received = {agreed.index(name): message for name, message in messages.items()}
        try:
            self._state, outgoing = server.step(self._state, received)
        except PrivacyError as error:
            raise Error(str(error)) from error
        return {agreed.names[index - 1]: message for index, message in outgoing.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The clients whose vectors are in the sum; `Error` before it is there."""
        return tuple(self._agreed.names[index - 1] for index in self._finished.survivors)

    @property
    def total(self) -> NDArray[np.float64]:
        """The sum, shape (size,); `Error` before it is there."""
        return self._agreed.grid.dequantise_sum(self._finished.total, len(self.names))

    @property
    def _finished(self) -> Finished:
        if not isinstance(self._state, Finished):
            raise Error("the sum is not there yet")
        return self._state


def secure_sum(
    vectors: Mapping[str, ArrayLike],
    *,
    clipping_norm: float,
    lost: Collection[str] = (),
    corrupt: int = 0,
    threshold: int | None = None,
) -> NDArray[np.float64]:
    """Return the sum of all vectors but those of lost clients, by the whole protocol.

    This is a simulation: all parties are in this process, which therefore sees all vectors.

    Args:
        vectors: Finite numbers of shape (n,) for each client's name.
        clipping_norm: Largest L2 norm of a vector; a longer one is scaled down to it.
        lost: Clients that share their keys and then are heard no more, so that the others have to
            recover their masks.
        corrupt: Clients that may pool what they see with the server.
        threshold: Clients of whom the sum needs answers to the end; see `SecureSum`.

    Returns:
        The sum, float64 of shape (n,), within 6e-8 of the clipping norm for each client.

    Raises:
        Error: An argument is not valid, or too few clients are left.
    """
    if not isinstance(vectors, Mapping):
        raise invalid("vectors", type(vectors).__name__, "a vector for each client's name, a dict")
    names = tuple(vectors)
    if isinstance(lost, str):
        raise invalid("lost", lost, "a set of names")
    if unknown := set(lost) - set(names):
        raise invalid("lost", sorted(unknown, key=str), "names of vectors")
    size = max((np.size(vector) for vector in vectors.values()), default=0)
    agreed = SecureSum(names, size, clipping_norm, corrupt, threshold)
    clients = {name: SecureSumClient(agreed, name, vectors[name]) for name in names}
    summing = SecureSumServer(agreed)
    outgoing = summing.step({name: each.hello for name, each in clients.items()})
    outgoing = summing.step({name: clients[name].answer(m) for name, m in outgoing.items()})
    while not summing.done:
        left = {name: message for name, message in outgoing.items() if name not in lost}
        outgoing = summing.step({name: clients[name].answer(m) for name, m in left.items()})
    return summing.total


def _levels(agreed: SecureSum, name: str, vector: ArrayLike) -> NDArray[np.uint64]:
    found = np.asarray(vector)
    if found.shape != (agreed.size,) or found.dtype.kind not in "fiu":
        shape = f"{found.dtype} of shape {found.shape}"
        raise invalid(f"vectors[{name!r}]", shape, f"numbers of shape ({agreed.size},)")
    if not np.isfinite(found).all():
        # Not the value: it is the client's own.
        raise Error(f"vectors[{name!r}]: a coordinate is NaN or infinite; valid: finite numbers")
    return agreed.grid.quantise(clip(found, agreed.clipping_norm).vector).levels
