"""The digests that clients sign, byte by byte, and that everything in them counts."""

from __future__ import annotations

import hashlib
import itertools
import struct

from privacy.secure_aggregation import NO_CONTEXT
from privacy.secure_aggregation.keys import PublicKeys
from privacy.secure_aggregation.states import roster_digest, transcript_digest
from tests.privacy.secure_aggregation._drive import make_active, make_parameters

PARAMETERS = make_active(5)
ROSTER = {
    4: PublicKeys(b"c" * 32, b"m" * 32, b"s" * 64),
    2: PublicKeys(b"C" * 32, b"M" * 32, b"S" * 64),
}
SEEN = {
    "parameters": PARAMETERS,
    "roster": b"r" * 32,
    "dealers": (1, 2, 4, 5),
    "survivors": (1, 4, 5),
    "context": b"x" * 32,
}


def digest(**changes):
    seen = SEEN | changes
    return transcript_digest(seen.pop("parameters"), **seen)


def test_the_roster_byte_by_byte():
    records = struct.pack("<I", 2) + b"C" * 32 + b"M" * 32
    records += struct.pack("<I", 4) + b"c" * 32 + b"m" * 32
    label = b"sotto/secure-aggregation/roster"
    expected = hashlib.sha256(label + PARAMETERS.digest + records).digest()
    assert roster_digest(PARAMETERS, ROSTER) == expected


def test_the_transcript_byte_by_byte():
    label = b"sotto/secure-aggregation/transcript"
    sets = struct.pack("<5I", 4, 1, 2, 4, 5) + struct.pack("<4I", 3, 1, 4, 5)
    body = label + PARAMETERS.digest + b"r" * 32 + sets + b"x" * 32
    assert digest() == hashlib.sha256(body).digest()
    assert bytes(32) == NO_CONTEXT


def test_order_does_not_count_and_nothing_else_is_the_same():
    assert digest(dealers=(5, 4, 2, 1), survivors={5, 1, 4}) == digest()
    different = [
        digest(parameters=make_active(5, attempt=1)),
        digest(roster=b"R" * 32),
        digest(dealers=(1, 2, 4)),
        digest(survivors=(1, 4)),
        digest(context=NO_CONTEXT),
        # The same numbers in a row, cut in other places.
        digest(dealers=(1, 2), survivors=(4, 5)),
        digest(dealers=(1, 2, 4), survivors=(5,)),
        digest(),
    ]
    rosters = [
        roster_digest(PARAMETERS, each)
        for each in (
            ROSTER,
            {2: ROSTER[2]},
            {2: ROSTER[4], 4: ROSTER[2]},
            ROSTER | {4: PublicKeys(b"c" * 32, b"n" * 32)},
            ROSTER | {4: PublicKeys(b"d" * 32, b"m" * 32)},
            {3: ROSTER[2], 4: ROSTER[4]},
        )
    ] + [roster_digest(make_parameters(5), ROSTER)]
    for one, other in itertools.combinations(different + rosters, 2):
        assert one != other
