"""Writes the test vectors; run as a module after a deliberate change of the protocol.

A vector holds everything that another implementation needs to come out with the same bytes: the
parameters, the signing keys, the digest of the broadcast, each client's vector and the random bytes
it draws, in order, and for every phase every message in both directions. Messages that were changed
on their way to the server stand in `arrived` as well. Intermediate values help to find where two
implementations part.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from privacy.secure_aggregation import (
    Phase,
    RoundParameters,
    encode_client_state,
    encode_server_state,
)
from privacy.secure_aggregation.keys import self_mask_key
from privacy.secure_aggregation.messages import decode_revealed_shares, encode_revealed_shares
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    Tamper,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    misdealt,
    play,
    signer,
)

FOLDER = Path(__file__).parents[2] / "vectors" / "secure_aggregation"
LAST = Phase.MASKED_INPUT


class Recorder:
    """Fixed entropy that remembers what it gave."""

    def __init__(self, label: str) -> None:
        self._source = FixedEntropy(label)
        self.drawn: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(self._source(size))
        return self.drawn[-1]


CASES = {
    # Client 7 shares keys and is lost before it sends its masked vector.
    "complete-32": (make_parameters(3, clients=(1, 4, 7), threshold=2, vector_length=4), {7}),
    "complete-21": (
        make_parameters(4, threshold=3, vector_length=5, ring_bits=21, corrupt=1, attempt=2),
        {2},
    ),
    "complete-64": (make_parameters(2, threshold=2, vector_length=2, ring_bits=64), set()),
    "regular-16": (
        make_regular(8, degree=4, threshold=3, smallest_sum=7, vector_length=3, ring_bits=16),
        {5},
    ),
    "active-32": (make_active(4, threshold=3, vector_length=3, corrupt=1), {3}),
    # Client 2 seals rubbish for client 4, which complains; client 1 reveals a wrong share of 3's.
    "faults-32": (make_parameters(6, threshold=3, vector_length=3), {6}),
    "faults-active-16": (
        make_active(6, threshold=4, vector_length=3, corrupt=1, ring_bits=16, smallest_sum=5),
        {6},
    ),
}


def spoil(parameters: RoundParameters) -> Tamper:
    """The faults of the cases that are named after them."""

    def tamper(phase: Phase, sender: int, message: bytes) -> bytes:
        if (phase, sender) == (Phase.SHARE_KEYS, 2):
            return misdealt(parameters, 2, message, [4])
        if (phase, sender) == (Phase.UNMASKING, 1):
            revealed = decode_revealed_shares(parameters, 1, message)
            revealed[3] = replace(revealed[3], share=bytes(33))
            identity = signer(parameters, 1)
            return encode_revealed_shares(parameters, 1, revealed, identity=identity)
        return message

    return tamper


def record(name: str) -> dict[str, object]:
    """Play one case and write down everything."""
    parameters, lost = CASES[name]
    vectors = make_vectors(parameters, seed=len(name))
    entropy = {i: Recorder(f"{name}/{i}") for i in parameters.clients}
    context = hashlib.sha256(name.encode()).digest()
    faults = {"tamper": spoil(parameters)} if name.startswith("faults") else {}
    trace = play(parameters, vectors, lost={LAST: lost}, entropy=entropy, context=context, **faults)
    advertised, ready = trace.after[Phase.ADVERTISE_KEYS], trace.states[LAST]
    some = min(ready)
    return {
        "parameters": {
            field: getattr(parameters, field)
            for field in (
                "run_id", "round_number", "attempt", "clients", "threshold", "vector_length",
                "ring_bits", "corrupt", "adversary", "degree", "smallest_sum", "enrolment_serial",
            )
        }
        | {
            "identities": [key.hex() for key in parameters.identities],
            "graph_seed": parameters.graph_seed.hex(),
            "encoded": parameters.encode().hex(),
            "digest": parameters.digest.hex(),
        },
        "signing_keys": {
            str(i): hashlib.sha256(b"identity/%d" % i).hexdigest()
            for i in (parameters.clients if parameters.is_active else ())
        },
        "holders": {str(i): parameters.holders(i) for i in parameters.clients},
        "context": context.hex(),
        "vectors": {str(i): vectors[i].tolist() for i in parameters.clients},
        "drawn": {str(i): [each.hex() for each in entropy[i].drawn] for i in entropy},
        "lost_before_masked_input": sorted(lost),
        "sent": {p: {str(i): m.hex() for i, m in trace.sent[p].items()} for p in trace.sent},
        "arrived": {
            p: {str(i): m.hex() for i, m in changed.items()}
            for p, changed in trace.arrived.items()
            if changed
        },
        "answers": {
            p: {str(i): m.hex() for i, m in trace.answers[p].items()} for p in trace.answers
        },
        "intermediate": {
            "channel_private": {str(i): s.channel_private.hex() for i, s in advertised.items()},
            "mask_private": {str(i): s.mask_private.hex() for i, s in advertised.items()},
            "seed": {str(i): s.seed.hex() for i, s in ready.items()},
            "self_mask_key": {
                str(i): self_mask_key(parameters, i, s.seed).hex() for i, s in ready.items()
            },
            "pairwise_mask_keys": {
                str(i): {str(p): key.hex() for p, key in s.mask_keys.items()}
                for i, s in ready.items()
            },
            "states_of_one_client": {
                p: encode_client_state(states[some]).hex() for p, states in trace.after.items()
            },
            "server_states": {
                p: encode_server_state(state).hex() for p, state in trace.server_states.items()
            },
            "transcript": {
                str(i): state.transcript.hex()
                for i, state in trace.after.get(Phase.CONSISTENCY_CHECK, {}).items()
            },
            "complaints": {str(i): s.withheld for i, s in ready.items() if s.withheld},
        },
        "refused": [[each.client, each.phase] for each in trace.finished.refused],
        "survivors": list(trace.finished.survivors),
        "total": trace.finished.total.tolist(),
    }  # fmt: skip


def main() -> None:
    """Write every vector to its file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        text = json.dumps(record(name), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
