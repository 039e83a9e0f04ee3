"""Clients are total: whatever fails inside one, what leaves it is what always leaves it.

The attack is a coordinator that chooses its broadcasts. A bias that is as large as a number can be
makes the loss of some classes infinite and of others not, so that whoever errors holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from methods import Arrays
from platform import messages
from platform.client import Client
from platform.messages import Assignment, Envelope, Invitation, Upload
from platform.wiring import Wiring
from tests.trunk._runs import FIXED, Storage, opened

NETWORK = (
    "task={dataset: digits, clients: 5, shots: 4, model: null, partition: {kind: pathological}}",
    "rounds=20",
    "method={name: fedavg, network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}",
    "training={local_epochs: 1, batch_size: 8, learning_rate: 0.1}",
    "cohort.dropout_rate=0",
    "evaluation.local_twins=false",
)
IN_THE_CLEAR = "secure_aggregation={enabled: false}"
HUGE = np.float32(3.4e38)


@dataclass(frozen=True)
class Probe:
    """One hostile round with one client: what it answered, None if it raised."""

    upload: Upload | None
    charged: int


def send(client: Client, number: int, broadcast: Arrays, experts: tuple[Arrays, ...] = ()) -> Probe:
    """Plays a round without masks with a broadcast of one's choice."""
    envelope = Envelope(client.profile.run_id, number, 1)
    client.handle(messages.encode_invitation(Invitation(envelope, (), None)))
    assignment = Assignment(envelope, b"", broadcast, experts)
    try:
        answer = client.handle(messages.encode_assignment(assignment))
    except Exception:
        answer = None
    rows = [row for row in client._store.rows() if row.round_number == number]
    return Probe(None if answer is None else messages.decode_upload(answer), len(rows))


def against(broadcast: Arrays, target: int) -> dict[str, np.ndarray]:
    """The broadcast with a bias that makes the loss of one class infinite, and of no other."""
    hostile = {name: np.array(value) for name, value in broadcast.items()}
    (bias,) = [name for name in hostile if name.startswith("head") and hostile[name].ndim == 1]
    hostile[bias][:] = HUGE
    hostile[bias][target] = -HUGE
    return hostile


def labels_of(wiring: Wiring) -> Mapping[str, frozenset[int]]:
    return {
        name: frozenset(client.profile.data.arrays["labels"].tolist())
        for name, client in wiring.population.clients.items()
    }


def first_broadcast(wiring: Wiring) -> Arrays:
    method = wiring.method
    return method.broadcast(method.init_server(np.random.default_rng(0)))


@pytest.mark.parametrize("mechanism", ["upload_noise", "central_noise"])
def test_who_errors_says_nothing_of_labels(storage: Storage, mechanism: str):
    """Tried before clients were total: all label sets were read off, at no charge."""
    with opened(
        storage.create(*NETWORK, *FIXED, IN_THE_CLEAR, f"privacy.mechanism={mechanism}")
    ) as wiring:
        classes, labels = range(len(wiring.classes)), labels_of(wiring)
        assert len(set(labels.values())) > 1
        for name, client in wiring.population.clients.items():
            plain = first_broadcast(wiring)
            probes = [send(client, k + 1, against(plain, k)) for k in classes]
            seen = {k for k, probe in zip(classes, probes, strict=True) if probe.upload is None}
            assert seen == set(), f"{name} holds {sorted(labels[name])}"
            assert [probe.charged for probe in probes] == [1] * len(classes)
