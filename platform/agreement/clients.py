"""Whether the clients' own ledgers tell of the same releases as the coordinator's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from platform.agreement.ledgers import place
from platform.agreement.reading import RunRecords
from platform.protection.charging import law_of
from storage import LedgerRow, RoundRecord

COHORT = ("cohort_kind", "cohort_size", "cohort_population", "cohort_drawn")
"""What a client does not know of its row: how the coordinator drew it."""

Key = tuple[int, int, str, str]


@dataclass(frozen=True)
class OwnLedger:
    """What one client keeps itself.

    Attributes:
        client: Its name, as rounds list survivors.
        pseudonym: Its name in ledgers.
        rows: Its own ledger, over all runs.
    """

    client: str
    pseudonym: str
    rows: tuple[LedgerRow, ...]


def client_disagreements(
    records: RunRecords, own: Sequence[OwnLedger], rounds_then: Sequence[RoundRecord]
) -> Iterator[str]:
    """Yield where a client's own ledger and the coordinator's differ.

    Args:
        records: The coordinator's.
        own: The clients'.
        rounds_then: The rounds that were over before `own` was read: of a run that goes on
            meanwhile, what a client wrote later is not in `own`.
    """
    known = {ledger.pseudonym for ledger in own}
    for row in records.ledger:
        if row.pseudonym not in known:
            yield (
                f"a client's store is missing or another's: none is of ledger {place(row)}; put it "
                "back or start a new run"
            )
            return
    mine = {_key(row): row for row in records.ledger}
    for ledger in own:
        theirs = {_key(row): row for row in ledger.rows if row.run_id == records.run_id}
        for key, row in theirs.items():
            yield from _compared(ledger, row, mine.get(key))
        yield from _missing(records, ledger, theirs, rounds_then)


def _key(row: LedgerRow) -> Key:
    return row.round_number, row.attempt, row.channel, row.pseudonym


def _compared(ledger: OwnLedger, own: LedgerRow, row: LedgerRow | None) -> Iterator[str]:
    where = f"{place(own)} of {ledger.client}'s own ledger"
    if row is None:
        yield f"{where} is not in the coordinator's"
        return
    if row.status == "aborted":
        yield f"{where} is aborted in the coordinator's, though the client had made its upload"
    if own.status == "released" and row.status != "released":
        yield f"{where} is released, but {row.status} in the coordinator's"
    if row.cohort_drawn is False:
        yield f"{where} is of a client that was not drawn, says the coordinator's"
    # An attempt that was open when the software was replaced may name its law on one side only.
    facts, theirs = ({**asdict(one), "noise_kind": law_of(one)} for one in (own, row))
    for name in facts:
        unknown = name in COHORT and facts[name] is None
        if name != "status" and not unknown and facts[name] != theirs[name]:
            yield (
                f"{where}: {name} is {facts[name]!r} there and {theirs[name]!r} in the "
                "coordinator's"
            )


def _missing(
    records: RunRecords,
    ledger: OwnLedger,
    theirs: Mapping[Key, LedgerRow],
    rounds_then: Sequence[RoundRecord],
) -> Iterator[str]:
    """Yield a survivor made its upload, so it has a row; one that was lost may have none."""
    survived = {
        (row.round_number, row.attempt)
        for row in rounds_then
        if ledger.client in row.document.get("survivors", ())
    }
    for row in records.ledger:
        if row.pseudonym != ledger.pseudonym or (row.round_number, row.attempt) not in survived:
            continue
        if _key(row) not in theirs:
            yield f"ledger {place(row)} is not in {ledger.client}'s own ledger, though it survived"
        if row.status != "released":
            yield f"ledger {place(row)} is {row.status}, though {ledger.client} survived"
