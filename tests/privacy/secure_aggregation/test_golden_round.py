"""A whole round with fixed entropy gives the bytes on file: the protocol has not changed.

The file was written by this code; `test_masks.py` checks the same messages against a second
implementation. A change of any byte is a new version of the protocol.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from privacy.secure_aggregation import Phase, RoundParameters, decode_client_state
from privacy.secure_aggregation import encode_client_state as encode
from tests.privacy.secure_aggregation._drive import play

GOLDEN = Path(__file__).with_name("golden_round.json")


def record():
    """The round on file: client 7 shares keys and is lost before it sends its masked vector."""
    parameters = RoundParameters(
        run_id="golden",
        round_number=1,
        attempt=2,
        clients=(1, 4, 7),
        threshold=2,
        vector_length=4,
        ring_bits=32,
    )
    vectors = {
        1: np.array([0, 1, 2, 4294967295], np.uint64),
        4: np.array([10, 20, 30, 40], np.uint64),
        7: np.array([5, 5, 5, 5], np.uint64),
    }
    trace = play(parameters, vectors, lost={Phase.MASKED_INPUT: {7}}, label="golden")
    return trace, {
        "parameters": parameters.encode().hex(),
        "sent": {p: {str(i): m.hex() for i, m in trace.sent[p].items()} for p in Phase},
        "answers": {p: {str(i): m.hex() for i, m in trace.answers[p].items()} for p in Phase},
        "states": {p: encode(trace.after[p][1]).hex() for p in Phase},
        "total": trace.finished.total.tolist(),
        "survivors": list(trace.finished.survivors),
    }


def test_the_round_on_file_comes_out_again():
    _, found = record()
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert found.keys() == golden.keys()
    for key, value in golden.items():
        assert found[key] == value, key


def test_the_total_on_file_is_right():
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert golden["survivors"] == [1, 4]
    assert golden["total"] == [10, 21, 32, 39]


def test_the_states_on_file_are_still_read():
    trace, _ = record()
    golden = json.loads(GOLDEN.read_text("utf-8"))
    for phase in Phase:
        assert decode_client_state(bytes.fromhex(golden["states"][phase])) == trace.after[phase][1]
