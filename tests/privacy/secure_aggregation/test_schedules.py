"""Whatever the network does: the exact sum of the survivors, or an abort that names the phase.

A state machine drives one round, drawn at random with its cohort, graph, adversary, ring and
threshold. Between the steps it loses, truncates, flips, repeats, delays, swaps and replaces
messages in both directions, also by messages of another attempt at the same round, lets dealers
seal boxes that nobody can read, and makes every party a new process that has stored bytes only. The
oracle never looks into the protocol: it keeps the plain vectors and adds them up.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from privacy.errors import InvalidShare, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import (
    Finished,
    Phase,
    client,
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
    server,
)
from privacy.secure_aggregation.masking import packed_bytes
from privacy.secure_aggregation.messages import decode_dealt_shares, encode_dealt_shares
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    credentials_of,
    identity_of,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    plain_sum,
    play,
)

SPOILING = (
    "lost",
    "truncated",
    "flipped",
    "doubled",
    "swapped",
    "replayed",
    "delayed",
    "foreign",
    "misdealt",
)


@st.composite
def rounds(draw, kind):
    """Parameters of a random round, small enough that a schedule takes milliseconds."""
    bits = draw(st.sampled_from((16, 19, 32, 45, 64)))
    common = {"ring_bits": bits, "vector_length": draw(st.integers(1, 9))}
    if kind == "regular":
        count = draw(st.integers(8, 12))
        lost = draw(st.integers(1, 2))
        threshold = draw(st.integers(2, 5))
        return make_regular(count, threshold=threshold, smallest_sum=count - lost, **common)
    count = draw(st.integers(2, 7))
    gaps = draw(st.lists(st.integers(1, 900), min_size=count, max_size=count))
    common["clients"] = tuple(sum(gaps[: at + 1]) for at in range(count))
    # Thresholds that leave room for dropouts; the sampled ones are mostly met.
    corrupt = draw(st.integers(0, (count - 1) // 3)) if kind == "active" else 0
    least = max(2, (count + corrupt) // 2 + 1) if kind == "active" else 2
    threshold = draw(st.integers(least, max(least, count - 2)))
    make = make_active if kind == "active" else make_parameters
    return make(count, threshold=threshold, corrupt=corrupt, **common)


class Schedule(RuleBasedStateMachine):
    """One round and everything that can happen to its messages."""

    kind = "complete"

    @initialize(
        data=st.data(),
        seed=st.integers(0, 2**32 - 1),
        unrest=st.sampled_from((0.0, 0.4, 0.8)),
    )
    def begin(self, data, seed, unrest):
        self.parameters = parameters = data.draw(rounds(self.kind))
        self.unrest = unrest
        self.vectors = make_vectors(parameters, seed)
        self.random = random.Random(seed)
        self.entropy = {i: FixedEntropy(f"{seed}/{i}") for i in parameters.clients}
        self.context = self.random.randbytes(32)
        self.server = server.start(parameters, context=self.context)
        self.states = {}
        self.phases = list(parameters.phases)
        self.up: dict[int, bytes] = {}
        self.down: dict[int, bytes] = dict.fromkeys(parameters.clients, b"")
        self.past: list[tuple[int, bytes]] = []
        self.late: list[tuple[int, bytes]] = []
        self.foreign = None
        self.over = False

    def _foreign(self, phase, index, upward):
        """The same phase's message of another attempt at this round."""
        if self.foreign is None:
            fields = {name: getattr(self.parameters, name) for name in (
                "clients", "threshold", "vector_length", "ring_bits", "corrupt", "adversary",
                "identities", "degree", "graph_seed", "smallest_sum", "enrolment_serial",
            )}  # fmt: skip
            other = make_parameters(2, attempt=1, **fields)
            self.foreign = play(other, self.vectors, label="foreign")
        messages = (self.foreign.sent if upward else self.foreign.answers)[phase]
        return messages.get(index, b"")

    def _spoilt(self, messages, index, how, upward):
        message = messages[index]
        if how == "truncated":
            return message[: self.random.randrange(len(message) + 1)]
        if how == "flipped":
            changed = bytearray(message or b"\0")
            at, bit = self.random.randrange(len(changed)), self.random.randrange(8)
            if not self._is_unguarded(message, at, upward):
                changed[at] ^= 1 << bit
            return bytes(changed)
        if how == "doubled":
            return message + message
        if how == "swapped":
            return messages[self.random.choice(sorted(messages))]
        if how == "misdealt":
            return self._misdealt(index, message)
        if how == "replayed" and self.past:
            return self.random.choice(self.past)[1]
        if how == "foreign" and self.phases:
            return self._foreign(self.phases[0], index, upward)
        self.late.append((index, message))
        return None

    def _is_unguarded(self, message, at, upward):
        """Whether a byte is of a masked vector that nobody signed, which no checksum covers."""
        parameters = self.parameters
        end = len(message) - 16
        start = end - packed_bytes(parameters.vector_length, parameters.ring_bits)
        masked = upward and self.phases[:1] == [Phase.MASKED_INPUT] and not parameters.is_active
        return masked and max(start, 52) <= at < end

    def _misdealt(self, index, message):
        """Dealt shares of which some boxes cannot be read; another message stays as it is."""
        if index not in self.parameters.invited:
            return message
        try:
            dealing = decode_dealt_shares(self.parameters, index, message)
        except ProtocolViolation:
            return message
        unreadable = [peer for peer in dealing.boxes if self.random.random() < 0.3]
        changed = dataclasses.replace(
            dealing, boxes=dealing.boxes | dict.fromkeys(unreadable, bytes(94))
        )
        identity = identity_of(index) if self.parameters.is_active else None
        return encode_dealt_shares(self.parameters, index, changed, identity=identity)

    @precondition(lambda self: not self.over and self.up)
    @rule(which=st.integers(0, 11), how=st.sampled_from(SPOILING))
    def spoil_upward(self, which, how):
        index = sorted(self.up)[which % len(self.up)]
        spoilt = self._spoilt(self.up, index, how, upward=True)
        if spoilt is None or how == "lost":
            del self.up[index]
        else:
            self.up[index] = spoilt

    @precondition(lambda self: not self.over and self.down and len(self.phases) < 5)
    @rule(which=st.integers(0, 11), how=st.sampled_from(SPOILING[:-2]))
    def spoil_downward(self, which, how):
        index = sorted(self.down)[which % len(self.down)]
        if not self.down[index]:
            return
        spoilt = self._spoilt(self.down, index, how, upward=False)
        if spoilt is None or how == "lost":
            del self.down[index]
        else:
            self.down[index] = spoilt

    @precondition(lambda self: not self.over and self.up and self.late)
    @rule()
    def deliver_late(self):
        index, message = self.late.pop()
        self.up[index] = message

    @precondition(lambda self: not self.over and self.up)
    @rule(index=st.integers(-1, 5000))
    def a_stranger_speaks(self, index):
        self.up.setdefault(index, next(iter(self.up.values())))

    @precondition(lambda self: not self.over and self.down)
    @rule()
    def clients_answer(self):
        phase = self.phases[0]
        for index, message in self.down.items():
            if index in self.parameters.invited:
                self._answer(phase, index, message)
        self.down = {}

    def _answer(self, phase, index, message):
        state = self.states.get(index)
        before = None if state is None else encode_client_state(state)
        try:
            self.states[index], self.up[index] = self._step(phase, index, message)
        except ProtocolViolation:
            # A refusal leaves the state as it was; the client is silent, which is a dropout.
            assert before is None or encode_client_state(self.states[index]) == before
            return
        # A process that ends after every message goes on from its stored state.
        stored = encode_client_state(self.states[index])
        self.states[index] = decode_client_state(stored)

    def _step(self, phase, index, message):
        parameters, entropy = self.parameters, self.entropy[index]
        identity = identity_of(index) if parameters.is_active else None
        if phase is Phase.ADVERTISE_KEYS:
            credentials = credentials_of(parameters, index)
            return client.advertise(parameters, index, entropy=entropy, credentials=credentials)
        state = self.states.get(index)
        if state is None:
            raise ProtocolViolation("a client that never advertised")
        following, outgoing = client.step(state, message, entropy=entropy, identity=identity)
        if phase is Phase.MASKED_INPUT:
            following = decode_client_state(encode_client_state(following))
            vector, context = self.vectors[index], self.context
            return client.mask(following, vector, context=context, identity=identity)
        return following, outgoing

    @precondition(lambda self: not self.over and not self.down)
    @rule()
    def server_steps(self):
        phase = self.phases.pop(0)
        self.past += self.up.items()
        shuffled = sorted(self.up.items())
        self.random.shuffle(shuffled)
        self.up = {}
        try:
            # The server too may be a new process after every phase.
            stored = decode_server_state(encode_server_state(self.server))
            self.server, answers = server.step(stored, dict(shuffled))
        except ThresholdNotMet as error:
            assert error.phase == phase
            assert phase.value in str(error)
            self.over = True
            return
        except InvalidShare as error:
            # Nobody lies here, and messages are spoilt in ways that are noticed.
            pytest.fail(f"a spoilt message went through: {error}")
        self.past += answers.items()
        self.down = dict(answers)
        if isinstance(self.server, Finished):
            self.over = True
            self._check(self.server)

    @precondition(lambda self: self.over)
    @rule()
    def nothing_follows(self):
        if isinstance(self.server, Finished):
            with pytest.raises(ProtocolViolation):
                server.step(self.server, dict(self.past))

    def _check(self, finished):
        parameters = self.parameters
        assert len(finished.survivors) >= parameters.least_survivors
        assert set(finished.survivors) <= parameters.invited
        expected = plain_sum(parameters, self.vectors, finished.survivors)
        assert finished.total.tolist() == expected

    def teardown(self):
        """What is left of the round, with a message spoilt now and then."""
        while hasattr(self, "over") and not self.over:
            if self.down:
                self.clients_answer()
            if self.up and self.random.random() < self.unrest:
                which, how = self.random.randrange(12), self.random.choice(SPOILING)
                self.spoil_upward(which=which, how=how)
            self.server_steps()


class OnAGraph(Schedule):
    """The same on k-regular graphs."""

    kind = "regular"


class AgainstLiars(Schedule):
    """The same with signatures and the consistency check."""

    kind = "active"


THOROUGH = pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("examples", [20, THOROUGH])
@pytest.mark.parametrize("machine", [Schedule, OnAGraph, AgainstLiars])
def test_the_sum_is_exact_or_the_phase_is_named(machine, examples):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
