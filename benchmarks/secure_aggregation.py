"""Time, bytes and memory of secure aggregation, by party and phase, in one process.

    python benchmarks/secure_aggregation.py rounds  [--clients 10 100] [--length 65536]
    python benchmarks/secure_aggregation.py whole   [--clients 100] [--length 512]
    python benchmarks/secure_aggregation.py compare --peer PYTHON_OF_AN_ENVIRONMENT_WITH_FLWR
    python benchmarks/secure_aggregation.py masking
    python benchmarks/secure_aggregation.py scale   [--clients 1000] [--length 65536]

A tenth of the clients is lost between sharing keys and sending masked vectors, which is the most
work for the server. A client time is the median over clients of one client's computing, as if each
were alone in its process. A server time is the whole step for all clients. All times are this
process' own CPU time over all its threads, which other work on the machine disturbs least. The only
assertion is that the sum is right. `whole` adds up the work of all in one process. There, as in a
simulated run, signatures and public keys that all clients receive are checked and loaded once. It
takes a ring of 27 bits, which holds 100 vectors of 20 bits, and writes every state as bytes after
each message and reads it before the next.
`compare` runs the peer and this code one after the other with the same cohort, graph degree,
threshold and dropouts. Both derive the keys of pairwise masks when they mask.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from _sizes import SMALLEST, sized
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from privacy.secure_aggregation import (
    Adversary,
    ClientState,
    Credentials,
    Enrolment,
    Finished,
    Identity,
    Phase,
    ReadyToMask,
    RoundParameters,
    ServerState,
    client,
    decode_client_state,
    decode_server_state,
    default_threshold,
    encode_client_state,
    encode_server_state,
    new_identity,
    plan,
    server,
)
from privacy.secure_aggregation.identities import verify_signature
from privacy.secure_aggregation.keys import load_public
from privacy.secure_aggregation.masking import Mask, add_masks, processors

Result = TypeVar("Result")
PEER = Path(__file__).with_name("_secagg_peer.py")
GRAPH_SEED = bytes(range(32))
WHOLE_BITS = 27


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started = time.process_time()
    result = work()
    return result, 1e3 * (time.process_time() - started)


@dataclass
class Round:
    """One round and its cost."""

    parameters: RoundParameters
    identities: Mapping[int, Identity] = field(default_factory=dict)
    enrolment: Enrolment = field(default_factory=Enrolment)
    alone: bool = True
    stored: bool = False
    rows: dict[Phase, tuple[float, float, int, int]] = field(default_factory=dict)
    everybody: dict[Phase, float] = field(default_factory=dict)

    def play(self, vectors: Callable[[int], np.typing.NDArray[np.uint64]], lost: set[int]) -> None:
        """Run the round and check the sum."""
        state: ServerState | bytes = server.start(self.parameters)
        states: dict[int, ClientState | bytes] = {}
        inbox: Mapping[int, bytes] = dict.fromkeys(self.parameters.clients, b"")
        for phase in self.parameters.phases:
            if phase is Phase.MASKED_INPUT:
                inbox = {index: message for index, message in inbox.items() if index not in lost}
            outbox, times = {}, []
            for index, message in inbox.items():
                vector = vectors(index) if phase is Phase.MASKED_INPUT else np.zeros(0, np.uint64)
                if self.alone:
                    forget()
                (states[index], outbox[index]), spent = timed(
                    lambda i=index, m=message, p=phase, v=vector: self.answer(  # type: ignore[misc]
                        p, i, states.get(i), m, v
                    )
                )
                times.append(spent)
            (state, inbox), spent = timed(
                lambda now=state, out=outbox: self.serve(now, out)  # type: ignore[misc]
            )
            self.everybody[phase] = sum(times) + spent
            self.rows[phase] = (statistics.median(times), spent, largest(outbox), largest(inbox))
        assert isinstance(state, Finished)
        expected = np.zeros(self.parameters.vector_length, np.uint64)
        for index in state.survivors:
            expected += vectors(index)
        assert len(state.survivors) == len(self.parameters.clients) - len(lost)
        top = np.uint64(2**self.parameters.ring_bits - 1)
        assert np.array_equal(state.total, expected & top)

    def serve(
        self, state: ServerState | bytes, outbox: Mapping[int, bytes]
    ) -> tuple[ServerState | bytes, Mapping[int, bytes]]:
        """The server's whole work in one phase."""
        now = decode_server_state(state) if isinstance(state, bytes) else state
        following, inbox = server.step(now, outbox)
        is_kept = self.stored and not isinstance(following, Finished)
        return encode_server_state(following) if is_kept else following, inbox

    def answer(
        self,
        phase: Phase,
        index: int,
        state: ClientState | bytes | None,
        message: bytes,
        vector: np.typing.NDArray[np.uint64],
    ) -> tuple[ClientState | bytes, bytes]:
        """One client's whole work in one phase."""
        identity = self.identities.get(index)
        following: ClientState
        if state is None:
            credentials = None if identity is None else Credentials(identity, self.enrolment)
            following, outgoing = client.advertise(self.parameters, index, credentials=credentials)
        else:
            now = decode_client_state(state) if isinstance(state, bytes) else state
            following, outgoing = client.step(now, message, identity=identity)
        if phase is Phase.MASKED_INPUT:
            ready = cast(ReadyToMask, following)
            following, outgoing = client.mask(ready, vector, identity=identity)
        return encode_client_state(following) if self.stored else following, outgoing

    def totals(self) -> tuple[float, float]:
        """Milliseconds of one client and of the server."""
        return sum(row[0] for row in self.rows.values()), sum(row[1] for row in self.rows.values())

    def show(self) -> None:
        """Print a line for each phase."""
        print(f"{'phase':<20}{'one client, ms':>16}{'server, ms':>12}{'up, bytes':>12}{'down':>10}")
        for phase, (mean, spent, up, down) in self.rows.items():
            print(f"{phase.value:<20}{mean:>16.2f}{spent:>12.2f}{up:>12,}{down:>10,}")
        print("{:<20}{:>16.2f}{:>12.2f}".format("all", *self.totals()))


def forget() -> None:
    """Drop what clients in one process cache of each other's public keys and signatures."""
    load_public.cache_clear()
    verify_signature.cache_clear()


def largest(messages: Mapping[int, bytes]) -> int:
    return max(map(len, messages.values()), default=0)


def random_vectors(length: int, bits: int) -> Callable[[int], np.typing.NDArray[np.uint64]]:
    return lambda i: np.random.default_rng(i).integers(0, 2**bits, length, np.uint64)


def make_round(clients: int, length: int, **changes: object) -> Round:
    fields = {
        "run_id": "benchmark",
        "round_number": 0,
        "attempt": 0,
        "clients": tuple(range(1, clients + 1)),
        "threshold": default_threshold(clients),
        "vector_length": length,
        "ring_bits": 32,
    }
    return Round(RoundParameters(**(fields | changes)))  # type: ignore[arg-type]


def make_active(clients: int, length: int, **changes: object) -> Round:
    identities = {i: Identity(new_identity()) for i in range(1, clients + 1)}
    enrolment = Enrolment()
    for index, identity in identities.items():
        enrolment = enrolment.enrol(f"client-{index}", identity.public)
    keys = tuple(identity.public for identity in identities.values())
    made = make_round(
        clients,
        length,
        adversary=Adversary.ACTIVE,
        identities=keys,
        enrolment_serial=enrolment.serial,
        **changes,
    )
    return Round(made.parameters, identities, enrolment)


def dropouts_of(clients: int, rate: float) -> set[int]:
    return set(range(1, clients + 1)[:: round(1 / rate)]) if rate else set()


def rounds(arguments: argparse.Namespace) -> None:
    """Print semi-honest and active rounds side by side."""
    for clients in arguments.clients or sized([10, 100], [6]):
        lost = dropouts_of(clients, arguments.dropouts)
        for kind, made in (
            ("semi-honest", make_round(clients, arguments.length)),
            ("active", make_active(clients, arguments.length)),
        ):
            made.play(random_vectors(arguments.length, 32), lost)
            print(f"\n{clients} clients, {kind}, threshold {made.parameters.threshold}, ", end="")
            print(f"{arguments.length} values, {len(lost)} lost before the masked input")
            made.show()


def whole(arguments: argparse.Namespace) -> None:
    """All cryptography in one process: medians of three rounds of each kind, in turns."""
    for clients in arguments.clients or sized([100], [6]):
        lost, found = dropouts_of(clients, arguments.dropouts), plan(clients, corrupt_rate=0.0)
        ring = {"ring_bits": WHOLE_BITS}
        regular = {
            "threshold": found.threshold,
            "degree": found.degree,
            "graph_seed": GRAPH_SEED if found.degree else b"",
            "smallest_sum": found.smallest_sum,
        }
        kinds = {
            f"semi-honest, degree {found.degree}": partial(make_round, **regular, **ring),
            "semi-honest, complete": partial(make_round, **ring),
            "active, complete": partial(make_active, **ring),
        }
        spent: dict[str, list[dict[Phase, float]]] = {kind: [] for kind in kinds}
        for _ in range(sized(3, 1)):
            for kind, make in kinds.items():
                made = make(clients, arguments.length)
                made.alone, made.stored = False, True
                forget()
                made.play(random_vectors(arguments.length, WHOLE_BITS), lost)
                spent[kind].append(made.everybody)
        print(f"\n{clients} clients, {arguments.length} values, {len(lost)} lost; ms in total")
        print(f"{'':<28}" + "".join(f"{phase.value:>19}" for phase in Phase) + f"{'all':>10}")
        for kind, runs in spent.items():
            cells = [statistics.median(run.get(phase, 0.0) for run in runs) for phase in Phase]
            total = statistics.median(sum(run.values()) for run in runs)
            print(f"{kind:<28}" + "".join(f"{cell:>19.1f}" for cell in cells) + f"{total:>10.1f}")


def compare(arguments: argparse.Namespace) -> None:
    """Compare the peer and this code in the two configurations of the peer's documentation."""
    clients, length, lost = 100, 65_536, dropouts_of(100, 0.1)
    for shares, threshold in ((31, 21), (100, 67)):
        numbers = map(str, (clients, length, shares, threshold, len(lost)))
        output = subprocess.run(
            [arguments.peer, PEER, *numbers], check=True, capture_output=True, text=True
        ).stdout
        peer = json.loads(output.splitlines()[-1])
        graph: dict[str, object] = {}
        if shares < clients:
            graph = {"degree": shares - 1, "graph_seed": GRAPH_SEED, "smallest_sum": 90}
        made = make_round(clients, length, threshold=threshold, **graph)
        made.play(random_vectors(length, 32), lost)
        print(f"\n{shares} shares, threshold {threshold}; flwr {peer['version']}")
        print(f"{'':<24}{'peer, ms':>12}{'ours, ms':>12}{'ratio':>8}")
        for name, phase in (
            ("advertise", Phase.ADVERTISE_KEYS),
            ("share", Phase.SHARE_KEYS),
            ("mask", Phase.MASKED_INPUT),
            ("reveal", Phase.UNMASKING),
        ):
            line(f"client {name}", 1e3 * peer[name], made.rows[phase][0])
        line("server unmask", 1e3 * peer["server unmask"], made.rows[Phase.UNMASKING][1])
        ours = made.rows[Phase.SHARE_KEYS][0] + made.rows[Phase.MASKED_INPUT][0]
        line("client share and mask", 1e3 * (peer["share"] + peer["mask"]), ours)
        for name, phase in zip(peer["up"], made.parameters.phases, strict=True):
            line(f"bytes up, {name}", peer["up"][name], made.rows[phase][2])


def line(name: str, theirs: float, ours: float) -> None:
    print(f"{name:<24}{theirs:>12,.2f}{ours:>12,.2f}{theirs / ours:>8.1f}")


def masking(arguments: argparse.Namespace) -> None:
    """One mask against the bare cipher stream of the same length, then many masks on threads."""
    for bits in (16, 32, 64):
        vector = np.zeros(arguments.length, f"<u{bits // 8}")
        zeros, buffer = bytes(vector.nbytes), bytearray(vector.nbytes)

        def counter(zeros: bytes = zeros, buffer: bytearray = buffer) -> None:
            Cipher(AES256(bytes(32)), CTR(bytes(16))).encryptor().update_into(zeros, buffer)

        def bare(zeros: bytes = zeros, buffer: bytearray = buffer) -> None:
            Cipher(AES256(bytes(32)), GCM(bytes(12))).encryptor().update_into(zeros, buffer)

        def masked(vector: np.typing.NDArray[np.unsignedinteger] = vector) -> None:
            add_masks(vector, [Mask(bytes(32), negative=False)])

        times = {counter: [], bare: [], masked: []}  # type: ignore[var-annotated]
        for _ in range(sized(500, 1)):
            for work, spent in times.items():
                spent.append(timed(work)[1])
        old, one, other = (1e3 * statistics.median(spent) for spent in times.values())
        print(
            f"{arguments.length} values of {bits} bits: CTR {old:.1f} us, GCM {one:.1f} us, ",
            end="",
        )
        print(f"mask {other:.1f} us, ratio to GCM {other / one:.2f}")
    many = [Mask(bytes([index]) * 32, negative=False) for index in range(100)]
    walls: dict[int, list[float]] = {1: [], processors(): []}
    for _ in range(sized(50, 1)):
        for threads, spent in walls.items():
            started = time.perf_counter()
            add_masks(np.zeros(arguments.length, "<u4"), many, threads=threads)
            spent.append(1e3 * (time.perf_counter() - started))
    for threads, spent in walls.items():
        middle = statistics.median(spent)
        print(f"100 masks of 32 bits, {threads} threads: {middle:.2f} ms of wall time")


def scale(arguments: argparse.Namespace) -> None:
    """Large cohorts on the k-regular graph: the work of all parties in one process."""
    for clients in arguments.clients or sized([1000], [30]):
        found = plan(clients, corrupt_rate=0.05, dropout_rate=0.1)
        made = make_round(
            clients,
            arguments.length,
            threshold=found.threshold,
            corrupt=found.corrupt,
            degree=found.degree,
            graph_seed=GRAPH_SEED if found.degree else b"",
            smallest_sum=found.smallest_sum,
        )
        lost = dropouts_of(clients, arguments.dropouts)
        started = time.perf_counter()
        made.play(random_vectors(arguments.length, 32), lost)
        spent = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"\n{clients} clients x {arguments.length}, degree {found.degree}, ", end="")
        print(f"threshold {found.threshold}, {len(lost)} lost: ", end="")
        print(f"{spent:.1f} s of wall time in all, peak {peak:.2f} GiB")
        made.show()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    works = {
        "rounds": rounds,
        "whole": whole,
        "compare": compare,
        "masking": masking,
        "scale": scale,
    }
    parser.add_argument("what", choices=works)
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--length", type=int)
    parser.add_argument("--dropouts", type=float, default=0.1)
    parser.add_argument("--peer", help="the Python of an environment with flwr")
    arguments = parser.parse_args(given)
    if arguments.length is None:
        arguments.length = sized(512 if arguments.what == "whole" else 65_536, 64)
    works[arguments.what](arguments)


if __name__ == "__main__":
    if SMALLEST:
        print("compare: not run at the smallest size, because it needs --peer")
        for what in ("rounds", "whole", "masking", "scale"):
            main([what])
    else:
        main()
