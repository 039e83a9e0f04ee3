"""Two rounds of a masked sum, the second one with keys that were made in the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from platform.rounds.plan import Following, RoundOutcome, RoundPlan
from platform.rounds.runner import AHEAD, Journal, MemoryJournal, RoundRunner, encode_keys
from platform.wire.messages import Stage
from platform.wire.transport import ClientId, Dropout, Transport
from tests.trunk._secure import Cohort


@dataclass
class Overheard:
    """Keeps each exchange's stage, and by stage and client what was sent and answered."""

    inner: Transport
    stages: list[Stage] = field(default_factory=list)
    seen: dict[tuple[Stage, ClientId], tuple[bytes, bytes]] = field(default_factory=dict)

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        self.stages.append(stage)
        replies = self.inner.exchange(stage, messages, deadline)
        for client, reply in replies.items():
            if not isinstance(reply, Dropout):
                self.seen[stage, client] = messages[client], reply
        return replies


def first_plan(found: Cohort) -> RoundPlan:
    """The first round, whose last message asks all for the keys of the second."""
    plan = found.plan
    assert plan.secure is not None
    following = Following(plan.cohort, plan.graph_seed)
    return dataclasses.replace(plan, secure=dataclasses.replace(plan.secure, following=following))


def second_plan(found: Cohort, outcome: RoundOutcome, attempt: int = 1) -> RoundPlan:
    committed = dict.fromkeys(outcome.survivors, (1, 1))
    return dataclasses.replace(found.plan, round_number=2, attempt=attempt, committed=committed)


def hold(
    found: Cohort, plan: RoundPlan, transport: Transport, journal: Journal | None = None
) -> RoundOutcome:
    runner = RoundRunner(transport)
    return runner.run(
        plan, lambda client: {"x": np.zeros(1)}, lambda asked: [()] * len(asked), journal
    )


def opened_with(keys: Mapping[ClientId, bytes]) -> MemoryJournal:
    return MemoryJournal({AHEAD: encode_keys(keys)})


def first_round(found: Cohort, **losses: Any) -> tuple[RoundOutcome, Overheard]:
    ear = Overheard(found.transport(**losses))
    return hold(found, first_plan(found), ear), ear
