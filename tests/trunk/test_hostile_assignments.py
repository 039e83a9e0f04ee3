"""What a client is told is checked against what it knows before it changes anything.

One client in mid-round, and messages from a coordinator that makes them up: each is answered as it
should be, or refused with the one error, and a refusal leaves every byte of the client's store and
the round itself as they were.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from methods import Examples, LocalResult, PoolPolicy, TensorSpec
from methods.interface.defaults import MethodDefaults
from platform.contract.driving import RUN, Setting, make_clients, make_protection, quick_folder
from platform.errors import ProtocolError
from platform.parties.client import Client
from platform.parties.profile import expectations_of, require_invitation
from platform.parties.scoring import EvaluationSet, MeasuredSets
from platform.protection.uploads import Protection
from platform.wire import messages
from platform.wire import outside_rounds as outside
from platform.wire.codec import Envelope, Frame, decode_frame, encode_frame
from platform.wire.layout import Fetched
from platform.wire.messages import Assignment, Invitation
from privacy import AdaptiveClipping, UploadNoise
from storage import StorageError
from storage.engine import Statements

NOISED = Setting(mechanism=UploadNoise(1.0, 1.0), pool_noise="independent")
ENVELOPE = Envelope(RUN, 2, 1)
ROUNDS, CLIENTS, GENERATIONS, EXPERTS = 5, 4, 2, 3


@dataclasses.dataclass(frozen=True)
class Method(MethodDefaults):
    """Two tensors that are shared, an expert of one, and training that looks at all of it."""

    select: str = "nearest"
    pooled: bool = True
    fixed: bool = False

    def shared_spec(self):
        return {"x": TensorSpec((2,)), "y": TensorSpec((2, 3))}

    def pool_policy(self):
        spec = {"x": TensorSpec((2,))}
        return PoolPolicy(spec, EXPERTS, self.select, fixed=self.fixed) if self.pooled else None

    def init_server(self, rng):
        return {"x": np.zeros(2, np.float32), "y": np.ones((2, 3), np.float32)}

    def init_client(self, shared_rng, client_rng):
        return {"own": np.zeros(1, np.float32)}

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


def bytes_of(client: Client) -> dict[str, bytes]:
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
LAST, BROADCAST = Envelope(RUN, ROUNDS + 1, 0), good().broadcast


def guarded(method: Method, folder: Path, **safeguards: Any) -> Client:
    """The client with other safeguards; outside a simulation its noise is not from a seed."""
    client = client_of(method, folder)
    profile, source = client.profile, "os" if not safeguards.get("simulated", True) else "seeded"
    changed = dataclasses.replace(
        profile,
        safeguards=dataclasses.replace(profile.safeguards, **safeguards),
        randomness=dataclasses.replace(profile.randomness, noise_source=source),
        measured=MeasuredSets({"local": EvaluationSet(profile.data, ("a",))}),
    )
    return Client(changed, client._store, client._make_trainer)


def parting(envelope=LAST, broadcast=BROADCAST, fetched=None):
    return outside.encode_parting(outside.Parting(envelope, broadcast, fetched))


def examination(broadcast: Any = BROADCAST, sets: tuple[str, ...] = ("local",)) -> bytes:
    return outside.encode_examination(outside.Examination(LAST, broadcast, sets))


def assigned(**changes: Any) -> bytes:
    return messages.encode_assignment(dataclasses.replace(good(), **changes))


HOSTILE: dict[str, bytes] = {
    "nothing": assigned(broadcast={}),
    "missing": assigned(broadcast={"x": X}),
    "renamed": assigned(broadcast={"x": X, "z": Y}),
    "extra": assigned(broadcast={"x": X, "y": Y, "z": X}),
    "flat": assigned(broadcast={"x": X, "y": Y.reshape(-1)}),
    "double": assigned(broadcast={"x": X.astype(np.float64), "y": Y}),
    "one expert more": assigned(experts=(EXPERT,) * (EXPERTS + 1)),
    "an expert renamed": assigned(experts=(EXPERT, {"z": EXPERT["x"]})),
    "an expert of another shape": assigned(experts=({"x": np.zeros((1, 2), np.float32)},)),
    "another run": assigned(envelope=dataclasses.replace(ENVELOPE, run_id="other")),
    "another round": assigned(envelope=dataclasses.replace(ENVELOPE, round_number=3)),
    "another attempt": assigned(envelope=dataclasses.replace(ENVELOPE, attempt=2)),
    "another commit": assigned(envelope=dataclasses.replace(ENVELOPE, committed=(1, 1))),
    "a roll call in a round": outside.encode_roll_call(ENVELOPE),
    "a roll call after a commit": outside.encode_roll_call(Envelope(RUN, 0, 0, (1, 1))),
    "a roll call of another run": outside.encode_roll_call(Envelope("other", 0, 0)),
    "a notice where no pool is made once": outside.encode_pool_notice(LAST),
    "a parting in the last round": parting(Envelope(RUN, ROUNDS, 0)),
    "a parting of a second attempt": parting(Envelope(RUN, ROUNDS + 1, 1)),
    "a parting after the next": parting(Envelope(RUN, ROUNDS + 2, 0)),
    "after a commit it took no part in": parting(dataclasses.replace(LAST, committed=(1, 1))),
    "after a commit of never": parting(dataclasses.replace(LAST, committed=(ROUNDS + 1, 1))),
    "a parting with another broadcast": parting(broadcast={"x": X}),
    "a parting with experts of no pool": parting(fetched=Fetched((EXPERT,), 0)),
    "a parting with an empty pool": parting(fetched=Fetched((), None)),
    "an examination on another set": examination(sets=("local", "theirs")),
    "an examination with another broadcast": examination(broadcast={"y": Y}),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_nobody_may_send_is_refused_and_changes_nothing(stores, message):
    client = guarded(Method(), stores)
    invite(client)
    for _ in range(2):
        require_refused(client, message)
    assert client.handle(messages.encode_assignment(good()))


@pytest.mark.parametrize(
    "method", [Method(pooled=False), Method(fixed=True)], ids=["none", "fixed"]
)
def test_without_a_pool_there_are_neither_experts_nor_generations(stores, method):
    client = client_of(method, stores)
    with pytest.raises(ProtocolError, match="generations"):
        invite(client)
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
    require_refused(client, messages.encode_assignment(good()))
    assert client.handle(assigned(experts=()))


INVITATIONS: dict[str, Invitation] = {
    "no round": Invitation(Envelope(RUN, 0, 1), (), None),
    "a round after the last": Invitation(Envelope(RUN, ROUNDS + 1, 1), (), None),
    "no attempt": Invitation(Envelope(RUN, 2, 0), (), None),
    "committed is this round": Invitation(Envelope(RUN, 2, 1, (2, 1)), (), None),
    "committed is no attempt": Invitation(Envelope(RUN, 2, 1, (1, 0)), (), None),
    "a generation of now": Invitation(ENVELOPE, (2,), None),
    "a generation of never": Invitation(ENVELOPE, (0, 1), None),
    "generations repeated": Invitation(Envelope(RUN, 4, 1), (1, 1), None),
    "more generations than are kept": Invitation(Envelope(RUN, 4, 1), (1, 2, 3), None),
    "a norm where none adapts": Invitation(ENVELOPE, (1,), None, 1.0),
}


@pytest.mark.parametrize("hostile", INVITATIONS.values(), ids=INVITATIONS.keys())
def test_an_invitation_of_no_such_run_is_refused(stores, hostile):
    client = client_of(Method(), stores)
    with pytest.raises(ProtocolError):
        client.handle(messages.encode_invitation(hostile))
    invite(client)
    assert client.handle(messages.encode_assignment(good()))


# C0 = 2, quantile 1/4, rate 0.5: in t - 1 rounds by a factor exp(-0.375 (t-1)) to exp(0.125 (t-1)).
NORMS = [
    *((3, 5e-324, False), (3, 1.7e308, False), (1, 2.0, True), (1, 2.001, False), (5, 0.0, False)),
    *((3, 2.0 * np.exp(0.25), True), (3, 2.0 * np.exp(0.26), False)),
    *((3, 2.0 * np.exp(-0.75), True), (3, 2.0 * np.exp(-0.76), False)),
]


@pytest.mark.parametrize(("number", "norm", "fits"), NORMS)
def test_a_clipping_norm_is_one_that_rounds_lead_to(number, norm, fits):
    adaptive = AdaptiveClipping(quantile=0.25, learning_rate=0.5)
    bare = make_protection(Method(), NOISED)
    extras = dataclasses.replace(bare.sums.extras, adaptive=adaptive, clipping_norm=2.0)
    sums = dataclasses.replace(bare.sums, extras=extras)
    protection: Protection = dataclasses.replace(bare, sums=sums)
    invitation = Invitation(Envelope(RUN, number, 1), (), None, float(norm))
    refused = nullcontext() if fits else pytest.raises(ProtocolError, match="clipping norm")
    with refused:
        require_invitation(expectations_of(Method()), protection, invitation)


def placed(count: int, own: int) -> bytes:
    frame = decode_frame(parting(fetched=Fetched((EXPERT,) * 2, 0)))
    fields = {**frame.fields, "pool": [count, own]}
    return encode_frame(dataclasses.replace(frame, fields=fields))


POOLS: dict[str, bytes] = {
    "none": parting(),
    "more entries than clients": parting(fetched=Fetched((EXPERT,) * (CLIENTS + 1), 0)),
    "another shape": parting(fetched=Fetched(({"x": np.zeros(3, np.float32)},), 0)),
    "an entry with more": parting(fetched=Fetched(({**EXPERT, "y": Y},), 0)),
    "fewer entries than said": placed(1, 2),
    "a place outside": placed(0, 1),
}


@pytest.mark.parametrize("message", POOLS.values(), ids=POOLS.keys())
def test_a_pool_that_no_run_makes_is_refused_and_changes_nothing(stores, message):
    require_refused(guarded(Method(fixed=True), stores), message)


def test_a_client_that_is_not_simulated_says_nothing_of_its_data(stores):
    """Whatever it is asked to measure, at any time; and how long it takes depends on nothing."""
    client = guarded(Method(), stores, simulated=False)
    for round_number, attempt, committed in ((0, 0, None), (ROUNDS + 1, 0, None), (1, 1, (1, 1))):
        envelope = Envelope(RUN, round_number, attempt, committed)
        for sets in ((), ("local",), ("theirs",)):
            for weighs in (False, True):
                asked = outside.Examination(envelope, BROADCAST, sets, weighs)
                require_refused(client, outside.encode_examination(asked))
    # A question that only reads changes no byte of the store, however often it is asked.
    call = outside.encode_roll_call(Envelope(RUN, 0, 0))
    introduced, before = client.handle(call), bytes_of(client)
    assert outside.decode_introduction(introduced).pseudonym == client.pseudonym
    assert client.handle(call) == introduced and bytes_of(client) == before


@pytest.mark.parametrize("asked", ["nothing", "invited", "trained"])
def test_who_has_parted_takes_part_in_no_round(stores, asked):
    """Personal parts are from there on no function of noised sums: they are in no release."""
    client = guarded(Method(), stores)
    assignment = messages.encode_assignment(good())
    if asked != "nothing":
        invite(client)
    if asked == "trained":
        client.handle(assignment)
    assert outside.decode_personalised(client.handle(parting())).is_new
    after = bytes_of(client)
    for again in (parting(), parting(broadcast={"x": X + 1, "y": Y})):
        assert not outside.decode_personalised(client.handle(again)).is_new
    relay = messages.encode_relay(messages.Relay(ENVELOPE, b""))
    later = Envelope(RUN, ROUNDS, 1)
    invitations = [
        messages.encode_invitation(Invitation(envelope, (1,), None))
        for envelope in (ENVELOPE, later, dataclasses.replace(later, committed=(2, 1)))
    ]
    for message in (assignment, relay, *invitations):
        with pytest.raises(ProtocolError):
            client.handle(message)
    assert bytes_of(client) == after


SHAPES = st.sampled_from([(), (0,), (2,), (3,), (2, 3), (3, 2), (6,), (1, 2), (2, 3, 1)])
NAMES = st.sampled_from(["x", "y", "z", "", "own", "0000/x", "\u00e9"])
DTYPES = st.sampled_from(["float32", "float64", "int64", "uint32", "uint64"])
NUMBERS = st.sampled_from([0.0, 1.0, 0.5, 1e30, 3e38, 2.0])


@st.composite
def arrays(draw: Callable[..., Any]) -> dict[str, np.ndarray]:
    named = dict(draw(st.sampled_from([good().broadcast, EXPERT, {}])))
    for _ in range(draw(st.integers(0, 2))):
        with np.errstate(all="ignore"):
            named[draw(NAMES)] = np.full(draw(SHAPES), draw(NUMBERS)).astype(draw(DTYPES))
    for _ in range(draw(st.integers(0, 1))):
        named.pop(draw(NAMES), None)
    return named


KINDS = (
    *("answer", "relay", "assignment", "invitation", "nothing"),
    *("roll_call", "pool_notice", "parting", "examination"),
)


def spoil(draw: Callable[..., Any], message: bytes) -> bytes:
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
        other = draw(st.sampled_from(KINDS))
        return encode_frame(dataclasses.replace(frame, kind=other))
    broken = bytearray(message)
    broken[draw(st.integers(0, len(broken) - 1))] = draw(st.integers(0, 255))
    return bytes(broken)


@st.composite
def hostile_messages(draw: Callable[..., Any], attempt: int) -> bytes:
    envelope = Envelope(
        RUN,
        draw(st.sampled_from([2, 2, 2, 2, 2, 0, 1, 6, 2**62])),
        draw(st.sampled_from([attempt] * 3 + [0, attempt + 1, 2**62])),
        draw(st.sampled_from([None, None, None, None, (2, 1), (0, 0)])),
    )
    if draw(st.integers(0, 3)) == 0:
        # Rarely in order: after a parting that is, nothing else is answered.
        number = draw(st.sampled_from([0, 2, 5, 6, 7]))
        aside = Envelope(RUN, number, draw(st.sampled_from([0, 0, 1])), envelope.committed)
        message = parting(aside, draw(arrays()))
        if draw(st.booleans()):
            sets = tuple(draw(st.lists(NAMES, max_size=2)))
            message = outside.encode_examination(outside.Examination(aside, draw(arrays()), sets))
    elif draw(st.integers(0, 3)) == 0:
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


@given(st.data())
@settings(
    max_examples=settings().max_examples // 10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_message_is_answered_or_refused_with_the_one_error(data):
    """Failures are shown, so that what a check lets through raises where it breaks."""
    with quick_folder() as folder:
        client = client_of(Method(), folder)
        for attempt in range(1, 31, 3):
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


JOINED = {"ledger": 0, "replies": 1, "personal": 0}
WHOLE = {"ledger": 1, "replies": 2, "personal": 1}


class Failing:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.left, self.seen = nth, 0
        for name in ("run", "count", "run_many"):
            original = getattr(Statements, name)

            def failing(statements, text, *values, original=original):
                self.seen += 1
                if self.seen == self.left:
                    raise StorageError("the disk is gone")
                return original(statements, text, *values)

            monkeypatch.setattr(Statements, name, failing)


def durable(folder: Path) -> dict[str, int]:
    with closing(sqlite3.connect(folder / "client-0.db")) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in WHOLE
        }


def test_whatever_fails_nothing_is_durable_in_part(monkeypatch):
    """Every statement that a client sends its database is made to fail in turn. Then somebody else
    reads the file: an answer without its charge would be a release that no ledger knows."""
    outcomes, training = [], messages.encode_assignment(dataclasses.replace(good(), experts=()))
    for nth in range(1, 200):
        with quick_folder() as folder, monkeypatch.context() as patched:
            client = client_of(Method(pooled=False), folder)
            client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
            assert durable(folder) == JOINED
            failing = Failing(patched, nth)
            try:
                reply = client.handle(training)
            except StorageError:
                # It never left, so it may or may not be there; but with all that belongs to it.
                outcomes.append(durable(folder))
                reply = client.handle(training)
            never_failed, failing.left = failing.seen < nth, 0
            # What never left is made anew and charged once, and what did is given again.
            assert client.handle(training) == reply
            assert durable(folder) == WHOLE
            assert messages.decode_upload(reply).vector is not None
            if never_failed:
                break
    assert len(outcomes) >= 3 and JOINED in outcomes
    assert all(found in (JOINED, WHOLE) for found in outcomes)
