"""How many further rounds fit under a limit, at the noise that a run's ledger charges already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from platform.agreement.reading import Agreed
from platform.protection.ledger_rows import as_releases
from platform.rounds.phases import COLLECTION, in_rounds
from privacy import Release, RunningLedger, UnsupportedEvent, affordable_rounds


@dataclass(frozen=True)
class Coming:
    """The rounds of a run that nobody has been charged for yet.

    Attributes:
        rounds: How many the configuration plans.
        releases: What one of them adds to a client's ledger; empty where nothing has been charged
            so far, so that no row says what a round releases.
    """

    rounds: int
    releases: tuple[Release, ...]

    def affordable(
        self, spent: RunningLedger, pseudonym: str, limit: float | None, agreed: Agreed
    ) -> int | None:
        """Return how many further rounds fit under a limit, each charged to one client.

        Args:
            spent: What the client has spent, in the run or in its life.
            pseudonym: The client.
            limit: What it may spend; None without limit.
            agreed: The run, which says who prices and at which delta.

        Returns:
            So many rounds, `MOST_ROUNDS` for so many or more; None where nothing limits them, or
            nobody can say.
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
    """Return what a run has still to release; None of one that releases nothing any more.

    A run that has ended releases nothing, nor does a second phase, which rests on the releases of
    its first run. What a round costs is read from the ledger: with a norm that adapts only the
    ratio of noise to norm is priced, and that stays.
    """
    if agreed.summary is not None or agreed.config.phase_two_of is not None:
        return None
    records, training = agreed.spending, _training_rounds(agreed)
    trained = in_rounds([row.document for row in records.rounds])
    reached = max((int(document["round"]) for document in trained), default=0)
    newest = records.attempt
    if newest is not None and newest.is_open:
        # It is charged already.
        reached = max(reached, newest.round_number)
    coming = sum(number > reached for number in training)
    return Coming(coming, tuple(_releases_of_a_round(agreed, training)))


def _training_rounds(agreed: Agreed) -> range:
    """Return the numbers of the rounds that train.

    From 2 where a pool is made once before them, and from 1 where nothing says so yet.
    """
    records, rounds = agreed.spending, agreed.config.rounds
    newest = records.attempt
    phases = {row.round_number: row.document.get("phase") for row in records.rounds}
    opening = newest is not None and newest.round_number == 1 and newest.plan.get("collects")
    first = 2 if phases.get(1) == COLLECTION or opening else 1
    return range(first, first + rounds)


def _releases_of_a_round(agreed: Agreed, training: range) -> Sequence[Release]:
    config = agreed.config
    # What is before or after them is the collection of a pool that is made once.
    rows = [row for row in agreed.spending.ledger if row.round_number in training]
    if not rows:
        return ()
    first = max(rows, key=lambda row: (row.round_number, row.attempt))
    same = [
        row
        for row in rows
        if (row.round_number, row.attempt, row.pseudonym)
        == (first.round_number, first.attempt, first.pseudonym)
    ]
    found = as_releases(same, config.mechanisms)
    return [
        replace(
            release,
            status="reserved",
            left_client=True,
            # As if it were drawn into each of them.
            cohort=None if release.cohort is None else replace(release.cohort, is_drawn=True),
        )
        for release in found
    ]
