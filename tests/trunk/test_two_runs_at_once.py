"""One client in two runs at once: what it lets itself be charged in its life holds over both."""

from __future__ import annotations

import dataclasses

import pytest

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


def within(client: Client, run_id: str, **limits: float) -> Client:
    bound = Limits(delta=DELTA, accountant="auto", **limits)
    guarded = dataclasses.replace(client.profile.safeguards, limits=bound)
    profile = dataclasses.replace(client.profile, run=RunNames(run_id), safeguards=guarded)
    return Client(profile, client._store, client._make_trainer)


def spent(client: Client, rounds: int | None = None) -> float:
    """Of all that was charged, or of so many rounds that are charged as its one round was."""
    rows = client._store.rows()
    if rounds is not None:
        rows = [
            dataclasses.replace(row, round_number=number + 1)
            for number in range(rounds)
            for row in rows
        ]
    return RunningLedger(as_releases(rows, BUILT_IN)).claimed_with((), DELTA).epsilon


def ask(client: Client, run_id: str, number: int = 1) -> None:
    client.handle(invitation(run_id, number))
    client.handle(assignment(run_id, number))


def invitation(run_id: str, number: int = 1) -> bytes:
    return messages.encode_invitation(Invitation(Envelope(run_id, number, 1), (), None))


def assignment(run_id: str, number: int = 1) -> bytes:
    mine = dataclasses.replace(good(), envelope=Envelope(run_id, number, 1))
    return messages.encode_assignment(mine)


def test_two_runs_that_each_could_afford_a_round_do_not_both_get_one(stores):
    alone = within(client_of(AnyMethod(), stores / "alone"), "run", lifetime_budget=1e9)
    ask(alone, "run")
    budget = 1.1 * spent(alone)
    client = client_of(AnyMethod(), stores / "both")
    one, other = (within(client, run_id, lifetime_budget=budget) for run_id in ("one", "other"))
    for each, run_id in ((one, "one"), (other, "other")):
        each.handle(invitation(run_id))
    one.handle(assignment("one"))
    before = client._store.rows()
    with pytest.raises(BudgetExhausted, match="lifetime_budget"):
        other.handle(assignment("other"))
    assert client._store.rows() == before
    assert spent(client) <= budget


def test_a_lifetime_is_not_read_anew_in_every_round(stores, monkeypatch):
    """Else a long life makes every round dear; what another run adds is found all the same."""
    client = within(client_of(AnyMethod(), stores / "one"), "run", lifetime_budget=1e9)
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
        ask(client, "run", number)
    assert [what for what in read if what[1] is None] == [("run", None), (None, None)]
    ask(within(client, "another", lifetime_budget=1e9), "another")
    read.clear()
    client.handle(invitation("run", 4))
    assert (None, None) in read
    life = client._spending._life(client._spending._counted)
    assert life.claimed_with((), DELTA).epsilon == spent(client)


def test_what_another_process_was_charged_in_the_run_is_counted(stores):
    """Two processes answer for one client in turn, so that neither makes all of its releases."""
    one = within(client_of(AnyMethod(), stores / "one"), "run", lifetime_budget=1e9)
    ask(one, "run")
    target = 0.999 * spent(one, 3)
    client = client_of(AnyMethod(), stores / "two")
    first, second = (within(client, "run", target_epsilon=target) for _ in range(2))
    first.handle(invitation("run"))
    second.handle(assignment("run"))
    second.handle(invitation("run", 2))
    first.handle(assignment("run", 2))
    before = client._store.rows()
    assert len({row.round_number for row in before}) == 2
    with pytest.raises(BudgetExhausted, match="target_epsilon"):
        first.handle(invitation("run", 3))
    assert client._store.rows() == before
