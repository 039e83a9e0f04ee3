"""Clients are total: whatever fails inside one, what leaves it is what always leaves it.

The attack is a coordinator that chooses its broadcasts. A bias that is as large as a number can be
makes the loss of some classes infinite and of others not, so that whoever errors holds them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import platform.parties.totality
from methods import Arrays, Examples, LocalResult, PoolPolicy, TensorSpec, UpdateSpecMismatch
from methods.interface.defaults import MethodDefaults
from platform.contract.driving import RUN, Setting, make_clients, make_protection
from platform.parties.client import Client
from platform.parties.profile import ClientProfile
from platform.protection.extras import Extras
from platform.wire import messages
from platform.wire.codec import Envelope
from platform.wire.layout import build_layout
from platform.wire.messages import Assignment, Invitation, Relay
from privacy import (
    AdaptiveClipping,
    CentralNoise,
    ClientMechanism,
    IntegerUploadNoise,
    NoisedMetric,
    NoProtection,
    SeededNoise,
    UploadNoise,
)
from storage import Failure, LedgerRow, StorageError
from tests.trunk._runs import FIXED, opened, slow

NETWORK = (
    "task={dataset: digits, clients: 4, shots: 3, model: null, partition: {kind: pathological}}",
    "rounds=20",
    "method={name: fedavg, network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}",
    "training={local_epochs: 1, batch_size: 8, learning_rate: 0.1}",
    "cohort.dropout_rate=0",
    "secure_aggregation={enabled: false}",
)
HUGE = np.float32(3.4e38)


def send(client: Client, number: int, broadcast: Arrays) -> tuple[bool, int]:
    """Plays a round without masks with a broadcast of one's choice: whether the client errs, and
    how often it was charged."""
    envelope = Envelope(client.profile.run.run_id, number, 1)
    client.handle(messages.encode_invitation(Invitation(envelope, (), None)))
    errs = False
    try:
        client.handle(messages.encode_assignment(Assignment(envelope, b"", broadcast, ())))
    except Exception:
        errs = True
    return errs, len([row for row in client._store.rows() if row.round_number == number])


def against(broadcast: Arrays, target: int) -> dict[str, np.ndarray]:
    hostile = {name: np.array(value) for name, value in broadcast.items()}
    (bias,) = [name for name in hostile if name.startswith("head") and hostile[name].ndim == 1]
    hostile[bias][:] = HUGE
    hostile[bias][target] = -HUGE
    return hostile


def showing(profile: ClientProfile, shows: bool, **changes: bool) -> ClientProfile:
    safeguards = dataclasses.replace(profile.safeguards, shows_failures=shows, **changes)
    return dataclasses.replace(profile, safeguards=safeguards)


@pytest.mark.parametrize("mechanism", ["upload_noise", slow("central_noise")])
def test_who_errors_says_nothing_of_labels(storage, mechanism):
    """Tried before clients were total: all label sets were read off, at no charge."""
    noise = (*FIXED, f"privacy.mechanism={mechanism}")
    with opened(storage.create(*NETWORK, *noise)) as simulation:
        method, names = simulation.run.terms.method, range(len(simulation.learning.classes))
        plain = method.broadcast(method.init_server(np.random.default_rng(0)))
        held = set()
        for client in simulation.population.clients.values():
            held.add(frozenset(client.profile.data.arrays["labels"].tolist()))
            probes = [send(client, k + 1, against(plain, k)) for k in names]
            assert probes == [(False, 1)] * len(names)
        assert len(held) > 1


SPEC = {"x": TensorSpec((3,)), "y": TensorSpec((2,))}
START = {"x": np.array([1.0, 2.0, 3.0], np.float32), "y": np.full(2, -0.5, np.float32)}
ZERO = {name: np.zeros(tensor.shape, np.float32) for name, tensor in SPEC.items()}
OWN = {"own": np.array([4.0], np.float32)}
ENVELOPE = Envelope(RUN, 1, 1)
NAN = np.full(3, np.nan, np.float32)


def raising(*_: Any) -> NoReturn:
    raise ValueError("the label 7 is nobody's")


FAILURES: dict[str, Callable[[dict, dict, dict], LocalResult | None]] = {
    "raises": raising,
    "NaN": lambda update, entry, own: LocalResult({**update, "x": NAN}, {**entry, "x": NAN}, own),
    "a tensor less": lambda update, entry, own: LocalResult({"y": update["y"]}, entry, own),
    "a tensor more": lambda update, entry, own: LocalResult({**update, "z": NAN}, entry, own),
    "another shape": lambda update, entry, own: LocalResult(
        {**update, "x": np.zeros((3, 1), np.float32)}, entry, own
    ),
    "no entry": lambda update, entry, own: LocalResult(update, None, own),
    "another entry": lambda update, entry, own: LocalResult(update, {**entry, "x": NAN}, own),
    "a personal part with NaN": lambda update, entry, own: LocalResult(update, entry, {"own": NAN}),
    "a personal part of objects": lambda update, entry, own: LocalResult(
        update, entry, {"own": np.array([object()])}
    ),
    "nothing": lambda update, entry, own: None,
}


@dataclass(frozen=True)
class Failing(MethodDefaults):
    """A method that fails as it is told; `zero` does not fail and has learnt nothing."""

    how: str

    def shared_spec(self):
        return SPEC

    def pool_policy(self):
        return PoolPolicy(SPEC, 2)

    def init_server(self, rng):
        return START

    def init_client(self, shared_rng, client_rng):
        return OWN

    def client_update(self, view, data, trainer, rng):
        update, entry = dict(ZERO), {n: np.array(a) for n, a in view.broadcast.items()}
        if self.how == "zero":
            return LocalResult(update, entry, view.personal)
        return FAILURES[self.how](update, entry, {"own": np.ones(1, np.float32)})


DISCRETE = IntegerUploadNoise(clipping_norm=1.0, noise_multiplier=2.0, scale=2.0**16)


@dataclass(frozen=True)
class Left:
    answers: tuple[bytes, bytes]
    rows: tuple[LedgerRow, ...]
    personal: bytes
    experts: bytes
    failures: tuple[Failure, ...]


def client_of(how: str, stores: Path, mechanism: ClientMechanism, noise: str = "same") -> Client:
    data = {"client-0": Examples({"labels": np.arange(2)})}
    setting = Setting(mechanism=mechanism, pool_noise=noise)
    (client,) = make_clients(Failing(how), data, stores / how, setting).values()
    # All clients have one name for the ledger, so that rows can be compared.
    identity = client._store.identity
    client._store.identity = dataclasses.replace(identity, pseudonym="p", handle_secret=b"s" * 32)
    profile = showing(client.profile, shows=False)
    return Client(profile, client._store, client._make_trainer)


def play(client: Client) -> Left:
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
    assignment = messages.encode_assignment(Assignment(ENVELOPE, b"", START, (ZERO,)))
    upload = client.handle(assignment)
    disclosure = client.handle(messages.encode_relay(Relay(ENVELOPE, b"")))
    store, pending = client._store, client._store.slots(RUN)[1]
    answers = (upload, disclosure)
    return Left(answers, store.rows(), pending.personal, pending.experts, store.failures(RUN))


@pytest.mark.parametrize(
    ("mechanism", "noise"),
    [
        slow(UploadNoise(1.0, 2.0), "same"),
        *((UploadNoise(1.0, 2.0), "independent"), (DISCRETE, "same")),
    ],
    ids=["gaussian, same", "gaussian, independent", "discrete"],
)
@pytest.mark.parametrize("how", FAILURES)
def test_a_failed_round_is_one_that_learnt_nothing(stores, how, mechanism, noise):
    """Noise from one seed: the very bytes of a client whose update is zero and whose entry is the
    broadcast. So from fresh noise it is the same distribution."""
    failed = play(client_of(how, stores, mechanism, noise))
    honest = play(client_of("zero", stores, mechanism, noise))
    assert failed.answers == honest.answers
    assert failed.rows == honest.rows and len(failed.rows) == (1 if noise == "same" else 2)
    assert failed.personal == honest.personal
    assert honest.failures == ()
    (failure,) = failed.failures
    assert (failure.round_number, failure.attempt) == (1, 1)
    assert "label" not in failure.reason and "7" not in failure.reason.split("(")[0]
    assert honest.experts != failed.experts == platform.parties.totality.encode_experts(())


@pytest.mark.parametrize("extras", [Extras(AdaptiveClipping()), Extras(None, NoisedMetric())])
def test_appended_coordinates_of_a_failed_round_are_zero(extras):
    """A flag of +-b would say that it fitted, or did not; an accuracy of 0 would be -b."""
    setting = Setting(mechanism=UploadNoise(10.0, 0.0))
    bare = make_protection(Failing("zero"), setting)
    sums = dataclasses.replace(
        bare.sums,
        layout=build_layout(SPEC, weighs_examples=False, extras=extras.names),
        extras=dataclasses.replace(extras, clipping_norm=1.0),
    )
    protection = dataclasses.replace(bare, sums=sums, entries=None)
    noise = SeededNoise(np.random.default_rng(0))
    vector = protection.prepare_nothing(START, noise).vector
    assert vector.shape == (6,)
    assert np.abs(vector).max() <= protection.sums.grid().step
    fits = protection.prepare(LocalResult(ZERO, None, {}), START, noise, validation=0.0).vector
    assert abs(fits[-1]) > 0.05
    # Under central noise nothing is noised on the client, so the zero itself is sent.
    central = CentralNoise(clipping_norm=1.0, noise_multiplier=1.0, scale=2.0**16)
    bare = make_protection(Failing("zero"), Setting(mechanism=central))
    assert not dataclasses.replace(bare, entries=None).prepare_nothing(START, noise).vector.any()


@pytest.mark.parametrize("how", ["raises", "another shape"])
def test_without_a_mechanism_failures_raise(stores, how):
    with pytest.raises((ValueError, UpdateSpecMismatch)):
        play(client_of(how, stores, NoProtection(8.0)))


def test_a_test_can_ask_for_failures_and_a_real_client_cannot(stores):
    client = client_of("raises", stores, UploadNoise(1.0, 2.0))
    shown = showing(client.profile, shows=True)
    with pytest.raises(ValueError, match="nobody's"):
        play(Client(shown, client._store, client._make_trainer))
    real = dataclasses.replace(
        showing(client.profile, shows=True, simulated=False),
        randomness=dataclasses.replace(client.profile.randomness, noise_source="os"),
    )
    assert play(Client(real, client._store, client._make_trainer)).failures


class Dry(SeededNoise):
    def standard_normal(self, size):
        raise OSError("no entropy")


@pytest.mark.parametrize(
    "error", [StorageError("the disk is full"), OSError(), KeyboardInterrupt()]
)
def test_errors_of_store_and_noise_and_ctrl_c_are_no_failures(stores, monkeypatch, error):
    """Nothing may leave that is not in the ledger; and zero without noise would be told apart."""

    def fails(*_, **__):
        raise error

    client, dry = client_of("zero", stores, UploadNoise(1.0, 2.0)), Dry(np.random.default_rng(0))
    if isinstance(error, StorageError):
        monkeypatch.setattr(client._store, "reserve_release", fails)
    elif isinstance(error, OSError):
        monkeypatch.setattr(platform.parties.totality, "noise_of", lambda *_, **__: dry)
    else:
        monkeypatch.setattr(platform.parties.totality, "train", fails)
    with pytest.raises(type(error)):
        play(client)
    assert client._store.rows() == ()


def test_a_failed_client_does_the_work_of_another(stores, monkeypatch):
    seen: list[Arrays] = []
    original = platform.parties.totality.train

    def watched(profile, make_trainer, view, *others, **named):
        seen.append(view.broadcast)
        return original(profile, make_trainer, view, *others, **named)

    monkeypatch.setattr(platform.parties.totality, "train", watched)
    client = client_of("raises", stores, UploadNoise(1.0, 2.0))
    hostile = {name: array + 1 for name, array in START.items()}
    client.handle(messages.encode_invitation(Invitation(ENVELOPE, (), None)))
    client.handle(messages.encode_assignment(Assignment(ENVELOPE, b"", hostile, ())))
    first, second = seen
    assert all(np.array_equal(first[name], hostile[name]) for name in hostile)
    assert all(np.array_equal(second[name], START[name]) for name in START)
