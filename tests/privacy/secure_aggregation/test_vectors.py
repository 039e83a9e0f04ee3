"""The vectors on file come out again, from the files alone: the protocol has not changed.

A second implementation, written from the specification alone, comes out with the same bytes. A
change of any byte is a new version of the protocol.
"""

from __future__ import annotations

import json

import pytest

from privacy.secure_aggregation import Phase
from tests.privacy.secure_aggregation._second import SecondClient, holders
from tests.privacy.secure_aggregation._vectors import CASES, FOLDER, record

NAMES = sorted({*CASES, *(path.stem for path in FOLDER.glob("*.json"))})


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def by_client(mapping):
    return {int(index): bytes.fromhex(value) for index, value in mapping.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_second_implementation_from_the_specification_agrees(name):
    vector = load(name)
    sent, answers = (
        {p: by_client(m) for p, m in vector[key].items()} for key in ("sent", "answers")
    )
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
    columns = zip(*(vector["vectors"][str(i)] for i in vector["survivors"]), strict=True)
    modulus = 2 ** vector["parameters"]["ring_bits"]
    assert [sum(column) % modulus for column in columns] == vector["total"]
    assert set(map(int, survivors)) == set(vector["survivors"])


def test_the_faults_on_file_are_complained_of_repaired_and_named():
    for name in ("faults-32", "faults-active-16"):
        vector = load(name)
        assert vector["intermediate"]["complaints"] == {"4": [2]}
        assert vector["refused"] == [[1, "unmasking"]]
        assert vector["arrived"].keys() == {"share_keys", "unmasking"}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_the_generator_writes(name):
    assert json.loads(json.dumps(record(name))) == load(name)
