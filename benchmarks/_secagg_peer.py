"""Times one round of Flower's SecAgg+ by hand; runs in the peer's own environment.

    PEER_PYTHON benchmarks/_secagg_peer.py CLIENTS LENGTH SHARES THRESHOLD DROPOUTS

Calls the four stage functions of the peer's client module in order, with the records that its
workflow builds, and repeats the arithmetic of the workflow's last stage. Prints one line of JSON;
times are CPU seconds of one thread.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import statistics
import sys
import time
from importlib.metadata import version

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

# The package re-exports a function under the module's own name, and a plain import finds that.
mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

CLIPPING, TARGET, MODULUS, WEIGHT = 8.0, 1 << 22, 1 << 32, 1000.0


def timed(work, *arguments):
    started = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - started


def size(values) -> int:
    """Bytes in a record's values, without any framing."""
    if isinstance(values, bytes):
        return len(values)
    if isinstance(values, (list, tuple)):
        return sum(map(size, values))
    return 8


def unmask(answers, masked, alive, neighbours, keys):
    """The workflow's last stage, without its messages."""
    collected = {nid: [] for nid in neighbours}
    for answer in answers:
        for owner, share in zip(answer[Key.NODE_ID_LIST], answer[Key.SHARE_LIST], strict=True):
            collected[owner].append(share)
    for nid, shares in collected.items():
        secret = combine_shares(shares)
        shape = get_parameters_shape(masked)
        if nid in alive:
            private = pseudo_rand_gen(secret, MODULUS, shape)
            masked = parameters_subtraction(masked, private)
            continue
        for peer in neighbours[nid] - {nid}:
            shared = generate_shared_key(
                bytes_to_private_key(secret), bytes_to_public_key(keys[peer][0])
            )
            pairwise = pseudo_rand_gen(shared, MODULUS, shape)
            change = parameters_addition if nid > peer else parameters_subtraction
            masked = change(masked, pairwise)
    return parameters_mod(masked, MODULUS)


def main() -> None:
    logging.disable(logging.CRITICAL)
    clients, length, shares, threshold, dropouts = map(int, sys.argv[1:])
    order = list(range(1, clients + 1))
    random.seed(0)
    random.shuffle(order)
    reach = range(-(shares // 2), shares // 2 + 1)
    neighbours = {
        nid: {order[(at + step) % clients] for step in reach} for at, nid in enumerate(order)
    }
    states = {nid: mod.SecAggPlusState() for nid in order}
    times = {stage: [] for stage in ("advertise", "share", "mask", "reveal")}
    up = dict.fromkeys(times, 0)

    def run(stage, work, nid, *arguments):
        answer, spent = timed(work, states[nid], *arguments)
        times[stage].append(spent)
        up[stage] = max(up[stage], sum(map(size, answer.values())))
        return answer

    setup = ConfigRecord({
        Key.SAMPLE_NUMBER: clients, Key.SHARE_NUMBER: shares, Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: CLIPPING, Key.TARGET_RANGE: TARGET, Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: WEIGHT,
    })  # fmt: skip
    keys = {}
    for nid in order:
        states[nid].nid = nid
        answer = run("advertise", mod._setup, nid, setup)
        keys[nid] = [answer[Key.PUBLIC_KEY_1], answer[Key.PUBLIC_KEY_2]]
    forwarded = {nid: ([], []) for nid in order}
    for nid in order:
        roster = ConfigRecord({str(peer): keys[peer] for peer in neighbours[nid]})
        answer = run("share", mod._share_keys, nid, roster)
        for to, box in zip(answer[Key.DESTINATION_LIST], answer[Key.CIPHERTEXT_LIST], strict=True):
            forwarded[to][0].append(nid)
            forwarded[to][1].append(box)
    lost = set(order[:dropouts])
    alive = set(order) - lost
    rng = np.random.default_rng(0)
    masked, plain = None, np.zeros(length)
    for nid in sorted(alive):
        vector = rng.uniform(-1, 1, length)
        plain += vector
        configs = {Key.SOURCE_LIST: forwarded[nid][0], Key.CIPHERTEXT_LIST: forwarded[nid][1]}
        parameters = ndarrays_to_parameters([vector])
        answer = run("mask", mod._collect_masked_vectors, nid, configs, int(WEIGHT), parameters)
        arrays = [bytes_to_ndarray(each) for each in answer[Key.MASKED_PARAMETERS]]
        masked = arrays if masked is None else parameters_addition(masked, arrays)
    masked = parameters_mod(masked, MODULUS)
    answers = []
    for nid in sorted(alive):
        configs = {
            Key.ACTIVE_NODE_ID_LIST: list(neighbours[nid] & alive),
            Key.DEAD_NODE_ID_LIST: list(neighbours[nid] & lost),
        }
        answers.append(run("reveal", mod._unmask, nid, configs))
    total, spent = timed(unmask, answers, masked, alive, neighbours, keys)
    ratio, total = factor_extract(total)
    mean = dequantize(total, CLIPPING, TARGET)[0] - (len(alive) - 1) * CLIPPING
    mean = mean * (TARGET / ratio)
    result = {
        "version": version("flwr"),
        "server unmask": spent,
        "largest error of the mean": float(np.abs(mean - plain / len(alive)).max()),
        "up": up,
    } | {stage: statistics.median(each) for stage, each in times.items()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
