"""Noise that is correlated over rounds: a client hands each attempt's on to its next, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml

from platform.config import Sources, parse_config
from platform.errors import ClientsSilent
from platform.experiment.planning import Surroundings, create_run
from platform.experiment.simulation import Simulation
from platform.mechanisms import BUILT_IN
from platform.parties.client import Client
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.run import decode_state
from platform.wire.codec import decode_arrays
from platform.wire.messages import Stage
from platform.wire.outside_rounds import decode_examination
from platform.wire.transport import ClientId, Dropout, InProcessTransport
from privacy import Quantiser, SeededNoise, UnknownMechanism, protect_upload
from tests.trunk._correlated_mechanism import FACTS, PREVIOUS, Calls, Correlated, correlated
from tests.trunk._runs import (
    ADVERSARIES,
    FIXED,
    NO_POOL,
    OS,
    SMALL,
    Finished,
    Storage,
    crashed,
    of_clients,
    over,
)
from tests.trunk._transports import carried

CLIENTS, ROUNDS = 5, 2
ASKED = (
    *NO_POOL,
    "privacy.mechanism=correlated",
    "cohort.dropout_rate=0",
    f"rounds={ROUNDS}",
)


def known(calls: Calls, *, at_centre: bool = False) -> Surroundings:
    mechanism = correlated(calls, at_centre=at_centre)
    return Surroundings(sources=Sources(mechanisms=BUILT_IN.adding(mechanism)))


def created(folder: Path, calls: Calls, *overrides: str, at_centre: bool = False) -> Simulation:
    folder.mkdir(exist_ok=True)
    tree = {**yaml.safe_load(SMALL), "storage": {"url": Storage(folder).url}}
    tree["privacy"] = {"noise_source": "seeded"}
    surroundings = known(calls, at_centre=at_centre)
    config = parse_config(tree, (*ASKED, *overrides), surroundings.sources)
    return create_run(config, SilentObserver(), surroundings)


def resumed(folder: Path, run_id: str, calls: Calls, *, at_centre: bool = False) -> Finished:
    return Storage(folder, known(calls, at_centre=at_centre)).resume(run_id)


def kept(run: Finished) -> dict[str, np.ndarray]:
    """What each client's store holds for its next attempt."""
    found = of_clients(run.folder, "SELECT client, state FROM noise")
    return {client: decode_arrays(blob)[f"sum/{PREVIOUS}"] for client, ((blob,),) in found.items()}


def state_of(run: Finished) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The server state after the last round, and that of the coordinator's noise."""
    query = "SELECT blob FROM states ORDER BY round_number DESC LIMIT 1"
    ((blob,),) = run.storage.rows(query)
    return decode_state(blob)


def same(first: Finished, second: Finished) -> bool:
    one, other = state_of(first)[0], state_of(second)[0]
    return all(np.array_equal(one[name], other[name]) for name in one)


def chains(calls: Calls) -> list[int]:
    """How often each draw was gone on from; each that is gone on from was made before."""
    made: dict[bytes, int] = {}
    for previous, drawn in calls:
        if previous is not None:
            made[previous.tobytes()] += 1
        made[drawn.tobytes()] = 0
    return list(made.values())


def uninterrupted(folder: Path, *, at_centre: bool = False) -> tuple[Finished, Calls]:
    calls: Calls = []
    return Storage(folder).finish(created(folder, calls, at_centre=at_centre)), calls


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Calls]:
    return uninterrupted(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [(Federation, "_commit", 1), (Client, "_train", CLIENTS + 3)],
    ids=["between two rounds", "within a round"],
)
def test_a_run_that_is_killed_goes_on_with_the_same_noise(
    whole, tmp_path, monkeypatch, owner, name, nth
):
    calls: Calls = []
    run_id = crashed(monkeypatch, created(tmp_path, calls), owner, name, nth, after=True)
    run = resumed(tmp_path, run_id, calls)
    assert same(run, whole[0])
    for client, state in kept(run).items():
        np.testing.assert_array_equal(state, kept(whole[0])[client])


@pytest.mark.slow
def test_an_attempt_that_is_lost_does_not_rewind_the_noise(tmp_path: Path) -> None:
    """Three of five upload in an attempt that comes to nothing; the next goes on from theirs."""
    calls: Calls = []
    simulation = created(tmp_path, calls, "cohort.retries=1", "secure_aggregation.threshold=4")
    within = simulation.run.transport
    lost = InProcessTransport(
        handlers=within.handlers,
        losses=lambda number, attempt, cohort: frozenset(
            cohort[:2] if (number, attempt) == (2, 1) else ()
        ),
    )
    run = Storage(tmp_path).finish(over(simulation, lost))
    attempts = run.storage.rows("SELECT DISTINCT round_number, attempt FROM ledger")
    assert sorted(attempts) == [(1, 1), (2, 1), (2, 2)]
    assert len(calls) > CLIENTS * ROUNDS
    assert max(chains(calls)) == 1
    assert chains(calls).count(0) == CLIENTS
    last = {drawn.tobytes() for _, drawn in calls[-CLIENTS:]}
    assert {state.tobytes() for state in kept(run).values()} == last
    assert run.summary["final"]["epsilon"] == dict.fromkeys(ADVERSARIES, "inf")


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Calls]:
    """A run whose sums the coordinator noises."""
    return uninterrupted(tmp_path_factory.mktemp("central"), at_centre=True)


def test_the_coordinator_goes_on_from_its_own_noise(central: tuple[Finished, Calls]) -> None:
    run, calls = central
    assert chains(calls) == [1] * (ROUNDS - 1) + [0]
    state, noise = state_of(run)
    np.testing.assert_array_equal(noise[PREVIOUS], calls[-1][1])
    # It is beside the state that methods and clients are shown, and no part of it.
    assert PREVIOUS not in state
    assert of_clients(run.folder, "SELECT client, state FROM noise") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nth", "after"), [(2, False), (1, True)], ids=["before its commit", "between two rounds"]
)
def test_a_coordinator_that_is_killed_goes_on_with_the_same_noise(
    central: tuple[Finished, Calls], tmp_path: Path, monkeypatch, nth: int, after: bool
) -> None:
    calls: Calls = []
    simulation = created(tmp_path, calls, at_centre=True)
    crashed(monkeypatch, simulation, Federation, "_commit", nth, after=after)
    run = resumed(tmp_path, simulation.run_id, calls, at_centre=True)
    assert same(run, central[0])
    # What was drawn for a sum is kept with it, so that no attempt draws twice.
    assert len(calls) == ROUNDS
    assert chains(calls) == [1] * (ROUNDS - 1) + [0]


def test_a_state_that_is_not_declared_is_refused() -> None:
    hidden = dataclasses.replace(FACTS, keeps_state=False)
    built = Correlated(8.0, None, "replace_one", hidden, [])
    noise = SeededNoise(np.random.default_rng(0))
    with pytest.raises(UnknownMechanism, match="correlated keeps"):
        protect_upload(np.zeros(4), built, Quantiser(8.0, 20), noise)


CENTRAL = (
    *("privacy.mechanism=central_noise", OS, *FIXED, *NO_POOL),
    *("rounds=1", "cohort.dropout_rate=0"),
)
NAME = "client-00001"


@dataclass
class Watched:
    """Keeps the models that one client is sent to measure; `is_deaf` loses its answers."""

    is_deaf: bool = True
    models: list[bytes] = field(default_factory=list)
    within: InProcessTransport | None = None

    def at(self, within: InProcessTransport) -> Watched:
        self.within = within
        return self

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        assert self.within is not None
        replies = dict(self.within.exchange(stage, messages, deadline))
        if stage == "evaluate" and NAME in messages:
            shown = decode_examination(messages[NAME]).broadcast
            self.models.append(b"".join(shown[name].tobytes() for name in sorted(shown)))
            if self.is_deaf:
                del replies[NAME]
        return replies


def test_a_client_that_answers_no_measurement_sees_one_noised_sum(storage: Storage) -> None:
    """Sums of the same updates under noise of their own would average it away, at one charge."""
    watched = Watched()
    place = carried(storage, watched.at)
    with pytest.raises(ClientsSilent):
        place.run(*CENTRAL)
    watched.is_deaf, before = False, len(watched.models)
    place.resume(storage.only_run())
    assert 0 < before < len(watched.models)
    assert len(set(watched.models)) == 1
    assert storage.rows("SELECT count(*) FROM attempts") == [(1,)]
    assert storage.rows("SELECT count(*) FROM stages") == [(0,)]
