"""Random rounds in which anything happens to any message: an exact sum, or a named phase."""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest

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
from privacy.secure_aggregation.messages import decode_dealt_shares
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    credentials_of,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    misdealt,
    plain_sum,
    play,
    signer,
)


def make_round(rng, kind):
    """Parameters of a random round, small enough that a schedule takes milliseconds."""
    common = {"ring_bits": rng.choice((16, 19, 32, 45, 64)), "vector_length": rng.randint(1, 9)}
    if kind == "regular":
        count, lost = rng.randint(8, 12), rng.randint(1, 2)
        return make_regular(count, threshold=rng.randint(2, 5), smallest_sum=count - lost, **common)
    count = rng.randint(2, 7)
    common["clients"] = tuple(sorted(rng.sample(range(1, 900), count)))
    # Thresholds that leave room for dropouts; the sampled ones are mostly met.
    corrupt = rng.randint(0, (count - 1) // 3) if kind == "active" else 0
    least = max(2, (count + corrupt) // 2 + 1) if kind == "active" else 2
    threshold = rng.randint(least, max(least, count - 2))
    make = make_active if kind == "active" else make_parameters
    return make(count, threshold=threshold, corrupt=corrupt, **common)


class Schedule:
    """One round and everything that can happen to its messages."""

    def __init__(self, kind, seed):
        self.random = rng = random.Random(f"{kind}/{seed}")
        self.parameters = make_round(rng, kind)
        self.vectors = make_vectors(self.parameters, seed)
        self.entropy = {i: FixedEntropy(f"{seed}/{i}") for i in self.parameters.clients}
        self.context = rng.randbytes(32)
        self.states = {}
        self.past, self.late = [], []

    @functools.cached_property
    def foreign(self):
        """Another attempt at the same round."""
        return play(dataclasses.replace(self.parameters, attempt=1), self.vectors, label="foreign")

    def spoil(self, phase, messages, unrest, *, upward):
        """Loses, changes, delays or swaps some of a phase's messages."""
        spoilt = {}
        for index, message in messages.items():
            if message and self.random.random() < unrest:
                message = self.spoilt(phase, messages, index, upward=upward)
            if message is not None:
                spoilt[index] = message
        if upward and self.late and self.random.random() < unrest:
            spoilt.update([self.late.pop()])
        if upward and spoilt and self.random.random() < unrest:
            # A stranger speaks.
            spoilt.setdefault(self.random.randint(-1, 5000), next(iter(spoilt.values())))
        return spoilt

    def spoilt(self, phase, messages, index, *, upward):
        message, rng = messages[index], self.random
        match rng.choice(
            "lost truncated flipped doubled swapped replayed delayed foreign dealt".split()
        ):
            case "truncated":
                return message[: rng.randrange(len(message) + 1)]
            case "flipped":
                changed = bytearray(message)
                at = rng.randrange(len(changed))
                if not (upward and self.is_unguarded(phase, message, at)):
                    changed[at] ^= 1 << rng.randrange(8)
                return bytes(changed)
            case "doubled":
                return message + message
            case "swapped":
                return messages[rng.choice(sorted(messages))]
            case "replayed" if self.past:
                return rng.choice(self.past)
            case "foreign":
                of_phase = (self.foreign.sent if upward else self.foreign.answers)[phase]
                return of_phase.get(index, b"")
            case "dealt" if upward and phase is Phase.SHARE_KEYS:
                return self.misdealt(index, message)
            case "delayed" if upward:
                self.late.append((index, message))
        return None

    def is_unguarded(self, phase, message, at):
        """Whether a byte is of a masked vector that nobody signed, which no checksum covers."""
        parameters = self.parameters
        end = len(message) - 16
        start = end - packed_bytes(parameters.vector_length, parameters.ring_bits)
        masked = phase is Phase.MASKED_INPUT and not parameters.is_active
        return masked and max(start, 52) <= at < end

    def misdealt(self, index, message):
        """Dealt shares of which some boxes cannot be read."""
        dealt_to = decode_dealt_shares(self.parameters, index, message).boxes
        unreadable = [peer for peer in dealt_to if self.random.random() < 0.3]
        return misdealt(self.parameters, index, message, unreadable)

    def answer(self, phase, index, message):
        """What a client says, which is a new process for every message; None if it refuses."""
        parameters, entropy = self.parameters, self.entropy[index]
        identity = signer(parameters, index)
        if phase is Phase.ADVERTISE_KEYS:
            credentials = credentials_of(parameters, index)
            state, said = client.advertise(
                parameters, index, entropy=entropy, credentials=credentials
            )
        else:
            before = self.states.get(index)
            if before is None:
                return None
            state = decode_client_state(before)
            try:
                state, said = client.step(state, message, entropy=entropy, identity=identity)
            except ProtocolViolation:
                # A refusal leaves the state as it was; the client is silent, which is a dropout.
                assert encode_client_state(state) == before
                return None
            if phase is Phase.MASKED_INPUT:
                ready = decode_client_state(encode_client_state(state))
                state, said = client.mask(
                    ready, self.vectors[index], context=self.context, identity=identity
                )
        self.states[index] = encode_client_state(state)
        return said

    def run(self, unrest):
        """The round's end, or None where it was given up."""
        state = server.start(self.parameters, context=self.context)
        down = dict.fromkeys(self.parameters.clients, b"")
        for number, phase in enumerate(self.parameters.phases):
            if number:
                previous = self.parameters.phases[number - 1]
                down = self.spoil(previous, down, unrest / 4, upward=False)
            said = {index: self.answer(phase, index, m) for index, m in down.items()}
            sent = {index: message for index, message in said.items() if message is not None}
            up = self.spoil(phase, sent, unrest, upward=True)
            arrived = sorted(up.items())
            self.random.shuffle(arrived)
            try:
                # The server too may be a new process after every phase.
                stored = decode_server_state(encode_server_state(state))
                state, down = server.step(stored, dict(arrived))
            except ThresholdNotMet as error:
                assert error.phase == phase
                assert phase.value in str(error)
                return None
            except InvalidShare as error:
                # Nobody lies here, and messages are spoilt in ways that are noticed.
                pytest.fail(f"a spoilt message went through: {error}")
            self.past += [*sent.values(), *down.values()]
        assert isinstance(state, Finished)
        with pytest.raises(ProtocolViolation):
            server.step(state, sent)
        return state


THOROUGH = pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("seeds", [18, THOROUGH])
@pytest.mark.parametrize("kind", ["complete", "regular", "active"])
def test_the_sum_is_exact_or_the_phase_is_named(kind, seeds):
    finished = 0
    for seed in range(seeds):
        schedule = Schedule(kind, seed)
        end = schedule.run(unrest=(0.0, 0.05, 0.3)[seed % 3])
        if end is None:
            assert seed % 3
            continue
        finished += 1
        parameters = schedule.parameters
        assert len(end.survivors) >= parameters.least_survivors
        assert set(end.survivors) <= parameters.invited
        expected = plain_sum(parameters, schedule.vectors, end.survivors)
        assert end.total.tolist() == expected
    assert seeds / 3 < finished < seeds
