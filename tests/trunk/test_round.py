"""One attempt at one round: who survives, what is kept, and that nobody can spoil the sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from methods import Examples, LocalResult, PoolPolicy, TensorSpec, Visibility
from platform.contract.driving import (
    RUN,
    STEP,
    Setting,
    make_clients,
    make_plan,
    make_protection,
    play,
    quick_folder,
    transport_to,
)
from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.parties.client import Client
from platform.rounds.plan import RoundOutcome
from platform.wire import messages
from platform.wire.codec import Envelope, decode_frame, encode_frame
from platform.wire.messages import Invitation, SecureRound
from platform.wire.transport import Dropout, InProcessTransport
from privacy import PrivacyError, UploadNoise
from tests._plans import seat_from

NAMES = tuple(f"client-{i}" for i in range(5))
SIZES = (1, 2, 3, 4, 5)
SECURE = Setting(masked=True, threshold=3)
PLAIN = Setting()
NOISED = UploadNoise(100.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Counting:
    """A method whose update is its client's number: sums can be done in the head."""

    pooled: bool = True
    needs: frozenset = frozenset()
    visibility: Visibility = Visibility.AGGREGATE_ONLY
    units: frozenset = frozenset({"client"})

    def shared_spec(self):
        return {"x": TensorSpec((2,))}

    def pool_policy(self):
        return PoolPolicy({"x": TensorSpec((2,))}, 2) if self.pooled else None

    def init_server(self, rng):
        return {"x": np.array([10.0, 20.0], np.float32)}

    def init_client(self, shared_rng, client_rng):
        return {}

    def broadcast(self, state, client=None):
        return state

    def client_update(self, view, data, trainer, rng):
        number = float(data.arrays["number"][0])
        update = {"x": np.array([number, -1.0], np.float32)}
        entry = {"x": view.broadcast["x"] + update["x"]}
        return LocalResult(update, entry if self.pooled else None, {})


def data(numbers=(1.0, 2.0, 3.0, 4.0, 5.0), sizes=SIZES):
    """Client i holds i + 1 examples and the number i + 1."""
    return {
        name: Examples({"labels": np.zeros(size, np.int64), "number": np.full(size, number)})
        for name, number, size in zip(NAMES, numbers, sizes, strict=True)
    }


Spoil = Callable[[str, bytes], bytes | Dropout | None]


@dataclasses.dataclass
class Spoiling:
    """A transport on which some clients answer one stage as the test likes.

    Attributes:
        inner: Carries what is not spoiled.
        stage: The stage whose answers are spoiled.
        spoil: For each spoiler what its answer becomes; None leaves it out of the answers.
        sent: How many messages of each stage a client got.
    """

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
    """The answer with other header fields."""

    def change(client: str, answer: bytes) -> bytes:
        frame = decode_frame(answer)
        return encode_frame(dataclasses.replace(frame, fields={**frame.fields, **fields}))

    return change


def with_vector(vector) -> Spoil:
    def change(client: str, answer: bytes) -> bytes:
        frame = decode_frame(answer)
        return encode_frame(dataclasses.replace(frame, arrays={"vector": vector}))

    return change


def mean_of(*numbers: int) -> list[float]:
    """The mean of the clients' numbers, weighted by their examples: sum i^2 / sum i."""
    return [sum(n * n for n in numbers) / sum(numbers), -1.0]


@pytest.fixture
def stores():
    with quick_folder() as folder:
        yield folder


# --- the sum ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [PLAIN, SECURE], ids=["plain", "secure"])
def test_a_round_by_hand(stores, setting):
    """(1 + 4 + 9 + 16 + 25) / 15 = 11/3."""
    outcome = play(Counting(), data(), stores, setting)
    assert outcome.survivors == NAMES
    assert outcome.summed.total_weight == 15.0
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0], atol=STEP)
    assert (outcome.individual is None) == setting.masked
    assert outcome.entries_void is None
    opened = sorted(float(entry["x"][0]) for _, entry in outcome.entries)
    assert opened == [11, 12, 13, 14, 15]
    assert len({handle for handle, _ in outcome.entries}) == 5
    assert outcome.bytes_up > 0
    assert outcome.bytes_down > 0


@pytest.mark.parametrize("setting", [PLAIN, SECURE], ids=["plain", "secure"])
@pytest.mark.parametrize("stage", ["advertise", "train"])
def test_lost_clients_are_neither_in_the_sum_nor_in_the_pool(stores, setting, stage):
    lost = dataclasses.replace(setting, lost=("client-1", "client-3"), lost_at=stage)
    outcome = play(Counting(), data(), stores, lost)
    assert outcome.survivors == ("client-0", "client-2", "client-4")
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 5), atol=STEP)
    opened = sorted(float(entry["x"][0]) for _, entry in outcome.entries)
    assert opened == [11, 13, 15]


def test_individual_vectors_are_shown_in_the_clear_only(stores):
    outcome = play(Counting(pooled=False), data(), stores, PLAIN)
    shown = {name: vector.tolist() for name, vector in outcome.individual.items()}
    assert shown == {name: [i + 1.0, -1.0] for i, name in enumerate(NAMES)}


def test_a_client_lost_while_unmasking_is_still_in_the_sum(stores):
    """Its vector was summed before it left; its entry is missing, so no entry is kept."""
    setting = dataclasses.replace(SECURE, lost=("client-4",), lost_at="unmask")
    outcome = play(Counting(), data(), stores, setting)
    assert outcome.survivors == NAMES
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0], atol=STEP)
    assert outcome.entries == ()
    assert outcome.entries_void == "a survivor's pool entry is missing"


# --- too few ------------------------------------------------------------------------------------


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
    with pytest.raises(RoundAborted) as caught:
        play(Counting(), data(), stores, setting)
    assert caught.value.phase == phase
    assert phase in str(caught.value)
    assert caught.value.uploads_asked is asked


@pytest.mark.parametrize("stage", ["advertise", "share", "train", "unmask"])
def test_exactly_the_threshold_is_enough(stores, stage):
    setting = dataclasses.replace(SECURE, lost=NAMES[:2], lost_at=stage)
    outcome = play(Counting(), data(), stores, setting)
    expected = mean_of(1, 2, 3, 4, 5) if stage == "unmask" else mean_of(3, 4, 5)
    np.testing.assert_allclose(outcome.summed.vector, expected, atol=STEP)


@pytest.mark.parametrize(("minimum", "fails"), [(3, False), (4, True)])
def test_the_minimum_without_masks(stores, minimum, fails):
    setting = Setting(minimum=minimum, lost=NAMES[:2])
    if not fails:
        assert len(play(Counting(), data(), stores, setting).survivors) == 3
        return
    with pytest.raises(RoundAborted, match=r"3 of 5 clients are left.*at least 4") as caught:
        play(Counting(), data(), stores, setting)
    assert caught.value.uploads_asked


def test_the_minimum_under_masks(stores):
    """`cohort.minimum` above the threshold binds too: a round below it is not valid."""
    setting = dataclasses.replace(SECURE, minimum=5, lost=NAMES[:1])
    with pytest.raises(RoundAborted, match=r"at least 5|minimum"):
        play(Counting(), data(), stores, setting)


def test_nobody_at_all(stores):
    for setting in (PLAIN, SECURE):
        gone = dataclasses.replace(setting, lost=NAMES, lost_at="advertise")
        with pytest.raises(RoundAborted):
            play(Counting(), data(), stores, gone)


# --- hostile answers ----------------------------------------------------------------------------

GARBLED: dict[str, Spoil] = {
    "silence": lambda client, answer: Dropout("gone"),
    "nothing": lambda client, answer: None,
    "empty": lambda client, answer: b"",
    "noise": lambda client, answer: b"\x00\x01noise",
    "cut": lambda client, answer: answer[:-1],
    "more": lambda client, answer: answer + b"x",
    "flipped": lambda client, answer: bytes([answer[0] ^ 1]) + answer[1:],
    "another run": with_fields(run_id="other"),
    "another round": with_fields(round=2),
    "another attempt": with_fields(attempt=2),
    "another commit": with_fields(committed=[1, 1]),
    "another kind": lambda client, answer: encode_frame(
        dataclasses.replace(decode_frame(answer), kind="rumour")
    ),
}


@pytest.mark.parametrize(
    ("setting", "stage", "name"),
    [
        *((PLAIN, "train", name) for name in GARBLED),
        *((SECURE, "train", name) for name in ("nothing", "cut", "another attempt")),
        *((SECURE, "share", name) for name in ("noise", "another round")),
        *((SECURE, "advertise", name) for name in ("silence", "another kind")),
        (PLAIN, "advertise", "more"),
    ],
    ids=lambda value: (
        ("secure" if value.masked else "plain") if value in (PLAIN, SECURE) else value
    ),
)
def test_an_answer_that_is_none_is_a_dropout(stores, setting, stage, name):
    outcome = spoiled(stores, setting, stage, client_1=GARBLED[name])
    assert "client-1" not in outcome.survivors
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5), atol=STEP)
    assert len(outcome.entries) == 4


@pytest.mark.parametrize("name", ["silence", "noise", "cut", "another attempt"])
@pytest.mark.parametrize("setting", [PLAIN, SECURE], ids=["plain", "secure"])
def test_a_disclosure_that_is_none_voids_the_entries_and_leaves_the_sum(stores, setting, name):
    outcome = spoiled(stores, setting, "unmask", client_1=GARBLED[name])
    assert outcome.survivors == NAMES
    np.testing.assert_allclose(outcome.summed.vector, [11 / 3, -1.0], atol=STEP)
    assert outcome.entries == ()
    assert outcome.entries_void is not None


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(3),
        np.zeros(1),
        np.zeros(0),
        np.zeros((2, 1)),
        np.zeros(2, np.float32),
        np.zeros(2, np.int64),
    ],
    ids=["longer", "shorter", "empty", "matrix", "float32", "integers"],
)
def test_a_vector_of_another_form_is_a_dropout(stores, vector):
    outcome = spoiled(stores, PLAIN, "train", client_1=with_vector(vector))
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5))


def test_a_vector_too_large_for_the_state_is_a_dropout(stores):
    """Finite as float64 on the wire, infinite as the float32 in which states are kept."""
    outcome = spoiled(stores, PLAIN, "train", client_1=with_vector(np.full(2, 1e300)))
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5))


@pytest.mark.parametrize("weight", [0, 2**20 + 1, 2**63 - 1], ids=str)
def test_a_weight_that_no_client_can_have_is_a_dropout(stores, weight):
    """Without masks the weight travels in the clear and is bounded as under masks: 1 to 2^20."""
    outcome = spoiled(stores, PLAIN, "train", client_1=with_fields(weight=weight))
    assert "client-1" not in outcome.survivors
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5))


def test_a_masked_vector_of_somebody_else_is_a_dropout(stores):
    """Client 1 sends the payload of client 0 under its own name."""
    seen: dict[str, bytes] = {}

    def keep(client: str, answer: bytes) -> bytes:
        seen[client] = answer
        return answer

    outcome = spoiled(
        stores, SECURE, "train", client_0=keep, client_1=lambda client, answer: seen["client-0"]
    )
    assert "client-1" not in outcome.survivors
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5), atol=STEP)


def test_a_masked_payload_with_one_bit_changed_changes_no_sum_unnoticed(stores):
    """Only the length is fixed, so a changed word is a client's own lie; a cut one a dropout."""

    def cut(client: str, answer: bytes) -> bytes:
        frame = decode_frame(answer)
        payload = frame.blobs["payload"][:-1]
        return encode_frame(dataclasses.replace(frame, blobs={"payload": payload}))

    outcome = spoiled(stores, SECURE, "train", client_1=cut)
    np.testing.assert_allclose(outcome.summed.vector, mean_of(1, 3, 4, 5), atol=STEP)


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


def test_a_dropout_is_not_asked_again(stores):
    clients = make_clients(Counting(), data(), stores, SECURE)
    transport = Spoiling(transport_to(clients, SECURE), "share", {"client-1": GARBLED["noise"]})
    play(Counting(), data(), stores / "unused", SECURE, transport=transport)
    assert [stage for stage, client in transport.sent if client == "client-1"] == [
        "advertise",
        "share",
    ]


# --- pool entries -------------------------------------------------------------------------------


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
        without_entry,
        with_entry(handle=b""),
        with_entry(handle=b"short"),
        with_entry(handle=b"x" * 33),
        with_entry(x=np.zeros(3, np.float32)),
        with_entry(y=np.zeros(2, np.float32)),
        with_entry(levels=np.zeros(2, np.uint32)),
        with_entry(x=np.full(2, 1e300)),
    ],
    ids=["none", "no handle", "short", "long", "shape", "name", "levels", "too large"],
)
def test_one_bad_entry_voids_all_and_leaves_the_sum(stores, spoil):
    outcome = spoiled(stores, SECURE, "unmask", client_1=spoil)
    assert outcome.entries == ()
    assert outcome.entries_void is not None
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
    assert outcome.entries == ()
    assert outcome.entries_void == "a pool handle is not valid"


@pytest.mark.parametrize(
    "levels",
    [
        np.full(2, 2**20, np.uint32),
        np.zeros(3, np.uint32),
        np.zeros(2, np.uint64),
        np.zeros(2, np.float32),
    ],
    ids=["above", "longer", "wide", "floats"],
)
def test_hostile_levels_void_all(stores, levels):
    setting = dataclasses.replace(SECURE, mechanism=NOISED)
    good = spoiled(stores / "good", setting, "unmask")
    assert len(good.entries) == 5
    outcome = spoiled(stores / "bad", setting, "unmask", client_1=with_entry(levels=levels))
    assert outcome.entries == ()
    assert outcome.entries_void is not None


def test_a_single_survivor_has_no_entry(stores):
    setting = Setting(minimum=1, lost=NAMES[1:])
    outcome = play(Counting(), data(), stores, setting)
    assert outcome.survivors == ("client-0",)
    assert outcome.entries == ()
    assert outcome.entries_void == "a single entry would name its owner"


def test_without_a_pool_nothing_is_asked_for(stores):
    method = Counting(pooled=False)
    clients = make_clients(method, data(), stores, PLAIN)
    transport = Spoiling(transport_to(clients, PLAIN), "never", {})
    outcome = play(method, data(), stores / "unused", PLAIN, transport=transport)
    assert (outcome.entries, outcome.entries_void) == ((), None)
    assert {stage for stage, _ in transport.sent} == {"advertise", "train"}


# --- the client's side --------------------------------------------------------------------------


@pytest.fixture
def client(stores) -> Client:
    return make_clients(Counting(), data(), stores, SECURE)["client-1"]


def invitation(secure: SecureRound | None, **envelope) -> bytes:
    place = Envelope(**{"run_id": RUN, "round_number": 1, "attempt": 1, **envelope})
    return messages.encode_invitation(Invitation(place, (), secure))


def seat(**numbers) -> SecureRound:
    fitting = {
        "index": 2,
        "clients": 5,
        "threshold": 3,
        "vector_length": 3,
        "ring_bits": 43,
        "corrupt": 0,
    }
    return seat_from(**{**fitting, **numbers})


def test_an_invitation_is_answered(client):
    answer = messages.decode_answer(client.handle(invitation(seat())))
    assert answer.envelope.run_id == RUN
    assert answer.payload


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
        {"threshold": 0},
        {"threshold": 1},
        {"threshold": 6},
        {"clients": 1},
        {"clients": 0},
        {"index": 0},
        {"index": 6},
        {"ring_bits": 16},
        {"vector_length": 0},
        {"corrupt": 3},
        {"vector_length": 2**40},
    ],
    ids=str,
)
def test_an_invitation_with_impossible_numbers_is_refused(client, numbers):
    with pytest.raises((ProtocolError, PrivacyError)):
        client.handle(invitation(seat(**numbers)))


def test_an_invitation_to_a_roster_of_millions_is_refused(client):
    """A number in a message must not cost memory: 2^32 - 1 is what the wire format allows."""
    with pytest.raises((ProtocolError, PrivacyError)):
        client.handle(invitation(seat(clients=2**22)))


@pytest.mark.parametrize("kind", ["relay", "assignment"])
def test_a_message_before_the_invitation_is_refused(client, kind):
    envelope = Envelope(RUN, 1, 1)
    message = {
        "relay": messages.encode_relay(messages.Relay(envelope, b"")),
        "assignment": messages.encode_assignment(messages.Assignment(envelope, b"", {}, ())),
    }[kind]
    with pytest.raises(ProtocolError, match="not what this client awaits"):
        client.handle(message)


def test_masks_cannot_be_skipped(client):
    """After the invitation comes the roster; training before it is refused."""
    client.handle(invitation(seat()))
    early = messages.Assignment(Envelope(RUN, 1, 1), b"", {"x": np.zeros(2, np.float32)}, ())
    with pytest.raises(ProtocolError, match="not what this client awaits"):
        client.handle(messages.encode_assignment(early))


def test_a_garbled_roster_changes_nothing(client):
    client.handle(invitation(seat()))
    garbled = messages.encode_relay(messages.Relay(Envelope(RUN, 1, 1), b"garbled"))
    for _ in range(2):
        with pytest.raises((PlatformError, PrivacyError)):
            client.handle(garbled)


def test_answers_of_a_client_are_refused_by_clients(client):
    answer = client.handle(invitation(seat()))
    with pytest.raises(ProtocolError):
        client.handle(answer)


@pytest.mark.parametrize("bit", range(8))
def test_no_broken_message_gets_an_answer_or_another_error(client, bit):
    """Bits flipped all over an assignment: refused, whatever the client awaits."""
    envelope = Envelope(RUN, 1, 1)
    whole = messages.encode_assignment(
        messages.Assignment(envelope, b"payload", {"x": np.zeros(2, np.float32)}, ())
    )
    client.handle(invitation(seat()))
    for position in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[position] ^= 1 << bit
        with pytest.raises(ProtocolError):
            client.handle(bytes(broken))


# --- a plan -------------------------------------------------------------------------------------


def test_each_client_is_told_its_own_last_commit():
    plan = make_plan(Counting(), NAMES, PLAIN, round_number=3, committed={"client-1": (2, 1)})
    assert plan.envelope("client-1") == Envelope(RUN, 3, 1, (2, 1))
    assert plan.envelope("client-2") == Envelope(RUN, 3, 1, None)


def test_protection_of_the_tests_is_what_it_says():
    assert make_protection(Counting(), SECURE).masked
    assert make_protection(Counting(), PLAIN).sums.exact
