"""How many further rounds fit under a limit, at the noise that a run's ledger charges already."""

from __future__ import annotations

from dataclasses import dataclass, replace

from platform.agreement.reading import Agreed, RunRecords
from platform.agreement.stopping import releases_of_a_round
from platform.rounds.documents import COLLECTION, in_rounds
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
    records, training = agreed.spending, training_rounds(agreed.spending, agreed.config.rounds)
    trained = in_rounds([row.document for row in records.rounds])
    reached = max((int(document["round"]) for document in trained), default=0)
    newest = records.attempt
    if newest is not None and newest.is_open:
        # It is charged already.
        reached = max(reached, newest.round_number)
    coming = sum(number > reached for number in training)
    return Coming(coming, tuple(releases_of_a_round(records.ledger, agreed.config, training)))


def training_rounds(records: RunRecords, rounds: int) -> range:
    """Return the numbers of the rounds that train, of which so many are planned.

    From 2 where a pool is made once before them, and from 1 where nothing says so yet.
    """
    newest = records.attempt
    phases = {row.round_number: row.document.get("phase") for row in records.rounds}
    opening = newest is not None and newest.round_number == 1 and newest.plan.get("collects")
    first = 2 if phases.get(1) == COLLECTION or opening else 1
    return range(first, first + rounds)
