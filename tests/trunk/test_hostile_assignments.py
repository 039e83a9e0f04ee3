"""What a client is told is checked against what it knows before it changes anything.

One client in mid-round, and thousands of messages from a coordinator that makes them up: each is
answered as it should be, or refused with the one error, and a refusal leaves every byte of the
client's store and the round itself as they were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from methods import Examples, LocalResult, PoolPolicy, TensorSpec, Visibility
from platform.errors import ProtocolError
from platform.parties.client import Client
from platform.parties.expectations import expectations_of, require_invitation
from platform.protection.uploads import Protection
from platform.wire import messages
from platform.wire.codec import Frame, decode_frame, encode_frame
from platform.wire.envelopes import Envelope
from platform.wire.messages import Assignment, Invitation
from privacy import AdaptiveClipping, UploadNoise
from tests.contract._driving import RUN, Setting, make_clients, make_protection, quick_folder

NOISED = Setting(mechanism=UploadNoise(1.0, 1.0), pool_noise="independent")
ENVELOPE = Envelope(RUN, 2, 1)
ROUNDS, CLIENTS, GENERATIONS, EXPERTS = 5, 4, 2, 3


@dataclasses.dataclass(frozen=True)
class Method:
    """Two tensors that are shared, an expert of one, and training that looks at all of it."""

    select: str = "nearest"
    pooled: bool = True
    fixed: bool = False
    needs: frozenset = frozenset()
    visibility: Visibility = Visibility.AGGREGATE_ONLY

    def shared_spec(self):
        return {"x": TensorSpec((2,)), "y": TensorSpec((2, 3))}

    def pool_policy(self):
        spec = {"x": TensorSpec((2,))}
        return PoolPolicy(spec, EXPERTS, self.select, fixed=self.fixed) if self.pooled else None

    def init_server(self, rng):
        return {"x": np.zeros(2, np.float32), "y": np.ones((2, 3), np.float32)}

    def init_client(self, shared_rng, client_rng):
        return {"own": np.zeros(1, np.float32)}

    def broadcast(self, state, client=None):
        return state

    def client_update(self, view, data, trainer, rng):
        # Signs: with whatever numbers it is sent it works, so that an error is one of arrays.
        handed = sum((np.sign(expert["x"]).sum() for expert in view.experts), np.float32(0.0))
        update = {name: np.sign(view.broadcast[name]) for name in ("x", "y")}
        entry = {"x": view.broadcast["x"] + update["x"]} if self.pooled and not self.fixed else None
        return LocalResult(update, entry, {"own": np.full(1, handed, np.float32)})


def client_of(method: Method, folder: Path, setting: Setting = NOISED) -> Client:
    data = {"client-0": Examples({"labels": np.zeros(2, np.int64)})}
    (client,) = make_clients(method, data, folder, setting).values()
    expected = expectations_of(method, rounds=ROUNDS, clients=CLIENTS, generations=GENERATIONS)
    guarded = dataclasses.replace(client.profile.safeguards, expected=expected)
    profile = dataclasses.replace(client.profile, safeguards=guarded)
    return Client(profile, client._store, client._make_trainer)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as found:
        yield found


def bytes_of(client: Client) -> dict[str, bytes]:
    """All files of a client's store."""
    path = client._store._file.path
    return {file.name: file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*"))}


def invite(client: Client) -> None:
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (1,), None)))


def good() -> Assignment:
    expert = {"x": np.full(2, 0.5, np.float32)}
    broadcast = {"x": np.zeros(2, np.float32), "y": np.ones((2, 3), np.float32)}
    return Assignment(ENVELOPE, b"", broadcast, (expert,) * EXPERTS)


def require_refused(client: Client, message: bytes) -> None:
    """Refused with the one error; nothing has changed, and the real message is still answered."""
    before = bytes_of(client)
    with pytest.raises(ProtocolError) as caught:
        client.handle(message)
    assert type(caught.value) is ProtocolError
    assert bytes_of(client) == before


X, Y = good().broadcast["x"], good().broadcast["y"]
EXPERT = good().experts[0]
HOSTILE: dict[str, dict[str, Any]] = {
    "nothing": {"broadcast": {}},
    "missing": {"broadcast": {"x": X}},
    "renamed": {"broadcast": {"x": X, "z": Y}},
    "extra": {"broadcast": {"x": X, "y": Y, "z": X}},
    "flat": {"broadcast": {"x": X, "y": Y.reshape(-1)}},
    "longer": {"broadcast": {"x": np.zeros(3, np.float32), "y": Y}},
    "empty": {"broadcast": {"x": np.zeros(0, np.float32), "y": Y}},
    "scalar": {"broadcast": {"x": np.float32(1).reshape(()), "y": Y}},
    "double": {"broadcast": {"x": X.astype(np.float64), "y": Y}},
    "integers": {"broadcast": {"x": X.astype(np.int64), "y": Y}},
    "one expert more": {"experts": (EXPERT,) * (EXPERTS + 1)},
    "100 experts": {"experts": (EXPERT,) * 100},
    "an expert renamed": {"experts": (EXPERT, {"z": EXPERT["x"]})},
    "an expert with more": {"experts": ({**EXPERT, "y": Y},)},
    "an expert of another shape": {"experts": ({"x": np.zeros((1, 2), np.float32)},)},
    "an expert of another dtype": {"experts": ({"x": np.zeros(2, np.float64)},)},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_no_method_sends_is_refused_and_changes_nothing(folder, changes):
    client = client_of(Method(), folder)
    invite(client)
    hostile = dataclasses.replace(good(), **changes)
    for _ in range(2):
        require_refused(client, messages.encode_assignment(hostile))
    assert client.handle(messages.encode_assignment(good()))


@pytest.mark.parametrize("place", ["run_id", "round_number", "attempt", "committed"])
def test_another_attempt_is_refused_and_changes_nothing(folder, place):
    client = client_of(Method(), folder)
    invite(client)
    other = {"run_id": "other", "round_number": 3, "attempt": 2, "committed": (1, 1)}
    envelope = dataclasses.replace(ENVELOPE, **{place: other[place]})
    require_refused(
        client, messages.encode_assignment(dataclasses.replace(good(), envelope=envelope))
    )
    assert client.handle(messages.encode_assignment(good()))


@pytest.mark.parametrize(
    "method", [Method(pooled=False), Method(fixed=True)], ids=["none", "fixed"]
)
def test_experts_without_a_pool_are_refused(folder, method):
    client = client_of(method, folder)
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
    require_refused(client, messages.encode_assignment(good()))
    assert client.handle(messages.encode_assignment(dataclasses.replace(good(), experts=())))


def test_a_whole_pool_has_an_entry_of_each_client_and_generation():
    expected = expectations_of(Method("all"), clients=CLIENTS, generations=GENERATIONS)
    assert expected.experts == CLIENTS * GENERATIONS
    assert expectations_of(Method()).experts == EXPERTS
    assert expectations_of(Method(pooled=False)).experts == 0


INVITATIONS: dict[str, Invitation] = {
    "no round": Invitation(Envelope(RUN, 0, 1), (), None),
    "a round after the last": Invitation(Envelope(RUN, ROUNDS + 1, 1), (), None),
    "no attempt": Invitation(Envelope(RUN, 2, 0), (), None),
    "committed is this round": Invitation(Envelope(RUN, 2, 1, (2, 1)), (), None),
    "committed is a later round": Invitation(Envelope(RUN, 2, 2, (3, 1)), (), None),
    "committed is no attempt": Invitation(Envelope(RUN, 2, 1, (1, 0)), (), None),
    "a generation of now": Invitation(ENVELOPE, (2,), None),
    "a generation of never": Invitation(ENVELOPE, (0, 1), None),
    "generations repeated": Invitation(Envelope(RUN, 4, 1), (1, 1), None),
    "generations descending": Invitation(Envelope(RUN, 4, 1), (3, 2), None),
    "more generations than are kept": Invitation(Envelope(RUN, 4, 1), (1, 2, 3), None),
    "a norm where none adapts": Invitation(ENVELOPE, (1,), None, 1.0),
}


@pytest.mark.parametrize("hostile", INVITATIONS.values(), ids=INVITATIONS.keys())
def test_an_invitation_of_no_such_run_is_refused(folder, hostile):
    client = client_of(Method(), folder)
    with pytest.raises(ProtocolError):
        client.handle(messages.encode_invitation(hostile))
    invite(client)
    assert client.handle(messages.encode_assignment(good()))


@pytest.mark.parametrize(
    "method", [Method(pooled=False), Method(fixed=True)], ids=["none", "fixed"]
)
def test_without_a_pool_no_generation_is_alive(folder, method):
    with pytest.raises(ProtocolError, match="generations"):
        invite(client_of(method, folder))


# C0 = 2, quantile 1/4, rate 0.5: in t - 1 rounds by a factor exp(-0.375 (t-1)) to exp(0.125 (t-1)).
NORMS = [
    (3, 5e-324, False),
    (3, 1.7e308, False),
    (1, 2.0, True),
    (1, 2.001, False),
    (3, 2.0 * np.exp(0.25), True),
    (3, 2.0 * np.exp(0.26), False),
    (3, 2.0 * np.exp(-0.75), True),
    (3, 2.0 * np.exp(-0.76), False),
    (5, 1e-300, False),
    (5, 0.0, False),
    (5, -1.0, False),
]


@pytest.mark.parametrize(("number", "norm", "fits"), NORMS)
def test_a_clipping_norm_is_one_that_rounds_lead_to(number: int, norm: float, fits: bool):
    adaptive = AdaptiveClipping(quantile=0.25, learning_rate=0.5)
    bare = make_protection(Method(), NOISED)
    protection: Protection = dataclasses.replace(bare, adaptive=adaptive, clipping_norm=2.0)
    invitation = Invitation(Envelope(RUN, number, 1), (), None, float(norm))
    if fits:
        require_invitation(expectations_of(Method()), protection, invitation)
        return
    with pytest.raises(ProtocolError, match="clipping norm"):
        require_invitation(expectations_of(Method()), protection, invitation)


# --- anything at all ------------------------------------------------------------------------------

SHAPES = st.sampled_from([(), (0,), (2,), (3,), (2, 3), (3, 2), (6,), (1, 2), (2, 3, 1)])
NAMES = st.sampled_from(["x", "y", "z", "", "own", "0000/x", "\u00e9"])
DTYPES = st.sampled_from(["float32", "float64", "int64", "uint32", "uint64"])
NUMBERS = st.sampled_from([0.0, 1.0, 0.5, 1e30, 3e38, 2.0])


@st.composite
def arrays(draw: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Named arrays, often those of the method."""
    named = dict(draw(st.sampled_from([good().broadcast, EXPERT, {}])))
    for _ in range(draw(st.integers(0, 2))):
        with np.errstate(all="ignore"):
            named[draw(NAMES)] = np.full(draw(SHAPES), draw(NUMBERS)).astype(draw(DTYPES))
    for _ in range(draw(st.integers(0, 1))):
        named.pop(draw(NAMES), None)
    return named


def spoil(draw: Callable[..., Any], message: bytes) -> bytes:
    """The message with another header or other bytes."""
    frame, kind = decode_frame(message), draw(st.integers(0, 3))
    if kind == 0:
        name = draw(st.sampled_from([*frame.fields, "more"]))
        plain = st.none() | st.booleans() | st.integers(-3, 2**63 - 1) | st.text(max_size=2)
        value = draw(plain | st.lists(plain, max_size=3))
        return encode_frame(dataclasses.replace(frame, fields={**frame.fields, name: value}))
    if kind == 1:
        name = draw(st.sampled_from([*frame.arrays, *frame.blobs, "payload"]))
        others = {n: a for n, a in frame.arrays.items() if n != name}
        blobs = {n: b for n, b in frame.blobs.items() if n != name}
        return encode_frame(Frame(frame.kind, frame.fields, others, blobs))
    if kind == 2:
        other = draw(st.sampled_from(["answer", "relay", "assignment", "invitation", "nothing"]))
        return encode_frame(dataclasses.replace(frame, kind=other))
    broken = bytearray(message)
    broken[draw(st.integers(0, len(broken) - 1))] = draw(st.integers(0, 255))
    return bytes(broken)


@st.composite
def hostile_messages(draw: Callable[..., Any], attempt: int) -> bytes:
    numbers = {
        "round_number": draw(st.sampled_from([2, 2, 2, 2, 2, 0, 1, 6, 2**62])),
        "attempt": draw(st.sampled_from([attempt] * 3 + [0, attempt + 1, 2**62])),
        "committed": draw(st.sampled_from([None, None, None, None, (2, 1), (0, 0)])),
    }
    envelope = Envelope(RUN, **numbers)
    if draw(st.integers(0, 3)) == 0:
        generations = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
        norm = draw(st.sampled_from([None, None, 1.0, 1e300]))
        message = messages.encode_invitation(Invitation(envelope, generations, None, norm))
    else:
        experts = tuple(draw(st.lists(arrays(), max_size=EXPERTS + 2)))
        message = messages.encode_assignment(Assignment(envelope, b"", draw(arrays()), experts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        try:
            message = spoil(draw, message)
        except ProtocolError:
            return message
    return message


def require_answered_or_refused(data: st.DataObject) -> None:
    """Twenty messages; failures are shown, so that what a check lets through raises where it
    breaks."""
    with quick_folder() as folder:
        client = client_of(Method(), folder)
        for attempt in range(1, 61, 3):
            envelope = dataclasses.replace(ENVELOPE, attempt=attempt)
            try:
                client.handle(messages.encode_invitation(Invitation(envelope, (1,), None)))
            except ProtocolError:
                # One of the messages was an invitation to a later round, and in order.
                return
            hostile = data.draw(hostile_messages(attempt))
            before = bytes_of(client)
            try:
                client.handle(hostile)
            except ProtocolError:
                assert bytes_of(client) == before


FUZZING: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "derandomize": True,
}


@given(st.data())
@settings(max_examples=10, **FUZZING)
def test_any_message_is_answered_or_refused_with_the_one_error(data):
    require_answered_or_refused(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, **FUZZING)
def test_three_thousand_messages_are_answered_or_refused_with_the_one_error(data):
    require_answered_or_refused(data)
