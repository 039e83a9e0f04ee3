"""Whole runs whose rounds begin with keys of the round before: waits, results, deaths, losses."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.errors import CoordinatorBehind
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.rounds.attempts import Attempts
from platform.rounds.exchange import AHEAD, DatabaseJournal, decode_keys
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.spending import Spending
from platform.wire.codec import peek
from platform.wire.messages import ROUND_STAGES, decode_disclosure, decode_relay
from platform.wire.transport import InProcessTransport
from tests.trunk._runs import Crash, Finished, Storage, crash_at, opened, over
from tests.trunk._seams import ADVERSARIES, CLIENTS, overrides, seam_storage
from tests.trunk._tampering import execute as tampered

THREE = "rounds=3"
WAITS = {
    "semi_honest": ["share", "train", "unmask"],
    "active": ["share", "train", "confirm", "unmask"],
}


@dataclass
class Counted:
    """Carries messages and counts the exchanges of each attempt.

    Attributes:
        inner: Carries them.
        lost: By round the one client that is lost, and at which stage.
        waits: By attempt, the stages in which clients were waited for.
        asked: By round, how many were asked for keys ahead.
    """

    inner: InProcessTransport
    lost: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    waits: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    told: list[bytes] = field(default_factory=list)

    def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: Any) -> Any:
        if stage not in ROUND_STAGES:
            return self.inner.exchange(stage, messages, deadline)
        envelope = peek(next(iter(messages.values())))[1]
        number = envelope.round_number
        self.waits.setdefault((number, envelope.attempt), []).append(stage)
        if stage == "unmask":
            asked = [decode_relay(message).ahead for message in messages.values()]
            self.asked[number] = sum(seat is not None for seat in asked)
        name, lost_at = self.lost.get(number, ("", ""))
        gone = frozenset({name})
        carrying = dataclasses.replace(
            self.inner, losses=lambda *_: gone, lost_at=lost_at or "train"
        )
        replies = carrying.exchange(stage, messages, deadline)
        if stage == "unmask":
            said = [reply for reply in replies.values() if isinstance(reply, bytes)]
            self.told += [decode_disclosure(reply).ahead for reply in said]
        return replies


def counted(
    simulation: Simulation, lost: Mapping[int, tuple[str, str]] | None = None
) -> tuple[Simulation, Counted]:
    inner = simulation.run.transport
    assert isinstance(inner, InProcessTransport)
    carrying = Counted(inner, lost or {})
    return over(simulation, carrying), carrying


def run(
    folder: Path, chosen: Sequence[str], lost: Mapping[int, tuple[str, str]] | None = None
) -> tuple[Finished, Counted]:
    storage = seam_storage(folder)
    with opened(storage.create(*chosen)) as simulation:
        counting, carrying = counted(simulation, lost)
        summary = execute(counting, SilentObserver())
    return Finished(storage, simulation.run_id, summary), carrying


FIRST = "client-00000"


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_waits_of_a_run(tmp_path: Path, adversary: str) -> None:
    """Four and five in the first round, three and four in all others; the last asks for no keys."""
    _, carrying = run(tmp_path, (*overrides("none", adversary, tmp_path), THREE))
    usual = WAITS[adversary]
    assert carrying.waits == {(1, 1): ["advertise", *usual], (2, 1): usual, (3, 1): usual}
    assert carrying.asked == {1: CLIENTS, 2: CLIENTS, 3: 0}
    keys = [each for each in carrying.told if each]
    assert len(set(keys)) == len(keys) == 2 * CLIENTS


@pytest.mark.parametrize("mechanism", ["none", "upload_noise"])
def test_keys_ahead_change_no_number(tmp_path: Path, mechanism: str) -> None:
    """A client lost with its keys is in the sum all the same: fresh keys, and the same results."""
    chosen = (
        *overrides(mechanism, "active", tmp_path),
        THREE,
        "privacy.noise_source=seeded",
    )
    ahead, usual = run(tmp_path / "ahead", chosen)
    fresh, held = run(tmp_path / "fresh", chosen, {n: (FIRST, "unmask") for n in (1, 2)})
    assert usual.waits[2, 1] == WAITS["active"]
    assert held.waits[2, 1] == held.waits[3, 1] == ["advertise", *WAITS["active"]]
    for name, value in ahead.state().items():
        np.testing.assert_array_equal(value, fresh.state()[name])
    assert ahead.personal_parts() == fresh.personal_parts()
    assert ahead.survivors() == fresh.survivors()
    charges = "SELECT round_number, attempt, channel, status FROM ledger ORDER BY 1, 2, 3, 4"
    assert ahead.storage.rows(charges) == fresh.storage.rows(charges)


@pytest.mark.parametrize("stage", ["share", "train", "unmask"])
def test_who_was_lost_is_waited_for_in_the_next_round(tmp_path: Path, stage: str) -> None:
    """Lost in the second round, at any stage; in the third there again, from its first stage on."""
    chosen = (*overrides("none", "semi_honest", tmp_path), "rounds=4")
    finished, carrying = run(tmp_path, chosen, {2: (FIRST, stage)})
    usual = WAITS["semi_honest"]
    assert carrying.waits[2, 1] == usual == carrying.waits[4, 1]
    assert carrying.waits[3, 1] == ["advertise", *usual]
    survivors = finished.survivors()
    assert (FIRST in survivors[2]) == (stage == "unmask")
    assert all(FIRST in survivors[number] for number in (1, 3, 4))


def test_a_further_attempt_holds_every_stage(tmp_path: Path) -> None:
    """The second round is given up at its shares, and tried again with fresh keys."""
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        counting, carrying = counted(simulation)
        inner, names = carrying.inner, sorted(carrying.inner.handlers)

        class Lossy:
            def exchange(self, stage: Any, messages: Mapping[str, bytes], deadline: Any) -> Any:
                place = peek(next(iter(messages.values())))[1]
                if stage == "share" and (place.round_number, place.attempt) == (2, 1):
                    messages = {name: messages[name] for name in names[:2]}
                return carrying.exchange(stage, messages, deadline)

        execute(over(counting, Lossy()), SilentObserver())
    assert isinstance(inner, InProcessTransport)
    usual = WAITS["semi_honest"]
    assert carrying.waits[2, 1] == ["share"]
    assert carrying.waits[2, 2] == ["advertise", *usual]
    assert carrying.waits[3, 1] == usual


# --- deaths ---------------------------------------------------------------------------------------


def lives(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, chosen: Sequence[str], place: Any
) -> tuple[Finished, Counted, Counted]:
    """A run that dies once at a place and is gone on with, and what its two lives waited for."""
    owner, name, nth, after = place
    with opened(storage.create(*chosen)) as simulation:
        dying, first = counted(simulation)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, owner, name, nth, after=after)
            execute(dying, SilentObserver())
    with opened(storage.reopen(simulation.run_id)) as again:
        living, second = counted(again)
        summary = execute(living, SilentObserver())
    return Finished(storage, simulation.run_id, summary), first, second


SHARES, TRAINING, SURVIVORS = 4, 5, 6
"""Which stage that is kept, counted over a run: three in the first round (advertise, share,
train) and two in each round that has keys."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "second_life"),
    [
        # Of keys that were in memory nothing is left, but that nobody has used them.
        ((Federation, "_commit", 1, True), ["advertise", "share", "train", "unmask"]),
        ((Attempts, "_open", 2, False), ["advertise", "share", "train", "unmask"]),
        # From here on they are in the database.
        ((Attempts, "_open", 2, True), ["share", "train", "unmask"]),
        ((DatabaseJournal, "keep", SHARES, False), ["share", "train", "unmask"]),
        ((DatabaseJournal, "keep", SHARES, True), ["train", "unmask"]),
        ((DatabaseJournal, "keep", TRAINING, False), ["train", "unmask"]),
        ((DatabaseJournal, "keep", TRAINING, True), ["unmask"]),
        ((Federation, "_commit", 2, False), ["unmask"]),
    ],
    ids=str,
)
def test_a_death_between_any_two_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, second_life: list[str]
) -> None:
    chosen = (
        *overrides("upload_noise", "semi_honest", tmp_path),
        THREE,
        "privacy.noise_source=seeded",
    )
    whole, _ = run(tmp_path / "whole", chosen)
    torn, _, second = lives(seam_storage(tmp_path / "torn"), monkeypatch, chosen, place)
    assert second.waits[2, 1] == second_life
    assert second.waits[3, 1] == WAITS["semi_honest"]
    for name, value in whole.state().items():
        np.testing.assert_array_equal(value, torn.state()[name])
    assert torn.storage.rows("SELECT count(*) FROM ledger") == [(3 * CLIENTS,)]
    assert torn.storage.rows("SELECT count(*) FROM stages") == [(0,)]


def test_a_death_with_the_last_message_out_asks_for_the_very_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of the first round was open and is not committed; the graph's seed is on the disk."""
    chosen = (*overrides("none", "active", tmp_path), THREE)
    storage = seam_storage(tmp_path / "torn")
    place = (Federation, "_commit", 1, False)
    _, first, second = lives(storage, monkeypatch, chosen, place)
    assert second.waits[1, 1] == ["unmask"] and second.waits[2, 1] == WAITS["active"]
    assert first.told and second.told[:CLIENTS] == first.told


@pytest.mark.parametrize("bit", [7, 80 * 8, -9])
def test_keys_whose_bits_turned_in_the_database_open_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    """Found by the row's digest; with a digest that fits, by the keys' own, and it costs a wait."""
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE, "cohort.retries=1")
    storage = seam_storage(tmp_path)
    with opened(storage.create(*chosen)) as simulation:
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, Attempts, "_open", 2, after=True)
            execute(simulation, SilentObserver())
    ((blob,),) = storage.rows("SELECT blob FROM stages WHERE stage = ?", AHEAD)
    assert len(decode_keys(blob)) == CLIENTS
    spoilt = bytearray(blob)
    spoilt[bit // 8] ^= 1 << (bit % 8)
    tampered(storage.file, f"UPDATE stages SET blob = X'{spoilt.hex()}'")  # noqa: S608
    with opened(storage.reopen(simulation.run_id)) as again:
        living, second = counted(again)
        execute(living, SilentObserver())
    assert second.waits[2, 1] == ["advertise", *WAITS["semi_honest"]]


def test_a_coordinator_from_before_the_round_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old copy holds no keys, and its clients have answered an opening that it knows not of."""
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE)
    storage, copy = seam_storage(tmp_path), tmp_path / "copy.db"
    original = Federation._commit

    def commit(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        with closing(sqlite3.connect(storage.file)) as whole, closing(sqlite3.connect(copy)) as to:
            whole.backup(to)

    with opened(storage.create(*chosen)) as simulation:
        counting, carrying = counted(simulation)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Federation, "_commit", commit)
            crash_at(patch, DatabaseJournal, "keep", SHARES)
            execute(counting, SilentObserver())
    assert carrying.waits[2, 1] == ["share"]
    storage.file.write_bytes(copy.read_bytes())
    with pytest.raises(CoordinatorBehind, match="older than the client's"):
        storage.reopen(simulation.run_id)


# --- when none are asked for ----------------------------------------------------------------------


def following_of(simulation: Simulation, number: int, **config: Any) -> Any:
    held = simulation.run
    changed = held.terms.config.model_copy(update=config)
    terms = dataclasses.replace(held.terms, config=changed)
    attempts = dataclasses.replace(
        Attempts(held, SilentObserver(), Spending(run=held)),
        run=dataclasses.replace(held, terms=terms),
    )
    return attempts._draw(number, 1).plan.get("following")


def test_none_are_asked_for_where_the_next_cohort_is_another(tmp_path: Path) -> None:
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        cohort = simulation.run.terms.config.cohort
        names = sorted(simulation.population.clients)
        assert following_of(simulation, 1) == {"cohort": names, "graph_seed": ""}
        assert following_of(simulation, 3) is None
        six = following_of(simulation, 1, cohort=cohort.model_copy(update={"size": 6}), seed=0)
        other = [
            following_of(simulation, 1, cohort=cohort.model_copy(update={"size": 6}), seed=seed)
            for seed in range(12)
        ]
        # Six of seven are the same six again by one chance in seven.
        assert None in [six, *other]
        assert all(each is None or len(each["cohort"]) == 6 for each in other)


def test_none_are_asked_for_where_the_draw_is_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = (*overrides("none", "semi_honest", tmp_path), THREE)
    with opened(seam_storage(tmp_path).create(*chosen)) as simulation:
        config = type(simulation.run.terms.config)
        assert following_of(simulation, 1) is not None
        monkeypatch.setattr(config, "has_secret_cohorts", property(lambda self: True))
        assert following_of(simulation, 1) is None
