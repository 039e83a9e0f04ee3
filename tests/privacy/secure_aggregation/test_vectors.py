"""The vectors on file come out again, from the files alone: the protocol has not changed.

A second implementation, written from the specification alone, comes out with the same bytes. A
change of any byte is a new version of the protocol.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from privacy.secure_aggregation import (
    Credentials,
    Enrolment,
    Finished,
    Identity,
    Phase,
    client,
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
    server,
)
from privacy.secure_aggregation.parameters import decode_parameters
from tests.privacy.secure_aggregation._second import SecondClient, holders
from tests.privacy.secure_aggregation._vectors import CASES, FOLDER, record

KEYS = ("sent", "answers")
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def by_client(mapping):
    return {int(index): bytes.fromhex(value) for index, value in mapping.items()}


class Player:
    """One client of a vector file, fed with the file's random bytes and messages only."""

    def __init__(self, vector, index):
        self.parameters = decode_parameters(bytes.fromhex(vector["parameters"]["encoded"]))
        self.index = index
        self.context = bytes.fromhex(vector["context"])
        self.values = np.array(vector["vectors"][str(index)], np.uint64)
        self.drawn = [bytes.fromhex(each) for each in vector["drawn"][str(index)]]
        key = vector["signing_keys"].get(str(index))
        self.identity = None if key is None else Identity(bytes.fromhex(key))
        self.state = None

    def entropy(self, size):
        drawn = self.drawn.pop(0)
        assert len(drawn) == size
        return drawn

    def answer(self, phase, message):
        if phase is Phase.ADVERTISE_KEYS:
            self.state, outgoing = client.advertise(
                self.parameters, self.index, entropy=self.entropy, credentials=self.credentials()
            )
            return outgoing
        self.state, outgoing = client.step(
            self.state, message, entropy=self.entropy, identity=self.identity
        )
        if phase is Phase.MASKED_INPUT:
            self.state, outgoing = client.mask(
                self.state, self.values, context=self.context, identity=self.identity
            )
        return outgoing

    def credentials(self):
        if self.identity is None:
            return None
        enrolment = Enrolment()
        for place, key in enumerate(self.parameters.identities):
            enrolment = enrolment.enrol(f"member-{place}", key)
        assert enrolment.serial == self.parameters.enrolment_serial
        return Credentials(self.identity, enrolment)


def test_every_case_is_on_file():
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_send_what_is_on_file(name):
    vector = load(name)
    players = {int(index): Player(vector, int(index)) for index in vector["vectors"]}
    inbox = dict.fromkeys(players, b"")
    for phase in next(iter(players.values())).parameters.phases:
        for index, message in by_client(vector["sent"][phase]).items():
            assert players[index].answer(phase, inbox[index]) == message
        inbox = by_client(vector["answers"][phase])
    assert not any(player.drawn for player in players.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_server_answers_what_is_on_file(name):
    vector = load(name)
    parameters = decode_parameters(bytes.fromhex(vector["parameters"]["encoded"]))
    state = server.start(parameters, context=bytes.fromhex(vector["context"]))
    for phase in parameters.phases:
        changed = by_client(vector["arrived"].get(phase, {}))
        state, answers = server.step(state, by_client(vector["sent"][phase]) | changed)
        assert answers == by_client(vector["answers"][phase])
    assert isinstance(state, Finished)
    assert state.total.tolist() == vector["total"]
    assert list(state.survivors) == vector["survivors"]
    assert [[each.client, each.phase] for each in state.refused] == vector["refused"]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_implementation_from_the_specification_agrees(name):
    vector = load(name)
    sent, answers = ({p: by_client(m) for p, m in vector[key].items()} for key in KEYS)
    survivors = answers[Phase.MASKED_INPUT]
    for index in map(int, vector["vectors"]):
        assert holders(vector["parameters"], index) == vector["holders"][str(index)]
        one = SecondClient(vector, index)
        assert one.digest.hex() == vector["parameters"]["digest"]
        assert one.advertise() == sent[Phase.ADVERTISE_KEYS][index]
        dealt = one.share(answers[Phase.ADVERTISE_KEYS][index])
        assert dealt == sent[Phase.SHARE_KEYS][index]
        if index not in survivors:
            continue
        masked = one.masked(answers[Phase.SHARE_KEYS][index])
        assert masked == sent[Phase.MASKED_INPUT][index]
        if one.active:
            confirmed = one.confirm(survivors[index])
            assert confirmed == sent[Phase.CONSISTENCY_CHECK][index]
        assert one.reveal(survivors[index]) == sent[Phase.UNMASKING][index]
        assert not one.drawn


@pytest.mark.parametrize("name", NAMES)
def test_the_total_on_file_is_the_sum_of_the_vectors_on_file(name):
    vector = load(name)
    columns = zip(*(vector["vectors"][str(i)] for i in vector["survivors"]), strict=True)
    modulus = 2 ** vector["parameters"]["ring_bits"]
    assert [sum(column) % modulus for column in columns] == vector["total"]
    lost = set(vector["lost_before_masked_input"])
    assert set(vector["parameters"]["clients"]) - lost == set(vector["survivors"])


@pytest.mark.parametrize("name", NAMES)
def test_states_on_file_are_still_read(name):
    states = load(name)["intermediate"]
    for data in map(bytes.fromhex, states["states_of_one_client"].values()):
        assert encode_client_state(decode_client_state(data)) == data
    for data in map(bytes.fromhex, states["server_states"].values()):
        assert encode_server_state(decode_server_state(data)) == data


def test_the_faults_on_file_are_complained_of_repaired_and_named():
    for name in ("faults-32", "faults-active-16"):
        vector = load(name)
        assert vector["intermediate"]["complaints"] == {"4": [2]}
        assert vector["refused"] == [[1, "unmasking"]]
        assert vector["arrived"].keys() == {"share_keys", "unmasking"}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_the_generator_writes(name):
    assert json.loads(json.dumps(record(name))) == load(name)
