"""One client in two runs at once: what it lets itself be charged in its life holds over both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform.contract.driving import quick_folder
from platform.mechanisms import BUILT_IN
from platform.parties.client import Client
from platform.parties.profile import RunNames
from platform.protection.charging import Limits, as_releases
from platform.wire import messages
from platform.wire.codec import Envelope
from platform.wire.messages import Invitation
from privacy import BudgetExhausted, RunningLedger
from tests.trunk.test_hostile_assignments import Method as AnyMethod
from tests.trunk.test_hostile_assignments import client_of, good

DELTA = 1e-5


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as found:
        yield found


def limited(client: Client, run_id: str, budget: float) -> Client:
    """The same client with the same store, in another run."""
    return within(client, run_id, Limits(delta=DELTA, accountant="auto", lifetime_budget=budget))


def aimed(client: Client, run_id: str, target: float) -> Client:
    """The same client with a limit of the one run."""
    return within(client, run_id, Limits(delta=DELTA, accountant="auto", target_epsilon=target))


def within(client: Client, run_id: str, limits: Limits) -> Client:
    guarded = dataclasses.replace(client.profile.safeguards, limits=limits)
    profile = dataclasses.replace(client.profile, run=RunNames(run_id), safeguards=guarded)
    return Client(profile, client._store, client._make_trainer)


def spent(client: Client) -> float:
    life = RunningLedger(as_releases(client._store.rows(), BUILT_IN))
    return life.claimed_with((), DELTA).epsilon


def spent_after(client: Client, rounds: int) -> float:
    """What so many rounds cost that are charged as its one round was."""
    rows = [
        dataclasses.replace(row, round_number=number)
        for number in range(1, rounds + 1)
        for row in client._store.rows()
    ]
    return RunningLedger(as_releases(rows, BUILT_IN)).claimed_with((), DELTA).epsilon


def invitation(run_id: str, number: int = 1) -> bytes:
    return messages.encode_invitation(Invitation(Envelope(run_id, number, 1), (), None))


def assignment(run_id: str, number: int = 1) -> bytes:
    mine = dataclasses.replace(good(), envelope=Envelope(run_id, number, 1))
    return messages.encode_assignment(mine)


def test_two_runs_that_each_could_afford_a_round_do_not_both_get_one(folder):
    alone = client_of(AnyMethod(), folder / "alone")
    alone = limited(alone, "run", 1e9)
    alone.handle(invitation("run"))
    alone.handle(assignment("run"))
    budget = 1.1 * spent(alone)

    client = client_of(AnyMethod(), folder / "both")
    one, other = (limited(client, run_id, budget) for run_id in ("one", "other"))
    for each, run_id in ((one, "one"), (other, "other")):
        each.handle(invitation(run_id))
    one.handle(assignment("one"))
    before = client._store.rows()
    with pytest.raises(BudgetExhausted, match="lifetime_budget"):
        other.handle(assignment("other"))
    assert client._store.rows() == before
    assert spent(client) <= budget


def test_a_lifetime_is_not_read_anew_in_every_round(folder, monkeypatch):
    """Else a long life makes every round dear; what another run adds is found all the same."""
    client = limited(client_of(AnyMethod(), folder / "one"), "run", 1e9)
    store, read = client._store, []
    whole = type(store).rows
    monkeypatch.setattr(
        type(store),
        "rows",
        lambda self, run_id=None, attempt=None: (
            read.append((run_id, attempt)) or whole(self, run_id, attempt)
        ),
    )
    for number in (1, 2, 3):
        asked = Envelope("run", number, 1)
        client.handle(messages.encode_invitation(Invitation(asked, (), None)))
        mine = dataclasses.replace(good(), envelope=asked)
        client.handle(messages.encode_assignment(mine))
    assert [what for what in read if what[1] is None] == [("run", None), (None, None)]
    other = limited(client, "another", 1e9)
    other.handle(invitation("another"))
    other.handle(assignment("another"))
    read.clear()
    asked = Envelope("run", 4, 1)
    client.handle(messages.encode_invitation(Invitation(asked, (), None)))
    assert (None, None) in read
    life = client._spending._life(client._spending._counted)
    assert life.claimed_with((), DELTA).epsilon == spent(client)


def test_what_another_process_was_charged_in_the_run_is_counted(folder):
    """Two processes answer for one client in turn, so that neither makes all of its releases."""
    one = limited(client_of(AnyMethod(), folder / "one"), "run", 1e9)
    for asked in (invitation, assignment):
        one.handle(asked("run"))
    target = 0.999 * spent_after(one, 3)
    client = client_of(AnyMethod(), folder / "two")
    first, second = (aimed(client, "run", target) for _ in range(2))
    first.handle(invitation("run"))
    second.handle(assignment("run"))
    second.handle(invitation("run", 2))
    first.handle(assignment("run", 2))
    before = client._store.rows()
    assert len({row.round_number for row in before}) == 2
    with pytest.raises(BudgetExhausted, match="target_epsilon"):
        first.handle(invitation("run", 3))
    assert client._store.rows() == before
