"""A run is the same over any transport, as clients are known by their messages alone.

Whole runs with three clients, once as everybody runs them, and with messages that come in any
order, late and twice, or not at all. What a run leaves behind must be the same, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from itertools import product
from typing import Any

import numpy as np
import pytest

from platform.errors import ClientsSilent, ProtocolError
from platform.rounds.asking import TRIES
from platform.wire.messages import Stage
from platform.wire.transport import ClientId, Dropout, InProcessTransport, Transport
from tests.trunk._runs import NONE, Finished, Storage, opened
from tests.trunk._transports import RUNS, carried, left_behind, require_same, run_in_process


@pytest.fixture(scope="module", params=RUNS)
def reference(request: pytest.FixtureRequest, make_storage: Any) -> tuple[str, Finished]:
    return run_in_process(request.param, make_storage)


class Disorder:
    """Delivers in any order, answers in another, and delivers what was delivered long ago again."""

    def __init__(self, within: InProcessTransport) -> None:
        self.within, self.rng = within, np.random.default_rng(11)
        self.old: list[tuple[ClientId, bytes]] = []
        self.replayed = self.refused = 0

    def exchange(self, stage, messages, deadline):
        replies: dict[ClientId, bytes | Dropout] = {}
        for client in self.rng.permutation(sorted(messages)).tolist():
            self._replay()
            time.sleep(float(self.rng.random()) / 500)
            replies[client] = self.within._deliver(client, messages[client])
            self.old.append((client, messages[client]))
        return {client: replies[client] for client in self.rng.permutation(sorted(replies))}

    def _replay(self) -> None:
        for at in self.rng.integers(0, len(self.old), 2).tolist() if self.old else ():
            client, message = self.old[at]
            self.replayed += 1
            try:
                self.within.handlers[client](message)
            except ProtocolError:
                self.refused += 1


@pytest.mark.slow
def test_a_run_whose_messages_come_late_and_in_any_order(storage, reference):
    made: list[Disorder] = []

    def carry(within: InProcessTransport) -> Transport:
        made.append(Disorder(within))
        return made[-1]

    require_same(storage, reference, carry)
    (transport,) = made
    # Old rounds' messages are refused, those of now and outside rounds are answered as before.
    assert 0 < transport.refused < transport.replayed


@dataclasses.dataclass
class Deaf:
    """Hears nothing of one client at one stage, for some times, or garbage."""

    within: InProcessTransport
    stage: Stage
    times: int
    garbage: bytes | None = None
    reached: bool = True

    def exchange(self, stage, messages, deadline):
        name, hears = "client-00001", dict(messages)
        is_lost = stage == self.stage and name in messages and self.times > 0
        if is_lost and not self.reached:
            del hears[name]
        replies = dict(self.within.exchange(stage, hears, deadline))
        if is_lost:
            self.times -= 1
            replies.pop(name, None)
            if self.garbage is not None:
                replies[name] = self.garbage
        return replies


PERSONALISED = "a pool that is made once, then personalised"
OUTSIDE: tuple[Stage, ...] = ("join", "claim", "personalise", "evaluate")


@pytest.fixture(scope="module")
def gathered(make_storage: Any) -> Finished:
    place: Storage = make_storage("gathered").gathering()
    return place.run(*RUNS[PERSONALISED])


@pytest.mark.parametrize(
    ("stage", "reached"),
    [
        ("personalise", True),
        *(
            pytest.param(stage, reached, marks=pytest.mark.slow)
            for stage, reached in product(OUTSIDE, (True, False))
            if (stage, reached) != ("personalise", True)
        ),
    ],
)
def test_a_message_that_is_lost_is_repeated(storage, gathered, stage, reached):
    gathering = storage.gathering()
    place = carried(gathering, lambda within: Deaf(within, stage, TRIES - 1, None, reached))
    assert left_behind(place.run(*RUNS[PERSONALISED])) == left_behind(gathered)


@pytest.mark.parametrize(
    ("stage", "garbage"),
    [
        ("claim", None),
        *(
            pytest.param(stage, garbage, marks=pytest.mark.slow)
            for stage, garbage in product(OUTSIDE, (None, b"", b"SOTTO"))
            if (stage, garbage) != ("claim", None)
        ),
    ],
)
def test_a_run_that_cannot_hear_a_client_stops_and_goes_on_later(storage, gathered, stage, garbage):
    place = storage.gathering()
    deaf = carried(place, lambda within: Deaf(within, stage, 1_000, garbage))
    with pytest.raises(ClientsSilent) as stopped:
        deaf.run(*RUNS[PERSONALISED])
    run_id = place.only_run()
    assert f"stage {stage}" in str(stopped.value) and f"--resume {run_id}" in str(stopped.value)
    # Nothing is half written: no report, and no round beyond those that are whole.
    assert not (place.folder / run_id / "summary.json").exists()
    rounds = {"join": 0, "evaluate": 0, "claim": 3, "personalise": 3}[stage]
    assert len(place.rows("SELECT 1 FROM rounds")) == rounds
    assert place.rows("SELECT status FROM runs WHERE status = 'finished'") == []
    found, expected = left_behind(place.resume(run_id)), left_behind(gathered)
    # Of the resumed run the log says that it was.
    assert {**found, "audit": None} == {**expected, "audit": None}


def test_two_clients_of_one_name_stop_the_run(storage: Storage) -> None:
    """One of them would be charged for both."""

    def carry(within: InProcessTransport) -> Transport:
        first = within.handlers["client-00000"]
        return dataclasses.replace(within, handlers=dict.fromkeys(within.handlers, first))

    place = carried(storage, carry)
    with pytest.raises(Exception, match="two clients have the pseudonym"):
        place.create(NONE)
    with opened(storage.reopen(storage.only_run())) as again:
        assert len(set(again.run.roll.pseudonyms.values())) == 5
