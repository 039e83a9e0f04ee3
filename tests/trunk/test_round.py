"""One attempt at one round: who survives, what is kept, and that nobody can spoil the sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from methods import Examples, LocalResult, PoolPolicy, TensorSpec
from methods.interface.defaults import MethodDefaults
from platform.contract.driving import RUN, STEP, Setting, make_clients, play, transport_to
from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.parties.client import Client
from platform.rounds.plan import RoundOutcome
from platform.wire import messages
from platform.wire.codec import Envelope, decode_frame, encode_frame
from platform.wire.messages import Invitation, SecureRound
from platform.wire.transport import Dropout, InProcessTransport
from privacy import PrivacyError
from tests._plans import seat_from

NAMES = tuple(f"client-{i}" for i in range(5))
SECURE = Setting(masked=True, threshold=3)
PLAIN = Setting()


@dataclasses.dataclass(frozen=True)
class Counting(MethodDefaults):
    """A method whose update is its client's number: sums can be done in the head."""

    pooled: bool = True

    def shared_spec(self):
        return {"x": TensorSpec((2,))}

    def pool_policy(self):
        return PoolPolicy({"x": TensorSpec((2,))}, 2) if self.pooled else None

    def init_server(self, rng):
        return {"x": np.array([10.0, 20.0], np.float32)}

    def client_update(self, view, data, trainer, rng):
        number = float(data.arrays["number"][0])
        update = {"x": np.array([number, -1.0], np.float32)}
        entry = {"x": view.broadcast["x"] + update["x"]}
        return LocalResult(update, entry if self.pooled else None, {})


def data(numbers=(1.0, 2.0, 3.0, 4.0, 5.0), sizes=(1, 2, 3, 4, 5)):
    """Client i holds i + 1 examples and the number i + 1."""
    return {
        name: Examples({"labels": np.zeros(size, np.int64), "number": np.full(size, number)})
        for name, number, size in zip(NAMES, numbers, sizes, strict=True)
    }


Spoil = Callable[[str, bytes], bytes | Dropout | None]


@dataclasses.dataclass
class Spoiling:
    """A transport on which `spoil` changes some clients' answers to one stage; None is silence."""

    inner: InProcessTransport
    stage: str
    spoil: dict[str, Spoil]
    sent: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def exchange(self, stage, outgoing, deadline):
        self.sent += [(stage, client) for client in outgoing]
        answers = dict(self.inner.exchange(stage, outgoing, deadline))
        if stage == self.stage:
            for client, change in self.spoil.items():
                answer = change(client, answers.get(client, b""))
                answers.pop(client, None)
                if answer is not None:
                    answers[client] = answer
        return answers


def spoiled(stores, setting: Setting, stage: str, method=None, **spoil: Spoil) -> RoundOutcome:
    """A round in which `client_1=...` and so on spoil their answer to a stage."""
    chosen = method or Counting()
    clients = make_clients(chosen, data(), stores, setting)
    changes = {name.replace("_", "-"): change for name, change in spoil.items()}
    transport = Spoiling(transport_to(clients, setting), stage, changes)
    return play(chosen, data(), stores / "unused", setting, transport=transport)


def with_fields(**fields) -> Spoil:
    def change(client: str, answer: bytes) -> bytes:
        frame = decode_frame(answer)
        return encode_frame(dataclasses.replace(frame, fields={**frame.fields, **fields}))

    return change


def with_vector(vector) -> Spoil:
    return lambda client, answer: encode_frame(
        dataclasses.replace(decode_frame(answer), arrays={"vector": vector})
    )


def mean_of(*numbers: int) -> list[float]:
    """The mean of the clients' numbers, weighted by their examples: sum i^2 / sum i."""
    return [sum(n * n for n in numbers) / sum(numbers), -1.0]


@pytest.mark.parametrize("setting", [PLAIN, SECURE], ids=["plain", "secure"])
def test_a_round_by_hand(stores, setting):
    """(1 + 4 + 9 + 16 + 25) / 15 = 11/3."""
    outcome = play(Counting(), data(), stores, setting)
    assert outcome.survivors == NAMES
    assert outcome.summed.total_weight == 15.0
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0], atol=STEP)
    shown = {n: v.tolist() for n, v in (outcome.individual or {}).items()}
    assert shown == ({} if setting.masked else {n: [i, -1.0] for i, n in enumerate(NAMES, 1)})
    assert outcome.entries_void is None
    opened = sorted(float(entry["x"][0]) for _, entry in outcome.entries)
    assert opened == [11, 12, 13, 14, 15]
    assert len({handle for handle, _ in outcome.entries}) == 5
    assert outcome.bytes_up > 0 and outcome.bytes_down > 0


@pytest.mark.parametrize(
    ("stage", "phase", "asked"),
    [
        ("advertise", "advertise_keys", False),
        ("share", "share_keys", False),
        ("train", "masked_input", True),
        ("unmask", "unmasking", True),
    ],
)
def test_too_few_abort_and_name_the_phase(stores, stage, phase, asked):
    setting = dataclasses.replace(SECURE, lost=NAMES[:3], lost_at=stage)
    with pytest.raises(RoundAborted, match=phase) as caught:
        play(Counting(), data(), stores, setting)
    assert (caught.value.phase, caught.value.uploads_asked) == (phase, asked)


def test_the_minimum_without_masks(stores):
    setting = Setting(minimum=3, lost=NAMES[:2])
    assert len(play(Counting(), data(), stores / "enough", setting).survivors) == 3
    with pytest.raises(RoundAborted, match=r"3 of 5 .*at least 4") as caught:
        play(Counting(), data(), stores, dataclasses.replace(setting, minimum=4))
    assert caught.value.uploads_asked


def test_the_minimum_under_masks(stores):
    """`cohort.minimum` above the threshold binds too: a round below it is not valid."""
    setting = dataclasses.replace(SECURE, minimum=5, lost=NAMES[:1])
    with pytest.raises(RoundAborted, match=r"at least 5|minimum"):
        play(Counting(), data(), stores, setting)


GARBLED: dict[str, Spoil] = {
    "silence": lambda client, answer: Dropout("gone"),
    "nothing": lambda client, answer: None,
    "noise": lambda client, answer: b"\x00\x01noise",
    "cut": lambda client, answer: answer[:-1],
    "another run": with_fields(run_id="other"),
    "another round": with_fields(round=2),
    "another attempt": with_fields(attempt=2),
    "another commit": with_fields(committed=[1, 1]),
    "another kind": lambda client, answer: encode_frame(
        dataclasses.replace(decode_frame(answer), kind="rumour")
    ),
}
# Without masks the weight travels in the clear and is bounded as under masks: 1 to 2^20.
UNFIT: dict[str, Spoil] = {
    "a longer vector": with_vector(np.zeros(3)),
    "a matrix": with_vector(np.zeros((2, 1))),
    "single precision": with_vector(np.zeros(2, np.float32)),
    "too large for a state in float32": with_vector(np.full(2, 1e300)),
    "no weight": with_fields(weight=0),
    "too much weight": with_fields(weight=2**20 + 1),
}


BAD = {**GARBLED, **UNFIT}


@pytest.mark.parametrize(
    ("setting", "stage", "names"),
    [
        # Three of five spoil a round that needs two.
        *((PLAIN, "train", tuple(BAD)[at : at + 3]) for at in range(0, len(BAD), 3)),
        (PLAIN, "advertise", ("cut", "noise")),
        (SECURE, "train", ("cut", "another attempt")),
        (SECURE, "share", ("noise", "another round")),
        (SECURE, "advertise", ("another kind",)),
    ],
)
def test_an_answer_that_is_none_is_a_dropout(stores, setting, stage, names):
    spoil = {f"client_{number}": BAD[name] for number, name in enumerate(names, start=1)}
    outcome = spoiled(stores, setting, stage, **spoil)
    left = (0, *range(1 + len(names), 5))
    assert outcome.survivors == tuple(NAMES[number] for number in left)
    expected = mean_of(*(number + 1 for number in left))
    np.testing.assert_allclose(outcome.summed.vector, expected, atol=STEP)
    assert len(outcome.entries) == len(left)


def test_an_answer_of_a_client_that_was_not_asked_is_ignored(stores):
    stray: dict[str, bytes] = {}

    def keep(client: str, answer: bytes) -> bytes:
        stray[client] = answer
        return answer

    clients = make_clients(Counting(), data(), stores, PLAIN)
    spoil = {"client-0": keep, "client-9": lambda client, answer: stray["client-0"]}
    transport = Spoiling(transport_to(clients, PLAIN), "train", spoil)
    outcome = play(Counting(), data(), stores / "unused", PLAIN, transport=transport)
    assert outcome.survivors == NAMES
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0])


def with_entry(handle: bytes | None = None, **arrays: np.ndarray) -> Spoil:
    def change(client: str, answer: bytes) -> bytes:
        frame = decode_frame(answer)
        blobs = frame.blobs if handle is None else {**frame.blobs, "handle": handle}
        changed = dataclasses.replace(frame, arrays=arrays or frame.arrays, blobs=blobs)
        return encode_frame(changed)

    return change


def without_entry(client: str, answer: bytes) -> bytes:
    return encode_frame(dataclasses.replace(decode_frame(answer), arrays={}))


@pytest.mark.parametrize(
    "spoil",
    [
        *(GARBLED[name] for name in ("silence", "noise", "another attempt")),
        without_entry,
        with_entry(handle=b""),
        with_entry(handle=b"x" * 33),
        with_entry(x=np.zeros(3, np.float32)),
        with_entry(y=np.zeros(2, np.float32)),
        with_entry(levels=np.zeros(2, np.uint32)),
        with_entry(x=np.full(2, 1e300)),
    ],
)
@pytest.mark.parametrize(
    "setting", [PLAIN, pytest.param(SECURE, marks=pytest.mark.slow)], ids=["plain", "secure"]
)
def test_one_bad_entry_voids_all_and_leaves_the_sum(stores, setting, spoil):
    outcome = spoiled(stores, setting, "unmask", client_1=spoil)
    assert outcome.entries == () and outcome.entries_void is not None
    assert outcome.survivors == NAMES
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0], atol=STEP)


def test_a_stolen_handle_voids_all(stores):
    seen: dict[str, bytes] = {}

    def keep(client: str, answer: bytes) -> bytes:
        seen["handle"] = decode_frame(answer).blobs["handle"]
        return answer

    def steal(client: str, answer: bytes) -> bytes:
        return with_entry(handle=seen["handle"])(client, answer)

    outcome = spoiled(stores, SECURE, "unmask", client_0=keep, client_1=steal)
    assert outcome.entries == () and "pool handle" in str(outcome.entries_void)


def test_a_single_survivor_has_no_entry(stores):
    setting = Setting(minimum=1, lost=NAMES[1:])
    outcome = play(Counting(), data(), stores, setting)
    assert outcome.survivors == ("client-0",)
    assert outcome.entries == () and "single entry" in str(outcome.entries_void)


def test_without_a_pool_nothing_is_asked_for(stores):
    method = Counting(pooled=False)
    clients = make_clients(method, data(), stores, PLAIN)
    transport = Spoiling(transport_to(clients, PLAIN), "never", {})
    outcome = play(method, data(), stores / "unused", PLAIN, transport=transport)
    assert (outcome.entries, outcome.entries_void) == ((), None)
    assert {stage for stage, _ in transport.sent} == {"advertise", "train"}


@pytest.fixture
def client(stores) -> Client:
    return make_clients(Counting(), data(), stores, SECURE)["client-1"]


def invitation(secure: SecureRound | None, **envelope) -> bytes:
    place = Envelope(**{"run_id": RUN, "round_number": 1, "attempt": 1, **envelope})
    return messages.encode_invitation(Invitation(place, (), secure))


def seat(**numbers) -> SecureRound:
    fitting = {"index": 2, "clients": 5, "threshold": 3, "vector_length": 3, "ring_bits": 43}
    return seat_from(**{"corrupt": 0, **fitting, **numbers})


def test_an_invitation_to_another_run_is_refused(client):
    with pytest.raises(ProtocolError, match="another run"):
        client.handle(invitation(seat(), run_id="other"))


def test_a_client_of_a_masked_run_never_answers_in_the_clear(client):
    """Otherwise a coordinator reads any update by leaving the masks out of its invitation."""
    with pytest.raises(ProtocolError):
        client.handle(invitation(None))


@pytest.mark.parametrize(
    "numbers",
    [
        *({"threshold": 1}, {"threshold": 6}, {"clients": 1}, {"clients": 2**22}, {"index": 6}),
        *({"ring_bits": 16}, {"vector_length": 0}, {"vector_length": 2**40}, {"corrupt": 3}),
    ],
    ids=str,
)
def test_an_invitation_with_impossible_numbers_is_refused(client, numbers):
    """Nor may a number in a message cost memory."""
    with pytest.raises((ProtocolError, PrivacyError)):
        client.handle(invitation(seat(**numbers)))


def test_a_message_before_its_turn_is_refused(client):
    """Masks cannot be skipped: after the invitation comes the roster, and training after that."""
    place = Envelope(RUN, 1, 1)
    broadcast = {"x": np.zeros(2, np.float32)}
    early = messages.encode_assignment(messages.Assignment(place, b"", broadcast, ()))
    roster = messages.encode_relay(messages.Relay(place, b"garbled"))
    for message in (early, roster):
        with pytest.raises(ProtocolError, match="client awaits"):
            client.handle(message)
    client.handle(invitation(seat()))
    with pytest.raises(ProtocolError, match="client awaits"):
        client.handle(early)
    for _ in range(2):
        with pytest.raises((PlatformError, PrivacyError)):
            client.handle(roster)
