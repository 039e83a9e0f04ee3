"""The attempts of a run that are charged: without a result, still to come, and all as planned.

An epsilon that is composed of the releases so far holds if their number was fixed beforehand. If an
operator stops because of the releases and then quotes that epsilon, its delta is larger: five times
the stated delta after 10 rounds, ten times after 100 (Gaussian noise at 1e-5). The price of all
planned attempts holds at every stop. The releases until the stop are a part of the releases of the
whole plan, and taking a part is post-processing (Dwork and Roth 2014, Proposition 2.1), if the stop
depended only on releases and on nothing else of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from platform.agreement.reading import Agreed, RunRecords
from platform.config import RunConfig
from platform.protection.charging import as_releases, is_charged
from platform.rounds.documents import COLLECTION, epsilon_document, in_rounds
from privacy import Release, RunningLedger, UnsupportedEvent, affordable_rounds
from storage import LedgerRow

Place = tuple[int, int]
"""Round and attempt."""

State = Literal["open", "aborted", "lost"]

ENDED: Final[Mapping[str, State]] = {"round.aborted": "aborted", "round.lost": "lost"}
"""The state of an attempt, by the action of the audit entry that ended it."""


@dataclass(frozen=True, kw_only=True)
class Fruitless:
    """One attempt that has no result, or no result yet.

    Attributes:
        state: `open`: it goes on, maybe after a resumption; `aborted`: given up, another attempt
            may follow; `lost`: given up for good, so the round stays without a result.
        why: The phase in which it ended, or the reason; None while it is open.
    """

    round_number: int
    attempt: int
    state: State
    why: str | None
    charged: int

    @property
    def place(self) -> Place:
        """Round and attempt."""
        return self.round_number, self.attempt


def place_of(row: LedgerRow) -> Place:
    """Return the attempt of a ledger row."""
    return row.round_number, row.attempt


def fruitless_attempts(records: RunRecords) -> tuple[Fruitless, ...]:
    """Return the attempts without a result, in order."""
    charged: dict[Place, set[str]] = {}
    for row in records.ledger:
        if is_charged(row):
            charged.setdefault(place_of(row), set()).add(row.pseudonym)
    found: dict[Place, tuple[State, str | None]] = {}
    for item in records.entries(*ENDED):
        place = item.entry.round or 0, int(item.detail.get("attempt", 0))
        why = item.detail.get("reason", item.detail.get("phase"))
        found[place] = ENDED[item.entry.action], None if why is None else str(why)
    newest = records.attempt
    if newest is not None and newest.is_open:
        found[newest.round_number, newest.attempt] = "open", None
    return tuple(
        Fruitless(
            round_number=place[0],
            attempt=place[1],
            state=state,
            why=why,
            charged=len(charged.get(place, ())),
        )
        for place, (state, why) in sorted(found.items())
    )


THEOREM: Final = "(post-processing: Dwork and Roth 2014, Proposition 2.1)"


def stopping_document(
    ledger: Sequence[LedgerRow], config: RunConfig, training: Collection[int]
) -> dict[str, Any] | None:
    """Return how many attempts were charged and planned, and the epsilon that holds at every end.

    The collection of a pool that is made once counts if it was charged. `training` has the numbers
    of the rounds that train. The result is None if the mechanism claims nothing or nothing was
    charged.
    """
    rows = [row for row in ledger if is_charged(row) and row.round_number in training]
    if not (config.mechanism.facts.claims and rows):
        return None
    section = config.privacy
    charged, planned = len({place_of(row) for row in rows}), config.rounds + section.spare_attempts
    attempts = Counter(name for name, _ in {(row.pseudonym, place_of(row)) for row in rows})
    whole = RunningLedger(as_releases(ledger, config.mechanisms))
    if charged < planned:
        for release in releases_of_a_round(ledger, config, training):
            whole.add(
                replace(release, pseudonym=name, count=release.count * (planned - done))
                for name, done in attempts.items()
            )
    known = epsilon_document(whole.epsilons(section.target_delta, section.accountant))
    return {
        "as_planned": charged == planned,
        "attempts": charged,
        "planned_attempts": planned,
        "epsilon": None if charged > planned else known,
        "holds": _holds(charged, planned, known),
    }


def _holds(charged: int, planned: int, known: Mapping[str, float | str]) -> str:
    if charged == planned:
        return "the end was planned: epsilon is for rounds whose number was fixed beforehand"
    if charged > planned:
        return (
            f"{charged} attempts were charged and {planned} were planned: every epsilon is for a "
            "number of attempts that is fixed beforehand, and none holds where released numbers "
            "ended the run"
        )
    stated = "/".join(n if isinstance(n, str) else f"{n:.2f}" for n in known.values())
    return (
        f"{charged} of {planned} planned attempts were charged: the epsilon of a round is for one "
        "that was fixed beforehand; whichever released numbers ended the run, epsilon for "
        f"{'/'.join(known)} is at most {stated}, that of all planned attempts {THEOREM}"
    )


def stopping_warnings(found: Mapping[str, Any] | None) -> list[str]:
    """Return the warnings of a run whose end was not planned."""
    return [] if found is None or found["as_planned"] else [found["holds"]]


def releases_of_a_round(
    ledger: Sequence[LedgerRow], config: RunConfig, training: Collection[int]
) -> list[Release]:
    """Return one round's releases in a client's ledger, empty before the first charge."""
    # Other rows belong to the collection of a pool that is made once.
    rows = [row for row in ledger if row.round_number in training]
    if not rows:
        return []
    first = max(rows, key=lambda row: (row.round_number, row.attempt))
    same = [r for r in rows if (place_of(r), r.pseudonym) == (place_of(first), first.pseudonym)]
    return [
        replace(
            release,
            status="reserved",
            left_client=True,
            # Priced as if the client were drawn into each round.
            cohort=None if release.cohort is None else replace(release.cohort, is_drawn=True),
        )
        for release in as_releases(same, config.mechanisms)
    ]


@dataclass(frozen=True)
class Coming:
    """The rounds of a run that are not charged yet.

    Attributes:
        releases: The releases that one round adds to a client's ledger; empty before the first
            charge, because only ledger rows tell what a round releases.
    """

    rounds: int
    releases: tuple[Release, ...]

    def affordable(
        self, spent: RunningLedger, pseudonym: str, limit: float | None, agreed: Agreed
    ) -> int | None:
        """Return how many further rounds fit under a limit, each charged to one client.

        `spent` is the client's spending, in the run or in its life. The answer is at most
        `MOST_ROUNDS`; None without a limit or a price.
        """
        if limit is None or not self.releases:
            return None
        section = agreed.config.privacy
        planned = [replace(row, pseudonym=pseudonym) for row in self.releases]
        try:
            return affordable_rounds(
                spent,
                planned,
                section.target_delta,
                target_epsilon=limit,
                accountant=section.accountant,
                likely=self.rounds,
            )
        except UnsupportedEvent:
            return None


def rounds_to_come(agreed: Agreed) -> Coming | None:
    """Return the rounds that a run has still to hold, None if it releases nothing more.

    A run that has ended releases nothing more. A second phase releases nothing either: it uses the
    releases of its first run. The ledger tells the cost of a round: under a norm that adapts, only
    the ratio of noise to norm has a price, and the ratio does not change.
    """
    if agreed.summary is not None or agreed.config.phase_two_of is not None:
        return None
    records, training = agreed.spending, training_rounds(agreed.spending, agreed.config.rounds)
    trained = in_rounds([row.document for row in records.rounds])
    reached = max((int(document["round"]) for document in trained), default=0)
    newest = records.attempt
    if newest is not None and newest.is_open:
        # An open attempt is charged already.
        reached = max(reached, newest.round_number)
    coming = sum(number > reached for number in training)
    return Coming(coming, tuple(releases_of_a_round(records.ledger, agreed.config, training)))


def training_rounds(records: RunRecords, rounds: int) -> range:
    """Return the numbers of the planned rounds that train.

    They begin at 2 if the records show a collection before them, else at 1.
    """
    newest = records.attempt
    phases = {row.round_number: row.document.get("phase") for row in records.rounds}
    opening = newest is not None and newest.round_number == 1 and newest.plan.get("collects")
    first = 2 if phases.get(1) == COLLECTION or opening else 1
    return range(first, first + rounds)
