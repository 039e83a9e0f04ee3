"""What holds of a run's epsilon however its end came about.

An epsilon that is composed of the releases so far holds if their number was fixed beforehand. Who
stops because of what was released, and then quotes that number, has a larger delta: five times the
stated one after 10 rounds, ten times after 100 (Gaussian noise at 1e-5). The price of all attempts
that were planned holds at every stop: what was released until then is a part of what the whole plan
would have released, and taking a part is post-processing (Dwork and Roth 2014, Proposition 2.1),
provided that the stop followed from what was released and from nothing else of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from platform.agreement.fruitless import is_charged, place_of
from platform.config import RunConfig
from platform.protection.charging import as_releases
from platform.rounds.documents import epsilon_document
from privacy import Release, RunningLedger
from storage import LedgerRow

THEOREM: Final = "(post-processing: Dwork and Roth 2014, Proposition 2.1)"


def stopping_document(
    ledger: Sequence[LedgerRow], config: RunConfig, training: Collection[int]
) -> dict[str, Any] | None:
    """Return how many attempts were charged and planned, and the epsilon that holds at every end.

    A pool that is made once counts as far as it was charged.

    Args:
        ledger: All rows of the run.
        config: The run's.
        training: The numbers of the rounds that train.

    Returns:
        None where nothing is claimed or nothing was charged so far.

    Raises:
        UnsupportedEvent: If the rows cannot be priced together.
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
    """Return what must be said where a run's end was not planned."""
    return [] if found is None or found["as_planned"] else [found["holds"]]


def releases_of_a_round(
    ledger: Sequence[LedgerRow], config: RunConfig, training: Collection[int]
) -> list[Release]:
    """Return what one round adds to a client's ledger, empty where none was charged yet."""
    # What is before or after them is the collection of a pool that is made once.
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
            # As if it were drawn into each of them.
            cohort=None if release.cohort is None else replace(release.cohort, is_drawn=True),
        )
        for release in as_releases(same, config.mechanisms)
    ]
