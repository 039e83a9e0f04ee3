"""The processor time of one use of each primitive, by the code that rounds use."""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._sizes import sized
from platform.relay.hub import Hub
from platform.relay.links import HubLink
from platform.relay.packets import Outcome, decode_request, encode_packet
from platform.wire.codec import Envelope
from platform.wire.messages import Relay, decode_relay, encode_relay
from privacy.secure_aggregation import (
    Finished,
    Identity,
    ReadyToMask,
    RoundParameters,
    ServerState,
    client,
    decode_server_state,
    encode_server_state,
    server,
    shamir,
)
from privacy.secure_aggregation.identities import verify_signature
from privacy.secure_aggregation.keys import PrivateKey, seal, unseal
from privacy.secure_aggregation.masking import Mask, add_masks
from storage import LedgerRow, open_client_store, open_database
from storage.records import SessionRecord

REPEATS = sized(7, 1)
LENGTH = 8_192
NEIGHBOURS, THRESHOLD = 42, 22
"""For 10,000 clients."""


def cost(work: Callable[[], object], times: int) -> float:
    """Seconds of processor time of one call: the median of a few measurements of many calls."""
    found, times = [], sized(times, 1)
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - started) / times)
    return statistics.median(found)


def primitives() -> dict[str, tuple[float, str]]:
    """Return seconds and a description for each primitive."""
    found: dict[str, tuple[float, str]] = {}
    found |= _curves()
    found |= _sharing()
    found |= _masks()
    found |= _messages()
    found |= _neighbours()
    found |= _hub()
    found |= _stores()
    return found


def _curves() -> dict[str, tuple[float, str]]:
    parameters = RoundParameters(
        run_id="scale",
        round_number=1,
        attempt=1,
        clients=(1, 2, 3),
        threshold=2,
        vector_length=1,
        ring_bits=32,
    )
    own, other = PrivateKey(1, secrets.token_bytes(32)), PrivateKey(2, secrets.token_bytes(32))
    identity, digest = Identity(secrets.token_bytes(32)), secrets.token_bytes(32)
    signature = identity.sign(digest)
    key, nonce, two = secrets.token_bytes(32), secrets.token_bytes(12), secrets.token_bytes(66)
    box = seal(key, two, nonce=nonce, associated=digest)
    return {
        "agreements": (
            cost(lambda: own.pairwise_mask_key(parameters, 2, other.public), 300),
            "X25519 agreement and key derivation",
        ),
        "keys loaded": (
            cost(lambda: PrivateKey(1, key), 300),
            "X25519 private key, its public half",
        ),
        "signatures": (cost(lambda: identity.sign(digest), 300), "Ed25519 signature"),
        "verifications": (
            # Without the cache, by which a process checks the same signature only once.
            cost(lambda: verify_signature.__wrapped__(identity.public, digest, signature), 300),
            "Ed25519 verification",
        ),
        "boxes sealed": (
            cost(lambda: seal(key, two, nonce=nonce, associated=digest), 1000),
            "AES-GCM box of two shares, sealed",
        ),
        "boxes opened": (
            cost(lambda: unseal(key, box, associated=digest), 1000),
            "the same, opened",
        ),
    }


def _sharing() -> dict[str, tuple[float, str]]:
    indices = tuple(range(1, 10_000, 10_000 // NEIGHBOURS))[: NEIGHBOURS + 1]
    coefficients = shamir.draw_coefficients(THRESHOLD - 1, entropy=os.urandom)
    secret = secrets.token_bytes(32)
    shares = shamir.deal(secret, coefficients=coefficients, indices=indices)
    chosen, first = indices[:THRESHOLD], shares[:THRESHOLD]

    def rebuilt() -> bytes:
        return shamir.combine(first, shamir.lagrange_at_zero(chosen))

    dealing = cost(
        lambda: shamir.deal(secret, coefficients=coefficients, indices=indices), 100
    ) / len(indices)
    weights = shamir.lagrange_at_zero(chosen)
    combined = cost(lambda: shamir.combine(first, weights), 300) / THRESHOLD
    return {
        "share values": (dealing, f"Shamir share, t = {THRESHOLD}"),
        "secrets rebuilt": (cost(rebuilt, 100), f"Shamir secret rebuilt, t = {THRESHOLD}"),
        "shares combined": (combined, "one share of it, where the coefficients are known"),
    }


def _masks() -> dict[str, tuple[float, str]]:
    total, masks = np.zeros(LENGTH, "<u8"), [Mask(secrets.token_bytes(32), negative=False)] * 20
    each = cost(lambda: add_masks(total, masks, threads=1), 20) / 20 / LENGTH
    return {"mask values": (each, "mask expanded and added, a value of 64 bits")}


def _messages() -> dict[str, tuple[float, str]]:
    envelope = Envelope("scale-20261123-000000-0000", 1, 1)
    small, large = bytes(1_000), bytes(1_001_000)

    def both(body: bytes) -> Callable[[], object]:
        return lambda: decode_relay(encode_relay(Relay(envelope, body)))

    one, more = cost(both(small), 300), cost(both(large), 30)
    return {
        "messages": (one, "message encoded and decoded"),
        "message bytes": ((more - one) / 1e6, "a byte of one"),
    }


def _neighbours() -> dict[str, tuple[float, str]]:
    """Cost of the coordinator's whole part of a sum of 60 without losses, per client and neighbour.

    The state is written and read between two stages, as in a round.
    """
    clients = tuple(range(1, 61))
    parameters = RoundParameters(
        run_id="scale",
        round_number=1,
        attempt=1,
        clients=clients,
        threshold=THRESHOLD,
        vector_length=1,
        ring_bits=32,
    )
    made = {each: client.advertise(parameters, each) for each in clients}
    states: dict[int, Any] = {each: state for each, (state, _) in made.items()}
    messages = {each: message for each, (_, message) in made.items()}
    state: ServerState = server.start(parameters)
    used = 0.0
    while True:
        started = time.process_time()
        state, sent = server.step(state, messages)
        if isinstance(state, Finished):
            used += time.process_time() - started
            each = used / len(clients) / (len(clients) - 1)
            return {"neighbours": (each, "coordinator's part for a neighbour of a client")}
        state = decode_server_state(encode_server_state(state))
        used += time.process_time() - started
        messages = {}
        for number, message in sent.items():
            states[number], messages[number] = client.step(states[number], message)
            if isinstance(states[number], ReadyToMask):
                vector = np.zeros(1, np.uint64)
                states[number], messages[number] = client.mask(states[number], vector)


def _hub() -> dict[str, tuple[float, str]]:
    names, ended = [f"{number:06d}" for number in range(sized(500, 5))], threading.Event()
    found, theirs = [], [0.0]
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        path = Path(folder) / "hub"

        def answer() -> None:
            with HubLink.to(path, tuple(names)) as link:
                while not ended.is_set():
                    for parcel in link.waiting(0.1):
                        number = decode_request(parcel.packet).number
                        link.answer(encode_packet(Outcome(number, "answer", "", b"x")))
                    theirs[0] = time.thread_time()

        with Hub(path=path, clients=names) as hub:
            worker = threading.Thread(target=answer)
            worker.start()
            for _ in range(REPEATS):
                started, others = time.process_time(), theirs[0]
                hub.exchange("train", dict.fromkeys(names, b"x" * 1000), 60.0)
                # The relay's thread notes its time after it has answered all waiting requests.
                time.sleep(0.3)
                used = time.process_time() - started - (theirs[0] - others)
                found.append(used / len(names))
            ended.set()
            worker.join()
    return {"requests": (statistics.median(found), "request through the hub, coordinator's end")}


def _stores() -> dict[str, tuple[float, str]]:
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        store, number, wall = open_client_store(Path(folder) / "client.db"), 0, []

        def keep() -> None:
            nonlocal number
            number += 1
            before = store.sessions.newest("scale")
            record = SessionRecord("scale", number, 1, noiseless_round=0, state=bytes(4_000))
            with store.kept_open():
                store.sessions.keep(
                    record, after=before, request_digest=bytes(32), reply=bytes(4_000)
                )

        for _ in range(30):
            started = time.perf_counter()
            keep()
            wall.append(time.perf_counter() - started)
        used = cost(keep, 10)
    return {
        "commits": (used, "client's commit of an answer"),
        "commits, waited for": (statistics.median(wall), "the same on the clock, disk included"),
        "ledger rows": (_ledger_row(), "coordinator's ledger row, reserved and settled"),
    }


def _ledger_row() -> float:
    """Seconds of a row, reserved in one commit and settled in another, with 2,000 rows at once."""
    charged = ("r", 1, 1, "", "sum", "upload_noise", 1.5, 0.3, "replace_one", "none")
    shared = LedgerRow(*charged, noise_kind="gaussian")
    names = [f"{number:032x}" for number in range(sized(2_000, 5))]
    found = []
    with tempfile.TemporaryDirectory(prefix="scale") as folder:
        with open_database(f"sqlite:///{folder}/sotto.db") as database:
            with database.unit_of_work() as unit:
                unit.runs.create(
                    "r", name="n", config_json="{}", config_digest="d", versions_json="{}"
                )
                unit.commit()
            for number in range(1, REPEATS + 1):
                rows = [replace(shared, round_number=number, pseudonym=name) for name in names]
                started = time.process_time()
                with database.unit_of_work() as unit:
                    unit.ledger.reserve(rows)
                    unit.commit()
                with database.unit_of_work() as unit:
                    unit.ledger.set_status("r", number, 1, "released", pseudonyms=names)
                    unit.commit()
                found.append((time.process_time() - started) / len(names))
    return statistics.median(found)
